"""Transfers between the grids of `Multigrid`, and the networks of coarser grids."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Inexact

from .._backend.base import Group
from .._common.blocks import entry_names
from .._common.placement import place
from .._common.sharding import axes_to_map, map_blocks
from .._common.typed import batch_in_type
from .._core.decomposition import Decomposition
from .._core.rows import everywhere
from .._operator.halo import HaloExchange
from .._operator.placed import Placed
from ..finite_volume._cut import Cut, times
from ..finite_volume._network import Network


class Pairing(eqx.Module):
    """The transfer between a grid and a coarser one, whose cells are pairs of cells along one axis.

    Pairs never cross the border of a block, so they need no communication. In a block of an odd number of cells, the
    last one is alone. A cell takes its value from its own coarse cell and from the coarse cell on its side, weighted as
    currents through the resistances between them would: 3/4 and 1/4 on a uniform grid, and, where a jumps, never a
    value from behind a layer that conducts badly.

    - `lower`, `upper`: fields on the coarse grid: the weight that the lower and the upper cell of each pair give to the
        coarse cell on their side.
    """

    fine: Decomposition
    coarse: Decomposition
    axis: int = eqx.field(static=True)
    periodic: tuple[bool, ...] = eqx.field(static=True)
    lower: Inexact[Array, "*coarse"]
    upper: Inexact[Array, "*coarse"]

    @property
    def exchange(self) -> HaloExchange:
        """The exchange of one layer of coarse cells along the axis."""
        halo = tuple((1, 1) if axis == self.axis else (0, 0) for axis in range(self.fine.ndim))
        return HaloExchange(self.coarse, halo, periodic=self.periodic)

    def cuts(self, local: bool) -> tuple[Cut, Cut]:
        """Return how fields on the fine and on the coarse grid are cut into blocks."""
        return cut_of(self.fine, local), cut_of(self.coarse, local)

    def prolong(self, u: Inexact[Array, "*coarse"], *, local: bool) -> Inexact[Array, "*fine"]:
        """Interpolate a field on the coarse grid."""
        fine, coarse = self.cuts(local)
        axis, cells = self.axis, coarse.core[self.axis]
        extended = coarse.split(self.exchange.local(u) if local else self.exchange(u), {axis: cells + 2})
        here = coarse.slice(extended, axis, 1, cells + 1)
        below, above = coarse.slice(extended, axis, 0, cells), coarse.slice(extended, axis, 2, cells + 2)
        lower = here + times(coarse.split(self.lower), below - here)
        upper = here + times(coarse.split(self.upper), above - here)
        exists = _exists(fine, coarse, axis)
        if not exists.all():
            upper = times(coarse.line(exists.astype(lower.dtype), axis), upper)
        position = lower.ndim + coarse.position(axis)
        both = jnp.stack((lower, upper), axis=position + 1)
        joined = both.reshape(*lower.shape[:position], 2 * cells, *lower.shape[position + 1 :])
        return fine.merge(fine.slice(joined, axis, 0, fine.core[axis]))

    def restrict(self, r: Inexact[Array, "*fine"], *, local: bool) -> Inexact[Array, "*coarse"]:
        """Sum a field on the fine grid: the transpose of `prolong`."""
        fine, coarse = self.cuts(local)
        axis = self.axis
        lower, upper = halves(fine.split(r), fine, axis)  # Padding holds zeros.
        to_below, to_above = times(coarse.split(self.lower), lower), times(coarse.split(self.upper), upper)
        position = lower.ndim + coarse.position(axis)
        widths = lambda before, after: [(before, after) if i == position else (0, 0) for i in range(lower.ndim)]
        here = lower - to_below + upper - to_above
        extended = jnp.pad(here, widths(1, 1)) + jnp.pad(to_below, widths(0, 2)) + jnp.pad(to_above, widths(2, 0))
        transposed = self.exchange.T
        extended = coarse.merge(extended)
        return transposed.local(extended) if local else transposed(extended)


class Gathering(eqx.Module):
    """The transfer from a sharded grid to the same grid, whole on every device."""

    fine: Decomposition
    coarse: Decomposition

    def restrict(self, r: Inexact[Array, "*fine"], *, local: bool) -> Inexact[Array, "*coarse"]:
        """Return the whole field on every device, without padding."""
        if local:
            return self._gathered(r)
        if not self.fine.backend.moves_rows:
            return Placed(self.coarse)(self.fine.layout().crop(r))
        batch = batch_in_type(r, self.fine.ndim)
        specs = PartitionSpec(*batch, *self.fine.spec()), PartitionSpec(*batch)
        names = axes_to_map(self.fine.mesh, specs[0])
        return map_blocks(self._gathered, self.fine.mesh, names, *specs, check_types=False)(r)

    def _gathered(self, block: Array) -> Array:
        """Return the whole field for the block of each device, inside a `shard_map`."""
        fine = self.fine
        blocks, caller = fine.blocks(), fine.backend.caller()
        for axis, name in enumerate(blocks.names):
            if name is not None:
                every = everywhere(Group("Multigrid", fine.mesh, entry_names(name), fine.backend, caller), block)
                block = jnp.concatenate(list(every), axis=blocks.position(axis))
        return block[..., *map(slice, blocks.true_shape)]

    def prolong(self, u: Inexact[Array, "*coarse"], *, local: bool) -> Inexact[Array, "*fine"]:
        """Return the blocks of a field that is whole on every device."""
        if not local:
            return Placed(self.fine)(u)
        blocks = self.fine.blocks()
        u = jnp.pad(u, [(0, 0)] * (u.ndim - blocks.ndim) + [(0, blocks.padding(axis)) for axis in range(blocks.ndim)])
        for axis, name in enumerate(blocks.names):
            if name is not None:
                cells = blocks.core(axis)
                first = jax.lax.axis_index(name) * cells
                u = jax.lax.dynamic_slice_in_dim(u, first, cells, axis=u.ndim + blocks.position(axis))
        return u


def cut_of(dec: Decomposition, local: bool) -> Cut:
    """Return how fields on `dec` are cut into blocks."""
    return Cut(dec.mesh, dec.blocks(), local)


def halves(x: Array, fine: Cut, axis: int) -> tuple[Array, Array]:
    """Return the lower and the upper cells of the pairs along an axis, of a split array; zero where there is none."""
    cells = fine.core[axis]
    if cells % 2:
        x = jnp.pad(x, [(0, int(i == x.ndim + fine.position(axis))) for i in range(x.ndim)])
    return fine.slice(x, axis, 0, cells + cells % 2, 2), fine.slice(x, axis, 1, cells + cells % 2, 2)


def _exists(fine: Cut, coarse: Cut, axis: int) -> np.ndarray:
    """Return whether each coarse cell has an upper cell, of shape `(parts, coarse cells)`."""
    cells, offset = fine.core[axis], 2 * np.arange(coarse.core[axis]) + 1
    return (offset < cells)[None, :] & (fine.numbers(axis, 0, 2)[:, offset] < fine.blocks.lengths[axis])


def coarse_length(n: int, parts: int) -> int:
    """Return the number of pairs of `n` cells in `parts` blocks."""
    cells = -(-n // parts)
    whole, rest = divmod(n, cells)
    return whole * -(-cells // 2) + -(-rest // 2)


def paired(network: Network, axis: int) -> tuple[Network, Pairing]:
    """Return the network of pairs of cells along an axis, and the transfer to it.

    The conductance between two pairs is that of resistors in series, from the middle of one pair to the middle of the
    other. Faces beside each other are resistors in parallel. So coarse coefficients are harmonic means along a
    flux, and arithmetic means across it.
    """
    dec, n, parts = network.decomposition, network.decomposition.shape[axis], network.decomposition.blocks().parts[axis]
    shape = tuple(coarse_length(n, parts) if i == axis else m for i, m in enumerate(dec.shape))
    coarse_dec = Decomposition(dec, shape=shape, pad=True)
    fine, coarse = cut_of(dec, False), cut_of(coarse_dec, False)
    cells = fine.core[axis]
    weights = fine.split(network.faces[axis], {axis: cells + 1})
    exists = coarse.line(_exists(fine, coarse, axis), axis)
    inner = jnp.pad(weights, [(0, int(i == weights.ndim + fine.position(axis))) for i in range(weights.ndim)])
    inner = fine.slice(inner, axis, 1, 2 * coarse.core[axis], 2)
    tiny = math.sqrt(float(jnp.finfo(weights.dtype).tiny))
    resistance = jnp.where(exists, 1 / jnp.maximum(inner, tiny), 0)
    # The middle of a pair is nearer to the cell that conducts better across the axis.
    across = [low + high for other, (low, high) in enumerate(network.pairs(fine)) if other != axis]
    across += [fine.split(network.reaction)] if network.reaction is not None else []
    total = halves(sum(across, jnp.full_like(fine.slice(weights, axis, 0, cells), tiny)), fine, axis)
    share = total[1] / (total[0] + total[1])
    # A cell that conducts well across the axis stays near the middle of its pair. If its value differed much from its
    # neighbours across the axis, more energy would flow there than the coarse network knows of.
    to_lower = jnp.minimum(resistance * share, dec.ndim / total[0])
    to_upper = jnp.minimum(resistance * (1 - share), dec.ndim / total[1])
    outer = _outer(weights, fine, coarse, axis)
    halo = tuple((1, 1) if i == axis else (0, 0) for i in range(dec.ndim))
    exchange, pairs = HaloExchange(coarse_dec, halo, periodic=network.periodic), coarse.core[axis]
    before, behind = (coarse.split(exchange(coarse.merge(x)), {axis: pairs + 2}) for x in (to_upper, to_lower))
    before, behind = coarse.slice(before, axis, 0, pairs + 1), coarse.slice(behind, axis, 1, pairs + 2)
    series = outer / (1 + outer * (before + behind))
    lower, upper = coarse.slice(series, axis, 0, pairs) * to_lower, coarse.slice(series, axis, 1, pairs + 1) * to_upper
    # A cell that is connected along this axis only, in a pair without an inner conductance, takes its value from the
    # other side of the face. Rounding errors of such weights must not meet a matrix that is almost zero.
    series = jnp.where(series > 8 * tiny, series, 0)
    faces = tuple(
        coarse.merge(series) if i == axis else _summed(own, fine, coarse, axis, {i: fine.core[i] + 1})
        for i, own in enumerate(network.faces)
    )
    reaction = None if network.reaction is None else _summed(network.reaction, fine, coarse, axis, {})
    pairing = Pairing(dec, coarse_dec, axis, network.periodic, coarse.merge(lower), coarse.merge(upper))
    return Network(coarse_dec, network.periodic, faces, reaction), pairing


def _outer(weights: Array, fine: Cut, coarse: Cut, axis: int) -> Array:
    """Return the conductances of the fine faces that are faces of the coarse grid."""
    cells, pairs, n = fine.core[axis], coarse.core[axis], fine.blocks.lengths[axis]
    first = jnp.concatenate(
        [fine.slice(weights, axis, 0, cells, 2), fine.slice(weights, axis, cells, cells + 1)],
        axis=weights.ndim + fine.position(axis),
    )
    # If the last cell of the grid is alone, its upper face is an odd one.
    offset = np.minimum(2 * np.arange(pairs + 1), cells)
    last = fine.numbers(axis, 0, 1)[:, offset] == n + 1
    last &= (offset % 2 == 0)[None, :] & (offset > 0)[None, :]
    if not last.any():
        return first
    start = [fine.slice(weights, axis, 0, 1)]
    odd = jnp.concatenate([*start, fine.slice(weights, axis, 1, cells + 1, 2)], axis=weights.ndim + fine.position(axis))
    odd = odd if odd.shape == first.shape else _fitted(odd, first)
    return jnp.where(coarse.line(last, axis), odd, first)


def _fitted(x: Array, like: Array) -> Array:
    return jnp.pad(x, [(0, max(0, n - m)) for n, m in zip(like.shape, x.shape)])[tuple(map(slice, like.shape))]


def _summed(x: Array, fine: Cut, coarse: Cut, axis: int, extents: dict[int, int]) -> Array:
    """Return the sums of pairs along an axis."""
    lower, upper = halves(fine.split(x, extents), fine, axis)
    return coarse.merge(lower + upper)


def gathered(network: Network) -> tuple[Network, Gathering]:
    """Return the same network on a grid that is whole on every device, and the transfer to it."""
    dec = network.decomposition
    whole = Decomposition(dec, axes=())
    transfer = Gathering(dec, whole)
    own = cut_of(dec, False)
    faces = []
    for axis, weights in enumerate(network.faces):
        # The lower face of every cell is gathered as a field, and the last face, that of the upper wall, beside it.
        lower = own.slice(own.split(weights, {axis: own.core[axis] + 1}), axis, 0, own.core[axis])
        upper = own.slice(own.split(weights, {axis: own.core[axis] + 1}), axis, 1, own.core[axis] + 1)
        lower, upper = (transfer.restrict(own.merge(half), local=False) for half in (lower, upper))
        n = dec.shape[axis]
        joined = jnp.concatenate([lower, jax.lax.slice_in_dim(upper, n - 1, n, axis=axis)], axis=axis)
        faces.append(place(joined, NamedSharding(dec.mesh, PartitionSpec())))  # Otherwise XLA might shard them.
    reaction = None if network.reaction is None else transfer.restrict(network.reaction, local=False)
    return Network(whole, network.periodic, tuple(faces), reaction), transfer


Transfer = Pairing | Gathering
