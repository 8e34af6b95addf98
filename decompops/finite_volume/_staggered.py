"""`Gradient` and `Divergence`: between cells and the faces of a staggered grid."""

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
from .._common.byte_order import device_array
from .._core.decomposition import Decomposition
from .._core.layout import check_global
from .._core.structure import Structure
from .._operator.derived import UNCHANGED, AbstractDerivable, Form
from .._operator.halo import HaloExchange
from .._operator.placed import Placed
from .._operator.unbound import OperatorDecomposition
from ._cut import Cut, times
from ._geometry import AxisCells, Geometry, geometry_of
from ._network import specs_of


# The boundary conditions along an axis. At "neumann" walls, the component of a vector through the wall is zero.
Walls = Literal["periodic", "neumann"]


class _AbstractStaggered(AbstractDerivable):
    """A gradient or a divergence: differences across faces times factors, or the negative transpose."""

    if TYPE_CHECKING:  # Type checkers treat an `AbstractVar` as a constructor argument.
        geometry: ClassVar[Geometry]
    else:
        geometry: AbstractVar[Geometry]
    is_gradient: ClassVar[bool]

    @property
    def decomposition(self) -> OperatorDecomposition:
        return self.geometry.decomposition

    @property
    def specs(self) -> "_AbstractStaggered":
        """The partition specs of the operator's arrays: an argument of `jax.shard_map` that `local` is called in."""
        return specs_of(self, self.decomposition)

    @property
    def is_invertible(self) -> bool:
        return False

    def structures(self, form: Form, given: Structure | None) -> tuple[Structure, Structure]:
        return _structures(self.geometry, given, to_faces=self.is_gradient != form.transposed)

    def apply(self, x: Shaped[Array | np.ndarray, "*field"], form: Form, *, local: bool) -> Shaped[Array, "*result"]:
        to_faces = self.is_gradient != form.transposed
        x = _checked(self.geometry, x, to_faces=to_faces, local=local)
        run = _to_faces if to_faces else _to_cells
        y = (run if local else _IN_PROGRAM[run])(self.geometry, x, local, is_gradient=self.is_gradient)
        return y if self.is_gradient else -y


class Gradient(_AbstractStaggered):
    """The gradient of a field on cells, on the faces between them: the staggered grid of Harlow and Welch.

    Entry i of component k is the value on the face between the cells i - 1 and i along axis k. Through walls, vectors
    on faces have no component: entry 0 is zero along an axis with walls, and the other wall has no entry. Differences
    over the distance of the centres have errors of second order.

    `Divergence(dec)(Gradient(dec)(p))` is exactly `-Diffusion(dec)(p)`. On cells of equal widths, `Divergence.T` is
    exactly `-Gradient`. Otherwise `Divergence.T` is `-weights * Gradient`, with the `weights` of the gradient.

    !!! example

        ```python
        gradient, divergence = finite_volume.Gradient(dec), finite_volume.Divergence(dec)
        u = u - gradient(p)    # with Diffusion(dec)(p) = -divergence(u), u is then free of divergence
        ```

    Source: F. H. Harlow & J. E. Welch, Phys. Fluids 8, 2182, 1965.
    """

    geometry: Geometry
    is_gradient: ClassVar[bool] = True

    def __init__(
        self,
        decomposition: Decomposition,
        *,
        boundary: Walls | Sequence[Walls] = "periodic",
        cells: Sequence[AxisCells] | None = None,
    ):
        """**Arguments:**

        - `decomposition`: the grid, with the lengths of its box.
        - `boundary`: "periodic" or "neumann" for all axes, or one of them for each axis.
        - `cells`: the cells along each axis, as in `Diffusion`.

        **Raises:** `TypeError` if `decomposition` is not a `Decomposition`; `ValueError` for other conditions, and for
        unknown `cells`.

        An instance `gradient` is called as `gradient(p)`.

        **Arguments of the call:** a real or complex field p of shape `(*batch, *shape)`.

        **Returns:** a vector field on the faces, of shape `(*batch, ndim, *shape)`. Its padding is zero.
        """
        self.geometry = _walls_only(geometry_of(decomposition, boundary, cells), boundary)

    @property
    def weights(self) -> Float[Array, "ndim *grid"]:
        """The volume between the two centres beside each face, over the mean volume of cells; zero at walls."""
        return _weights(self.geometry)


class Divergence(_AbstractStaggered):
    """The divergence of a vector field on faces, on the cells between them. See `Gradient` for the faces.

    The result is the flux out of each cell over its volume, times the volumes of cells over their mean volume, as in
    `Diffusion`. On cells of equal widths, it is the divergence.
    """

    geometry: Geometry
    is_gradient: ClassVar[bool] = False

    def __init__(
        self,
        decomposition: Decomposition,
        *,
        boundary: Walls | Sequence[Walls] = "periodic",
        cells: Sequence[AxisCells] | None = None,
    ):
        """**Arguments** and **Raises** are those of `Gradient`.

        An instance `divergence` is called as `divergence(u)`.

        **Arguments of the call:** a real or complex vector field on faces, of shape `(*batch, ndim, *shape)`. Entries
        on walls are ignored.

        **Returns:** a field of shape `(*batch, *shape)`. Its padding is zero.
        """
        self.geometry = _walls_only(geometry_of(decomposition, boundary, cells), boundary)


