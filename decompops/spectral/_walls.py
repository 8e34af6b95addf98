"""`WallPoisson` and `WallHelmholtz`: equations between two walls, with cells or polynomials along the first axis."""

import abc
from typing import TYPE_CHECKING, Any, ClassVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from equinox import AbstractVar
from jax import Array
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Inexact, Shaped

from .._basis.cells import Cells
from .._basis.chebyshev import Chebyshev
from .._basis.points import Points
from .._common.blocks import axis_names
from .._common.box import Number
from .._common.broadcast import aligned
from .._common.check import check_number
from .._common.remember import in_one_program, remembered
from .._common.sharding import place
from .._core.decomposition import Decomposition
from .._core.layout import check_global
from .._core.structure import Structure
from .._operator.derived import UNCHANGED, AbstractDerivable, Form
from .._operator.transform import Transform
from ._across import AbstractAcross, Wall
from ._cells import CellsAcross
from ._eigenfunctions import ChebyshevAcross


def _check_walls(walls: Any) -> tuple[Wall, Wall]:
    pair = (walls, walls) if isinstance(walls, str) else tuple(walls) if isinstance(walls, tuple | list) else ()
    if len(pair) != 2 or not set(pair) <= {"dirichlet", "neumann"}:
        raise ValueError(
            f'`walls` must be "dirichlet" or "neumann", or a pair of these, such as ("dirichlet", "neumann"); got '
            f"{walls!r}."
        )
    return cast(tuple[Wall, Wall], pair)


