"""Arrays in the byte order of the machine. JAX takes no others, but files such as FITS hold big-endian numbers."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array


def native(dtype: np.dtype) -> np.dtype:
    """Return `dtype` in the byte order of the machine."""
    return dtype if dtype.isnative else dtype.newbyteorder("=")


def host_array(x: Any) -> np.ndarray:
    """Return `np.asarray(x)` in the byte order of the machine."""
    array = np.asarray(x)
    return array if array.dtype.isnative else array.astype(native(array.dtype))


def device_array(x: Any) -> Array:
    """Return `jnp.asarray(x)`. `x` may have any byte order."""
    if isinstance(x, Array):
        return x
    return jnp.asarray(host_array(x) if isinstance(x, np.ndarray | np.generic) else x)


def dtype_of(x: Any) -> np.dtype:
    """Return `jnp.result_type(x)`. `x` may have any byte order."""
    return jnp.result_type(native(x.dtype) if isinstance(x, np.ndarray | np.generic) else x)
