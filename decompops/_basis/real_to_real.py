"""Cosine and sine transforms with JAX: an FFT of the lines, between two passes over memory.

A pass reorders cells, multiplies them and adds them. Each pass is a gather with indices that are known at trace time.
XLA compiles such a gather to a single loop. If a pass concatenated slices instead, each slice would need a loop and a
copy. All factors are computed in double precision.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array, lax

from .._common.broadcast import along
from .._common.memory_layout import row_major


# XLA's FFT transforms at most this number of axes.
MOST_AXES = 3

# A pair: the factors of the cells of a line before the transform, and the factors of the cells of the result.
Weights = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class _Line:
    """A DCT, or a DST expressed by the DCT of the same type.

    The DCT transforms the cells with the indices `source`, each multiplied by its factor in `early`. The result has the
    cells with the indices `target` of the transformed line, each multiplied by its factor in `late`.
    """

    source: np.ndarray
    early: np.ndarray
    target: np.ndarray
    late: np.ndarray

    @property
    def n(self) -> int:
        return len(self.source)


def apply(kind: str, type: int, weights: Sequence[Weights], block: Array, axes: Sequence[int]) -> Array:
    """Return the unnormalised transform of `block` along `axes` (negative), with the `weights` of each axis."""
    ordered = sorted(zip(axes, weights), key=lambda pair: pair[0])
    together = MOST_AXES if type in (2, 3) else 1  # Types 2 and 3 can share one FFT of several axes.
    for start in range(0, len(ordered), together):
        group = ordered[start : start + together]
        lines = [_line(kind, type, *both) for _, both in group]
        places, last = tuple(axis for axis, _ in group), tuple(range(-len(group), 0))
        # Two separate passes move the axes. Otherwise, the transform would gather distant cells, which takes longer.
        block = row_major(jnp.moveaxis(block, places, last))
        block = jnp.moveaxis(row_major(_TRANSFORMS[kind, type](lines, block)), last, places)
    return block


def _line(kind: str, type: int, early: np.ndarray, late: np.ndarray) -> _Line:
    n = len(early)
    every, alternating = np.arange(n), (-1.0) ** np.arange(n)
    if kind == "dct" or type == 1:
        return _Line(every, early, every, late)
    if type == 2:
        return _Line(every, alternating * early, every[::-1], late)
    return _Line(every[::-1], early[::-1], every, alternating * late)


def _gather(x: Array, index: np.ndarray, factor: np.ndarray, axis: int = -1) -> Array:
    """Return the cells `index` of `x` along `axis`, multiplied by `factor`.

    The result is complex if `x` or `factor` is complex.
    """
    if not np.array_equal(index, np.arange(x.shape[axis])):
        x = jnp.take(x, index, axis=axis, mode="clip")
    if np.isrealobj(factor) and np.all(factor == 1):
        return x
    factor = along(factor, axis, x.ndim)
    if np.isrealobj(factor) or jnp.iscomplexobj(x):
        return x * factor.astype(x.dtype)
    return lax.complex(x * np.real(factor).astype(x.dtype), x * np.imag(factor).astype(x.dtype))


def _projected(spectrum: Array, mode: np.ndarray, factor: npt.NDArray[np.complexfloating]) -> Array:
    """Return the real parts of products: the modes `mode` of `spectrum` times the conjugates of `factor`."""
    modes = _gather(spectrum, mode, np.ones(len(mode)))
    dtype, factor = modes.real.dtype, along(factor, -1, spectrum.ndim)
    return modes.real * factor.real.astype(dtype) + modes.imag * factor.imag.astype(dtype)


def _by_parts(transform: Callable[[Sequence[_Line], Array], Array]) -> Callable[[Sequence[_Line], Array], Array]:
    """Extend `transform`, which takes real lines along the last axis, to complex lines."""

    def of_any(lines: Sequence[_Line], x: Array) -> Array:
        if not jnp.iscomplexobj(x):
            return transform(lines, x)
        return lax.complex(transform(lines, x.real), transform(lines, x.imag))

    return of_any


def _cosine_1(lines: Sequence[_Line], x: Array) -> Array:
    """Run the real FFT of the line and its mirror image. An FFT of half the length would lose half the digits."""
    (line,) = lines
    mirrored = np.concatenate([line.source, line.source[-2:0:-1]])
    return _gather(jnp.fft.rfft(_gather(x, mirrored, line.early[mirrored])).real, line.target, line.late)


def _sine_1(lines: Sequence[_Line], x: Array) -> Array:
    """Run the real FFT of a zero, the line, another zero, and the line's mirror image with the opposite sign."""
    (line,) = lines
    index = np.concatenate([[0], line.source, [0], line.source[::-1]])
    sign = np.concatenate([[0], line.early, [0], -line.early[::-1]])
    return _gather(jnp.fft.rfft(_gather(x, index, sign)).imag, line.target + 1, -line.late)


