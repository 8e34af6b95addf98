"""Fourier modes: the basis of periodic fields."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .._common.broadcast import along
from .._common.check import check_flag
from .base import AbstractBasis, AbstractLineTransform, DerivativeRule, Kind, Run


@dataclass(frozen=True)
class Fourier(AbstractBasis):
    """Complex exponentials, for periodic fields.

    **Arguments:**

    - `half`: store a half spectrum, for real fields: only one of the modes k and -k, whose coefficients are complex
        conjugates. Only one axis of a grid may have a half spectrum. This axis is transformed before the others.

    **Raises:** `TypeError` if `half` is neither True nor False.
    """

    half: bool = False

    def __post_init__(self):
        check_flag("half", self.half)

    @property
    def kinds(self) -> tuple[Kind | None, Kind | None]:
        return ("real" if self.half else None), "complex"

    @property
    def forward(self) -> "DFT":
        return DFT("r2c" if self.half else "c2c", -1)

    @property
    def is_transformed(self) -> bool:
        return True

    @property
    def is_diagonal(self) -> bool:
        return True

    def joined(self, last: AbstractBasis) -> "DFT | None":
        return last.forward if isinstance(last, Fourier) and not self.half else None

    def orthogonalized(self) -> "Fourier":
        return self

    def stored(self, n: int) -> int:
        return n // 2 + 1 if self.half else n

    def points(self, n: int) -> np.ndarray:
        return np.arange(n) / n

    def weights(self, n: int) -> np.ndarray:
        return np.full(n, 1 / n)

    def wavenumbers(self, n: int, *, nyquist: bool = True) -> np.ndarray:
        modes = (np.fft.rfftfreq if self.half else np.fft.fftfreq)(n, 1 / n)
        return 2 * math.pi * (modes if nyquist else np.where(2 * np.abs(modes) == n, 0, modes))

    def multiplicity(self, n: int, kept: int) -> np.ndarray:
        modes = np.arange(self.stored(kept))
        if not self.half:
            return np.ones(len(modes))
        del n
        return np.where((modes == 0) | (2 * modes == kept), 1.0, 2.0)

    def truncation(self, n: int, kept: int, *, nyquist: bool) -> tuple[Run, ...]:
        if kept == n:
            return (Run(0, 0, self.stored(n)),)
        runs = [Run(0, 0, (kept + 1) // 2)]
        if kept % 2 == 0 and nyquist and self.half:
            # The half spectrum stores one of the modes ±kept/2. The other one is its complex conjugate.
            runs.append(Run(kept // 2, kept // 2, 1, 2.0, real=True))
        elif kept % 2 == 0 and nyquist:
            runs += [Run(source, kept // 2, 1) for source in (kept // 2, n - kept // 2)]
        negative = (kept - 1) // 2
        if negative and not self.half:
            runs.append(Run(n - negative, kept - negative, negative))
        return tuple(runs)

    def points_below(self, n: int, fraction: float) -> int:
        return min(n, 2 * math.ceil(fraction * n / 2) - 1)

    def derivative(self, n: int, order: int) -> DerivativeRule:
        return DerivativeRule(self, n, (1.0, 1j, -1.0, -1j)[order % 4], (Run(0, 0, self.stored(n)),))


@dataclass(frozen=True)
class DFT(AbstractLineTransform):
    """A discrete Fourier transform of one or more axes, by default unnormalised.

    - `kind`: "c2c" for complex to complex, "r2c" for real to half spectrum, "c2r" for half spectrum to real. The half
        spectrum is along the last axis.
    - `sign`: the sign of the exponent.
    - `weighted`: after "r2c", multiply each mode of the half spectrum by the number of times that it appears in the
        full spectrum. Before "c2r", divide each mode by this number. The weighted transforms are the transposes of the
        transforms without weights.
    - `normalised`: divide by the number of points.
    - `clean`: before "c2r", set the imaginary parts of modes zero and Nyquist to zero. A real field has none.
    """

    kind: Literal["c2c", "r2c", "c2r"]
    sign: Literal[-1, 1]
    weighted: bool = False
    normalised: bool = False
    clean: bool = False

    @property
    def to_points(self) -> bool:
        return self.kind == "c2r"

    @property
    def multiplies(self) -> bool:
        return self.weighted

    def __post_init__(self):
        if self.kind not in _OPPOSITE or self.sign not in (-1, 1):
            raise ValueError(f"`DFT` must be of a kind in {tuple(_OPPOSITE)}, with the sign -1 or 1; got {self}.")

    def transpose(self) -> "DFT":
        weighted = not self.weighted if self.kind != "c2c" else False
        return replace(self, kind=_OPPOSITE[self.kind], weighted=weighted, clean=False)

    def conjugate(self) -> "DFT":
        return replace(self, sign=-self.sign)

    def inverse(self) -> "DFT":
        return replace(self, kind=_OPPOSITE[self.kind], sign=-self.sign, normalised=False, clean=False)

    def inverse_scale(self, points: tuple[int, ...]) -> float:
        return 1.0 if self.normalised else 1 / math.prod(points)

    def input_dtype(self, dtype: np.dtype) -> np.dtype:
        spectral = spectral_dtype(dtype)
        if self.kind != "r2c":
            return spectral
        if jnp.issubdtype(dtype, jnp.complexfloating):
            raise TypeError(
                f"`x` must be real for a real transform; got {dtype}. Pass `x.real`, or build it with `real=False`."
            )
        return field_dtype(dtype)

    def result_dtype(self, dtype: np.dtype) -> np.dtype:
        match self.kind:
            case "r2c":
                return np.result_type(dtype, np.complex64)
            case "c2r":
                return np.finfo(dtype).dtype
            case "c2c":
                return dtype

    def computed(self, points: tuple[int, ...], platform: str) -> tuple["DFT", float]:
        # XLA's inverse transforms divide by the number of points.
        divides = self.kind == "c2r" or (self.kind == "c2c" and self.sign == 1)
        if not divides or self.normalised:
            return self, 1.0
        # NumPy and XLA on CPUs ignore the imaginary parts of modes zero and Nyquist. GPU libraries may read these parts
        # (rocFFT; cuFFT at some lengths, see pytorch/pytorch#154496). In spectra of real fields these parts are zero,
        # but in cotangents they are not. If several axes are transformed at once, JAX itself sets these parts to zero.
        clean = platform == "gpu" and self.kind == "c2r" and len(points) == 1
        return replace(self, normalised=True, clean=clean), float(math.prod(points))

    def separated(
        self, axes: tuple[int, ...], points: tuple[int, ...]
    ) -> tuple[tuple["DFT", tuple[int, ...], tuple[int, ...]], ...]:
        if len(axes) == 1:
            return ((self, axes, points),)
        first = replace(self, kind="c2c", weighted=False), axes[:1], points[:1]
        # JAX makes the input of a "c2r" transform of several axes Hermitian. If the last axis is transformed alone, the
        # option `clean` must do this.
        clean = self.kind == "c2r" and len(axes) == 2
        others = replace(self, clean=clean), axes[1:], points[1:]
        return (first, others) if self.to_points else (others, first)

    def apply(self, block: Array, axes: tuple[int, ...], points: tuple[int, ...]) -> Array:
        return self.around(lambda block: self.fft(block, axes, points), block, axes, points)

    def fft(self, block: Array, axes: tuple[int, ...], points: tuple[int, ...]) -> Array:
        """Run JAX's transform of this kind. With kind "c2r" or sign 1, JAX divides by the number of points."""
        # JAX moves the axes to the end in the listed order. The result depends only on which axis is last, so the other
        # axes are sorted.
        *others, last = zip(axes, points)
        axes, points = zip(*sorted(others), last)
        match self.kind:
            case "c2c":
                return (jnp.fft.fftn if self.sign == -1 else jnp.fft.ifftn)(block, axes=axes)
            case "r2c":
                return jnp.fft.rfftn(block, axes=axes)
            case "c2r":
                return jnp.fft.irfftn(block, s=points, axes=axes)

    def around(
        self, fft: Callable[[Array], Array], block: Array, axes: tuple[int, ...], points: tuple[int, ...]
    ) -> Array:
        """Run this transform along `axes` with JAX's transform `fft`, which may also transform other axes."""
        if self.clean:
            block = _real_ends(block, axes[-1], points[-1])
        if self.kind == "c2r":
            block = block if self.sign == 1 else jnp.conj(block)
            block = block / _weights(axes[-1], points[-1], block) if self.weighted else block
        block = fft(block)
        if self.kind == "r2c":
            block = block if self.sign == -1 else jnp.conj(block)
            block = block * _weights(axes[-1], points[-1], block) if self.weighted else block
        divided = self.kind == "c2r" or (self.kind == "c2c" and self.sign == 1)
        if divided == self.normalised:
            return block
        return block * (math.prod(points) if divided else 1 / math.prod(points))


