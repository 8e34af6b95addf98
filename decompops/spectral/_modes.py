"""`AbstractSpectral`: the transform and the wavenumbers of spectral operators and equations."""

from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from equinox import AbstractVar
from jax import Array
from jaxtyping import Inexact, Shaped

from .._basis.base import AbstractBasis
from .._basis.points import Points
from .._basis.slopes import slope_basis, slope_unit
from .._common.blocks import axis_names
from .._common.box import Box
from .._common.check import is_one_of
from .._common.host import device_array
from .._common.remember import remembered
from .._common.typed import sharded_like
from .._operator.derived import Form
from .._operator.transform import AbstractTransform, Wavenumbers
from . import _vector
from ._chebyshev import Lines
from ._check import check_diagonal, check_fft, checked_wavenumbers
from ._dealiasing import AbstractDealiasing, Truncate, check_dealiasing


# The meaning of the axis right before the grid axes:
# - "any": components that are treated separately, or a batch axis;
# - "scalar": a batch axis, like all axes before the grid axes;
# - "vector": the components of a vector, as many as the grid has axes;
# - "axial": the components of an axial vector, such as a curl: three in three dimensions; a scalar in two dimensions;
# - a number: that many fields.
Name = Literal["any", "scalar", "vector", "axial"]
Components = Name | int


