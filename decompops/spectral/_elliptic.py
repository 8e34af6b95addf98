"""`AbstractElliptic`: equations with the Laplacian, also between two walls across the first axis."""

import abc
from typing import TYPE_CHECKING, Any, ClassVar, cast, get_args

import jax.numpy as jnp
import numpy as np
from equinox import AbstractVar
from jax import Array
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Inexact, Shaped

from .._basis.base import AbstractBasis
from .._basis.cells import Cells
from .._basis.chebyshev import Chebyshev
from .._basis.fourier import field_dtype
from .._common.blocks import axis_names
from .._common.box import Number
from .._common.broadcast import aligned
from .._common.check import as_number, brief, is_one_of
from .._common.host import check_no_keys, device_array, fitting, host_array
from .._common.placement import place
from .._core.layout import check_global
from ._across import AbstractAcross, Wall
from ._cells import CellsAcross
from ._check import check_fft, check_walls
from ._eigenfunctions import ChebyshevAcross
from ._operator import AbstractSpectralOperator


Walls = tuple[Wall, Wall] | None
AnyWalls = Wall | Walls | list[Wall]  # As users write them.


def as_walls(walls: AnyWalls) -> Any:
    """Return one condition for both walls as a pair. Other values are returned unchanged, and checked later."""
    return (walls, walls) if isinstance(walls, str) else tuple(walls) if isinstance(walls, list) else walls


