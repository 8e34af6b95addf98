"""`Diffusion`: the operator `-∇·(a ∇u) + c u` on the cells of a grid."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Bool, Float, Inexact, Shaped

from .._common.blocks import axis_names
from .._common.box import Number
from .._common.check import check_count
from .._common.host import device_array
from .._common.placement import place
from .._core.decomposition import Decomposition
from .._core.layout import check_global
from .._core.structure import Structure
from .._operator.derived import UNCHANGED, AbstractDerivable, Form
from .._operator.placed import Placed
from .._operator.unbound import OperatorDecomposition
from ._body import Body, at_centres, beside, check_values, checked_body, checked_coefficient
from ._cut import Cut, plus, precise, promoted, scaled, times
from ._geometry import AxisCells, Boundary, Geometry, geometry_of, harmonic_mean
from ._immersed import CutCells, Links, immersed
from ._network import Network, specs_of
from ._parts import closed_parts


class Diffusion(AbstractDerivable):
    """The operator `u -> -∇·(a ∇u) + c u` on cells, with coefficients a and c that vary in space.

    Fields hold the means over the cells. The flux through each face is the difference of its two cells times a
    conductance, so fluxes are conserved. For a scalar or a diagonal a, the conductance is the harmonic mean over the
    path between the two centres, which is right for jumps of a at faces. Errors are of second order in the widths of
    the cells. For a tensor, the conductances are arithmetic means, and central differences in each cell give the
    fluxes of the other entries; errors are of second order, and of first order beside "neumann" and Robin walls where
    these entries do not vanish.

    The matrix is symmetric. It is positive semi-definite if a is positive and c is not negative. So that it is
    symmetric on cells of different widths, too, the result is multiplied by `operator.volumes`, the volumes of the
    cells divided by their mean volume. On cells of equal widths, they are one. To solve `-∇·(a ∇u) + c u = f`, solve
    `operator(u) = operator.volumes * f + operator.source(...)`.

    !!! example

        ```python
        dec = dops.Decomposition(mesh, shape=(64, 64, 64), box=dops.Box(1.0))
        operator = finite_volume.Diffusion(dec, a, boundary=("periodic", "neumann", ("dirichlet", "neumann")))
        right = f + operator.source(None, None, (1.0, 0.0))  # u = 1 at the first wall across z
        ```

    Source: R. J. LeVeque, Finite Volume Methods for Hyperbolic Problems, 2002, section 4.2; S. V. Patankar, Numerical
    Heat Transfer and Fluid Flow, 1980, section 4.2-3, for the harmonic mean.
    """

    network: Network
    cross: tuple[Array, ...]  # One extended field for each pair of axes, (x, y), (x, z), (y, z); empty without tensor.
    around: CutCells | Links | None  # The grid around a body.
    closed_parts: Bool[Array, "parts *grid"] | None  # The cells of each closed part; `None` without `parts`.
    geometry: Geometry
    has_reaction: bool = eqx.field(static=True)

    def __init__(
        self,
        decomposition: Decomposition,
        a: Number | complex | Inexact[Array | np.ndarray, "*coefficient"] = 1.0,
        c: Number | complex | Inexact[Array | np.ndarray, "*grid"] | None = None,
        *,
        boundary: Boundary | Sequence[Boundary] = "periodic",
        cells: Sequence[AxisCells] | None = None,
        body: Body | None = None,
        parts: int | None = None,
    ):
        """**Arguments:**

        - `decomposition`: the grid, with the lengths of its box.
        - `a`: a number; a field of shape `shape`; one field for each axis, `(ndim, *shape)`, the diagonal of a tensor;
            or a symmetric tensor field, `(ndim, ndim, *shape)`, of which the symmetric part is used. Units of length²
            per time, for example. Fields may be padded or not. a may be complex.
        - `c`: a number or a field, in units of a per length²; `None` for zero.
        - `boundary`: the conditions for all axes, or one entry for each axis: "periodic", one condition for both walls,
            or a pair of conditions: "dirichlet" for u = 0, "neumann" for `a ∂u/∂n = 0`, or `Robin(coefficient)`. For
            nonzero values at walls, see `source`.
        - `cells`: for each axis `None` for cells of equal widths, `decompops.Cells`, or an array of n relative widths,
            which may be traced. They are scaled to fill the box. `None` for equal widths along all axes.
        - `body`: a `Body` that u does not enter. a must be positive in it, too, and must not be a tensor.
        - `parts`: the largest number of closed parts, between which nothing flows because of a body or of zeros in a.
            Each part without values at walls has a constant of its own in the null space, which solvers then treat
            separately. They are found when the operator is built. `None` for a grid that is one part.

        The arrays of the operator depend on a, c and the body: to differentiate by a, build the operator in the
        function that you differentiate. With numbers for a and c, the operator has the default float dtype. Results
        have the dtype to which the dtypes of the operator and of the field promote, at least single precision.

        **Raises:** `TypeError` if `decomposition` is not a `Decomposition`; `ValueError` for coefficients that do not
        have the shape of the grid, for an unknown `boundary` or `cells`, and if there are more than `parts` closed
        parts. Inside of `jax.jit`, where this is not known, solvers do not converge for parts above this number.

        An instance `operator` is called as `operator(u)`.

        **Arguments of the call:** a real or complex field of shape `(*batch, *shape)`.

        **Returns:** a field of the same shape. Its padding is zero.
        """
        self.geometry = geometry_of(decomposition, boundary, cells)
        self.has_reaction = c is not None
        diffusivity = checked_coefficient("a", decomposition, a, 2)
        reaction = None if c is None else checked_coefficient("c", decomposition, c, 0)
        if reaction is not None:  # Both have one precision. A real a beside a complex c stays real.
            real = jnp.zeros((), jnp.finfo(promoted(diffusivity, reaction)).dtype)
            diffusivity, reaction = (x.astype(promoted(x, real)) for x in (diffusivity, reaction))
        if body is not None and diffusivity.ndim == decomposition.ndim + 2:
            raise ValueError(f"`a` must not be a tensor where a `body` is given; got shape {diffusivity.shape}.")
        body = checked_body(self.geometry, body)
        self.network, self.cross, self.around = _assembled(self.geometry, body, diffusivity, reaction)
        self.closed_parts = None
        if parts is not None:
            self.closed_parts, more = _closed_parts(self.network, check_count("parts", parts))
            if not isinstance(more, Tracer) and more:
                raise ValueError(f"`parts` must be at least the number of closed parts of the grid; got {parts}.")

    @property
    def decomposition(self) -> OperatorDecomposition:
        return self.network.decomposition

    @property
    def null_space(self) -> Literal["constants"] | None:
        """The fields that the operator maps to zero: "constants" on open cells, or `None` if there are none.

        With `parts`, these are the constants on each of `closed_parts`.
        """
        if self.closed_parts is not None:
            return "constants"
        kinds = {kind for pair in self.geometry.conditions for kind in pair or ()}
        kinds |= {"dirichlet"} if isinstance(self.around, Links) else set()
        return None if self.has_reaction or kinds & {"dirichlet", "robin"} else "constants"

    @property
    def open_cells(self) -> Bool[Array, "*grid"] | None:
        """Whether each cell is connected to others, outside of the body; `None` without a body or `parts`."""
        if self.around is not None:
            return self.around.open_cells
        return None if self.closed_parts is None else _connected(self.network)

    @property
    def volumes(self) -> Float[Array, "*grid"]:
        """The volumes of the cells outside of the body, over the mean volume of cells; zero in the padding."""
        volumes = _volumes(self.geometry, jnp.finfo(self.network.faces[0].dtype).dtype)
        return volumes if self.around is None else times(self.around.volumes, volumes)

    @property
    def specs(self) -> "Diffusion":
        """The partition specs of the operator's arrays: an argument of `jax.shard_map` that `local` is called in."""
        return specs_of(self, self.decomposition)

    @property
    def is_invertible(self) -> bool:
        return False

    def structures(self, form: Form, given: Structure | None) -> tuple[Structure, Structure]:
        del form  # In every form, the result has the layout of the input.
        source, _ = self.network.exchange.structures(UNCHANGED, given)
        is_complex = any(map(np.iscomplexobj, jax.tree.leaves(self.network)))
        return source, replace(source, kind="complex") if is_complex else source

    def apply(self, x: Shaped[Array | np.ndarray, "*field"], form: Form, *, local: bool) -> Shaped[Array, "*result"]:
        x = device_array(x)
        if local:
            self.network.check_local()
        else:
            check_global("x", self.decomposition.mesh_axes, "Call `.local(block)` instead")
        x = precise(x, self.network.faces[0].dtype)
        # The matrix is symmetric, so the transpose is the operator itself.
        y = (_applied if local else _in_program)(self, jnp.conj(x) if form.conjugated else x, local)
        return jnp.conj(y) if form.conjugated else y

    def source(self, *values: Any, body: Any = None) -> Inexact[Array, "*field"]:
        """Return the field that values g at walls, and on the surface of the body, add to the right-hand side.

        **Arguments:**

        - `values`: for each axis `None`, or a pair of values at its two walls: u at a "dirichlet" wall, the flux
            `a ∂u/∂n` with the outward derivative at a "neumann" wall, g at a Robin wall. Each is a number, or an array
            over the other axes, such as `(nx, nz)` at a wall across y, or with batch axes before them. `None` is zero.
        - `body`: u on the surface of a "dirichlet" body, or the flux `a ∂u/∂n` into a "neumann" body: a number, a
            function of the coordinates as for `Body`, or a field of shape `(*batch, *shape)`. The values at the centres
            beside the surface are interpolated.

        **Returns:** the field. Like results of the operator, it includes the factor `volumes`.

        **Raises:** `ValueError` if there is not one entry for each axis, for values along a periodic axis, and for
        values of another shape.
        """
        check_global("values", self.decomposition.mesh_axes)
        names, conditions = axis_names(self.decomposition.ndim), self.geometry.conditions
        if len(values) != len(names):
            raise ValueError(f"`values` must be one entry for each of {', '.join(names)}; got {len(values)} entries.")
        for name, pair, given in zip(names, conditions, values):
            if given is not None and (pair is None or not isinstance(given, tuple | list) or len(given) != 2):
                rule = "None along a periodic axis" if pair is None else "None or a pair of values at the two walls"
                raise ValueError(f"`values` must be {rule}, {name}; got {given!r}.")
        plain = (bool, int, float, complex)  # Numbers of Python have no precision of their own.
        array = lambda value, name: value if type(value) in plain else device_array(value, name)
        number = lambda value: 0.0 if value is None else array(value, "values")
        total = _source(self, tuple(tuple(map(number, given or (None, None))) for given in values))
        if body is None:
            return total
        if (around := self.around) is None:
            raise ValueError("`body` must be None for an operator without a body; pass `body=` to `Diffusion`.")
        dtype = self.network.faces[0].dtype
        if callable(body):
            body = at_centres(self.geometry, body, jnp.finfo(dtype).dtype)
        elif jnp.ndim(body):
            check_values("body", self.geometry, body)
        term = _body_source(around, self.geometry, array(body, "body"), dtype)
        return plus(total, term)


