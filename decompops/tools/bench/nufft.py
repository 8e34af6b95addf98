"""The benchmark's cases of non-uniform Fourier transforms, compared with finufft."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from ... import FFT, Decomposition
from ...particles import NUFFT, Particles
from .program import Contestant, Operand, Problem, Program, random_field


# `CHECKED` is the error that single precision allows, because positions are rounded.
TOLERANCE, CHECKED = 1e-6, 1e-4
# The answers are known because only so many strengths, or modes, are not zero. This changes no time.
WAVES = 4


def _problem(kind: int, dec: Decomposition, dtype: np.dtype) -> Problem:
    """Return the transform of type `kind` between random points, one for every two modes, and all modes."""
    mesh: Any = dec.mesh
    nufft, number = NUFFT(dec, TOLERANCE), np.result_type(dtype, np.complex64)
    fine = nufft.particle_mesh.decomposition
    devices = math.prod(dec.sizes)
    count = max(math.prod(dec.shape) // 2 // devices, WAVES)  # of the points of each device

    def of_points(dtype: np.dtype, columns: int) -> Operand:
        axes = (dec.mesh_axes,) if dec.mesh_axes else ()
        return Operand(dtype, Decomposition(dec.mesh, shape=(devices * count, columns), axes=axes).layout().blocks)

    def function(x: Array, positions: Array) -> Array:
        counts = jnp.full(devices, count, np.int32)
        p = Particles(positions, {}, counts, counts, jnp.zeros_like(counts))
        return nufft.type1(p, x[:, 0]) if kind == 1 else nufft.type2(p, x)[:, None]

    def data():
        positions = _points(dec, fine, count, dtype)
        modes = [np.fft.fftfreq(n, 1 / n) for n in dec.shape]
        if kind == 1:
            strengths = np.zeros((len(positions), 1), number)
            strengths[:WAVES, 0] = random_field((WAVES,), number)
            return (strengths, positions), [_spectrum(strengths[:WAVES, 0], positions[:WAVES], modes)]
        spectrum, values = np.zeros(dec.shape, number), np.zeros(len(positions), number)
        for i, value in enumerate(random_field((WAVES,), number)):
            mode = tuple(i % max(1, n // 2) for n in dec.shape)
            spectrum[mode] += value
            values += value * np.exp(1j * (positions @ np.array(mode, dtype)))
        return (spectrum, positions), [values[:, None]]

    spectrum = Operand(number, FFT(dec).out_layout.blocks)
    ends = (of_points(number, 1), spectrum)[:: 1 if kind == 1 else -1]
    fft = FFT(fine, modes=dec.shape, nyquist=True).plan()
    plans = ((fft if kind == 1 else fft.inverse(), 1),)
    ours = Program(function, (ends[0], of_points(dtype, dec.ndim)), (ends[1],), plans, mesh, data)
    return Problem(ours, peers=partial(_peers, kind, dec.shape), tolerance=CHECKED)


def _points(dec: Decomposition, fine: Decomposition, count: int, dtype: np.dtype) -> np.ndarray:
    """Return `count` random points in the block of each device, in a box of length 2π.

    The first points of all are points of the grid. There, both signs of a Nyquist wavenumber give the same wave.
    """
    blocks, rng = fine.layout().blocks, np.random.default_rng(1)
    lengths = np.array([2 * math.pi / parts for parts in blocks.parts])
    corners = np.array(list(np.ndindex(blocks.parts)))[:, None] * lengths
    found = (corners + rng.uniform(0.001, 0.999, (len(corners), count, len(lengths))) * lengths).astype(dtype)
    for i in range(WAVES):
        found[0, i] = [2 * math.pi / n * (i % max(1, n // parts)) for n, parts in zip(dec.shape, blocks.parts)]
    return found.reshape(-1, len(lengths))


def _spectrum(strengths: np.ndarray, positions: np.ndarray, modes: list[np.ndarray]) -> np.ndarray:
    """Return the sum of the waves of a few points."""
    total = np.zeros([len(k) for k in modes], complex)
    for strength, position in zip(strengths, positions):
        wave = np.array(strength)
        for k, x in zip(modes, position):
            wave = np.multiply.outer(wave, np.exp(-1j * k * x))
        total += wave
    return total


def _peers(
    kind: int, shape: tuple[int, ...], x: np.ndarray, positions: np.ndarray
) -> dict[str, Callable[[], Contestant]]:
    def finufft() -> Contestant:
        import finufft  # pyright: ignore[reportMissingImports]  (in no extra of decompops)

        columns = [np.ascontiguousarray(positions[:, axis]) for axis in range(len(shape))]
        function = getattr(finufft, f"nufft{len(shape)}d{kind}")
        if kind == 1:
            call = partial(function, *columns, np.ascontiguousarray(x[:, 0]), shape)
        else:
            call = partial(function, *columns, x)
        run = partial(call, eps=TOLERANCE, isign=-1 if kind == 1 else 1, modeord=1)
        return Contestant(run, lambda result: [result if kind == 1 else result[:, None]], "one process", alone=True)

    return {"finufft": finufft}


# Each function makes a problem from a decomposition and a real dtype.
NUFFTS: dict[str, Callable[[Decomposition, np.dtype], Problem]] = {
    "nufft-type1": partial(_problem, 1),
    "nufft-type2": partial(_problem, 2),
}
