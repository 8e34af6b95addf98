"""Sums of waves at points, term by term on one device: the independent answer for tests of `particles.NUFFT`.

NumPy computes the sums at points in NumPy arrays, because JAX would compile a program for each operation. JAX computes
those at points in its own arrays, so that they have derivatives.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def _library(x):
    return jnp if isinstance(x, jax.Array) else np


def of_axis(x, n: int, length, *, half: bool = False):
    """Return `exp(i k x)` for each point and each of `n` modes; a cosine for the mode that stands for both signs."""
    modes = (np.fft.rfftfreq if half else np.fft.fftfreq)(n, 1 / n)
    phase = 2 * np.pi * (x / length)[:, None] * modes[None]
    library = _library(phase)
    cosine, sine = library.cos(phase), library.where(2 * np.abs(modes)[None] == n, 0, library.sin(phase))
    return lax.complex(cosine, sine) if library is jnp else cosine + 1j * sine


def _waves(x, shape, lengths, real: bool):
    last = len(shape) - 1
    return [of_axis(x[:, i], n, lengths[i], half=real and i == last) for i, n in enumerate(shape)]


def type1(x, strengths, shape, lengths, *, real: bool = False):
    """Return the sum of `c_j exp(-i k x_j)` for each mode."""
    axes = "klm"[: len(shape)]
    waves = [wave.conj() for wave in _waves(x, shape, lengths, real)]
    sums = f"j,{','.join('j' + k for k in axes)}->{axes}"
    return _library(x).einsum(sums, strengths.astype(complex), *waves, optimize=True)


def type2(x, spectrum, shape, lengths, *, real: bool = False):
    """Return the sum of `f_k exp(i k x_j)` for each point. A half spectrum stands for that of a real field."""
    axes = "klm"[: len(shape)]
    weighted = spectrum * multiplicity(shape).astype(complex) if real else spectrum
    sums = f"{axes},{','.join('j' + k for k in axes)}->j"
    values = _library(x).einsum(sums, weighted, *_waves(x, shape, lengths, real), optimize=True)
    return values.real if real else values


def multiplicity(shape) -> np.ndarray:
    """Return how often each mode of a half spectrum is in the whole spectrum, along all axes."""
    modes = np.arange(shape[-1] // 2 + 1)
    counts = np.where((modes == 0) | (2 * modes == shape[-1]), 1.0, 2.0)
    return np.broadcast_to(counts, (*shape[:-1], len(modes)))