@eqx.filter_jit
def _closed_parts(network: Network, most: int) -> tuple[Array, Array]:
    return closed_parts(jax.lax.stop_gradient(network), most)


@eqx.filter_jit
def _connected(network: Network) -> Array:
    cut = network.cut(local=False)
    return cut.merge(cut.clear(network.diagonal(cut) != 0))


@eqx.filter_jit
def _volumes(geometry: Geometry, dtype: Any) -> Array:
    cut = geometry.cut(local=False)
    dec = geometry.decomposition
    total = Placed(dec)(jnp.ones(dec.shape, dtype))
    for line in geometry.volumes(range(dec.ndim), cut, dtype):
        total = cut.merge(line * cut.split(total))
    return total


@eqx.filter_jit
def _assembled(
    geometry: Geometry, body: Body | None, a: Array, c: Array | None
) -> tuple[Network, tuple[Array, ...], CutCells | Links | None]:
    """Return the network of the diagonal of a and of c, the extended fields of the other entries of a, and the body."""
    dec, cut, ndim = geometry.decomposition, geometry.cut(local=False), geometry.decomposition.ndim
    real = jnp.finfo(a.dtype).dtype
    whole = lambda x: Placed(dec)(x if x.ndim else jnp.broadcast_to(x, dec.shape))
    entry = lambda i, j: a[i, j] if a.ndim == ndim + 2 else a[i] if a.ndim == ndim + 1 else a
    is_tensor = a.ndim == ndim + 2
    faces = tuple(_conductances(geometry, cut, axis, whole(entry(axis, axis)), is_tensor) for axis in range(ndim))
    volumes = lambda x: cut.merge(scaled(geometry.volumes(range(ndim), cut, real), cut.split(x)))
    reaction = None if c is None else volumes(whole(c))
    network = Network(dec, geometry.periodic, faces, reaction)
    pairs = [(i, j) for i in range(ndim) for j in range(i + 1, ndim)] if is_tensor else []
    cross = tuple(network.exchange(volumes(whole((a[i, j] + a[j, i]) / 2))) for i, j in pairs)
    around = None
    if body is not None:
        network, around = immersed(network, geometry, body, lambda axis: whole(entry(axis, axis)))
    return network, cross, around


