"""The benchmark's cases between two walls. The walls bound the first axis of a grid; the other axes are periodic."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ... import Box, Cells, Chebyshev, Cosine, Decomposition, Fourier, Transform
from ...extend import AbstractBasis
from ...pde import IMEXRK, RayleighBenard
from ...spectral import Poisson
from .program import Problem, Program
from .reference import Spectra
from .solvers import Calls, SolverTransform


RAYLEIGH, PRANDTL, DT = 1e4, 1.0, 1e-3
# `WAVES` is the number of half waves between the walls in the solution of Poisson's equation. `STAGES` is the number of
# stages of `IMEXRK`.
WAVES, STAGES = 3, 4


@dataclass(frozen=True)
class ChebyshevSpectra(Spectra):
    """Chebyshev coefficients between the walls, and Fourier modes along the other axes.

    The points between the walls are Gauss–Lobatto points.
    """

    def forward(self, u: np.ndarray) -> np.ndarray:
        import scipy.fft

        across, *along = self.axes
        k: Any = scipy.fft.dct(scipy.fft.rfftn(u, axes=along, norm=self.norm), 1, axis=across)
        return (k * self._ends(0.5))[(..., *self.kept)]

    def inverse(self, k: np.ndarray) -> np.ndarray:
        import scipy.fft

        across, *along = self.axes
        u: Any = scipy.fft.irfftn(self.on_grid(k), s=self.shape[1:], axes=along, norm=self.norm)
        values: Any = scipy.fft.idct(u * self._ends(2.0), 1, axis=across)
        return values

    def points(self) -> np.ndarray:
        """Return the points between walls at 0 and 1, broadcastable against fields."""
        angle = math.pi * np.arange(self.shape[0]) / (self.shape[0] - 1)
        return (1 - np.cos(angle)).reshape(-1, *[1] * (len(self.shape) - 1)) / 2

    def _ends(self, factor: float) -> np.ndarray:
        factors = np.ones(self.shape[0])
        factors[[0, -1]] = factor
        return factors.reshape(-1, *[1] * (len(self.shape) - 1))

    def _along(self) -> list[np.ndarray]:
        _, *along = super()._along()
        # `kept` keeps a mode if 2 * |k| <= `modes[0]`. With k = (i + 1/2) / 2, these are the modes i < `modes[0]`.
        return [(np.arange(self.shape[0]) + 0.5) / 2, *along]


@dataclass(frozen=True)
class WallTransform(SolverTransform):
    """A transform with Chebyshev polynomials between the walls."""

    @property
    def reference(self) -> ChebyshevSpectra:
        plain = super().reference
        return ChebyshevSpectra(plain.shape, plain.modes, plain.norm)


def _with_walls(dec: Decomposition, basis: AbstractBasis, height: float = 2 * math.pi) -> Transform:
    """Return a transform in a box with the length `height` along the first axis, and 2π along the others."""
    return Transform(
        dec,
        box=Box((height, *[2 * math.pi] * (dec.ndim - 1))),
        bases=(basis, *[Fourier()] * (dec.ndim - 2), Fourier(half=True)),
    )


def _poisson(across: Callable[[int], AbstractBasis], dec: Decomposition, dtype: np.dtype) -> Problem:
    """Return the case of Poisson's equation between walls without flux, compared with a periodic grid of the same size.

    `across(n)` is the basis between the walls for n points.
    """
    shape: Any = dec.shape
    n, basis = shape[0], across(shape[0])
    along = 2 * math.pi * np.arange(shape[-1]) / shape[-1]  # A wave along the last axis makes the mean zero.

    def program(operator: Poisson, line: np.ndarray, k: float) -> Program:
        """Return the program whose solution is a wave with wavenumber `k` and values `line` along the first axis."""
        transform = SolverTransform(operator.transform, dtype)

        def data():
            u = line.reshape(-1, *[1] * (len(shape) - 1)) * np.cos(along + 1) * np.ones(shape)
            return (-(k**2 + 1) * u,), u

        plans = transform.plans((("forward", ()), ("inverse", ())))
        return Program(operator, (transform.field(),), (transform.field(),), plans, transform.mesh, data)

    fft = _with_walls(dec, basis)
    operator = Poisson(fft, None if isinstance(basis, Cosine) else "neumann")
    k = WAVES / 2  # The box has the length 2π.
    if isinstance(basis, Cells):  # The second difference of a wave is smaller than its second derivative.
        k = n / math.pi * math.sin(math.pi * WAVES / (2 * n))
    angle = 2 * math.pi * np.arange(n) / n
    periodic = program(Poisson(_with_walls(dec, Fourier())), np.sin(angle), 1.0)
    return Problem(program(operator, np.cos(math.pi * WAVES * basis.points(n)), k), {"the periodic one": periodic})


def _rayleigh_benard(dec: Decomposition, dtype: np.dtype) -> Problem:
    """Return a step of `IMEXRK` for a flow along the walls and a temperature, which both decay by diffusion."""
    ndim = dec.ndim
    equation = RayleighBenard(_with_walls(dec, Chebyshev(), height=1.0), RAYLEIGH, PRANDTL)
    transform = WallTransform(equation.transform, dtype)

    def data():
        reference = transform.reference
        x = reference.points()
        viscosity, diffusivity = math.sqrt(PRANDTL / RAYLEIGH), 1 / math.sqrt(RAYLEIGH * PRANDTL)

        def state(t: float) -> np.ndarray:
            fields = np.zeros((ndim + 1, *reference.shape))
            fields[1] = np.sin(math.pi * x) * math.exp(-viscosity * math.pi**2 * t)
            fields[-1] = 1 - x + np.sin(2 * math.pi * x) * math.exp(-diffusivity * (2 * math.pi) ** 2 * t)
            return reference.forward(fields)

        return (state(0.0),), state(DT)

    # The velocity, its vorticity and the gradient of the temperature are transformed to the grid. The rates of change
    # of the velocity and the temperature are transformed back.
    to_grid = 2 * ndim + ndim * (ndim - 1) // 2
    stage: Calls = ("inverse", (to_grid,)), ("forward", (ndim + 1,))
    calls = STAGES * stage
    state = (transform.spectrum(ndim + 1),)
    step = partial(IMEXRK(equation, DT).step, 0.0)
    ours = Program(step, state, state, transform.plans(calls), transform.mesh, data)
    return Problem(ours, {"its transforms": transform.alone(calls)})


# Each function makes a problem from a decomposition and a real dtype.
SOLVERS: dict[str, Callable[[Decomposition, np.dtype], Problem]] = {
    "poisson-centres": partial(_poisson, lambda n: Cosine(2)),
    "poisson-nodes": partial(_poisson, lambda n: Cosine(1)),
    "poisson-cells": partial(_poisson, lambda n: Cells(np.linspace(0, 1, n + 1))),
    "poisson-chebyshev": partial(_poisson, lambda n: Chebyshev()),
    "rayleigh-benard": _rayleigh_benard,
}