class AbstractWallSolver(AbstractDerivable):
    """An equation with the Laplacian between two walls, one at each end of the first axis.

    Fields are transformed along the walls. Then each device solves, for each mode that it holds, one equation along the
    whole first axis. Only the transforms communicate.
    """

    if TYPE_CHECKING:  # Type checkers treat an `AbstractVar` as a constructor argument.
        transform: ClassVar[Transform]
        walls: ClassVar[tuple[Wall, Wall]]
    else:
        transform: AbstractVar[Transform]
        walls: AbstractVar[tuple[Wall, Wall]]

    def __check_init__(self):
        if not isinstance(self.transform, Transform):
            raise TypeError(f"`transform` must be a `Transform`; got {self.transform!r}.")
        if not self.transform.is_bound:
            raise ValueError(
                f"`transform` must be built with a `shape`, and on a mesh; got {self.transform!r}. Pass the number of "
                "points along each axis, such as `shape=(96, 128, 128)`, when you build `transform`."
            )
        _ = self.transform.box_lengths  # Walls need a box.
        first, *others = zip(self.transform.bases, axis_names(self.decomposition.ndim))
        for basis, name in others:
            if isinstance(basis, Cells | Chebyshev):
                raise ValueError(
                    f"`transform` must have its walls across {first[1]}, the only axis that no mesh axis shards in "
                    f"spectra; got {basis} along {name}. Put the walls across the first axis of the grid."
                )
            if not basis.is_diagonal:
                raise ValueError(
                    f"`transform` must have bases such as `Fourier`, `Cosine` or `Sine` along all axes except "
                    f"{first[1]}; got {basis} along {name}."
                )
        if not isinstance(first[0], Cells | Chebyshev):
            raise ValueError(
                f"`transform` must have the basis `Cells` or `Chebyshev` along {first[1]}; got {first[0]}. Without "
                "walls, use `Poisson` or `Helmholtz`."
            )
        if isinstance(first[0], Chebyshev) and self._kept[0] < 3:
            raise ValueError(f"`transform` must keep at least 3 modes along {first[1]}; got {self._kept[0]}.")

    @property
    @abc.abstractmethod
    def sign(self) -> int:
        """The sign in the equation `sign * (constant - ∇²) u = f`."""

    @property
    @abc.abstractmethod
    def constant(self) -> Number:
        """The constant in the equation `sign * (constant - ∇²) u = f`, a nonnegative number."""

    def solution(self, field: Inexact[Array, "*field"], first: Any = 0.0, last: Any = 0.0) -> Inexact[Array, "*field"]:
        """Return the solution u with nonzero values or slopes at the walls.

        `operator.solution(f, 1.0)` returns the solution for the right-hand side f with u = 1 at the first wall.
        `operator.solution(f)` equals `operator(f)`. With the basis `Chebyshev`, this method transforms one field more
        than `operator(f)`.

        **Arguments:**

        - `field`: the right-hand side, a field in real space.
        - `first`, `last`: the value of u at a "dirichlet" wall, or the slope `∂u/∂x` at a "neumann" wall; `first` is
            for the wall at x = 0. Each is one number, or an array for the axes after the first axis: `(ny, nz)` or
            `(*batch, ny, nz)`.

        **Returns:** a field of the shape and dtype of `field`.

        **Raises:** `ValueError` if `field` does not have the shape of the grid, if wall values do not fit `field`, or
        if this method is called inside a `shard_map` over a mesh axis that shards the grid.
        """
        check_global("field", self.decomposition.mesh_axes)
        self.in_layout.check(field)
        if self._across.adds_values:
            return self(self._with_values(field, self.sign, first, last))
        transform = _along_walls(self.transform)
        values = transform(self._with_values(jnp.zeros_like(field), 1, first, last))
        return transform.inverse(self._solve(transform(field), values))

    def _with_values(self, field: Array, sign: int, first: Any, last: Any) -> Array:
        """Return `field` plus `sign` times the field of wall values (see `AbstractAcross.profile`)."""
        layout, ndim, dtype = self.in_layout, self.decomposition.ndim, jnp.finfo(field.dtype).dtype
        names = layout.blocks.names if field.shape[-ndim:] == layout.shape else (None,) * ndim
        spec = lambda *entries: NamedSharding(self.decomposition.mesh, PartitionSpec(*entries))
        for wall, (name, values) in enumerate({"first": first, "last": last}.items()):
            line = self._across.profile(wall, dtype)
            line = jnp.pad(line, (0, field.shape[-ndim] - len(line))).reshape(-1, *[1] * (ndim - 1))
            values = _padded(name, jnp.asarray(values, field.dtype), field.shape, ndim)
            # Both factors are sharded first, so that no device computes the whole product.
            line = place(sign * line, spec(*names[:1], *[None] * (ndim - 1)))
            if values.ndim >= ndim > 1 and values.shape[1 - ndim :] == field.shape[1 - ndim :]:
                values = place(values, spec(*[None] * (values.ndim - ndim + 1), *names[1:]))
            field = field + aligned(line.astype(field.dtype), field) * aligned(values, field)
        return field

    def _solve(
        self, spectrum: Inexact[Array, "*spectrum"], values: Inexact[Array, "*spectrum"] | None = None
    ) -> Inexact[Array, "*spectrum"]:
        """Solve the equation of each mode along the walls, on global arrays or on blocks inside a `shard_map`.

        - `spectrum`: the right-hand side, transformed along the walls only.
        - `values`: the field of wall values (see `AbstractAcross.profile`), transformed along the walls only. `None` if
            all wall values are zero, or if `spectrum` already includes them.
        """
        dtype = jnp.finfo(spectrum.dtype).dtype
        _, *k = _along_walls(self.transform).wavenumbers(dtype=dtype)
        added = jnp.asarray(self.constant, dtype) + sum((along**2 for along in k), start=jnp.zeros((), dtype))
        free = added == 0 if self._may_be_singular else None
        return self._across.solve(added, self.sign * spectrum, values, free)

    def apply(self, x: Shaped[Array | np.ndarray, "*field"], form: Form, *, local: bool) -> Shaped[Array, "*result"]:
        transform = _along_walls(self.transform)
        there, back = (transform.inverse, transform) if form.transposed else (transform, transform.inverse)
        spectrum = there.apply(x, form, local=local)
        # The real matrix along the first axis is not symmetric.
        spectrum = _solved(self, spectrum, form.transposed)
        return back.apply(spectrum, form, local=local)

    @property
    def decomposition(self) -> Decomposition:
        return cast(Decomposition, self.transform.decomposition)

    @property
    def is_invertible(self) -> bool:
        return False

    def structures(self, form: Form, given: Structure | None) -> tuple[Structure, Structure]:
        field, _ = self.transform.structures(UNCHANGED, given)
        return field, field

    @property
    def _across(self) -> AbstractAcross:
        ndim, basis, n = self.decomposition.ndim, self.transform.bases[0], self.decomposition.shape[0]
        length = self.transform.box_lengths[0]
        if isinstance(basis, Cells):
            return CellsAcross(self.walls, length, ndim, basis.weights(n))
        return ChebyshevAcross(self.walls, length, ndim, cast(Chebyshev, basis), n, self._kept[0])

    @property
    def _kept(self) -> tuple[int, ...]:
        return self.transform.modes or self.decomposition.shape

    @property
    def _may_be_singular(self) -> bool:
        """Whether a mode, or an entry of the padding, may have a solution that is known only up to a constant."""
        if "dirichlet" in self.walls or not (isinstance(self.constant, Tracer) or self.constant == 0):
            return False
        others = tuple(zip(self.transform.bases, self._kept))[1:]
        has_mean = all((basis.wavenumbers(n) == 0).any() for basis, n in others)
        return has_mean or bool(self.transform.out_layout.blocks.padded_axes)


