"""`Gradient` and `Divergence`: between cells and the faces of a staggered grid."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from equinox import AbstractVar
from jax import Array
from jaxtyping import Float, Shaped

from .._common.blocks import axis_names
from .._common.host import device_array
from .._common.typed import whole_along
from .._core.decomposition import Decomposition
from .._core.layout import check_global
from .._core.structure import Structure
from .._operator.derived import UNCHANGED, AbstractDerivable, Form
from .._operator.halo import HaloExchange
from .._operator.placed import Placed
from .._operator.unbound import OperatorDecomposition
from ._body import Body, beside, checked_body, checked_coefficient, open_fractions
from ._cut import Cut, precise, times
from ._geometry import AxisCells, Geometry, geometry_of, harmonic_mean
from ._network import check_block, specs_of


Side = Literal["dirichlet", "neumann"]
# The conditions of p along an axis. At "neumann" walls, the component of a vector through the wall is zero. At a
# "dirichlet" side, p is zero.
Sides = Literal["periodic"] | Side | tuple[Side, Side]


class _AbstractStaggered(AbstractDerivable):
    """A gradient or a divergence: differences across faces times factors, or the negative transpose."""

    if TYPE_CHECKING:  # Type checkers treat an `AbstractVar` as a constructor argument.
        geometry: ClassVar[Geometry]
        openings: ClassVar[Array | None]
    else:
        geometry: AbstractVar[Geometry]
        openings: AbstractVar[Array | None]
    is_gradient: ClassVar[bool]

    @property
    def decomposition(self) -> OperatorDecomposition:
        return self.geometry.decomposition

    @property
    def specs(self) -> "_AbstractStaggered":
        """The partition specs of the operator's arrays: an argument of `jax.shard_map` that `local` is called in."""
        return specs_of(self, self.decomposition)

    @abstractmethod
    def factors(self) -> tuple[Array, ...]:
        """Return fields on faces by which the operator multiplies differences, or fluxes."""

    @property
    def is_invertible(self) -> bool:
        return False

    def structures(self, form: Form, given: Structure | None) -> tuple[Structure, Structure]:
        return _structures(self.geometry, given, to_faces=self.is_gradient != form.transposed)

    def apply(self, x: Shaped[Array | np.ndarray, "*field"], form: Form, *, local: bool) -> Shaped[Array, "*result"]:
        to_faces = self.is_gradient != form.transposed
        x = _as_argument(self.geometry, x, to_faces=to_faces, local=local)
        factors = self.factors()
        for factor in factors if local else ():
            check_block(factor, self.geometry.decomposition.blocks().block_shape)
        run = _to_faces if to_faces else _to_cells
        y = (run if local else _IN_PROGRAM[run])(self.geometry, factors, x, local, is_gradient=self.is_gradient)
        return y if self.is_gradient else -y