def _conductances(geometry: Geometry, cut: Cut, axis: int, a: Array, is_tensor: bool) -> Array:
    """Return the conductance of each face across `axis`: flux per difference of u, area and mean volume."""
    before, behind = beside(geometry, cut, axis, a)  # Outside of the grid, a is one: its inverse has a derivative.
    faces = geometry.faces(axis, cut, jnp.finfo(a.dtype).dtype)
    below, above = (cut.line(values, axis).astype(a.dtype) for values in faces[:2])
    length = below + above
    shares = below / length, above / length
    mean = shares[0] * before + shares[1] * behind if is_tensor else harmonic_mean(before, behind, *shares)
    return cut.merge(geometry.conductances(axis, length, mean, cut))


def _applied(operator: Diffusion, x: Array, local: bool) -> Array:
    network = operator.network
    cut = network.cut(local=local)
    extended = network.extended(x, cut)
    total = network.of_extended(extended, cut)
    if operator.cross:
        total = plus(total, _crossed(operator, extended, cut))
    total = cut.merge(cut.clear(total))
    return total if operator.around is None else times(operator.around.open_cells, total)


_in_program = eqx.filter_jit(_applied)


def _crossed(operator: Diffusion, extended: Array, cut: Cut) -> Array:
    """Return what the entries of a beside the diagonal contribute to the result for an extended field."""
    real = jnp.finfo(operator.network.faces[0].dtype).dtype
    total = []
    for (i, j), field in zip(itertools.combinations(range(len(cut.core)), 2), operator.cross):
        weights = cut.split(field, {axis: cells + 2 for axis, cells in enumerate(cut.core)})
        total.append(_mixed(operator.geometry, cut, i, j, weights, extended, real))
        total.append(_mixed(operator.geometry, cut, j, i, weights, extended, real))
    return sum(total[1:], total[0])


