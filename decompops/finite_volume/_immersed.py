"""What a body changes in the network of conductances of `Diffusion`."""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Inexact

from .._common.broadcast import aligned
from ._body import Body, at_centres, beside, open_fractions
from ._cut import Cut, plus, scaled, times
from ._geometry import Geometry
from ._network import Network


# The distance from a centre to the surface is at least this fraction of the distance of two centres. Less would only
# make the right-hand side large, and a relative tolerance of a solver useless elsewhere.
_NEAREST = 1e-3


class CutCells(eqx.Module):
    """The grid around an impermeable body.

    - `open_cells`: whether each cell has open faces, or volume with a reaction.
    - `volumes`: the fraction of each cell that is open.
    - `faces`: for each axis, the fraction of each face that is open.
    """

    open_cells: Bool[Array, "*grid"]
    volumes: Float[Array, "*grid"]
    faces: tuple[Float[Array, "..."], ...]

    def sides(self, axis: int, cut: Cut) -> tuple[Array, Array]:
        """Return the open fractions of the lower and of the upper face of each cell, as split arrays."""
        cells = cut.core[axis]
        faces = cut.split(self.faces[axis], {axis: cells + 1})
        return cut.slice(faces, axis, 0, cells), cut.slice(faces, axis, 1, cells + 1)

    def source(self, geometry: Geometry, values: Array) -> Inexact[Array, "*field"]:
        """Return what the flux through the surface adds to the right-hand side."""
        cut, real = geometry.cut(local=False), self.volumes.dtype
        axes, whole, normals = range(cut.blocks.ndim), cut.split(self.volumes), []
        # The unit of areas is the mean of the faces across the first axis, so that their squares are normal numbers.
        square, moment, width = jnp.zeros((), real), jnp.zeros((), real), geometry.mean_width(0, real)
        for axis in axes:  # Open faces and the surface enclose a volume: their areas add up to zero.
            lower, upper = self.sides(axis, cut)
            lines = geometry.volumes([other for other in axes if other != axis], cut, real)
            ratio = width / geometry.mean_width(axis, real)
            areas = scaled(lines, (lower - upper) * ratio)
            normals.append(scaled(lines, areas * ratio))
            square, moment = square + areas**2, moment + whole - (lower + upper) / 2
        is_cut, square = square > 0, jnp.where(square == 0, 1, square)
        # By Gauss's theorem, `moment` is the distance from the centre to the surface, times its area over the volume.
        found = cut.split(values)
        for axis, normal in zip(axes, normals):
            place = jnp.clip(normal * (moment / square), -1, 1)  # Of the surface, in widths of the cell.
            found = found + times(place, _rise(geometry, cut, axis, values, place > 0))
        # The derivative of the root must not be infinite away from the surface.
        area = cut.clear(jnp.where(is_cut, jnp.sqrt(square), 0)) / width
        # Inside of the body, values may be NaN.
        return cut.merge(times(area, jnp.where(aligned(area, found) == 0, 0, found)))


def _rise(geometry: Geometry, cut: Cut, axis: int, values: Array, upwards: Array) -> Array:
    """Return the rise of values over the width of each cell, from the differences to the neighbours above or below.

    The rise is zero where there is no neighbour, and where the value of the neighbour is not finite. Inside of the
    body, values may be NaN.
    """
    cells, real = cut.core[axis], jnp.finfo(values.dtype).dtype
    below, above = (cut.line(x, axis) for x in geometry.faces(axis, cut, real)[:2])
    before, behind = beside(geometry, cut, axis, values)
    has_both = aligned((below > 0) & (above > 0), before)
    rise = jnp.where(has_both & jnp.isfinite(behind - before), behind - before, 0)
    width = cut.slice(above, axis, 0, cells) + cut.slice(below, axis, 1, cells + 1)
    side = lambda i: times(width / cut.slice(below + above, axis, i, i + cells), cut.slice(rise, axis, i, i + cells))
    return jnp.where(aligned(upwards, rise), side(1), side(0))