class Gradient(_AbstractStaggered):
    """The gradient `∇p`, or the flux `a ∇p`, on the faces between cells: the staggered grid of Harlow and Welch.

    Entry i of component k is the value on the face between the cells i - 1 and i along axis k. Through walls, vectors
    on faces have no component: entry 0 is zero along an axis with walls, and the other wall has no entry. Differences
    over the distance of the centres have errors of second order.

    On a side where p is given, such as an outflow, the component through the side is free: entry 0 is the value on that
    side, be it the lower or the upper one. Faces that are wholly in a body have no component either.

    `Divergence(dec)(Gradient(dec, a)(p))` is exactly `-Diffusion(dec, a)(p)`, with the same conditions and the same
    body. So with `a = 1 / density`, this is the projection of a flow whose density varies. For a = 1, `Divergence.T` is
    exactly `-weights * Gradient`, with the `weights` of the gradient. On cells of equal widths, without a body and
    without a side where p is given, this is `-Gradient`: such a side is half a width from the nearest centre, so its
    weight is 1/2.

    !!! example

        ```python
        gradient, divergence = finite_volume.Gradient(dec), finite_volume.Divergence(dec)
        u = u - gradient(p)    # with Diffusion(dec)(p) = -divergence(u), u is then free of divergence
        ```

    Source: F. H. Harlow & J. E. Welch, Phys. Fluids 8, 2182, 1965.
    """

    geometry: Geometry
    openings: Float[Array, "ndim *grid"] | None  # The open fraction of each face; `None` without a body.
    a: Float[Array, "ndim *grid"] | None  # On faces; `None` for one.
    is_gradient: ClassVar[bool] = True

    def __init__(
        self,
        decomposition: Decomposition,
        a: Any = None,
        *,
        boundary: Sides | Sequence[Sides] = "periodic",
        cells: Sequence[AxisCells] | None = None,
        body: Body | None = None,
    ):
        """**Arguments:**

        - `decomposition`: the grid, with the lengths of its box.
        - `a`: the real coefficient of the flux, nonnegative: a number, a field of shape `shape`, or of shape
            `(ndim, *shape)` with one coefficient for each axis. As in `Diffusion`, a face has the harmonic mean of the
            two cells beside it. The default is 1.
        - `boundary`: the conditions of p for all axes, or one entry for each axis: "periodic", "neumann", or a pair in
            which one of the two sides is "dirichlet", for p = 0, and the other one "neumann".
        - `cells`: the cells along each axis, as in `Diffusion`.
        - `body`: an impermeable `Body`, as in `Diffusion`.

        **Raises:** `TypeError` if `decomposition` is not a `Decomposition`; `ValueError` for coefficients that are not
        real or do not have the shape of the grid, for other conditions, for unknown `cells`, and for a body that is not
        "neumann".

        An instance `gradient` is called as `gradient(p)`.

        **Arguments of the call:** a real or complex field p of shape `(*batch, *shape)`.

        **Returns:** a vector field on the faces, of shape `(*batch, ndim, *shape)`, in single precision for a field of
        half precision. Its padding is zero.
        """
        self.geometry, self.openings = _staggered(decomposition, boundary, cells, body)
        self.a = None
        if a is not None:
            a = checked_coefficient("a", decomposition, a, 1)
            if jnp.iscomplexobj(a):
                raise ValueError(f"`a` must be real; got {a.dtype}.")
            each = tuple(a) if a.ndim > decomposition.ndim else (a,) * decomposition.ndim
            whole = lambda x: Placed(decomposition)(x if x.ndim else jnp.broadcast_to(x, decomposition.shape))
            self.a = _on_faces(self.geometry, tuple(map(whole, each)))

    def factors(self) -> tuple[Array, ...]:
        # A gradient has no area, only differences. So the fractions of open faces count as one.
        is_open = () if self.openings is None else (jnp.where(self.openings == 0, self.openings, 1),)
        return is_open if self.a is None else (*is_open, self.a)

    @property
    def weights(self) -> Float[Array, "ndim *grid"]:
        """The open volume between the two centres beside each face, over the mean volume of cells; zero at walls."""
        return _weights(self.geometry, () if self.openings is None else (self.openings,))


class Divergence(_AbstractStaggered):
    """The divergence of a vector field on faces, on the cells between them. See `Gradient` for the faces.

    The result is the flux out of each cell over its volume, times the volumes of cells over their mean volume, as in
    `Diffusion`. On cells of equal widths, it is the divergence.
    """

    geometry: Geometry
    openings: Float[Array, "ndim *grid"] | None
    is_gradient: ClassVar[bool] = False

    def __init__(
        self,
        decomposition: Decomposition,
        *,
        boundary: Sides | Sequence[Sides] = "periodic",
        cells: Sequence[AxisCells] | None = None,
        body: Body | None = None,
    ):
        """**Arguments** and **Raises** are those of `Gradient`.

        An instance `divergence` is called as `divergence(u)`.

        **Arguments of the call:** a real or complex vector field on faces, of shape `(*batch, ndim, *shape)`. Entries
        on walls are ignored.

        **Returns:** a field of shape `(*batch, *shape)`, in single precision for vectors of half precision. Its padding
        is zero.
        """
        self.geometry, self.openings = _staggered(decomposition, boundary, cells, body)

    def factors(self) -> tuple[Array, ...]:
        return () if self.openings is None else (self.openings,)


def _staggered(decomposition: Any, boundary: Any, cells: Any, body: Any) -> tuple[Geometry, Array | None]:
    """Return the geometry, and the open fractions of faces. Raises an error for an argument that is not valid."""
    geometry = geometry_of(decomposition, boundary, cells)
    pairs = [pair for pair in geometry.conditions if pair]
    if any("robin" in pair or pair == ("dirichlet", "dirichlet") for pair in pairs):
        raise ValueError(
            '`boundary` must be "periodic", "neumann", or a pair of "neumann" and "dirichlet", along each axis, for '
            f"vectors on faces: there is one entry for both sides of an axis; got {boundary!r}."
        )
    body = checked_body(geometry, body)
    if body is not None and body.boundary != "neumann":
        raise ValueError(f'`body` must be "neumann" for vectors on faces; got {body.boundary!r}.')
    if body is None:
        return geometry, None
    # On Explicit axes, a program needs an argument on the mesh.
    return geometry, _openings(geometry, body, Placed(decomposition)(jnp.zeros(decomposition.shape)))