def _walls_only(geometry: Geometry, boundary: Any) -> Geometry:
    if any(kind != "neumann" for pair in geometry.conditions for kind in pair or ()):
        raise ValueError(f'`boundary` must be "periodic" or "neumann" for vectors on faces; got {boundary!r}.')
    return geometry


def _structures(geometry: Geometry, given: Structure | None, *, to_faces: bool) -> tuple[Structure, Structure]:
    source, _ = HaloExchange(geometry.decomposition, 1).structures(UNCHANGED, given)
    scalar, vector = (replace(source, components=lead) for lead in ((), (geometry.decomposition.ndim,)))
    return (scalar, vector) if to_faces else (vector, scalar)


def _checked(geometry: Geometry, x: Any, *, to_faces: bool, local: bool) -> Array:
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
    x = x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(jnp.zeros(()).dtype)
    return x if local else Placed(dec)(x)


def _slopes(geometry: Geometry, cut: Cut, axis: int, dtype: Any, *, is_gradient: bool) -> list[Array]:
    """Return the lines whose product is the factor of the differences across the faces of an axis.

    The factor is 1 over the distance of the centres for a gradient, and the area over the mean volume for a divergence;
    zero on walls and in the padding.
    """
    below, above, live, _ = (values[:, : cut.core[axis]] for values in geometry.faces(axis, cut, dtype))
    n = cut.blocks.lengths[axis]
    live = jnp.where(jnp.asarray(cut.numbers(axis) < n), live, 0)
    others = [other for other in range(cut.blocks.ndim) if other != axis]
    across = geometry.volumes(others, cut, dtype)
    if is_gradient:  # Padding along the other axes is cleared from the result.
        return [cut.line(live / jnp.where(live > 0, below + above, 1), axis)]
    return [cut.line(live / geometry.mean_width(axis, dtype), axis), *across]


def _to_faces(geometry: Geometry, x: Array, local: bool, *, is_gradient: bool) -> Array:
    """Return the differences of the two cells beside each face, times the factors of a gradient or of a divergence."""
    dec, cut = geometry.decomposition, geometry.cut(local=local)
    exchange = HaloExchange(dec, ((1, 0),) * dec.ndim, periodic=geometry.periodic)
    extended = cut.split(exchange.local(x) if local else exchange(x), {i: n + 1 for i, n in enumerate(cut.core)})
    real, found = jnp.finfo(x.dtype).dtype, []
    at = lambda axis: _lower(cut, extended, axis)
    here = at(None)
    for axis in range(dec.ndim):
        difference = here - at(axis)
        for line in _slopes(geometry, cut, axis, real, is_gradient=is_gradient):
            difference = times(line, difference)
        found.append(cut.merge(cut.clear(difference)))
    return jnp.stack(found, axis=-dec.ndim - 1)


def _lower(cut: Cut, extended: Array, axis: int | None) -> Array:
    """Return the cells of blocks with a layer before them; with `axis`, the cell before each cell along it."""
    for i, cells in enumerate(cut.core):
        start = 0 if i == axis else 1
        extended = cut.slice(extended, i, start, start + cells)
    return extended


def _to_cells(geometry: Geometry, x: Array, local: bool, *, is_gradient: bool) -> Array:
    """Apply the transpose of `_to_faces`: the flux into each cell."""
    dec, cut = geometry.decomposition, geometry.cut(local=local)
    real, parts = jnp.finfo(x.dtype).dtype, []
    for axis in range(dec.ndim):
        flux = cut.clear(cut.split(x[..., axis, *(slice(None),) * dec.ndim]))
        for line in _slopes(geometry, cut, axis, real, is_gradient=is_gradient):
            flux = times(line, flux)
        parts.append(flux)
    extended = jnp.zeros((), x.dtype)
    for axis in range(-1, dec.ndim):
        flux = sum(parts[1:], parts[0]) if axis < 0 else -parts[axis]
        widths = [(0, 0)] * flux.ndim
        for i in range(dec.ndim):
            widths[flux.ndim + cut.position(i)] = (0, 1) if i == axis else (1, 0)
        padded = jnp.pad(flux, widths)
        extended = padded if axis < 0 else extended + padded
    exchange = HaloExchange(dec, ((1, 0),) * dec.ndim, periodic=geometry.periodic).T
    extended = cut.merge(extended)
    return exchange.local(extended) if local else exchange(extended)


_IN_PROGRAM = {run: eqx.filter_jit(run) for run in (_to_faces, _to_cells)}


@eqx.filter_jit
def _weights(geometry: Geometry) -> Array:
    dec, cut, dtype = geometry.decomposition, geometry.cut(local=False), jnp.zeros(()).dtype
    found = []
    for axis in range(dec.ndim):
        below, above, live, _ = (values[:, : cut.core[axis]] for values in geometry.faces(axis, cut, dtype))
        live = jnp.where(jnp.asarray(cut.numbers(axis) < dec.shape[axis]), live, 0)
        total = cut.line(live * (below + above) / geometry.mean_width(axis, dtype), axis)
        others = [other for other in range(dec.ndim) if other != axis]
        ones = cut.clear(cut.split(Placed(dec)(jnp.ones(dec.shape, dtype))))
        for line in [total, *geometry.volumes(others, cut, dtype)]:
            ones = times(line, ones)
        found.append(cut.merge(ones))
    return jnp.stack(found)
