"""`AbstractSpectralOperator` and `SpectralOperator`: linear operators that treat each mode of a field separately."""

import abc
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jaxtyping import Inexact, Shaped

from .._common.blocks import axis_names
from .._common.check import check_flag
from .._common.host import device_array
from .._common.remember import in_one_program, remembered
from .._core.decomposition import Decomposition
from .._core.structure import Structure
from .._operator.derived import UNCHANGED, AbstractDerivable, Form
from .._operator.transform import AbstractTransform
from . import _vector
from ._check import check_factors, check_fft
from ._modes import (
    AbstractSpectral,
    Components,
    SlopeAxes,
    check_components,
    check_slopes,
    component_axes,
    slope_axes,
    transform_components,
    wall_axes,
)
from ._walls import lost_places, slip


class AbstractSpectralOperator(AbstractSpectral, AbstractDerivable):
    """An operator that transforms a field, applies a linear map to each mode separately, and transforms back.

    An operator with a real `fft` maps real fields to real fields. An operator with a complex `fft` maps complex fields
    to complex fields. The spectrum lies in the pencils of the first axis: each device has whole lines along this axis.
    A vector has as many components as the grid has axes, in the axis right before the grid: `(*batch, 3, nx, ny, nz)`
    in three dimensions, `(*batch, 2, nx, ny)` in two. One batched call transforms all components. The wavenumber along
    an axis that `fft` does not transform is zero.

    A subclass declares the dataclass field `fft` and implements `multiply`. It may set `components`, which says
    whether fields and results are scalars or vectors; by default, each component of a field is treated separately. It
    may also set a rule `dealiasing`, and `removes_wall_values = True` if it is meant to remove components across walls.
    `inverts = True` says that `multiply` divides by squares of wavenumbers: then the operator works in very long boxes,
    where these squares are small. `fft` is stored unchanged; the property `transform` is the transform that computes
    the spectra. In boxes with a length above 1e10 or below 1e-10, the norm of `transform` may be another one.

    **Arguments** of every spectral operator:

    - `fft`: the transform, built with a `shape`, and with the `box` that the grid fills; with `real=True` for real
        fields. Its `norm` does not matter.

    **Raises:** `TypeError` if `fft` is not a transform; `ValueError` if `fft` has no `shape`, or if it has walls and no
    `box`. Calls raise `ValueError` if a vector field has a wrong number of components. Outside of functions that JAX
    traces, calls also raise `ValueError` if a component would be lost at a wall because its basis is zero there, such
    as the velocity across a wall for `Divergence` and `Cosine(1)`. Traced fields lose it silently.
    """

    components: ClassVar[tuple[Components, Components]] = ("any", "any")  # of fields and of results
    removes_wall_values: ClassVar[bool] = False  # Whether the operator is meant to remove components across walls.
    inverts: ClassVar[bool] = False  # Whether `multiply` divides by squares of wavenumbers, as inverses do.

    def __check_init__(self):
        pair, ndim = self.components, len(check_fft(self.fft))
        if not isinstance(pair, tuple) or len(pair) != 2 or (pair.count("any") == 1):
            raise ValueError(
                '`components` must be a pair, for fields and for results: ("any", "any"), or others such as '
                f'("vector", "scalar"); got {pair!r}.'
            )
        for components in pair:
            component_axes(components, ndim)
        check_slopes(self.fft, pair[0])

    @abc.abstractmethod
    def multiply(self, spectrum: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*result"]:
        """Apply the linear map to a spectrum that `self.transform` returned, or to a block of it inside a `shard_map`.

        Returns a spectrum of the same shape, except for the axis of components. Eager calls compile this method once,
        as `jax.jit` does. So the result may depend only on `spectrum` and on the fields of the operator.
        """

    def apply(self, x: Shaped[Array | np.ndarray, "*field"], form: Form, *, local: bool) -> Shaped[Array, "*result"]:
        check_components(self.components[1 if form.transposed else 0], x, self.decomposition.ndim)
        source, target = self.slopes
        if not (form.transposed or local or self.removes_wall_values):
            self._check_walls(x, source)
        x = jnp.conj(device_array(x)) if form.conjugated else x
        if form.transposed:
            spectrum = self._transformed(x, target, _INVERSE_T, local)
            result = self._transformed(_mapped(self, spectrum, True), source, _TRANSPOSED, local)
        else:
            spectrum = self._transformed(x, source, UNCHANGED, local)
            result = self._transformed(_mapped(self, spectrum, False), target, _INVERSE, local)
        return jnp.conj(result) if form.conjugated else result

    def _check_walls(self, x: Any, slopes: SlopeAxes) -> None:
        """Raise `ValueError` if a component would be lost at walls, because its basis is zero there."""
        if gap := slip(x, self.decomposition.ndim, lost_places(self.transform, slopes)):
            raise ValueError(
                f"the field of `{self.title}` must be zero at walls where its basis is zero; got {gap:.3g}. Set each "
                "component of a vector to zero at the walls along its axis, or take a basis without points on the "
                "walls, such as `Cosine(2)`."
            )

    def _transformed(self, x: Any, slopes: SlopeAxes, form: Form, local: bool) -> Array:
        return transform_components(self.transform, x, slopes, form, local=local)

    @property
    def transform(self) -> AbstractTransform:
        return _with_norm(super().transform, self.inverts)

    @property
    def slopes(self) -> tuple[SlopeAxes, SlopeAxes]:
        """The `SlopeAxes` of fields, and the `SlopeAxes` of results: the axes along which each component is a slope."""
        source, target = (slope_axes(components, self.decomposition.ndim) for components in self.components)
        return source, target

    @property
    def decomposition(self) -> Decomposition:
        return self.fft.decomposition

    @property
    def is_invertible(self) -> bool:
        return False

    def structures(self, form: Form, given: Structure | None) -> tuple[Structure, Structure]:
        field, _ = self.transform.structures(UNCHANGED, given)
        source, target = (replace(field, components=axes) for axes in self._component_axes())
        return (target, source) if form.transposed else (source, target)

    def _component_axes(self) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
        """The lengths of the component axes of fields and of results; `None` means any component axes."""
        source, target = (component_axes(components, self.decomposition.ndim) for components in self.components)
        return source, target

    def _multiplied(self, spectrum: Array) -> Array:
        result, shape, ndim = self.multiply(spectrum), spectrum.shape, self.decomposition.ndim
        source, target = self._component_axes()
        if source is not None and target is not None:
            shape = (*shape[: len(shape) - ndim - len(source)], *target, *shape[-ndim:])
        if not isinstance(result, Array) or result.shape != shape:
            got = getattr(result, "shape", result)
            raise ValueError(f"`{self.title}.multiply` must return a spectrum of shape {shape}; got {got}.")
        if jnp.iscomplexobj(spectrum) and not jnp.iscomplexobj(result):  # such as a field of as many points
            raise ValueError(f"`{self.title}.multiply` must return a complex spectrum; got {result.dtype}.")
        return result

    def _transposed_multiply(self, spectrum: Array) -> Array:
        ndim = self.decomposition.ndim
        source, target = self._component_axes()
        # `linear_transpose` needs the shape, dtype and sharding of the input of `multiply`; it does not use the values.
        parts = _vector.components(spectrum, ndim) if target else (spectrum,)
        primal, spectrum = parts[0], _vector.stack(parts, ndim) if target else spectrum
        primal = _vector.stack([primal] * source[0], ndim) if source else primal
        transposed = jax.linear_transpose(self.multiply, primal)  # Errors of `multiply` itself are raised unchanged.
        try:
            (result,) = transposed(spectrum)
        except Exception as error:  # JAX raises errors of different types for different nonlinear functions.
            text = (
                f"`{self.title}.multiply` must be linear for the transpose; got a function that JAX cannot transpose."
            )
            raise ValueError(text) from error
        return result


@remembered
def _with_norm(transform: AbstractTransform, inverts: bool) -> AbstractTransform:
    """Return `transform` with a norm that suits the box if it is very long or very short.

    Modes of the norm "forward" are no larger than the field, and others are up to as many times larger as the grid has
    points. So multiplied by large factors, the first do not overflow unless the result does; and multiplied by small
    factors, the others do not underflow. In ordinary boxes, no factor is so large or small, and the user's norm stays.
    """
    for length in transform.box_lengths:
        if not isinstance(length, Tracer) and not 1e-10 < float(length) < 1e10:
            return transform.replace(norm="forward" if (float(length) > 1) == inverts else "backward")
    return transform


@in_one_program
def _mapped(operator: AbstractSpectralOperator, spectrum: Array, transposed: bool) -> Array:
    """Apply the linear map of `operator`, or its transpose, to a spectrum."""
    return operator._transposed_multiply(spectrum) if transposed else operator._multiplied(spectrum)


_INVERSE, _TRANSPOSED, _INVERSE_T = Form(inverted=True), Form(transposed=True), Form(inverted=True, transposed=True)


class SpectralOperator(AbstractSpectralOperator):
    """Multiply each mode of a field by `symbol(kx, ky, kz)`.

    Every linear operator that commutes with translations has this form. On a grid of two axes, the symbol is
    `symbol(kx, ky)`, and so on.

    !!! example

        ```python
        bilaplacian = spectral.SpectralOperator(fft, lambda kx, ky, kz: (kx**2 + ky**2 + kz**2) ** 2)
        wave = lambda phase: jax.lax.complex(jnp.cos(phase), jnp.sin(phase))
        shift = spectral.SpectralOperator(fft, lambda kx, ky, kz: wave(-0.1 * kx), nyquist=False)
        ```

    **Arguments:**

    - `fft`: the transform, built with a `shape`.
    - `symbol`: a function of the angular wavenumbers, in radians per unit of length. The function gets one real array
        for each axis; the arrays broadcast against the spectrum. The function returns real or complex factors. Compute
        the factors from these arrays alone, because the spectrum may be stored in any order. `symbol` may be an
        `equinox.Module` with parameters. With a real `fft`, `symbol(-k)` must be the complex conjugate of `symbol(k)`.
    - `nyquist`: with `False`, `symbol` gets zero in place of Nyquist wavenumbers. Use `False` if `symbol` is not an
        even function of each wavenumber, because a Nyquist mode stands for both signs of its wavenumber.

    **Returns** (when called): the result, of the shape and dtype of the field.

    **Raises:** `TypeError` if `symbol` cannot be called; `ValueError` if `nyquist` is `False` for fields between walls.
    Calls raise `ValueError` if the factors do not broadcast against the spectrum.
    """

    fft: AbstractTransform
    symbol: Callable
    nyquist: bool = eqx.field(static=True, kw_only=True, default=True)

    def __check_init__(self):
        if not callable(self.symbol):
            names = ", ".join(f"k{axis}" for axis in axis_names(len(check_fft(self.fft))))
            raise TypeError(f"`symbol` must be a function of ({names}); got {self.symbol!r}.")
        check_flag("nyquist", self.nyquist)
        if not self.nyquist and wall_axes(self.fft):
            raise ValueError(
                "`nyquist` must be True between walls, where a symbol must be even in each wavenumber; got False. For "
                "odd derivatives, use `Derivative`."
            )

    def multiply(self, spectrum: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*spectrum"]:
        factors = self.symbol(*self.wavenumbers(spectrum, nyquist=self.nyquist))
        return multiplied(spectrum, factors, "symbol")


def multiplied(spectrum: Array, factors: Any, name: str) -> Array:
    """Return `spectrum` times the `factors` that the user's function `name` returned, after checks of the factors."""
    return _vector.times(check_factors(spectrum, factors, name), spectrum)
