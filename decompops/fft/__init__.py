"""Fourier, cosine and sine transforms of sharded arrays: a drop-in replacement for `jax.numpy.fft` and `scipy.fft`.

The functions take the same arguments as the functions in NumPy and SciPy, except for SciPy's `overwrite_x` and
`workers`. The results have the same values, shapes and dtypes as in NumPy and SciPy. The array argument is always
called `x`. The functions read the mesh and the layout from the sharding of the array. Devices exchange blocks; no
device gathers the array.

All transforms take three more arguments by keyword:

- `mesh`: the device mesh. `None` means the ambient mesh of `jax.set_mesh`, or else the mesh of the array. If there is
    no mesh at all, the array is transformed on its device.
- `out_sharding`: a `PartitionSpec` or a `NamedSharding` for the result. `None` chooses the sharding that needs the
    fewest exchanges; among several such shardings, the one for which devices send the fewest bytes.
- `backend`: the backend that moves the data; `None` for the default of `dops.config`.

The functions raise `ValueError` or `TypeError` if NumPy or SciPy would refuse the arguments, if the mesh axes of
`out_sharding` are unknown or do not divide the result, or if they are called inside a `shard_map` over the whole mesh.
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