class AbstractElliptic(AbstractSpectralOperator):
    """The solution of `sign * (constant - ∇²) u = f`.

    If the basis along the first axis is `Cells` or `Chebyshev`, this axis stands between two walls, with the conditions
    `walls`. Fields are then transformed along the walls only, and each device solves, for each mode that it holds, one
    equation along the whole first axis. Only the transforms communicate.
    """

    if TYPE_CHECKING:  # Type checkers treat an `AbstractVar` as a constructor argument.
        walls: ClassVar[Walls]
    else:
        walls: AbstractVar[Walls]
    first_basis: ClassVar[tuple[type[AbstractBasis], ...]] = (Cells, Chebyshev)
    solves_across: ClassVar[bool] = True
    inverts: ClassVar[bool] = True

    def __check_init__(self):
        check_fft(self.fft)
        (basis, name), *others = zip(self.fft.bases, axis_names(self.decomposition.ndim))
        for other, along in others:
            if isinstance(other, self.first_basis):
                raise ValueError(
                    f"`fft` must have its walls across {name}, the only axis that no mesh axis shards in spectra; got "
                    f"{other} along {along}. Put the walls across the first axis of the grid."
                )
        if not isinstance(basis, self.first_basis):
            if self.walls is not None:
                raise ValueError(
                    f"`walls` must be None for the basis {basis} along {name}, which sets the conditions itself; got "
                    f"{self.walls!r}. `walls` is for `Cells` and `Chebyshev`."
                )
        elif (
            not isinstance(self.walls, tuple)
            or len(self.walls) != 2
            or not all(is_one_of(w, get_args(Wall)) for w in self.walls)
        ):
            raise ValueError(
                f'`walls` must be "dirichlet" or "neumann" for the basis {basis} along {name}, or a pair of these, '
                f'such as ("dirichlet", "neumann"); got {self.walls!r}.'
            )
        if isinstance(basis, Chebyshev) and self._kept[0] < 3:
            raise ValueError(f"`fft` must keep at least 3 modes along {name}; got {self._kept[0]}.")

    @property
    @abc.abstractmethod
    def sign(self) -> int:
        """The sign in the equation `sign * (constant - ∇²) u = f`."""

    @property
    @abc.abstractmethod
    def constant(self) -> Number:
        """The constant in the equation `sign * (constant - ∇²) u = f`; between walls, a nonnegative number."""

    @abc.abstractmethod
    def without_walls(self, spectrum: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*spectrum"]:
        """Solve the equation of each mode if no axis stands between `walls`."""

    def multiply(self, spectrum: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*spectrum"]:
        return self.without_walls(spectrum) if self.walls is None else self._solve(spectrum)

    def solution(
        self, field: Shaped[Array | np.ndarray, "*field"], first: Any = 0.0, last: Any = 0.0
    ) -> Inexact[Array, "*field"]:
        """Return the solution u with nonzero values or slopes at the `walls`.

        `operator.solution(f, 1.0)` returns the solution for the right-hand side f with u = 1 at the first wall.
        `operator.solution(f)` equals `operator(f)`. With the basis `Chebyshev`, this method transforms one field more
        than `operator(f)`.

        **Arguments:**

        - `field`: the right-hand side, a field in real space.
        - `first`, `last`: the value of u at a "dirichlet" wall, or the slope `∂u/∂x` at a "neumann" wall; `first` is
            for the wall at x = 0. Each is one number, or an array for the axes after the first axis: `(ny, nz)` or
            `(*batch, ny, nz)`.

        **Returns:** a field of the shape and dtype of `field`; of integers or half precision, in the precision of
        `jnp.fft`.

        **Raises:** `ValueError` if the operator has no `walls`, if `field` does not have the shape of the grid, if wall
        values do not fit `field` or are complex for a real `field`, or if this method is called inside a `shard_map`
        over a mesh axis that shards the grid.
        """
        if self.walls is None:
            raise ValueError(f"`walls` must be given for values at walls; got {self.title} without walls.")
        check_global("field", self.decomposition.mesh_axes)
        self.in_layout.check(field)
        field = device_array(field, "field")
        field = field if jnp.iscomplexobj(field) else field.astype(field_dtype(field.dtype))
        if self._across.adds_values:
            return self(self._with_values(field, self.sign, first, last))
        transform = self.transform
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
            values = _padded(name, values, field, self.decomposition.shape)
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
        dtype, basis, n = jnp.finfo(spectrum.dtype).dtype, self.fft.bases[0], self.decomposition.shape[0]
        check_walls(self.fft.box_lengths[0], float(np.min(basis.weights(n))), dtype)
        _, *k = self.wavenumbers(spectrum)
        added = jnp.asarray(self.constant, dtype) + sum((along**2 for along in k), start=jnp.zeros((), dtype))
        free = added == 0 if self._may_be_singular else None
        return self._across.solve(added, self.sign * spectrum, values, free)

    @property
    def _across(self) -> AbstractAcross:
        ndim, basis, n = self.decomposition.ndim, self.fft.bases[0], self.decomposition.shape[0]
        walls, length = cast(tuple[Wall, Wall], self.walls), self.fft.box_lengths[0]
        if isinstance(basis, Cells):
            return CellsAcross(walls, length, ndim, basis.weights(n))
        return ChebyshevAcross(walls, length, ndim, cast(Chebyshev, basis), n, self._kept[0])

    @property
    def _kept(self) -> tuple[int, ...]:
        return self.fft.modes or self.decomposition.shape

    @property
    def _may_be_singular(self) -> bool:
        """Whether a mode, or an entry of the padding, may have a solution that is known only up to a constant."""
        may_vanish = isinstance(self.constant, Tracer) or as_number(self.constant) == 0
        if "dirichlet" in (self.walls or ()) or not may_vanish:
            return False
        return self._has_constants or bool(self.transform.out_layout.blocks.padded_axes)

    @property
    def _has_constants(self) -> bool:
        """Whether constants fulfil the conditions at the walls and along the other axes."""
        others = tuple(zip(self.fft.bases, self._kept))[1:]
        return "dirichlet" not in (self.walls or ()) and all((basis.wavenumbers(n) == 0).any() for basis, n in others)


def _padded(name: str, values: Any, field: Array, grid: tuple[int, ...]) -> Array:
    """Return values at a wall as an array that broadcasts against a field on `grid`, with zeros in the padding."""
    ndim, wall = len(grid), grid[1:]
    lead, stored = field.shape[: field.ndim - ndim], field.shape[field.ndim - ndim + 1 :]
    if isinstance(values, np.ndarray):
        values = fitting(host_array(values, name), name)
    check_no_keys(getattr(values, "dtype", None), name)
    try:
        array = jnp.asarray(values)
        own = array.shape[max(0, array.ndim - len(wall)) :]
        fits = all(have in (1, n, m) for have, n, m in zip(own[::-1], wall[::-1], stored[::-1]))
        np.broadcast_shapes(lead, array.shape[: array.ndim - len(own)])
    except (TypeError, ValueError):  # An object that holds no numbers, or other batch axes.
        fits, array, own = False, jnp.zeros(()), ()
    if not fits or (jnp.iscomplexobj(array) and not jnp.iscomplexobj(field)):
        kind, article = ("", "an") if jnp.iscomplexobj(field) else ("real ", "a")
        raise ValueError(
            f"`{name}` must be a {kind}number, or {article} {kind}array of values at the wall, of shape {wall} or with "
            f"batch axes before it that fit the field of shape {field.shape}; got {brief(values)}."
        )
    widths = [(0, want - have if have > 1 else 0) for have, want in zip(own[::-1], stored[::-1])][::-1]
    array = array.astype(field.dtype)
    if any(after for _, after in widths):
        array = jnp.pad(array, [(0, 0)] * (array.ndim - len(own)) + widths)
    return jnp.expand_dims(array, -ndim) if array.ndim >= ndim - 1 else array