class WallPoisson(AbstractWallSolver):
    """The solution u of Poisson's equation `∇²u = f` between two walls across the first axis, x.

    The basis along x sets the discretisation:

    - `Cells`: fields hold the means over finite volumes. Second differences approximate `∂²/∂x²`, with errors of second
        order in the cell widths. For each mode along the walls, the operator solves one tridiagonal system.
    - `Chebyshev`: fields are polynomials, and `∂²/∂x²` is exact for them. For smooth solutions, errors fall faster than
        any power of the number of polynomials, down to rounding (Greengard, SIAM J. Numer. Anal. 28, 1991). For each
        mode along the walls, the operator computes two products with a matrix of nx² numbers.

    Derivatives along the other axes are exact.

    If both walls are "neumann" and all other bases have a constant mode, a solution exists only for some f. The
    operator then subtracts a constant from f so that a solution exists, and u has zero mean over the volume.

    !!! example

        ```python
        bases = (dops.Cells.clustered(96, 2.0), dops.Fourier(), dops.Fourier(half=True))
        transform = dops.Transform(mesh, shape=(96, 128, 128), bases=bases, box=dops.Box((2.0, 6.0, 3.0)))
        pressure = spectral.WallPoisson(transform, "neumann")(f)
        ```

    **Arguments:**

    - `transform`: the transform, built with a `shape` and a `box`, whose first length is the distance between the
        walls. The basis along the first axis is `Cells` or `Chebyshev`; the other bases are `Fourier`, `Cosine`,
        `Sine` or `Points`.
    - `walls`: the condition at both walls, or a pair of conditions: "dirichlet" for u = 0, "neumann" for `∂u/∂x = 0`.
        For nonzero values and slopes, call `solution`.

    **Returns** (when called): u, of the shape and dtype of f.

    **Raises:** `TypeError` if `transform` is not a `Transform`. `ValueError` if `walls` is unknown, if `transform` has
    no `shape` or no `box`, if it has bases other than the bases above, if it has walls across an axis other than the
    first, or if it keeps fewer than three Chebyshev polynomials.
    """

    transform: Transform
    walls: tuple[Wall, Wall] = eqx.field(static=True, converter=_check_walls)

    @property
    def sign(self) -> int:
        return -1

    @property
    def constant(self) -> Number:
        return 0.0


class WallHelmholtz(AbstractWallSolver):
    """The solution u of `(shift - ∇²) u = f` between two walls across the first axis: see `WallPoisson`.

    An implicit diffusion step solves such an equation. At `shift = 0`, the equation is `-∇²u = f`. If its solution is
    known only up to a constant, u has zero mean.

    **Arguments:**

    - `transform`, `walls`: the same as in `WallPoisson`.
    - `shift`: a nonnegative real number, with the unit 1/length². It may be traced, so that JAX can
        differentiate with respect to it.

    **Returns** (when called): u, of the shape and dtype of f.

    **Raises:** the errors of `WallPoisson`; also `ValueError` if `shift` is negative, because the systems are solved
    without pivoting.
    """

    transform: Transform
    shift: Number
    walls: tuple[Wall, Wall] = eqx.field(static=True, converter=_check_walls)

    def __check_init__(self):
        check_number("shift", self.shift, least=0)

    @property
    def sign(self) -> int:
        return 1

    @property
    def constant(self) -> Number:
        return self.shift


@eqx.filter_jit  # On Explicit meshes, JAX refuses `linear_transpose` in an eager call without `jax.set_mesh`.
@in_one_program
def _solved(solver: AbstractWallSolver, spectrum: Array, transposed: bool) -> Array:
    return jax.linear_transpose(solver._solve, spectrum)(spectrum)[0] if transposed else solver._solve(spectrum)


@remembered
def _along_walls(transform: Transform) -> Transform:
    """Return the transform of the axes along the walls only.

    Its spectra are stored in the order of the grid axes, so that planes along the walls are contiguous.
    """
    bases = Points(), *transform.bases[1:]
    modes = transform.modes and (transform.decomposition.shape[0], *transform.modes[1:])
    return transform.replace(axis_contiguous=False, bases=bases, modes=modes)


def _padded(name: str, values: Array, shape: tuple[int, ...], ndim: int) -> Array:
    """Return values at a wall as an array that broadcasts against a field of `shape`, with zeros in the padding."""
    behind = shape[len(shape) - ndim + 1 :]
    own = values.shape[max(0, values.ndim - len(behind)) :]
    if any(have > want for have, want in zip(own[::-1], behind[::-1])):
        raise ValueError(
            f"`{name}` must be a number, or an array of values at the wall, of shape {behind} or with batch axes "
            f"before it; got shape {values.shape}."
        )
    widths = [(0, want - have if have > 1 else 0) for have, want in zip(own[::-1], behind[::-1])][::-1]
    if any(after for _, after in widths):
        values = jnp.pad(values, [(0, 0)] * (values.ndim - len(own)) + widths)
    return jnp.expand_dims(values, -ndim) if values.ndim >= ndim - 1 else values
