"""`VariableLaplacian`: the divergence of a coefficient times the gradient."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float, Inexact, Shaped

from .._basis.cosine import AbstractSeries, Cosine
from .._basis.fourier import Fourier
from .._common.blocks import axis_names
from .._common.host import device_array
from .._core.decomposition import Decomposition, check_field
from .._core.reductions import cleared, wide
from .._core.structure import Structure
from .._operator.base import Compose
from .._operator.derived import UNCHANGED, AbstractDerivable, Form
from .._operator.multiply import Multiply
from .._operator.placed import Placed
from .._operator.transform import AbstractTransform
from . import _vector
from ._check import check_fft
from ._modes import AbstractSpectral, Components, SlopeAxes, slope_units, wall_axes
from ._operator import AbstractSpectralOperator
from ._solve import Poisson


class VariableLaplacian(AbstractSpectral, AbstractDerivable):
    """The divergence of a coefficient times the gradient, `∇·(a ∇u)`, of a scalar field u.

    The bases of `fft` set the boundary conditions: `Fourier` is periodic; `Cosine(2)` has zero slopes at both walls,
    `Sine(2)` zero values; `Cosine(4)` and `Sine(4)` have one condition at each wall.

    The operator is symmetric and negative definite, so `solve.CG` inverts it. If all axes are periodic or `Cosine(2)`,
    it is negative semi-definite, and maps only constants to zero.

    **The Nyquist mode.** First derivatives at the points of the grid drop modes with a Nyquist wavenumber, and so does
    the slope of the last mode of `Sine(2)`. So `Divergence(fft) @ Multiply(dec, a) @ Gradient(fft)` maps some modes to
    zero and others nearly to zero, and no method solves its systems for every right-hand side. This operator instead
    takes first derivatives half a cell beside the points, where they are exact for all modes: `∂u/∂x` and a at
    `x + h/2`, for cells of length h, and likewise along the other axes. Between walls, these are the faces of the
    cells. The operator takes both faces of each cell, with the weight one half; so a face on a wall has half the weight
    of other faces. With a constant a, the result is `a * Laplacian(fft)(u)` in all modes.

    !!! example

        ```python
        laplacian = spectral.VariableLaplacian(fft, a)
        u = solve.CG(laplacian, laplacian.approximate_inverse)(f)
        ```
    """

    fft: AbstractTransform
    coefficient: Float[Array, "*coefficient"]
    # The coefficient half a cell beside the points. Along a periodic axis: at x + h/2. Between walls: the mean of the
    # values at x + h/2 and x - h/2, and half of their difference.
    midway: Float[Array, "*vector"]

    def __init__(self, fft: AbstractTransform, coefficient: Float[Array | np.ndarray, "*coefficient"]):
        """**Arguments:**

        - `fft`: the transform of all axes, built with a `shape`; with `real=True` for real fields. Each basis is
            `Fourier`, or, between walls, `Cosine(2)`, `Cosine(4)`, `Sine(2)` or `Sine(4)`, whose points are the centres
            of equal cells. With points on the walls, the operator would not be symmetric.
        - `coefficient`: the field a, real and positive, of shape `(*batch, *shape)`. With batch axes, each field of a
            batch has its own coefficient. Between the points, `log(a)` is interpolated by its Fourier series, and by a
            series of cosines between walls, whatever the conditions on u. If a has a slope at a wall, solutions have
            errors of second order in h.

        **Returns** (when called): `∇·(a ∇u)`, of the shape and dtype of u.

        **Raises:** `ValueError` if a basis of `fft` is not one of these, or `fft` does not keep all modes, or if
        `coefficient` does not have the shape of the grid; `TypeError` if `coefficient` is not real.
        """
        check_fft(fft)
        for basis, name in zip(fft.bases, axis_names(fft.decomposition.ndim)):
            if not (isinstance(basis, Fourier) or (isinstance(basis, AbstractSeries) and basis.type in (2, 4))):
                raise ValueError(
                    "`fft` must transform all axes, with bases that are periodic or have their points at the centres "
                    f"of cells: `Fourier`, `Cosine(2)`, `Cosine(4)`, `Sine(2)` or `Sine(4)`; got {basis} along {name}. "
                    "`finite_volume.Diffusion` takes other walls."
                )
        if fft.modes not in (None, fft.decomposition.shape):
            raise ValueError(f"`fft` must keep all modes; got {fft!r}.")
        coefficient = device_array(coefficient, "coefficient")
        if not jnp.issubdtype(coefficient.dtype, jnp.floating):
            raise TypeError(f"`coefficient` must be real; got {coefficient.dtype}.")
        check_field("coefficient", coefficient, fft.decomposition)
        self.fft = fft
        self.coefficient = Placed(fft.decomposition)(coefficient)
        self.midway = _coefficient_midway(fft, jnp.log(self._positive))

    @property
    def null_space(self) -> Literal["constants"] | None:
        """The fields that the operator maps to zero: constants, if all axes are periodic or between Neumann walls."""
        along = zip(self.fft.bases, self.decomposition.shape)
        return "constants" if all((basis.wavenumbers(n) == 0).any() for basis, n in along) else None

    @property
    def approximate_inverse(self) -> Compose:
        """The preconditioner `(1/√a) ∇⁻² (1/√a)`, which is the inverse if a is constant.

        With a smooth a, it is close to the inverse for nearly all modes, because `√a u` fulfils an equation whose
        highest derivative is the plain Laplacian.

        **Source:** Concus and Golub, SIAM J. Numer. Anal. 10 (1973).
        """
        root = Multiply(self.decomposition, 1 / jnp.sqrt(self._positive))
        return root @ Poisson(self.fft) @ root

    @property
    def decomposition(self) -> Decomposition:
        return self.fft.decomposition

    @property
    def is_invertible(self) -> bool:
        return False

    def structures(self, form: Form, given: Structure | None) -> tuple[Structure, Structure]:
        field, _ = self.transform.structures(UNCHANGED, given)
        field = replace(field, components=())
        return field, field

    def apply(self, x: Shaped[Array | np.ndarray, "*field"], form: Form, *, local: bool) -> Shaped[Array, "*result"]:
        del form  # The operator is real and symmetric.
        slopes = _SlopesMidway(self.fft)
        if local:
            return -slopes.T.local(self._flux(slopes.local(device_array(x))))
        return -slopes.T(self._flux(slopes(x)))

    def _flux(self, slopes: Array) -> Array:
        """Return a times the slopes: at x + h/2, or the mean and half the difference of both products between walls."""
        if not wall_axes(self.fft):  # The parts would take three more fields of memory.
            return _vector.times(self.midway, slopes)
        parts: list[Array] = []
        for a, slope in zip(_by_axis(self.fft, self.midway), _by_axis(self.fft, slopes)):
            parts += (_sum_of_products(a, slope) for slope in (slope, slope[::-1])[: len(slope)])
        return _vector.stack(parts, self.decomposition.ndim)

    @property
    def _positive(self) -> Array:
        """The coefficient, with ones in its padding, where its logarithm would be infinite.

        Half precision becomes single precision, because the rounding error of a logarithm is relative to the logarithm.
        """
        filled = cleared(self.coefficient, self.decomposition.shape, filling=1.0)
        return filled.astype(wide(filled.dtype))


def _sum_of_products(first: _vector.Parts, second: _vector.Parts) -> Array:
    return _vector.total(_vector.times(a, b) for a, b in zip(first, second))


class _AbstractMidway(AbstractSpectralOperator):
    """An operator whose result is half a cell beside the points, along each axis in turn.

    Along a periodic axis, the result is one field: the values at `x + h/2`. Between walls, it is two fields: the mean
    of the values at `x + h/2` and `x - h/2`, and half of their difference. One of the two is a slope.
    """

    @property
    def components(self) -> tuple[Components, Components]:
        return "scalar", self.decomposition.ndim + len(wall_axes(self.fft))

    def half_turns(self, spectrum: Array) -> Iterator[tuple[Array, Array, Array]]:
        """Yield, for each axis, the wavenumbers k, and the cosine and the sine of `k h / 2`."""
        for k, length in zip(self.wavenumbers(spectrum), self.decomposition.spacing):
            phase = k * _vector.cast(length / 2, spectrum)
            yield k, jnp.cos(phase), jnp.sin(phase)


class _SlopesMidway(_AbstractMidway):
    """The first derivative along each axis, half a cell beside the points of the grid along this axis."""

    fft: AbstractTransform

    def multiply(self, spectrum: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*result"]:
        walls, units, parts = wall_axes(self.fft), slope_units(self.transform), []
        for axis, (k, cos, sin) in enumerate(self.half_turns(spectrum)):
            if axis in walls:
                parts += _vector.times_unit(units[axis], k * cos, spectrum), _vector.times(-k * sin, spectrum)
            else:
                parts += (_vector.times(lax.complex(-k * sin, k * cos), spectrum),)
        return _vector.stack(parts, self.decomposition.ndim)

    @property
    def slopes(self) -> tuple[SlopeAxes, SlopeAxes]:
        return ((),), _slope_axes(self.fft, 0)


class _Midway(_AbstractMidway):
    """The field half a cell beside the points of the grid, along each axis in turn."""

    fft: AbstractTransform

    def multiply(self, spectrum: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*result"]:
        walls, units, parts = wall_axes(self.fft), slope_units(self.transform), []
        # A Nyquist mode is zero half a cell beside the points: its cosine is zero, and its sine is not known.
        known = (q != 0 for q in self.wavenumbers(spectrum, nyquist=False))
        for axis, ((_, cos, sin), keep) in enumerate(zip(self.half_turns(spectrum), known)):
            if axis in walls:
                parts += _vector.times(cos, spectrum), _vector.times_unit(units[axis], sin, spectrum)
            else:
                parts += (_vector.times(lax.complex(cos, jnp.where(keep, sin, 0)), spectrum),)
        return _vector.stack(parts, self.decomposition.ndim)

    @property
    def slopes(self) -> tuple[SlopeAxes, SlopeAxes]:
        return ((),), _slope_axes(self.fft, 1)


def _slope_axes(fft: AbstractTransform, place: int) -> SlopeAxes:
    """Return the `SlopeAxes` of a result midway, whose part number `place` between walls is a slope."""
    axes: list[tuple[int, ...]] = []
    for axis in range(fft.decomposition.ndim):
        axes += [(axis,) if part == place else () for part in range(2)] if axis in wall_axes(fft) else [()]
    return tuple(axes)


def _by_axis(fft: AbstractTransform, vector: Array) -> list[_vector.Parts]:
    """Return the components of a result midway: one for each periodic axis, and two for each axis between walls."""
    parts = iter(_vector.components(vector, fft.decomposition.ndim))
    return [tuple(islice(parts, 2 if axis in wall_axes(fft) else 1)) for axis in range(fft.decomposition.ndim)]


def _coefficient_midway(fft: AbstractTransform, logarithm: Array) -> Array:
    """Return the coefficient midway, from its logarithm at the points, which is a series of cosines between walls."""
    walls = wall_axes(fft)
    if walls:
        fft = fft.replace(bases=tuple(Cosine(2) if axis in walls else basis for axis, basis in enumerate(fft.bases)))
    parts: list[Array] = []
    for found in _by_axis(fft, _Midway(fft)(logarithm).real):
        if len(found) == 1:
            parts += (jnp.exp(found[0]),)
        else:
            before, after = jnp.exp(found[0] - found[1]), jnp.exp(found[0] + found[1])
            parts += (before + after) / 2, (after - before) / 2
    return _vector.stack(parts, fft.decomposition.ndim)
