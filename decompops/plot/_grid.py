"""Where the points of a grid lie, and planes of a field, to which devices reduce it before anything is gathered."""

import functools
from dataclasses import dataclass
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from .._basis.base import AbstractBasis
from .._basis.cells import Cells
from .._basis.fourier import Fourier
from .._basis.points import Points
from .._blocks import Blocks, axis_names
from .._box import Box, check_box
from .._decomposition import Decomposition, check_grid
from .._layout import Field, Layout
from .._operator.transform import AbstractTransform


# What a field is drawn on: a transform says where the points are; without bases they are equally spaced.
GridLike = AbstractTransform | Decomposition | Layout
Reduction = Literal["max", "min", "sum"]


@dataclass(frozen=True)
class Grid:
    """The layout of a field, and the bases and lengths of the axes of its grid."""

    layout: Layout
    bases: tuple[AbstractBasis, ...]
    lengths: tuple[float, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the axes."""
        return axis_names(len(self.lengths))

    def points(self, axis: int) -> np.ndarray:
        """The coordinates of the points along an axis."""
        return self.lengths[axis] * self.bases[axis].points(self.layout.true_shape[axis])

    def edges(self, axis: int) -> np.ndarray:
        """The bounds of the cells around the points along an axis: one more than points. No cell exceeds a wall."""
        basis, length, points = self.bases[axis], self.lengths[axis], self.points(axis)
        if isinstance(basis, Cells):
            return length * np.array(basis.faces)
        between = (points[1:] + points[:-1]) / 2
        first, last = (points[0] - length / 2, points[0] + length / 2)
        if len(between):
            first, last = 2 * points[0] - between[0], 2 * points[-1] - between[-1]
        edges = np.array([first, *between, last])
        return edges if isinstance(basis, Fourier | Points) else edges.clip(0, length)

    def plane(self, field: Field, axis: int, weights: np.ndarray, reduce: Reduction) -> np.ndarray:
        """The field reduced along an axis, a NumPy array on every process.

        `weights` are of the points along that axis. Those of weight zero do not count, whatever stands there.
        """
        blocks = self.layout.blocks
        along = blocks.position(axis)
        padded = np.pad(weights, (0, np.shape(field)[along] - len(weights)))
        reduced = reduce_axis(jnp.asarray(field), padded, along, reduce)
        return Layout(self.layout.mesh, _without(blocks, axis)).gather(reduced)


def grid_of(grid: Any, field: Any, box: Box, *, real: bool = True) -> Grid:
    """The grid of a field with one leading axis at most. Raises an error for a field that cannot be drawn.

    `real` says whether complex fields are refused.
    """
    if isinstance(field, Tracer):
        raise TypeError("`field` must not be traced: return it from `jax.jit`, and draw it outside.")
    if real and jnp.iscomplexobj(field):
        raise TypeError(f"`field` must be real; got {field.dtype}. Draw `field.real`, `field.imag` or `abs(field)`.")
    bases = None
    if isinstance(grid, AbstractTransform):
        bases, grid = grid.bases, grid.decomposition
    if isinstance(grid, Decomposition):
        check_grid("field", np.shape(field), grid.ndim)
        shape = grid.shape or np.shape(field)[-grid.ndim :]
        grid = Layout(grid.mesh, grid.pencil(grid.ndim - 1, shape))
    if not isinstance(grid, Layout):
        raise TypeError(
            f"`grid` must be the transform, the `Decomposition` or the `Layout` of the field; got {grid!r}."
        )
    grid.check(field)
    ndim = grid.blocks.ndim
    if np.ndim(field) > ndim + 1 or 0 in np.shape(field):
        raise ValueError(
            f"`field` must be a scalar, or have one leading axis, of its components; got {np.shape(field)} on a grid "
            f"of {ndim} axes."
        )
    box = check_box(box, ndim)
    if box.is_traced:
        raise TypeError(f"`box` must have lengths that are known, not traced; got {box}.")
    lengths = tuple(map(float, cast(tuple, box.lengths)))
    return Grid(grid, bases or (Points(),) * ndim, lengths)


@functools.partial(jax.jit, static_argnames=("axis", "reduce"))
def reduce_axis(field: Array, weights: Array, axis: int, reduce: Reduction) -> Array:
    """Reduce along array axis `axis`, counted from the end. Communicates by an all-reduce of the result only.

    A sum is weighted. It also picks one plane, if all other weights are zero: indexing would gather a sharded axis.
    """
    if field.dtype not in (np.float32, np.float64):
        field = field.astype(np.float32)
    weights = weights.astype(field.dtype).reshape(-1, *[1] * (-axis - 1))
    if reduce == "sum":
        return jnp.sum(jnp.where(weights == 0, jnp.zeros((), field.dtype), field * weights), axis)
    if reduce == "min":
        return jnp.min(field, axis, where=weights != 0, initial=np.inf)
    return jnp.max(field, axis, where=weights != 0, initial=-np.inf)


def _without(blocks: Blocks, axis: int) -> Blocks:
    """How a plane is cut into blocks that is left of a field when `axis` is reduced."""
    kept = [other for other in range(blocks.ndim) if other != axis]
    return Blocks(
        tuple(blocks.lengths[other] for other in kept),
        tuple(blocks.parts[other] for other in kept),
        tuple(blocks.names[other] for other in kept),
        tuple(kept.index(other) for other in blocks.order if other != axis),
    )
