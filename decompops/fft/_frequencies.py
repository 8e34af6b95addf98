"""Frequencies of Fourier modes, and arrays with frequency zero in the middle."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Float, Shaped

from .._common.check import check_count, check_number
from .._common.placement import place
from .._common.sharding import ambient_mesh, mesh_of
from .._common.typed import as_on_auto_axes
from .._core.reductions import wide
from .._operator.transform import real_dtype
from ._call import as_array, check_array_axes, refuse_blocks
from ._fourier import AnyMesh, OutSharding, X


Frequencies = Float[Array, " modes"]
Shifted = Shaped[Array, "*shape"]


def fftfreq(
    n: int, d: Any = 1.0, *, dtype: Any = None, mesh: AnyMesh = None, out_sharding: OutSharding = None
) -> Frequencies:
    """Return the frequencies of the modes of `fft` for `n` points with spacing `d`, in cycles per unit of `d`.

    - `dtype`: a real dtype. The default is JAX's default, float32 or float64.
    - `out_sharding`: the sharding of the result, on `mesh` or the ambient mesh. By default, the result is replicated.

    **Raises:** `ValueError` if `n` is not a positive integer, or if `d` is zero or not finite; `TypeError` if `d` is
    not one real number, or if `dtype` is not real.
    """
    return _sharded("fftfreq", _frequencies(jnp.fft.fftfreq, n, d, dtype), mesh, out_sharding)


def rfftfreq(
    n: int, d: Any = 1.0, *, dtype: Any = None, mesh: AnyMesh = None, out_sharding: OutSharding = None
) -> Frequencies:
    """Return the frequencies of the modes of `rfft` for `n` points with spacing `d`. Options: as in `fftfreq`."""
    return _sharded("rfftfreq", _frequencies(jnp.fft.rfftfreq, n, d, dtype), mesh, out_sharding)


def _frequencies(function: Callable, n: int, d: Any, dtype: Any) -> Array:
    """Return the frequencies. `n d` may leave the range of integers and of half precision."""
    dtype = real_dtype(dtype)
    check_number("d", d)
    if not isinstance(d, Tracer) and float(d) == 0:
        raise ValueError(f"`d` must not be zero; got {d!r}.")
    precise = wide(dtype)
    d = jnp.asarray(d, precise) if isinstance(d, Tracer) else float(d)
    return function(check_count("n", n), d, dtype=precise).astype(dtype)


def _sharded(name: str, values: Array, mesh: AnyMesh, out_sharding: OutSharding) -> Array:
    if out_sharding is None:
        return values
    if isinstance(out_sharding, PartitionSpec):
        mesh = ambient_mesh() if mesh is None else mesh
        if mesh.empty:
            raise ValueError(
                f"`out_sharding` of `{name}` must be a `NamedSharding` if there is no ambient mesh; got "
                f"{out_sharding}. Pass a `NamedSharding`, or pass `mesh=mesh` as well."
            )
        out_sharding = NamedSharding(mesh, out_sharding)
    try:
        out_sharding.shard_shape(values.shape)
    except ValueError as error:
        raise ValueError(f"`out_sharding` must divide {values.size} frequencies; got {out_sharding.spec}.") from error
    return place(values, out_sharding)


def fftshift(x: X, axes: int | Sequence[int] | None = None) -> Shifted:
    """Return `x` with frequency zero moved to the middle of `axes`, by default of all axes.

    The result is sharded like `x`. Devices exchange the shifted parts by collective permutes.
    """
    return _shifted(jnp.fft.fftshift, x, axes)


def ifftshift(x: X, axes: int | Sequence[int] | None = None) -> Shifted:
    """Return `x` shifted back: the inverse of `fftshift`."""
    return _shifted(jnp.fft.ifftshift, x, axes)


def _shifted(function: Callable, x: X, axes: int | Sequence[int] | None) -> Array:
    x = as_array(x)
    refuse_blocks(function.__name__, mesh_of(x))
    if axes is not None:
        axes = check_array_axes("axes", tuple(axes) if isinstance(axes, Sequence | np.ndarray) else axes, x.ndim)
    return as_on_auto_axes(functools.partial(function, axes=axes), x)