def _reordered(n: int) -> np.ndarray:
    """Return the cell order for the FFT of types 2 and 3: even cells, then odd cells in reverse (Makhoul 1980)."""
    return np.concatenate([np.arange(0, n, 2), np.arange(1, n, 2)[::-1]])


def _phases(k: np.ndarray, n: int) -> npt.NDArray[np.complexfloating]:
    return np.exp(-0.5j * math.pi * k / n)


def _cells_2(line: _Line, x: Array, axis: int) -> Array:
    """Return the input of the FFT for type 2."""
    order = _reordered(line.n)
    return _gather(x, line.source[order], line.early[order], axis)


def _modes_2(line: _Line, x: Array, axis: int) -> Array:
    """Return the result of type 2 from a complex FFT along `axis`: the sum of modes k and -k, times phases."""
    k, phases = line.target, _phases(line.target, line.n)
    return _gather(x, k, line.late * phases, axis) + _gather(x, -k % line.n, line.late * phases.conj(), axis)


def _modes_3(line: _Line, x: Array, axis: int) -> Array:
    """Return the input of the inverse FFT along `axis` for type 3: the step of `_modes_2` in reverse."""
    every = np.arange(line.n)
    phases = line.n * _phases(every, line.n).conj() * np.where(every == 0, 0.5, 1)
    parts = [
        _gather(x, line.source[index], line.early[index] * factor, axis)
        for index, factor in ((every, phases), (-every % line.n, np.where(every == 0, 1, -1j) * phases))
    ]
    return parts[0] + parts[1]


def _cells_3(line: _Line, x: Array, axis: int) -> Array:
    """Return the result of type 3 from the inverse FFT."""
    return _gather(x, np.argsort(_reordered(line.n))[line.target], line.late, axis)


def _each(step: Callable[[_Line, Array, int], Array], lines: Sequence[_Line], axes: Sequence[int], x: Array) -> Array:
    """Apply `step` along one axis after the other, each in a separate pass over memory.

    In a single pass, XLA would compute the sums along one axis again for each sum along the next axis.
    """
    for i, (line, axis) in enumerate(zip(lines, axes)):
        x = step(line, row_major(x) if i else x, axis)
    return x


def around(fft: Callable[[Array], Array], kind: str, type: int, weights: Weights, block: Array, axis: int) -> Array:
    """Run the transform of type 2 or 3 along `axis` with JAX's transform `fft`, which also transforms other axes.

    For type 2, `fft` must return complex numbers. For type 3, `fft` must be an inverse and take complex numbers.
    """
    before, after = (_cells_2, _modes_2) if type == 2 else (_modes_3, _cells_3)
    line = _line(kind, type, *weights)
    return after(line, fft(before(line, block, axis)), axis)