def _mixed(geometry: Geometry, cut: Cut, i: int, j: int, weights: Array, extended: Array, real: Any) -> Array:
    """Return the transposed central difference along i of `weights` times the central difference of u along j."""
    slopes = []
    for axis in (i, j):
        below, above, live, resistance = geometry.faces(axis, cut, real)
        live = jnp.where(resistance > 0, 0, live)  # At a Robin wall, u is not known.
        slope, cells = cut.line(live / jnp.where(live > 0, below + above, 1) / 2, axis), cut.core[axis]
        slopes.append((cut.slice(slope, axis, 0, cells), cut.slice(slope, axis, 1, cells + 1)))
    (lower_i, upper_i), (lower_j, upper_j) = slopes

    def flux(shift: int) -> Array:
        at = lambda along: cut.window(extended, {i: shift, j: along})
        slope = times(upper_j, at(1) - at(0)) + times(lower_j, at(0) - at(-1))
        return times(cut.window(weights, {i: shift}), slope)

    here = flux(0)
    return times(lower_i, here + flux(-1)) - times(upper_i, here + flux(1))


@eqx.filter_jit
def _source(operator: Diffusion, values: tuple[tuple[Any, ...], ...]) -> Array:
    network, geometry, dec = operator.network, operator.geometry, operator.decomposition
    cut, dtype = network.cut(local=False), network.faces[0].dtype
    real = jnp.finfo(dtype).dtype
    total = none = Placed(dec)(jnp.zeros(dec.shape, dtype))
    for axis, (pair, conditions, faces) in enumerate(zip(values, geometry.conditions, network.pairs(cut))):
        for wall, (given, kind) in enumerate(zip(pair, conditions or ())):
            if isinstance(given, int | float) and given == 0:
                continue
            coefficient = geometry.robin[axis][wall]
            numbers = cut.numbers(axis)
            line = cut.line(jnp.asarray(numbers == wall * (dec.shape[axis] - 1), real), axis)
            if kind == "neumann":
                others = [other for other in range(dec.ndim) if other != axis]
                weight = scaled(geometry.volumes(others, cut, real), line / geometry.mean_width(axis, real))
                weight = weight * jnp.ones_like(cut.split(none), real)
                if operator.around is not None:
                    weight = weight * operator.around.sides(axis, cut)[wall]
            else:
                weight = line.astype(dtype) * faces[wall]
                weight = weight if coefficient is None else weight / jnp.asarray(coefficient, dtype)
            there = _at_wall(dec, axis, given, dtype)
            term = times(cut.merge(weight), there)
            if operator.cross and kind == "dirichlet":
                # The slopes beside the wall take u at the wall for zero. What its values contribute is missing.
                beside_wall = times(cut.merge(line.astype(dtype) * jnp.ones_like(cut.split(none))), there)
                at_wall = _shifted(network.extended(beside_wall, cut), cut, axis, 1 if wall else -1)
                term -= cut.merge(cut.clear(_crossed(operator, at_wall, cut)))
            total = plus(total, term)
    return total