_OPPOSITE: dict[str, Literal["c2c", "r2c", "c2r"]] = {"c2c": "c2c", "r2c": "c2r", "c2r": "r2c"}


def spectral_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype of `jnp.fft.fft` for an input of `dtype`."""
    return _spectral_dtype(dtype, jax.dtypes.canonicalize_dtype(np.float64))


def field_dtype(dtype: np.dtype) -> np.dtype:
    """Return the real dtype in which fields of `dtype` are transformed. Integers and half precision are promoted."""
    return np.finfo(spectral_dtype(dtype)).dtype


@functools.cache
def _spectral_dtype(dtype: np.dtype, widest: np.dtype) -> np.dtype:
    """Return the result of `spectral_dtype`, which is cached for each `widest` real dtype that JAX allows."""
    del widest
    return jax.eval_shape(jnp.fft.fft, jax.ShapeDtypeStruct((1,), dtype)).dtype


def _weights(axis: int, points: int, block: Array) -> np.ndarray:
    """Return how often each mode of the half spectrum `block` appears in the full spectrum."""
    counts = Fourier(half=True).multiplicity(points, points)
    return along(counts.astype(block.dtype), axis, block.ndim)


def _real_ends(block: Array, axis: int, points: int) -> Array:
    """Set the imaginary parts of modes zero and Nyquist to zero. A transform to real space must ignore them."""
    for mode in {0, points // 2} if points % 2 == 0 else {0}:
        plane = lax.slice_in_dim(block, mode, mode + 1, axis=axis)
        plane = lax.complex(plane.real, jnp.zeros_like(plane.real))
        # If the program itself has computed a block, XLA updates the block in place, without a copy.
        block = lax.dynamic_update_slice_in_dim(block, plane, mode, axis)
    return block
