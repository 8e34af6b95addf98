"""`AvgPool`, `MaxPool` and `Upsample`: fields on a grid that is coarser or finer by a factor."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Shaped

from .._common.byte_order import device_array
from .._core.decomposition import Decomposition, check_grid
from .._core.structure import Structure
from .._operator.base import AbstractTyped
from .._operator.placed import Placed
from ._blocks import check_factor, coarser, finer, on_blocks, resized


class AvgPool(AbstractTyped):
    """The mean over each box of `factor` cells, on a grid that is coarser by `factor`: `equinox.nn.AvgPool` of a field.

    **Arguments:**

    - `decomposition`: the `Decomposition` of the input.
    - `factor`: the number of cells along each axis of a box: one number for all axes, or one number for each axis.

    **Raises:** `ValueError` if `factor` is not made of positive integers that divide the lengths of the grid.

    The layer takes a field of shape `(*batch, *shape)`, and returns one on the coarser grid, padded where the mesh does
    not divide this grid. Devices exchange cells only if the blocks of the two grids begin at different cells.
    """

    decomposition: Decomposition
    factor: Any = eqx.field(static=True)

    def __check_init__(self):
        check_factor("factor", self.factor, self.decomposition, divides=True)

    @property
    def in_structure(self) -> Structure:
        return Placed(self.decomposition).in_structure

    def result_structure(self, given: Structure) -> Structure:
        factors = check_factor("factor", self.factor, self.decomposition, divides=True)
        return resized(self.in_structure, coarser(self.decomposition, factors)).following(given)

    def __call__(self, x: Shaped[Array | np.ndarray, "*field"], *, key: Any = None) -> Shaped[Array, "*result"]:
        """Return the mean over each box. `key` is ignored: `eqx.nn.Sequential` passes it."""
        return _pooled(self, jnp.mean, x)


class MaxPool(AbstractTyped):
    """The maximum over each box of `factor` cells, on a grid that is coarser by `factor`.

    **Arguments** and **Raises** are those of `AvgPool`. If several cells of a box hold the maximum, its derivative is
    shared equally between them, as in `jnp.max`.
    """

    decomposition: Decomposition
    factor: Any = eqx.field(static=True)

    def __check_init__(self):
        check_factor("factor", self.factor, self.decomposition, divides=True)

    @property
    def in_structure(self) -> Structure:
        return Placed(self.decomposition).in_structure

    def result_structure(self, given: Structure) -> Structure:
        factors = check_factor("factor", self.factor, self.decomposition, divides=True)
        return resized(self.in_structure, coarser(self.decomposition, factors)).following(given)

    def __call__(self, x: Shaped[Array | np.ndarray, "*field"], *, key: Any = None) -> Shaped[Array, "*result"]:
        """Return the maximum over each box. `key` is ignored: `eqx.nn.Sequential` passes it."""
        return _pooled(self, jnp.max, x)


class Upsample(AbstractTyped):
    """Repeat each cell `factor` times along each axis, on a grid that is finer by `factor`.

    **Arguments:**

    - `decomposition`: the `Decomposition` of the input.
    - `factor`: the number of fine cells of a cell: one number for all axes, or one number for each axis.

    **Raises:** `ValueError` if `factor` is not made of positive integers.

    `spectral.Resample` interpolates smooth periodic fields instead.
    """

    decomposition: Decomposition
    factor: Any = eqx.field(static=True)

    def __check_init__(self):
        check_factor("factor", self.factor, self.decomposition, divides=False)

    @property
    def in_structure(self) -> Structure:
        return Placed(self.decomposition).in_structure

    def result_structure(self, given: Structure) -> Structure:
        factors = check_factor("factor", self.factor, self.decomposition, divides=False)
        return resized(self.in_structure, finer(self.decomposition, factors)).following(given)

    def __call__(self, x: Shaped[Array | np.ndarray, "*field"], *, key: Any = None) -> Shaped[Array, "*result"]:
        """Return the field on the finer grid. `key` is ignored: `eqx.nn.Sequential` passes it."""
        dec = self.decomposition
        factors, x = check_factor("factor", self.factor, dec, divides=False), device_array(x)
        check_grid("x", x.shape, dec.ndim)

        def repeat(_: None, window: Array) -> Array:
            for axis, factor in enumerate(factors):
                window = jnp.repeat(window, factor, axis=axis - dec.ndim)
            return window

        none = [(0, 0)] * dec.ndim
        return on_blocks(repeat, None, x, (dec, finer(dec, factors)), none, periodic=False, rate=factors)


def _pooled(layer: AvgPool | MaxPool, reduce: Any, x: Any) -> Array:
    dec = layer.decomposition
    factors, x = check_factor("factor", layer.factor, dec, divides=True), device_array(x)
    check_grid("x", x.shape, dec.ndim)

    def pool(_: None, window: Array) -> Array:
        lead = window.ndim - dec.ndim
        boxes = [length for n, factor in zip(window.shape[lead:], factors) for length in (n // factor, factor)]
        within = tuple(lead + 2 * axis + 1 for axis in range(dec.ndim))
        return reduce(window.reshape(*window.shape[:lead], *boxes), axis=within)

    return on_blocks(pool, None, x, (dec, coarser(dec, factors)), [(0, 0)] * dec.ndim, periodic=False)