@eqx.filter_jit
def _openings(geometry: Geometry, body: Body, zeros: Array) -> Array:
    """Return the open fraction of the face of each entry of a vector."""
    cut, ndim, found = geometry.cut(local=False), geometry.decomposition.ndim, []
    faces, _ = open_fractions(geometry, body, cut, jnp.zeros(()).dtype)
    for axis, fractions in enumerate(faces):
        found.append(_entries(geometry, cut, axis, fractions) + zeros)
    return jnp.stack(found, axis=-ndim - 1)


@eqx.filter_jit
def _on_faces(geometry: Geometry, a: tuple[Array, ...]) -> Array:
    """Return the harmonic mean of the coefficients of the two cells beside the face of each entry of a vector."""
    cut, ndim, found = geometry.cut(local=False), geometry.decomposition.ndim, []
    for axis, field in enumerate(a):
        before, behind = beside(geometry, cut, axis, field)
        below, above, *_ = (cut.line(values, axis) for values in geometry.faces(axis, cut, field.dtype))
        mean = harmonic_mean(before, behind, below / (below + above), above / (below + above))
        found.append(_entries(geometry, cut, axis, mean))
    return jnp.stack(found, axis=-ndim - 1)


def _entries(geometry: Geometry, cut: Cut, axis: int, faces: Array) -> Array:
    """Return the value of each entry of a vector from the values on all n + 1 faces of blocks across an axis."""
    own = cut.slice(faces, axis, 0, cut.core[axis])
    if _is_open_above(geometry, axis):
        upper = _before(geometry, cut.merge(cut.clear(cut.slice(faces, axis, 1, cut.core[axis] + 1))), cut)
        own = jnp.where(cut.line(cut.numbers(axis) == 0, axis), _lower(cut, upper, axis), own)
    return cut.merge(cut.clear(own))


def _is_open_above(geometry: Geometry, axis: int) -> bool:
    """Whether entry 0 along an axis is the face at the upper side, where p is given."""
    return (geometry.conditions[axis] or ("", ""))[1] == "dirichlet"


def _exchange(geometry: Geometry) -> HaloExchange:
    """Return the exchange of the layer before each block. Behind an open upper side is entry 0, as on a circle."""
    ndim = geometry.decomposition.ndim
    periodic = tuple(geometry.periodic[axis] or _is_open_above(geometry, axis) for axis in range(ndim))
    return HaloExchange(geometry.decomposition, ((1, 0),) * ndim, periodic=periodic)


def _before(geometry: Geometry, x: Array, cut: Cut) -> Array:
    """Return the split blocks of a field, with one more layer before them."""
    exchange = _exchange(geometry)
    return cut.split(exchange.local(x) if cut.local else exchange(x), {i: n + 1 for i, n in enumerate(cut.core)})


def _structures(geometry: Geometry, given: Structure | None, *, to_faces: bool) -> tuple[Structure, Structure]:
    source, _ = HaloExchange(geometry.decomposition, 1).structures(UNCHANGED, given)
    scalar, vector = (replace(source, components=lead) for lead in ((), (geometry.decomposition.ndim,)))
    return (scalar, vector) if to_faces else (vector, scalar)


def _as_argument(geometry: Geometry, x: Any, *, to_faces: bool, local: bool) -> Array:
    """Return the argument of an operator as an array of floats. Raises `ValueError` for a wrong shape."""
    dec = geometry.decomposition
    if not local:
        check_global("x", dec.mesh_axes, "Call `.local(block)` instead")
    x = device_array(x)
    if not to_faces and (x.ndim <= dec.ndim or x.shape[-dec.ndim - 1] != dec.ndim):
        raise ValueError(
            f"`x` must have one component for each of {', '.join(axis_names(dec.ndim))} before the axes of the grid; "
            f"got shape {x.shape}."
        )
    x = precise(x) if local else Placed(dec)(precise(x))
    # `Placed` may shard the components over mesh axes that are left over.
    return x if to_faces else whole_along(x, -dec.ndim - 1)


def _distances(geometry: Geometry, cut: Cut, axis: int, dtype: Any) -> tuple[Array, Array]:
    """Return the distance of the centres beside the face of each entry, and 1 for faces with a flux, else 0."""
    n, numbers = cut.blocks.lengths[axis], cut.numbers(axis)
    below, above, live, _ = (values[:, : cut.core[axis]] for values in geometry.faces(axis, cut, dtype))
    distances = below + above
    if _is_open_above(geometry, axis):  # Half of the last cell, instead of half of the first one.
        last = geometry.relative(axis, dtype)[n - 1] * geometry.mean_width(axis, dtype) / 2
        distances, live = jnp.where(numbers == 0, last, distances), jnp.where(numbers == 0, 1, live)
    return distances, jnp.where(jnp.asarray(numbers < n), live, 0)


