"""Arrays of the host, as JAX takes them: in the byte order of the machine, and with 32 bits if 64-bit mode is off.

Files such as FITS hold big-endian numbers, which JAX refuses. NumPy's integers have 64 bits. Without 64-bit mode, JAX
drops their upper half in silence. `np.asarray` drops the mask of a masked array in silence.
"""

import reprlib
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.sharding import AbstractMesh, Mesh

from .agreement import check_agreement, check_same_array, raised_by_all_of
from .sharding import ambient_devices


def native(dtype: np.dtype) -> np.dtype:
    """Return `dtype` in the byte order of the machine."""
    return dtype if dtype.isnative else dtype.newbyteorder("=")


def check_mask(x: Any, name: str | None = None) -> None:
    """Raise `ValueError` for a masked array that hides values. Errors call the array `name`.

    With no value hidden, as most that netCDF4 reads, it is an array like others.
    """
    if isinstance(x, np.ma.MaskedArray) and np.ma.is_masked(x):
        called = "A masked array" if name is None else f"`{name}`"
        raise ValueError(
            f"{called} must hide no values, because its mask would be lost; got {np.ma.count_masked(x)} hidden ones. "
            "Call `.filled(value)` first, with the value that they shall have."
        )


def check_no_keys(dtype: Any, name: str | None = None) -> None:
    """Raise `TypeError` for the dtype of keys of `jax.random`. The error calls their array `name`."""
    if not isinstance(dtype, np.dtype) and jnp.issubdtype(dtype, jax.dtypes.extended):
        called = name or "x"
        raise TypeError(f"`{called}` must hold numbers; got {dtype}. For keys, pass `jax.random.key_data({called})`.")


def host_array(x: Any, name: str | None = None) -> np.ndarray:
    """Return `np.asarray(x)` in the byte order of the machine.

    Raises `ValueError` for a masked array that hides values, and for an array of which other processes have a part;
    `TypeError` for keys of `jax.random`. Errors call the array `name`.
    """
    check_mask(x, name)
    check_no_keys(getattr(x, "dtype", None), name)
    if isinstance(x, Array) and not isinstance(x, Tracer) and not (x.is_fully_addressable or x.is_fully_replicated):
        called = "An array" if name is None else f"`{name}`"
        raise ValueError(
            f"{called} must be in this process as a whole, but other processes have a part of it; got {x.sharding}. "
            "Pass what `jax.experimental.multihost_utils.process_allgather(x, tiled=True)` returns."
        )
    array = np.asarray(x)
    return array if array.dtype.isnative else array.astype(native(array.dtype))


_N = TypeVar("_N", bound=np.ndarray | int)


def fitting(x: _N, name: str | None = None) -> _N:
    """Return an array or a Python integer.

    Raises `ValueError` if JAX would cut its integers to 32 bits, and `TypeError` for an array of text, of dates or of
    objects. Errors call it `name`.
    """
    is_number = isinstance(x, int)
    dtype = np.dtype(int) if is_number else x.dtype
    if not (jnp.issubdtype(dtype, np.number) or dtype.kind == "b"):
        raise TypeError(f"`{name or 'x'}` must be an array of numbers; got {reprlib.repr(x)}.")
    if dtype.kind not in "iu" or ((wanted := jax.dtypes.canonicalize_dtype(dtype)) == dtype and not is_number):
        return x
    limits = np.iinfo(wanted)
    for extreme in (x,) if is_number else (x.min(), x.max()) if x.size else ():
        if not limits.min <= extreme <= limits.max:
            if not np.ndim(x):
                raise ValueError(
                    f"{'A number' if name is None else f'`{name}`'} must be a float if it does not fit {wanted}; got "
                    f"{extreme}. Write it as a float, such as `1e10`."
                )
            raise ValueError(
                f"{'A NumPy array' if name is None else f'`{name}`'} must hold integers that fit {wanted}, because "
                f'JAX is not in 64-bit mode; got {extreme}. Call `jax.config.update("jax_enable_x64", True)` first.'
            )
    return x


def device_array(x: Any, name: str | None = None, mesh: Mesh | AbstractMesh | None = None) -> Array:
    """Return `jnp.asarray(x)`. `x` may have any byte order.

    Raises `ValueError` for integers that JAX cannot hold, `TypeError` for what is no array, and `ValueError` if
    processes would put other numbers onto `mesh` or onto the mesh of `jax.set_mesh`. Errors call it `name`.

    Programs take the result as it is: where nothing puts it onto a mesh before, callers pass the `mesh`.
    """
    if isinstance(x, Array):
        check_no_keys(x.dtype, name)
        return x
    on_device = hasattr(x, "__jax_array__") or hasattr(x, "__cuda_array_interface__")
    x = host_array(x, name) if hasattr(x, "__array__") and not on_device else x  # Also arrays of pandas, for example.
    x = fitting(x, name) if isinstance(x, np.ndarray | int) else x
    mesh = mesh if isinstance(mesh, Mesh) else ambient_devices()
    if isinstance(x, np.ndarray) and mesh is not None and not mesh.empty:
        check_same_array(mesh, x, name or "x")
    try:
        return jnp.asarray(x)
    except (TypeError, ValueError):
        raise TypeError(f"`{name or 'x'}` must be an array of numbers; got {reprlib.repr(x)}.") from None


def agreed_array(mesh: Mesh | AbstractMesh, array: Any, where: Any, name: str) -> np.ndarray:
    """Return an array on the host, in a dtype that JAX has.

    Raises `ValueError` on every process if one of them refuses its array, or for the reasons of `check_agreement`.
    """
    with raised_by_all_of(mesh):
        array = fitting(host_array(array, "array"), "array")
    check_agreement(mesh, array, where, name)
    return array


def dtype_of(x: Any) -> np.dtype:
    """Return `jnp.result_type(x)`. `x` may have any byte order."""
    # JAX warns of a dtype of 64 bits without 64-bit mode, but not of an array that has it.
    return jnp.result_type(np.empty(0, native(x.dtype)) if isinstance(x, np.ndarray | np.generic) else x)
