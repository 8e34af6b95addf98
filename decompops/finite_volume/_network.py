"""`Network`: the symmetric matrix of conductances between neighbouring cells."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec
from jaxtyping import Inexact, Shaped

from .._core.decomposition import Decomposition
from .._operator.halo import HaloExchange
from ._cut import Cut, plus, times


class Network(eqx.Module):
    """Cells that are connected through their faces, as in a network of resistors.

    The network maps u to the sum, over the faces of each cell, of `conductance * (u - neighbour)`, plus
    `reaction * u`. Behind a wall, the neighbour is zero.

    - `faces`: for each grid axis, the conductances of the faces across it. A block of n cells has n + 1 faces, so
        neighbouring blocks both hold the face between them. In the padding, conductances are zero.
    - `reaction`: a field, or `None` for zero.
    """

    decomposition: Decomposition
    periodic: tuple[bool, ...] = eqx.field(static=True)
    faces: tuple[Inexact[Array, "..."], ...]
    reaction: Inexact[Array, "..."] | None

    def cut(self, *, local: bool) -> Cut:
        """Return how fields on this grid are cut into blocks."""
        return Cut(self.decomposition.mesh, self.decomposition.blocks(), local)

    @property
    def exchange(self) -> HaloExchange:
        """The exchange of one layer of cells along every axis."""
        return HaloExchange(self.decomposition, 1, periodic=self.periodic)

    def extended(self, x: Shaped[Array, "*field"], cut: Cut) -> Shaped[Array, "*extended"]:
        """Return the split blocks of a field, extended by one layer of cells."""
        extended = self.exchange.local(x) if cut.local else self.exchange(x)
        return cut.split(extended, {axis: cells + 2 for axis, cells in enumerate(cut.core)})

    def check_local(self) -> None:
        """Raise `ValueError` unless the arrays of the network are blocks."""
        blocks = self.decomposition.blocks()
        for axis, weights in enumerate(self.faces):
            check_block(weights, tuple(n + (i == axis) for i, n in enumerate(blocks.block_shape)))

    def pairs(self, cut: Cut) -> list[tuple[Array, Array]]:
        """Return, for each grid axis, the conductances of the lower and of the upper face of each cell."""
        found = []
        for axis, weights in enumerate(self.faces):
            cells = cut.core[axis]
            weights = cut.split(weights, {axis: cells + 1})
            found.append((cut.slice(weights, axis, 0, cells), cut.slice(weights, axis, 1, cells + 1)))
        return found

    def diagonal(self, cut: Cut) -> Inexact[Array, "*split"]:
        """Return the diagonal of the matrix, as a split array."""
        parts = [part for pair in self.pairs(cut) for part in pair]
        parts += [] if self.reaction is None else [cut.split(self.reaction)]
        return functools.reduce(plus, parts)

    def of_extended(self, extended: Inexact[Array, "*extended"], cut: Cut) -> Inexact[Array, "*split"]:
        """Return the product of the matrix and a field, from the field's extended blocks."""
        here = cut.window(extended, {})
        parts = [] if self.reaction is None else [times(cut.split(self.reaction), here)]
        for axis, (lower, upper) in enumerate(self.pairs(cut)):
            parts.append(times(lower, here - cut.window(extended, {axis: -1})))
            parts.append(times(upper, here - cut.window(extended, {axis: 1})))
        return functools.reduce(plus, parts)

    def __call__(self, x: Inexact[Array, "*field"], *, local: bool = False) -> Inexact[Array, "*field"]:
        cut = self.cut(local=local)
        return cut.merge(cut.clear(self.of_extended(self.extended(x, cut), cut)))


def check_block(array: Array, shape: tuple[int, ...]) -> None:
    """Raise `ValueError` unless an array of an operator ends in the axes of one block, of the given shape."""
    if array.shape[-len(shape) :] != shape:
        raise ValueError(
            "`.local(block)` must use the block of the operator's own arrays; got whole arrays. Pass the operator "
            "through the `shard_map`: `jax.shard_map(lambda operator, block: operator.local(block), mesh=mesh, "
            "in_specs=(operator.specs, spec), out_specs=spec)(operator, u)`."
        )


def specs_of(module: Any, decomposition: Decomposition) -> Any:
    """Return `module` with the partition spec of each array in its place. Arrays of few axes are not sharded."""
    ndim, spec = decomposition.ndim, decomposition.spec()
    sharded = lambda x: jnp.ndim(x) >= ndim and max(jnp.shape(x)[-ndim:]) > 1
    return jax.tree.map(
        lambda x: PartitionSpec(*[None] * (jnp.ndim(x) - ndim), *spec) if sharded(x) else PartitionSpec(), module
    )