class AbstractSpectral(eqx.Module):
    """The base class of modules that compute with spectra. It stores a transform `fft` unchanged.

    A subclass declares `fft` as a dataclass field. A subclass that multiplies fields also has a rule `dealiasing`.
    """

    if TYPE_CHECKING:  # Type checkers treat an `AbstractVar` as a constructor argument.
        fft: ClassVar[AbstractTransform]
    else:
        fft: AbstractVar[AbstractTransform]
    dealiasing: ClassVar[AbstractDealiasing | None] = None
    first_basis: ClassVar[tuple[type[AbstractBasis], ...]] = ()  # Bases that are also allowed along the first axis.
    solves_across: ClassVar[bool] = False  # Whether spectra hold points, not modes, across walls along the first axis.

    def __check_init__(self):
        check_fft(self.fft)
        _ = self.fft.box_lengths  # Walls need a box.
        check_diagonal(self.fft, first=self.first_basis)

    @property
    def transform(self) -> AbstractTransform:
        """The transform that computes the spectra: `fft` with only the modes that `dealiasing` keeps.

        On several devices, spectra are stored with the first axis last, which saves a transpose. Spectra of Chebyshev
        series are stored in the order of the grid axes.
        """
        if self.solves_across and not self.fft.bases[0].is_diagonal:
            return _along_walls(self.fft)
        return inner_transform(self.fft, self.dealiasing)

    def wavenumbers(self, spectrum: Inexact[Array, "*spectrum"], *, nyquist: bool = True) -> Wavenumbers:
        """Return the wavenumbers of `spectrum`, in its precision. With `nyquist=False`, Nyquist modes have zeros."""
        return checked_wavenumbers(self.transform, jnp.finfo(spectrum.dtype).dtype, nyquist=nyquist)

    def nabla(self, spectrum: Inexact[Array, "*spectrum"]) -> _vector.Nabla:
        """Return a `Nabla`, which differentiates spectra with the layout and precision of `spectrum`."""
        across = None if self.fft.bases[0].is_diagonal else self.across
        return _vector.Nabla(self.wavenumbers(spectrum, nyquist=False), slope_units(self.transform), across)

    def across(self, spectrum: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*spectrum"]:
        """Return the first derivative along the first axis, whose basis is `Chebyshev`."""
        ndim = self.fft.decomposition.ndim
        lines, length = Lines(spectrum.shape[-ndim], ndim), self.fft.box_lengths[0]
        slopes = lines.coefficients(lines.derivative(lines.pairs(spectrum)))
        slopes = sharded_like(slopes, spectrum)  # JAX forgets a mesh axis of one device in reshapes of one mode.
        return _vector.times(-2 / _vector.cast(length, spectrum), slopes)  # ξ = 1 - 2x / length


@remembered
def inner_transform(fft: AbstractTransform, dealiasing: AbstractDealiasing | None = None) -> AbstractTransform:
    """Return the transform that computes the spectra of operators: see `AbstractSpectral.transform`."""
    fft = fft if dealiasing is None else dealiasing.of_states(fft)
    if fft.norm == "ortho" and any(basis.orthogonalized() != basis for basis in fft.bases):
        fft = fft.replace(norm="backward")  # With "ortho", fields and slopes would have different weights at walls.
    # Chebyshev series are processed plane by plane along the first axis. So this axis must not be stored last.
    contiguous = fft.bases[0].is_diagonal and max(fft.decomposition.sizes, default=1) > 1
    # Operators use the lengths of the box, so they fit only operators in the same box, also in the default one.
    return fft.replace(axis_contiguous=contiguous, box=Box(fft.box_lengths))


@remembered
def _along_walls(fft: AbstractTransform) -> AbstractTransform:
    """Return the transform of the axes along the walls only, which stand across the first axis.

    Its spectra are stored in the order of the grid axes, so that planes along the walls are contiguous.
    """
    modes = fft.modes and (fft.decomposition.shape[0], *fft.modes[1:])
    return fft.replace(axis_contiguous=False, bases=(Points(), *fft.bases[1:]), modes=modes)


# The axes along which components have the basis of a first derivative: one tuple for each component, or one for all
# components.
SlopeAxes = tuple[tuple[int, ...], ...]


def slope_axes(components: Components, ndim: int) -> SlopeAxes:
    """Return the axes along which each component is a slope (see `_vector`), for a field with these `components`."""
    match components:
        case "vector":
            return tuple((axis,) for axis in range(ndim))
        case "axial":
            return _vector.planes(ndim)
    return ((),)


@remembered
def slope_units(fft: AbstractTransform) -> tuple[complex, ...]:
    """Return the unit of each axis: see `Nabla`."""
    along = zip(fft.bases, check_fft(fft))
    return tuple(slope_unit(basis, n) if basis.is_transformed and basis.is_diagonal else 1j for basis, n in along)


@remembered
def wall_axes(fft: AbstractTransform) -> tuple[int, ...]:
    """Return the axes along which a field and its slopes have different bases."""
    along = [(axis, fft.bases[axis], n) for axis, n in enumerate(check_fft(fft)) if axis in fft.transformed]
    return tuple(axis for axis, basis, n in along if basis.is_diagonal and slope_basis(basis, n) != basis)


def transform_components(
    fft: AbstractTransform, x: Shaped[Array | np.ndarray, "*x"], slopes: SlopeAxes, form: Form, *, local: bool = False
) -> Shaped[Array, "*y"]:
    """Apply `fft` in `form`, such as inverted, to an array whose components are slopes along different axes.

    `x` is a field or a spectrum. Components that are slopes along the same axes are transformed in one call.
    """
    walls = wall_axes(fft)
    slopes = tuple(tuple(axis for axis in axes if axis in walls) for axes in slopes)
    kinds = list(dict.fromkeys(slopes))
    if len(kinds) == 1:
        return _of_slopes(fft, kinds[0]).apply(x, form, local=local)
    ndim = fft.decomposition.ndim
    parts, found = _vector.components(device_array(x), ndim), {}
    for kind in kinds:
        members = [i for i, axes in enumerate(slopes) if axes == kind]
        group = _vector.stack([parts[i] for i in members], ndim)
        results = _vector.components(_of_slopes(fft, kind).apply(group, form, local=local), ndim)
        found.update(zip(members, results))
    return _vector.stack([found[i] for i in range(len(parts))], ndim)


@remembered
def _of_slopes(fft: AbstractTransform, axes: tuple[int, ...]) -> AbstractTransform:
    """Return the transform of fields that are slopes along `axes`."""
    if not axes:
        return fft
    bases, shape = list(fft.bases), check_fft(fft)
    for axis in axes:
        bases[axis] = slope_basis(bases[axis], shape[axis])
    return fft.replace(bases=tuple(bases))


def check_slopes(fft: AbstractTransform, components: Components) -> None:
    """Raise `ValueError` if a component of a vector needs points at the walls, but its basis has none."""
    shape = check_fft(fft)
    for axis in {axis for axes in slope_axes(components, len(shape)) for axis in axes} & set(wall_axes(fft)):
        rule = fft.bases[axis].derivative(shape[axis], 1)
        if rule.first < 0 or rule.first + rule.points > shape[axis]:
            name = axis_names(len(shape))[axis]
            raise ValueError(
                f"`fft` must have a basis along {name} with points at each wall where the {name} component of a vector "
                f"is not zero; got {fft.bases[axis]}, which has no point at such a wall. Use cell centres: type 2 or 4."
            )


def component_axes(components: Any, ndim: int) -> tuple[int, ...] | None:
    """Return the lengths of the component axes right before a grid of `ndim` axes; `None` for any lengths.

    **Raises:** `ValueError` if `components` is unknown, or if it is "axial" and the grid has neither two nor three
    axes.
    """
    if isinstance(components, int) and components > 0 and not isinstance(components, bool):
        return (components,)
    if not is_one_of(components, get_args(Name)):
        raise ValueError(f"`components` must be a positive number or one of {get_args(Name)}; got {components!r}.")
    if components == "axial" and ndim not in (2, 3):
        raise ValueError(f"`fft` must transform a grid of two or three axes, for a curl; got a grid of {ndim} axes.")
    named = {"any": None, "scalar": (), "vector": (ndim,), "axial": (3,) if ndim == 3 else ()}
    return named[str(components)]


def check_components(components: Components, x: Any, ndim: int, name: str = "x") -> None:
    """Raise `ValueError` if `components` stands for several fields, but `x` does not have as many.

    Errors call `x` by its `name`.
    """
    shape, wanted = jnp.shape(x), component_axes(components, ndim)
    if wanted and (len(shape) <= ndim or shape[-ndim - 1] != wanted[0]):
        lengths = ", ".join(f"n{axis}" for axis in axis_names(ndim))
        raise ValueError(f"`{name}` must be a vector field of shape (*batch, {wanted[0]}, {lengths}); got {shape}.")


def dealiased(fft: AbstractTransform, rule: AbstractDealiasing | None = Truncate()) -> AbstractTransform:
    """Return a transform between modes and a grid on which products of fields are free of aliasing.

    On a grid of n points, products of modes below n/3 alias only onto modes above n/3. The m modes of an axis are below
    m/2, and `Pad(3/2)` takes a grid of n ≥ 3m/2 points, so all modes are below n/3. Therefore, with
    `padded = dealiased(fft, Pad(3/2))`, the modes of `padded(padded.inverse(a) * padded.inverse(b))` are exact.

    **Arguments:**

    - `fft`: the transform, built with a `shape`.
    - `rule`: `Truncate(2/3)` keeps the grid of `fft` and, along an axis of n points, the modes below n/3. `Pad(3/2)`
        keeps the modes of `fft` and takes a finer grid, with `norm="forward"`. Both rules change only the axes that
        `fft` transforms. With `None`, the result is `fft`.

    **Returns:** a transform with `modes`. If `fft` already keeps few enough modes, the result has the grid and the
    modes of `fft`.

    **Raises:** `TypeError` if `rule` is neither a dealiasing rule nor `None`. `ValueError` if `fft` has no `shape`, or
    if the mesh does not divide the finer grid and `fft` was built without `pad=True`.
    """
    check_fft(fft)
    checked = check_dealiasing("rule", rule)
    return fft if checked is None else checked.of_products(fft)