def _slopes(geometry: Geometry, cut: Cut, axis: int, dtype: Any, *, is_gradient: bool) -> list[Array]:
    """Return the lines whose product is the factor of the differences across the faces of an axis.

    The factor is 1 over the distance of the centres for a gradient, and the area over the mean volume for a divergence;
    zero on walls and in the padding.
    """
    distances, live = _distances(geometry, cut, axis, dtype)
    others = [other for other in range(cut.blocks.ndim) if other != axis]
    across = geometry.volumes(others, cut, dtype)
    if is_gradient:  # Padding along the other axes is cleared from the result.
        return [cut.line(live / jnp.where(live > 0, distances, 1), axis)]
    return [cut.line(live / geometry.mean_width(axis, dtype), axis), *across]


def _behind(geometry: Geometry, cut: Cut, axis: int, x: Array) -> Array:
    """Return a split array, with zeros in place of entry 0 if the cell behind its face is outside of the grid."""
    if not _is_open_above(geometry, axis):
        return x
    return times(cut.line(jnp.asarray(cut.numbers(axis) != 0, jnp.finfo(x.dtype).dtype), axis), x)


def _to_faces(geometry: Geometry, factors: tuple[Array, ...], x: Array, local: bool, *, is_gradient: bool) -> Array:
    """Return the differences of the two cells beside each face, times the factors of a gradient or of a divergence."""
    dec, cut = geometry.decomposition, geometry.cut(local=local)
    extended = _before(geometry, x, cut)
    real, found = jnp.finfo(x.dtype).dtype, []
    here = _lower(cut, extended, None)
    for axis in range(dec.ndim):
        difference = _behind(geometry, cut, axis, here) - _lower(cut, extended, axis)
        for factor in _factors(geometry, factors, cut, axis, real, is_gradient=is_gradient):
            difference = times(factor, difference)
        found.append(cut.merge(cut.clear(difference)))
    return jnp.stack(found, axis=-dec.ndim - 1)


def _factors(
    geometry: Geometry, factors: tuple[Array, ...], cut: Cut, axis: int, real: Any, *, is_gradient: bool
) -> list[Array]:
    """Return `_slopes`, and the factors of the faces across an axis."""
    lines = _slopes(geometry, cut, axis, real, is_gradient=is_gradient)
    return [*lines, *(cut.split(factor[axis]).astype(real) for factor in factors)]


def _lower(cut: Cut, extended: Array, axis: int | None) -> Array:
    """Return the cells of blocks with a layer before them; with `axis`, the cell before each cell along it."""
    for i, cells in enumerate(cut.core):
        start = 0 if i == axis else 1
        extended = cut.slice(extended, i, start, start + cells)
    return extended


def _to_cells(geometry: Geometry, factors: tuple[Array, ...], x: Array, local: bool, *, is_gradient: bool) -> Array:
    """Apply the transpose of `_to_faces`: the flux into each cell."""
    dec, cut = geometry.decomposition, geometry.cut(local=local)
    real, parts = jnp.finfo(x.dtype).dtype, []
    for axis in range(dec.ndim):
        flux = cut.clear(cut.split(x[..., axis, *(slice(None),) * dec.ndim]))
        for factor in _factors(geometry, factors, cut, axis, real, is_gradient=is_gradient):
            flux = times(factor, flux)
        parts.append(flux)
    extended = jnp.zeros((), x.dtype)
    for axis in range(-1, dec.ndim):
        inward = [_behind(geometry, cut, i, part) for i, part in enumerate(parts)]
        flux = sum(inward[1:], inward[0]) if axis < 0 else -parts[axis]
        widths = [(0, 0)] * flux.ndim
        for i in range(dec.ndim):
            widths[flux.ndim + cut.position(i)] = (0, 1) if i == axis else (1, 0)
        padded = jnp.pad(flux, widths)
        extended = padded if axis < 0 else extended + padded
    exchange, extended = _exchange(geometry).T, cut.merge(extended)
    return exchange.local(extended) if local else exchange(extended)


_IN_PROGRAM = {run: eqx.filter_jit(run) for run in (_to_faces, _to_cells)}


@eqx.filter_jit
def _weights(geometry: Geometry, factors: tuple[Array, ...]) -> Array:
    dec, cut, dtype = geometry.decomposition, geometry.cut(local=False), jnp.zeros(()).dtype
    found = []
    for axis in range(dec.ndim):
        distances, _ = _distances(geometry, cut, axis, dtype)
        ones = cut.clear(cut.split(Placed(dec)(jnp.ones(dec.shape, dtype))))
        lines = _factors(geometry, factors, cut, axis, dtype, is_gradient=False)
        for factor in [cut.line(distances, axis), *lines]:
            ones = times(factor, ones)
        found.append(cut.merge(ones))
    return jnp.stack(found)