def _type_2(lines: Sequence[_Line], x: Array) -> Array:
    """Run one FFT of all axes: a real FFT for real lines."""
    axes = tuple(range(-len(lines), 0))
    x = _each(_cells_2, lines, axes, x)
    if jnp.iscomplexobj(x):
        return _each(_modes_2, lines, axes, jnp.fft.fftn(x, axes=axes))
    x = _each(_modes_2, lines[:-1], axes, jnp.fft.rfftn(x, axes=axes))
    # Modes k and n - k of a real line are complex conjugates, and the half spectrum stores only one of them.
    line = lines[-1]
    k, phases = line.target, _phases(line.target, line.n)
    conjugated = np.where(k <= line.n // 2, phases.conj(), phases)
    return _projected(row_major(x), np.minimum(k, line.n - k), 2 * line.late * conjugated)


def _type_3(lines: Sequence[_Line], x: Array) -> Array:
    """Run one inverse FFT of all axes: a real one for real lines. The function reverses the steps of `_type_2`."""
    axes = tuple(range(-len(lines), 0))
    if jnp.iscomplexobj(x):
        return _each(_cells_3, lines, axes, jnp.fft.ifftn(_each(_modes_3, lines, axes, x), axes=axes))
    half = lines[-1]
    k = np.arange(half.n // 2 + 1)
    # Mode k of the half spectrum combines cells k and n - k of the input, where cell n is zero.
    mirror, inner = -k % half.n, np.where(k == 0, 0, half.early[-k % half.n])
    x = lax.complex(_gather(x, half.source[k], half.early[k]), -_gather(x, half.source[mirror], inner))
    x = _gather(x, k, half.n * _phases(k, half.n).conj())
    x = _each(_modes_3, lines[:-1], axes, row_major(x))
    return _each(_cells_3, lines, axes, jnp.fft.irfftn(x, s=tuple(line.n for line in lines), axes=axes))


def _type_4(lines: Sequence[_Line], x: Array) -> Array:
    (line,) = lines
    return (_odd_type_4 if line.n % 2 else _even_type_4)(line, x)


def _even_type_4(line: _Line, x: Array) -> Array:
    """Run a complex FFT of half the length.

    In its input, the even cells are the real parts. The odd cells, in reverse order, are the imaginary parts.
    """
    n, m = line.n, np.arange(line.n // 2)
    even, odd, phases = 2 * m, n - 1 - 2 * m, _phases(2 * m + 0.5, n)
    real = _gather(x, line.source[even], line.early[even])
    imag = _gather(x, line.source[odd], line.early[odd])
    cos, sin = (along(part.astype(x.dtype), -1, x.ndim) for part in (phases.real, -phases.imag))
    spectrum = jnp.fft.fft(lax.complex(real * cos + imag * sin, imag * cos - real * sin))
    k = line.target
    mode = np.where(k % 2 == 0, k, n - 1 - k) // 2
    return _projected(spectrum, mode, 2 * line.late * np.where(k % 2 == 0, 1, -1j) * _phases(2 * mode, n).conj())


def _odd_type_4(line: _Line, x: Array) -> Array:
    """Run a real FFT of the same length. Its input cells have signs, but no other factors (Chan and Ho 1992).

    The line is continued beyond its ends like a cosine. The cells get odd numbers: cell `(a - 1) / 2` has the number a.
    For j from 0 to n - 1, the numbers `n + 8 j` reach each of the n cells once, up to signs. The phases of these
    numbers are multiples of π/4.
    """
    n = line.n
    place = (n + 8 * np.arange(n)) % (8 * n)
    place = np.minimum(place, 8 * n - place)
    sign = np.where(place < 2 * n, 1, -1)
    cell = (np.minimum(place, 4 * n - place) - 1) // 2
    spectrum = jnp.fft.rfft(_gather(x, line.source[cell], sign * line.early[cell]))
    b = 2 * line.target + 1
    turned = np.exp(0.25j * math.pi * (b % 8))  # The angle is reduced first, because `exp` is exact for small angles.
    turned = np.where(b % n <= n // 2, turned, turned.conj())
    return _projected(spectrum, np.minimum(b % n, -b % n), 2 * line.late * turned)


_TRANSFORMS: dict[tuple[str, int], Callable[[Sequence[_Line], Array], Array]] = {
    ("dct", 1): _by_parts(_cosine_1),
    ("dst", 1): _by_parts(_sine_1),
    **{(kind, 2): _type_2 for kind in ("dct", "dst")},
    **{(kind, 3): _type_3 for kind in ("dct", "dst")},
    **{(kind, 4): _by_parts(_type_4) for kind in ("dct", "dst")},
}
