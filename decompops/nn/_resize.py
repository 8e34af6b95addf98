"""`AvgPool`, `MaxPool` and `Upsample`: fields on a grid that is coarser or finer by a factor."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Shaped

from .._common.host import device_array
from .._common.remember import in_one_program
from .._common.typed import reshape_behind
from .._core.decomposition import Decomposition, check_decomposition, check_grid
from .._core.structure import Structure
from .._operator.base import AbstractTyped
from .._operator.placed import Placed
from ._blocks import check_factor, coarser, finer, on_blocks, resized


class AbstractResize(AbstractTyped):
    """A layer without parameters from the grid of `decomposition` to one that is coarser or finer by `factor`."""

    decomposition: Decomposition
    factor: tuple[int, ...] = eqx.field(static=True)
    coarsens: ClassVar[bool]

    def __init__(self, decomposition: Decomposition, factor: Any):
        """**Arguments:**

        - `decomposition`: the `Decomposition` of the input.
        - `factor`: the factor between the lengths of the grids: one number for all axes, or one number for each axis.

        **Raises:** `TypeError` if `decomposition` is not a `Decomposition`; `ValueError` if `factor` is not made of
        positive integers, or if the finer grid cannot be divided by it.
        """
        self.decomposition = check_decomposition(decomposition)
        self.factor = check_factor("factor", factor, decomposition, divides=self.coarsens)

    @property
    def result_grid(self) -> Decomposition:
        return (coarser if self.coarsens else finer)(self.decomposition, self.factor)

    @property
    def in_structure(self) -> Structure:
        return Placed(self.decomposition).in_structure

    def result_structure(self, given: Structure) -> Structure:
        return resized(self.in_structure, self.result_grid).following(given)

    def __call__(self, x: Shaped[Array | np.ndarray, "*field"], *, key: Any = None) -> Shaped[Array, "*result"]:
        """Return the field on the other grid, padded where the mesh does not divide this grid.

        **Arguments:**

        - `x`: fields of shape `(*batch, *shape)`.
        - `key`: ignored. `eqx.nn.Sequential` passes it.
        """
        dec, x = self.decomposition, device_array(x)
        check_grid("x", x.shape, dec.ndim)
        return _resized(self, Placed(dec)(x))

    @abstractmethod
    def on_window(self, window: Array) -> Array:
        """Return the result for some whole cells of the coarser grid."""


@in_one_program
def _resized(layer: AbstractResize, x: Array) -> Array:
    return on_blocks(
        lambda _, window: layer.on_window(window),
        None,
        x,
        (layer.decomposition, layer.result_grid),
        [(0, 0)] * layer.decomposition.ndim,
        periodic=False,
        rate=None if layer.coarsens else layer.factor,
    )


class AbstractPool(AbstractResize):
    """A function of each box of `factor` cells."""

    coarsens: ClassVar[bool] = True
    reduce: ClassVar[Callable[..., Array]]

    def on_window(self, window: Array) -> Array:
        lead = window.ndim - len(self.factor)
        boxes = [length for n, factor in zip(window.shape[lead:], self.factor) for length in (n // factor, factor)]
        within = tuple(range(lead + 1, lead + len(boxes), 2))
        return type(self).reduce(reshape_behind(window, lead, tuple(boxes), (None,) * len(boxes)), axis=within)


class AvgPool(AbstractPool):
    """The mean over each box of `factor` cells, on a grid that is coarser by `factor`: `equinox.nn.AvgPool` of a field.

    Devices exchange cells only if the blocks of the two grids begin at different cells.
    """

    reduce = staticmethod(jnp.mean)


class MaxPool(AbstractPool):
    """The maximum over each box of `factor` cells, on a grid that is coarser by `factor`.

    If several cells of a box hold the maximum, its derivative is shared equally between them, as in `jnp.max`.
    """

    reduce = staticmethod(jnp.max)


class Upsample(AbstractResize):
    """Repeat each cell `factor` times along each axis, on a grid that is finer by `factor`.

    `spectral.Resample` interpolates smooth periodic fields instead.
    """

    coarsens: ClassVar[bool] = False

    def on_window(self, window: Array) -> Array:
        for axis, factor in enumerate(self.factor):
            window = jnp.repeat(window, factor, axis=axis - len(self.factor))
        return window
