"""Checks of transforms that spectral operators and equations are built on."""

from collections.abc import Sequence
from typing import Any, TypeVar

from .._basis.base import AbstractBasis
from .._blocks import axis_names
from .._operator.transform import AbstractTransform


_T = TypeVar("_T")


def check_fft(fft: Any, *, real: bool = False) -> tuple[int, ...]:
    """The true shape of the grid of `fft`, after a check that it is a transform that knows its grid.

    With `real=True` a transform of complex fields is refused, too.
    """
    if not isinstance(fft, AbstractTransform):
        raise TypeError(f"`fft` must be an `FFT` or a `Transform`; got {fft!r}.")
    if fft.decomposition.shape is None:
        raise ValueError("`fft` must be built with a `shape`; got one without.")
    if real and fft.takes_complex:
        raise ValueError("`fft` must be built with `real=True`; got a complex transform.")
    return fft.decomposition.shape


def check_diagonal(fft: AbstractTransform, *, first: type[AbstractBasis] | tuple[()] = ()) -> None:
    """Raise `ValueError` for a basis such as `Chebyshev`, where the derivative of one mode is a sum of several.

    Along the first axis it may have the basis `first`.
    """
    for axis, (basis, name) in enumerate(zip(fft.bases, axis_names(fft.decomposition.ndim))):
        if not (basis.is_diagonal or (axis == 0 and isinstance(basis, first))):
            raise ValueError(
                f"`fft` must have bases of which each mode has one wavenumber, such as `Fourier`, `Cosine` or `Sine`; "
                f"got {basis} along {name}. Operators between walls are `WallPoisson` and `WallHelmholtz`; "
                "derivatives, such as `Derivative` and `Laplacian`, take `Chebyshev` along the first axis."
            )


def of_transformed(fft: AbstractTransform, values: Sequence[_T]) -> tuple[_T, ...]:
    """Those of `values`, one for each axis of the grid, that belong to the axes which `fft` transforms."""
    return tuple(values[axis] for axis in fft.transformed)
