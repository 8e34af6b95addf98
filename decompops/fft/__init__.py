"""Fourier, cosine and sine transforms of sharded arrays: a drop-in replacement for `jax.numpy.fft` and `scipy.fft`.

The functions take the arguments of the functions in NumPy and SciPy, except for SciPy's `overwrite_x` and `workers`,
and their results have the same values, shapes and dtypes. The array is always called `x`. The mesh and the layout are
read from the sharding of the array. Devices exchange blocks; no device gathers the array.

All transforms take three more arguments by keyword:

- `mesh`: the device mesh. `None` means the ambient mesh of `jax.set_mesh`, or else the mesh of the array. If there is
    no mesh at all, the array is transformed on its device.
- `out_sharding`: a `PartitionSpec` or a `NamedSharding` for the result. `None` chooses the sharding that needs the
    fewest exchanges; among several such shardings, the one for which devices send the fewest bytes.
- `backend`: the backend that moves the data; `None` for the default of `dops.config`.

The functions raise `ValueError` or `TypeError` for arguments that NumPy or SciPy would refuse, for empty arrays, for an
`out_sharding` whose mesh axes are unknown or do not divide the result, and inside a `shard_map` over the whole mesh.
The functions also raise `ValueError` if no sequence of exchanges gives each device whole lines along every transformed
axis.
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
