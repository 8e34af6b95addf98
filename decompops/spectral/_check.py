"""Checks of the transforms and factors that spectral operators and equations take."""

import math
from collections.abc import Sequence
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from .._basis.base import AbstractBasis
from .._basis.fourier import Fourier
from .._common.blocks import axis_names
from .._common.host import device_array
from .._core.decomposition import Decomposition, check_field
from .._operator.transform import AbstractTransform, Wavenumbers


_T = TypeVar("_T")


def check_fft(fft: Any, *, real: bool = False) -> tuple[int, ...]:
    """Return the shape of the grid of `fft`, without padding.

    **Raises:** `TypeError` if `fft` is not a transform. `ValueError` if `fft` has no mesh or no `shape`, or if `real`
    is true and `fft` takes complex fields.
    """
    if not isinstance(fft, AbstractTransform):
        advice = " Pass `FFT(decomposition, real=True)`." if isinstance(fft, Decomposition) else ""
        raise TypeError(f"`fft` must be an `FFT` or a `Transform`; got {fft!r}.{advice}")
    if not fft.is_bound:
        raise ValueError(
            f"`fft` must be built with a `shape`, and on a mesh; got {fft!r}. Pass the number of points along each "
            "axis, such as `shape=(64, 64, 64)`, when you build `fft`."
        )
    if real and fft.takes_complex:
        raise ValueError("`fft` must be built with `real=True`; got a complex transform.")
    return fft.decomposition.shape


def as_field(name: str, value: Any, fft: AbstractTransform) -> Array:
    """Return a field on the grid of `fft` as an array. Errors call it `name`, the argument of a function.

    Raises `TypeError` for what is no array, and `ValueError` for another shape.
    """
    field = device_array(value, name, fft.decomposition.mesh)
    check_field(name, field, fft.decomposition)
    return field


def check_real(name: str, field: Any) -> None:
    """Raise `TypeError` if `field` is complex."""
    if jnp.iscomplexobj(field):
        raise TypeError(f"`{name}` must be real; got {jnp.result_type(field)}. Pass the real or the imaginary part.")


def check_box_given(fft: AbstractTransform) -> None:
    """Raise `ValueError` if `fft` was built without a `box`."""
    if fft.decomposition.box is None:
        raise ValueError(
            "`fft` must be built with a `box`, because the solutions depend on its length; got no box. Pass "
            "`box=Box(length)` when you build `fft`."
        )


def check_diagonal(fft: AbstractTransform, *, first: tuple[type[AbstractBasis], ...] = ()) -> None:
    """Raise `ValueError` for a basis such as `Chebyshev`, in which the derivative of one mode is a sum of modes.

    The first axis may also have a basis of a type in `first`.
    """
    for axis, (basis, name) in enumerate(zip(fft.bases, axis_names(fft.decomposition.ndim))):
        if not (basis.is_diagonal or (axis == 0 and isinstance(basis, first))):
            raise ValueError(
                f"`fft` must have bases whose modes each have one wavenumber, such as `Fourier`, `Cosine` or `Sine`; "
                f"got {basis} along {name}. `Poisson` and `Helmholtz` accept `Cells` and `Chebyshev` along the first "
                "axis. Derivatives, such as `Derivative` and `Laplacian`, accept `Chebyshev` along the first axis."
            )


def check_periodic(fft: Any, instead: str = "", *, real: bool = False) -> tuple[int, ...]:
    """Return the result of `check_fft`. Raises its errors, and `ValueError` if a transformed axis is not periodic.

    The error ends with `instead`, which says what else to do.
    """
    shape = check_fft(fft, real=real)
    for axis in fft.transformed:
        basis, name = fft.bases[axis], axis_names(fft.decomposition.ndim)[axis]
        if not isinstance(basis, Fourier):
            raise ValueError(f"`fft` must be periodic along {name}, with the basis `Fourier`; got {basis}.{instead}")
    return shape


def checked_wavenumbers(fft: AbstractTransform, dtype: Any, *, nyquist: bool = True) -> Wavenumbers:
    """Return the wavenumbers of `fft`. Raises the error of `check_squares`."""
    bases, kept = of_transformed(fft, fft.bases), of_transformed(fft, fft.modes or check_fft(fft))
    check_squares(bases, kept, of_transformed(fft, fft.box_lengths), dtype)
    return fft.wavenumbers(dtype=dtype, nyquist=nyquist)


def check_squares(bases: Sequence[AbstractBasis], sizes: Sequence[int], lengths: Sequence[Any], dtype: Any) -> None:
    """Raise `ValueError` if the square of a wavenumber is too small or too large for `dtype`.

    The square, or one divided by it, would be zero, as the square is in the mean, or infinite.
    """
    smallest = math.sqrt(float(jnp.finfo(dtype).tiny))
    largest = 1 / smallest / math.sqrt(max(len(sizes), 1))
    for basis, n, length in zip(bases, sizes, lengths):
        waves = np.abs(basis.wavenumbers(n))
        if waves.any():
            _check_length(length, waves.max() / largest, waves[waves > 0].min() / smallest, dtype)


def check_walls(length: Any, width: float, dtype: Any) -> None:
    """Raise `ValueError` if the inverse square of the distance between two walls is no normal number of `dtype`.

    The same holds for the narrowest cell between them, which has the `width` as a fraction of the distance.
    """
    smallest = math.sqrt(float(jnp.finfo(dtype).tiny))
    _check_length(length, smallest / width, 1 / smallest, dtype)


def _check_length(length: Any, least: float, most: float, dtype: Any) -> None:
    if not isinstance(length, Tracer) and not least <= float(length) <= most:
        raise ValueError(
            f"`box` must have lengths between {least:.1g} and {most:.1g} in {np.dtype(dtype)}; got {length}. "
            "Choose another unit of length, or 64-bit numbers."
        )


def points_of_others(fft: AbstractTransform) -> int:
    """Return the number of points along the axes that `fft` does not transform. Sums over a spectrum run over them."""
    return math.prod(n for axis, n in enumerate(check_fft(fft)) if axis not in fft.transformed)


def varying_axes(shape: Sequence[int]) -> list[int]:
    """Return the axes of more than one cell. Nothing varies along other axes, so their lengths mean nothing."""
    return [axis for axis, n in enumerate(shape) if n > 1] or list(range(len(shape)))


def of_transformed(fft: AbstractTransform, values: Sequence[_T]) -> tuple[_T, ...]:
    """Return the entries of `values` for the axes that `fft` transforms. `values` has one entry for each grid axis."""
    return tuple(values[axis] for axis in fft.transformed)


def check_factors(spectrum: Array, factors: Any, name: str) -> Array:
    """Return the `factors` of the user's function `name` as an array that broadcasts against `spectrum`."""
    try:
        factors = jnp.asarray(factors)
    except (TypeError, ValueError) as error:
        raise TypeError(f"`{name}` must return an array of factors; got {factors!r}.") from error
    try:
        fits = jnp.broadcast_shapes(factors.shape, spectrum.shape) == spectrum.shape
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"`{name}` must return factors that broadcast against the spectrum {spectrum.shape}; got {factors.shape}."
        )
    return factors