class Links(eqx.Module):
    """The grid around a body with given values on its surface.

    - `open_cells`: whether the centre of each cell is outside.
    - `volumes`: one for open cells, else zero.
    - `conductances`: for each axis, the conductance from the open cell to the surface across each face; else zero.
    - `shares`: for each axis, where the surface is between the two centres beside a face. The value there is
        interpolated from the two cells, and this is the weight of the upper cell.
    """

    open_cells: Bool[Array, "*grid"]
    volumes: Float[Array, "*grid"]
    conductances: tuple[Inexact[Array, "..."], ...]
    shares: tuple[Float[Array, "..."], ...]

    def sides(self, axis: int, cut: Cut) -> tuple[Array, Array]:
        """Return the open fractions of the lower and of the upper face of each cell on a wall, as split arrays."""
        del axis
        is_open = cut.split(self.volumes)
        return is_open, is_open

    def source(self, geometry: Geometry, values: Array) -> Inexact[Array, "*field"]:
        """Return what values on the surface add to the right-hand side."""
        cut, total = geometry.cut(local=False), jnp.zeros((), values.dtype)
        for axis, (links, shares) in enumerate(zip(self.conductances, self.shares)):
            cells = cut.core[axis]
            links, shares = (cut.split(x, {axis: cells + 1}) for x in (links, shares))
            before, behind = beside(geometry, cut, axis, values)
            term = times(links, before + times(shares, behind - before))
            total = plus(total, cut.slice(term, axis, 0, cells) + cut.slice(term, axis, 1, cells + 1))
        total = cut.merge(total)
        return jnp.where(aligned(self.open_cells, total), total, 0)  # Inside of the body, values may be NaN.


def immersed(
    network: Network, geometry: Geometry, body: Body, coefficient: Callable[[int], Array]
) -> tuple[Network, CutCells | Links]:
    """Return a network with a body in it, and the grid around the body. `coefficient` returns a for an axis."""
    cut, dtype = network.cut(local=False), network.faces[0].dtype
    real = jnp.finfo(dtype).dtype
    like = lambda faces, reaction: Network(network.decomposition, network.periodic, tuple(faces), reaction)
    if body.boundary == "neumann":
        fractions, volumes = open_fractions(geometry, body, cut, real)
        faces = tuple(
            cut.merge(times(fraction, cut.split(weights, {axis: cells + 1})))
            for axis, (weights, fraction, cells) in enumerate(zip(network.faces, fractions, cut.core))
        )
        volumes = cut.merge(cut.clear(volumes))
        reaction = None if network.reaction is None else times(volumes, network.reaction)
        open_cells = like(faces, reaction).diagonal(cut) != 0
        around = CutCells(cut.merge(cut.clear(open_cells)), volumes, tuple(map(cut.merge, fractions)))
    else:
        distance = at_centres(geometry, body.distance, jnp.zeros(()).dtype).astype(real)
        each = [_links(network, geometry, cut, distance, coefficient, axis) for axis in range(cut.blocks.ndim)]
        faces, links, shares = zip(*each)
        outside = cut.clear(cut.split(_positive(distance)))
        around = Links(cut.merge(outside != 0), cut.merge(outside), links, shares)
        to_surface = like(links, network.reaction).diagonal(cut)
        reaction = cut.merge(times(outside, to_surface))
    return like(faces, reaction), around


def _links(
    network: Network, geometry: Geometry, cut: Cut, distance: Array, coefficient: Callable[[int], Array], axis: int
) -> tuple[Array, Array, Array]:
    """Return the conductances between open cells along an axis, and the `conductances` and `shares` of `Links`."""
    real, cells = distance.dtype, cut.core[axis]
    before, behind = beside(geometry, cut, axis, distance)
    open_before, open_behind = _positive(before), _positive(behind)
    both = open_before * open_behind
    is_cut = open_before + open_behind - 2 * both
    total = jnp.abs(before) + jnp.abs(behind)
    share = jnp.abs(before) / jnp.where(total == 0, 1, total)
    way = jnp.maximum(jnp.where(open_before > 0, share, 1 - share), _NEAREST)
    below, above = (cut.line(values, axis) for values in geometry.faces(axis, cut, real)[:2])
    a_before, a_behind = beside(geometry, cut, axis, coefficient(axis))
    a = jnp.where(open_before > 0, a_before, a_behind)
    length = times(way * (below + above), jnp.ones_like(a))
    links = times(is_cut, geometry.conductances(axis, length, a, cut))
    faces = times(both, cut.split(network.faces[axis], {axis: cells + 1}))
    return cut.merge(faces), cut.merge(links), cut.merge(share)


def _positive(x: Array) -> Array:
    """Return 1 where x is positive, else 0, and NaN for NaN, which `jnp.heaviside` of JAX 0.10 takes for 0."""
    return jnp.sign(jnp.maximum(x, 0))
