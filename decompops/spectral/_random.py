"""Random fields: white noise, and Gaussian random fields with a given power spectrum."""

import functools
import operator
from collections.abc import Callable
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.core import Tracer
from jax.sharding import PartitionSpec
from jaxtyping import Float, Key, UInt32

from .._common.box import Box
from .._common.keys import agreed_key, threefry
from .._common.remember import keep_if_traced
from .._common.sharding import manual_axes, map_blocks, mesh_in_context, mesh_with_devices, on_devices_of
from .._core.decomposition import Decomposition, check_decomposition
from .._operator.fft import FFT
from .._operator.transform import real_dtype
from ._check import check_periodic, of_transformed
from ._filter import IsotropicFilter
from ._shells import first_cell


class GaussianRandomField(eqx.Module):
    """A periodic Gaussian random field with a given power spectrum. The same key gives the same field on every mesh.

    The attribute `colour` is the linear operator that turns white noise of unit variance into a random field.

    !!! example

        ```python
        field = spectral.GaussianRandomField(fft, lambda k: k**-2.0)
        delta = field(jax.random.key(0))
        ```
    """

    colour: IsotropicFilter

    def __init__(self, fft: FFT, power: Callable):
        """**Arguments:**

        - `fft`: the transform, built with `real=True` and a `shape`.
        - `power`: the power spectrum P, a function of an array of |k| > 0 in radians per unit of length. In three
            dimensions, the variance of the field is the integral of P(k) d³k / (2π)³, so P has units of length cubed
            times the squared unit of the field. If P is negative for a mode, the field is NaN. `power` may be an
            `equinox.Module` with parameters. The mode k = 0 of the field is zero. If `fft` does not transform an axis,
            each point along this axis gets an independent field on the other axes.

        **Raises:** `TypeError` if `power` cannot be called, or if `fft` is not a transform; `ValueError` if `fft` takes
        complex fields, if it has no `shape`, or if it has a basis for walls such as `Cosine`.
        """
        if not callable(power):
            raise TypeError(f"`power` must be a function of |k|; got {power!r}.")
        shape = check_periodic(fft, " Between walls, apply an `IsotropicFilter` to `white_noise`.", real=True)
        spacing = tuple(length / n for length, n in zip(fft.box_lengths, shape))
        self.colour = IsotropicFilter(fft, _Amplitude(power, Box(of_transformed(fft, spacing))))

    def __call__(self, key: Key[Array, ""] | UInt32[Array, "_"], *, dtype: Any = None) -> Float[Array, "*field"]:
        """Return one field.

        **Arguments:**

        - `key`: a key of `jax.random`.
        - `dtype`: a real dtype; `None` for JAX's default.

        **Returns:** a real field, sharded like the input of `fft`, with padding if the mesh does not divide the grid.
        """
        keep_if_traced(self, key)
        return self.colour(white_noise(self.colour.decomposition, key, dtype=dtype))


class _Amplitude(eqx.Module):
    """The factors that turn white noise into a random field, as a function of |k|."""

    power: Callable
    cell: Box

    def __call__(self, k: Array) -> Array:
        power = self.power(jnp.where(k == 0, 1, k))
        # In single precision, the volume of a cell may be zero or infinite where the variance is not.
        spacing = [lax.optimization_barrier(jnp.asarray(length, k.dtype)) for length in cast(tuple, self.cell.lengths)]
        variance = jnp.where(k == 0, 0, functools.reduce(operator.truediv, spacing, power))
        # The square root has an infinite derivative at zero. So the derivative is set to zero for modes without power.
        return jnp.where(variance == 0, 0, jnp.sqrt(jnp.where(variance == 0, 1, variance)))


def white_noise(dec: Decomposition, key: Key[Array, ""] | UInt32[Array, "_"], *, dtype: Any = None) -> Array:
    """Draw independent standard normal numbers on a grid. The same key gives the same numbers on every mesh.

    **Arguments:**

    - `dec`: the decomposition, built with a `shape`.
    - `key`: a key of `jax.random`, of any implementation. The numbers are always drawn by JAX's default
        implementation, "threefry2x32".
    - `dtype`: a real dtype; `None` for JAX's default.

    **Returns:** a field in the pencils of the last axis: each device has whole lines along this axis. The field is
    padded with zeros if the mesh does not divide the grid.

    **Raises:** `TypeError` if `dec` is not a `Decomposition`, if `key` is not a key, or if `dtype` is not real;
    `ValueError` if `dec` has no `shape`, or if the function is called inside a `shard_map` over a mesh axis of `dec`.
    """
    check_decomposition(dec, "dec")
    for name in filter(manual_axes().__contains__, dec.mesh_axes):
        raise ValueError(
            f"`dec` must not shard the grid over mesh axis {name!r} inside a `shard_map` over that axis; got {dec}. "
            "Draw the noise outside the `shard_map`."
        )
    if not isinstance(agreed_key(dec.mesh, key), Tracer):
        mesh_with_devices(mesh_in_context(dec.mesh), key)  # This raises an error if the mesh has no devices.
    return _white_noise(dec, on_devices_of(dec.mesh, key), real_dtype(dtype))


@eqx.filter_jit
def _white_noise(dec: Decomposition, key: Array, dtype: np.dtype) -> Array:
    layout = dec.blocks(-1)
    *lengths, last = layout.lengths

    def line(key: Array, *place: Array) -> Array:
        for index in place:
            key = jax.random.fold_in(key, index)
        values = jax.random.normal(key, (last,), dtype)
        inside = [index < length for index, length in zip(place, lengths)]
        return jnp.where(functools.reduce(operator.and_, inside), values, 0) if inside else values

    def lines(key: Array, axes: list[Array], *place: Array) -> Array:
        if not axes:
            return line(key, *place)
        return jax.vmap(lambda index: lines(key, axes[1:], *place, index))(axes[0])

    def block(key: Array) -> Array:
        # Each line along the last axis has its own key, which depends only on the position of the line in the grid. So
        # the numbers do not depend on the mesh, and each device draws its block alone.
        cells = enumerate(layout.block_shape[:-1])
        axes = [jnp.arange(n, dtype=np.int32) + first_cell(layout, axis) for axis, n in cells]
        return lines(threefry(key), axes)

    return map_blocks(block, dec.mesh, set(dec.mesh_axes), PartitionSpec(), layout.spec, check_types=False)(key)
