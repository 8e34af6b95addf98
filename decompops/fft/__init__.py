"""Fourier, cosine and sine transforms of sharded arrays: a drop-in for `jax.numpy.fft` and `scipy.fft`.

The functions have the signatures, values, shapes and dtypes of NumPy and SciPy; their first argument is called `x`. The
mesh and the layout come from the array itself. No array is gathered on any device: devices exchange parts of it.

Transforms take three more arguments, by keyword:

- `mesh`: the device mesh. `None` is the ambient mesh of `jax.set_mesh`, else that of the array. An array on no mesh is
    transformed where it is.
- `out_sharding`: a `PartitionSpec` or a `NamedSharding` for the result. With `None` the result stays where it arises
    with the fewest exchanges and bytes.
- `backend`: what moves the data; `None` for the default of `dops.config`.

They raise `ValueError` or `TypeError` for what NumPy or SciPy would refuse, for arrays without cells, for an
`out_sharding` with mesh axes that the mesh does not have or that do not divide the result, where no exchange makes each
transformed axis whole, and inside a `shard_map` over the whole mesh.
"""

from ._cosine import (
    dct as dct,
    dctn as dctn,
    dst as dst,
    dstn as dstn,
    idct as idct,
    idctn as idctn,
    idst as idst,
    idstn as idstn,
)
from ._fourier import (
    fft as fft,
    fft2 as fft2,
    fftn as fftn,
    hfft as hfft,
    ifft as ifft,
    ifft2 as ifft2,
    ifftn as ifftn,
    ihfft as ihfft,
    irfft as irfft,
    irfft2 as irfft2,
    irfftn as irfftn,
    rfft as rfft,
    rfft2 as rfft2,
    rfftn as rfftn,
)
from ._frequencies import fftfreq as fftfreq, fftshift as fftshift, ifftshift as ifftshift, rfftfreq as rfftfreq
