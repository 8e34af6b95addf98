"""`Body`: a body in the grid, by its signed distance, and the fractions of cells and faces that it leaves open."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from .._common.agreement import check_same_array
from .._common.check import check_choice
from .._common.host import check_no_keys, device_array, dtype_of, fitting, host_array
from .._common.typed import whole_along
from .._core.decomposition import Decomposition
from .._operator.halo import HaloExchange
from .._operator.placed import Placed
from ._cut import Cut, precise
from ._geometry import Geometry


class Body(eqx.Module):
    """A body in the grid of a finite-volume operator. Fields have a meaning outside of it only.

    With "neumann", the body is impermeable: `a ∂u/∂n = 0` on its surface. The conductance of each face is multiplied by
    the fraction of the face that is outside, and the volume of each cell by the fraction of the cell. With "dirichlet",
    u is zero on the surface: where the surface is between the centres of two cells, the outer cell is connected to the
    surface, at its distance along the axis. For other values on the surface, see the method `source` of `Diffusion`.
    Several bodies are one body, whose distance is the smallest of theirs.

    !!! example

        ```python
        sphere = lambda x, y, z: jnp.sqrt((x - 2) ** 2 + (y - 3) ** 2 + (z - 3) ** 2) - 1.2
        operator = finite_volume.Diffusion(dec, boundary="dirichlet", body=finite_volume.Body(sphere, "dirichlet"))
        u = solve.CG(operator)(operator.volumes * f + operator.source(None, None, None, body=1.0))
        ```

    **Arguments:**

    - `distance`: the signed distance from the surface, negative inside, in units of the box: a function of the
        coordinates `(x, y, z)`, arrays that broadcast against a field. It may be an `equinox.Module` with parameters,
        so that JAX can differentiate with respect to the shape. A root has no derivative at zero, such as at the centre
        of a sphere: there, write `jnp.sqrt(jnp.maximum(square, 1e-30))`. The origin is the lower corner of the box, so
        the centres of n equal cells are `(i + 1/2) length / n`. Or a field of shape `shape`, the distance at the
        centres, which is interpolated.
    - `boundary`: "neumann" or "dirichlet".

    **Raises:** `ValueError` for another `boundary`, and, when an operator is built, for a `distance` that does not fit.

    Source: Y. T. Ng, C. Min & F. Gibou, J. Comput. Phys. 228, 2009, for "neumann"; F. Gibou, R. Fedkiw, L.-T. Cheng &
    M. Kang, J. Comput. Phys. 176, 2002, for "dirichlet".
    """

    distance: Callable[..., Array] | Float[Array | np.ndarray, "*grid"]
    boundary: Literal["neumann", "dirichlet"] = eqx.field(static=True, default="neumann")

    def __check_init__(self):
        check_choice("boundary", self.boundary, ("neumann", "dirichlet"))


class Corners(eqx.Module):
    """The distance of a `Body` at the corners of the cells, as `Geometry.sampled` returns it."""

    values: Array


def checked_body(geometry: Geometry, body: Any) -> Body | None:
    """Return `body` with numbers instead of a function.

    Raises an error unless `body` is `None` or a `Body` whose distance has the shape of the grid.
    """
    if body is None:
        return None
    if not isinstance(body, Body):
        raise TypeError(
            f"`body` must be a `finite_volume.Body`, as `Body(distance)` returns; got {type(body).__name__}."
        )
    check_values("distance", geometry, given := body.distance, batch=False)
    check_no_keys(getattr(given, "dtype", None), "distance")
    corners = callable(given) and body.boundary == "neumann"
    values: Any
    if callable(given):
        values = geometry.sampled("distance", given, jnp.zeros(()).dtype, corners=corners)
    else:
        is_host = isinstance(given, np.ndarray) or not hasattr(given, "dtype")
        values = fitting(host_array(given, "distance"), "distance") if is_host else given
        if is_host:
            check_same_array(geometry.decomposition.mesh, values, "distance")
    if (dtype := dtype_of(values)).kind in "bc":  # Booleans and complex numbers.
        raise TypeError(f"`distance` must be real, the signed distance from the surface, negative inside; got {dtype}.")
    return eqx.tree_at(lambda body: body.distance, body, Corners(values) if corners else values)


def checked_coefficient(name: str, decomposition: Decomposition, value: Any, most: int) -> Array:
    """Return a coefficient as an array of floats.

    Raises `ValueError` for a number that is not finite, and if it has not at most `most` axes of entries.
    """
    if isinstance(value, int | float | complex | np.number) and not np.isfinite(value):
        raise ValueError(f"`{name}` must be finite; got {value!r}.")
    value, ndim = precise(device_array(value, name, decomposition.mesh)), decomposition.ndim
    lead = value.shape[: value.ndim - ndim] if value.ndim else ()
    known = not value.ndim or decomposition.layout().holds(value)
    if not (known and len(lead) <= most and all(n == ndim for n in lead)):
        fields = [("ndim",) * i + ("*shape",) for i in range(most + 1)]
        raise ValueError(
            f"`{name}` must be a number or an array of shape {' or '.join(map(str, fields))} with ndim = {ndim} and "
            f"shape = {decomposition.shape}; got shape {value.shape}.".replace("'", "")
        )
    return whole_along(value, *range(len(lead)))  # Mesh axes that the grid leaves over may shard the entries.


def check_values(name: str, geometry: Geometry, values: Any, *, batch: bool = True) -> None:
    """Raise `ValueError` unless `values` is a function or has the shape of the grid, behind batch axes if `batch`."""
    layout, ndim = geometry.decomposition.layout(), geometry.decomposition.ndim
    fits = np.ndim(values) >= ndim if batch else np.ndim(values) == ndim
    if not callable(values) and not (fits and layout.holds(values)):
        raise ValueError(
            f"`{name}` must be a function of the coordinates, or a field of shape {geometry.decomposition.shape}; got "
            f"shape {np.shape(values)}."
        )


def at_centres(geometry: Geometry, given: Callable[..., Array] | Any, dtype: Any) -> Array:
    """Return a field: the values of a function `body` at the centres of the cells, or the values themselves."""
    values = geometry.sampled("body", given, dtype, corners=False) if callable(given) else jnp.asarray(given)
    return Placed(geometry.decomposition)(precise(values, dtype))


def beside(geometry: Geometry, cut: Cut, axis: int, x: Array) -> tuple[Array, Array]:
    """Return the values of a field before and behind each face across `axis`, as split arrays; one outside the grid."""
    ndim, cells = geometry.decomposition.ndim, cut.core[axis]
    halo = tuple((1, 1) if i == axis else (0, 0) for i in range(ndim))
    extended = HaloExchange(geometry.decomposition, halo, periodic=geometry.periodic)(x)
    extended = cut.split(extended, {axis: cells + 2})
    for other, n in enumerate(geometry.decomposition.shape):
        numbers = cut.numbers(other, *halo[other])
        inside = (numbers <= n if geometry.periodic[axis] and other == axis else numbers < n) & (
            (numbers >= 0) | geometry.periodic[other]
        )
        if not inside.all():
            extended = jnp.where(cut.line(inside, other), extended, jnp.ones_like(extended))
    return cut.slice(extended, axis, 0, cells + 1), cut.slice(extended, axis, 1, cells + 2)


def open_fractions(geometry: Geometry, body: Body, cut: Cut, dtype: Any) -> tuple[tuple[Array, ...], Array]:
    """Return, as split arrays, the fractions of the faces across each axis, and of the cells, outside a body."""
    axes = range(geometry.decomposition.ndim)
    if isinstance(body.distance, Corners):
        corners = cut.split(body.distance.values, {axis: cells + 1 for axis, cells in enumerate(cut.core)})
    else:
        corners = _at_corners(geometry, at_centres(geometry, body.distance, dtype), cut)
    corners = corners.astype(dtype)
    faces = tuple(_open_fraction(cut, corners, [other for other in axes if other != axis]) for axis in axes)
    return faces, _open_fraction(cut, corners, axes)


def _at_corners(geometry: Geometry, distance: Array, cut: Cut) -> Array:
    """Return a field on cells at the corners of the cells: by linear interpolation, and by extrapolation at walls."""
    dec, dtype = geometry.decomposition, distance.dtype
    extended = HaloExchange(dec, 2, periodic=geometry.periodic)(distance)
    extended = cut.split(extended, {axis: cells + 4 for axis, cells in enumerate(cut.core)})
    for axis, (n, cells) in enumerate(zip(dec.shape, cut.core)):
        position = extended.ndim + cut.position(axis)
        if not geometry.periodic[axis] and n > 1:
            widths, numbers = geometry.relative(axis, dtype), cut.numbers(axis, 2, 2)
            for wall, inward, first, second in ((-1, 1, 0, 1), (n, -1, n - 1, n - 2)):
                near, far = (jnp.roll(extended, -k * inward, position) for k in (1, 2))
                slope = (near - far) * (widths[first] / (widths[first] + widths[second]))
                extended = jnp.where(cut.line(numbers == wall, axis), near + slope, extended)
        below, above = (cut.line(values, axis) for values in geometry.faces(axis, cut, dtype)[:2])
        before = cut.slice(extended, axis, 1, cells + 2)
        behind = cut.slice(extended, axis, 2, cells + 3)
        if not geometry.periodic[axis] and n == 1:
            before = behind = cut.slice(extended, axis, 2, 3) + jnp.zeros_like(before)
        extended = (above * before + below * behind) / (below + above)
    return extended


def _open_fraction(cut: Cut, corners: Array, axes: Sequence[int]) -> Array:
    """Return the fraction with positive values of each box along `axes`, from the values at its corners.

    The box is the union of simplices, one for each order in which a path along edges raises the coordinates. The values
    are linear in each. Neighbouring boxes have the same simplices in their common face.
    """

    steps, paths = range(len(axes) + 1), itertools.permutations(axes)
    starts = jnp.array([[[axis in path[:k] for axis in axes] for k in steps] for path in paths], np.int32)

    def corner(start: Array) -> Array:
        found = corners
        for k, axis in enumerate(axes):
            # JAX 0.12 cannot transpose a dynamic slice over Explicit axes.
            lower, upper = (cut.slice(found, axis, i, i + cut.core[axis]) for i in (0, 1))
            found = jnp.where(start[k] == 0, lower, upper)
        return found

    @jax.checkpoint  # One simplex at a time, so that memory is that of a few fields, also in derivatives.
    def add(total: Array, path: Array) -> tuple[Array, None]:
        return total + _positive_fraction([corner(path[k]) for k in steps]), None

    start = jnp.zeros_like(corner(starts[0, 0]))
    fraction = jax.lax.scan(add, start, starts)[0] / np.asarray(len(starts), corners.dtype)
    # A conductance far below the rounding errors of the others would have an inverse without meaning.
    return jnp.where(fraction < 4 * jnp.finfo(fraction.dtype).eps, 0, fraction)


def _positive_fraction(values: Sequence[Array]) -> Array:
    """Return the fraction of a simplex in which a linear function is positive, from its values at the vertices.

    The point where the function vanishes on an edge between a positive vertex p and a negative vertex n splits the
    simplex. In one part, it replaces n, and in the other part p. Vertices with zeros do not matter, so after every such
    step, the fraction is that of fewer vertices. All terms are positive: nothing cancels.
    """
    zero, one = jnp.zeros_like(values[0]), jnp.ones_like(values[0])
    found = [zero] * (len(values) + 1)  # Entry j: for the negative ones of the first j vertices.
    for value in values:
        above, longer = jnp.maximum(value, 0), [one]
        for j, other in enumerate(values):
            total = above + jnp.maximum(-other, 0)
            share = above / jnp.where(total == 0, 1, total)
            longer.append(share * longer[j] + (1 - share) * found[j + 1])
        found = longer
    return found[-1]