def _shifted(extended: Array, cut: Cut, axis: int, by: int) -> Array:
    """Return extended blocks, shifted by one cell along a grid axis."""
    cells, place = cut.core[axis] + 2, extended.ndim + cut.position(axis)
    kept = cut.slice(extended, axis, 0, cells - 1) if by > 0 else cut.slice(extended, axis, 1, cells)
    return jnp.pad(kept, [((int(by > 0), int(by < 0)) if other == place else (0, 0)) for other in range(extended.ndim)])


@eqx.filter_jit
def _body_source(around: CutCells | Links, geometry: Geometry, values: Any, dtype: Any) -> Array:
    if not jnp.ndim(values):
        values = jnp.broadcast_to(_numbers(values, dtype), geometry.decomposition.shape)
    real = jnp.zeros((), jnp.finfo(dtype).dtype)
    values = at_centres(geometry, values, real.dtype)
    return around.source(geometry, values.astype(promoted(values, real)))


def _numbers(values: Any, dtype: Any) -> Array:
    """Return `values` as an array. One number gets the precision of `dtype`, and stays complex if it is."""
    if jnp.ndim(values):
        return jnp.asarray(values)
    return jnp.asarray(values, np.result_type(dtype, np.complex64) if jnp.iscomplexobj(values) else dtype)


def _at_wall(dec: Decomposition, axis: int, values: Any, dtype: Any) -> Array:
    """Return values at a wall as an array that broadcasts against a field."""
    values = _numbers(values, dtype)
    if not values.ndim:
        return values
    blocks = dec.blocks()
    others = [other for other in range(dec.ndim) if other != axis]
    for shape in (blocks.shape, blocks.true_shape):
        if values.shape[values.ndim - len(others) :] == tuple(shape[other] for other in others):
            break
    else:
        raise ValueError(
            f"`values` must be numbers or arrays of shape (*batch, "
            f"{', '.join(str(dec.shape[other]) for other in others)}) at a wall across {axis_names(dec.ndim)[axis]}; "
            f"got shape {values.shape}."
        )
    lead = values.ndim - len(others)
    widths = [(0, blocks.shape[other] - n) for other, n in zip(others, values.shape[lead:])]
    values = jnp.expand_dims(jnp.pad(values, [(0, 0)] * lead + widths), axis + lead)
    names = [None if other == axis else name for other, name in enumerate(blocks.names)]
    return place(values, NamedSharding(dec.mesh, PartitionSpec(*[None] * lead, *names)))
