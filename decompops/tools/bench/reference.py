"""The right answers for the benchmark's solvers. SciPy computes them in float64, in natural order without padding."""

import math
import os
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from .program import random_field


@dataclass(frozen=True)
class Spectra:
    """A real transform of fields of shape `shape`. It keeps the modes that a grid of shape `modes` has."""

    shape: tuple[int, ...]
    modes: tuple[int, ...]
    norm: str

    @property
    def axes(self) -> tuple[int, ...]:
        """The array axes of the grid."""
        return tuple(range(-len(self.shape), 0))

    @property
    def kept(self) -> tuple[np.ndarray, ...]:
        """The positions of the kept modes among all modes of the grid."""
        return np.ix_(*(2 * np.abs(k) <= m for k, m in zip(self._along(), self.modes)))

    @property
    def wavenumbers(self) -> np.ndarray:
        """The wavenumbers of the kept modes, of shape `(axes, *modes)`. Nyquist modes have the wavenumber zero."""
        along = [np.where(2 * np.abs(k) == n, 0, k) for k, n in zip(self._along(), self.shape)]
        return np.stack([k[self.kept] for k in np.meshgrid(*along, indexing="ij")])

    def noise(self, *lead: int) -> np.ndarray:
        """Return the spectrum of a random field."""
        return self.forward(random_field((*lead, *self.shape), np.dtype(float)))

    def forward(self, u: np.ndarray) -> np.ndarray:
        import scipy.fft

        k: Any = scipy.fft.rfftn(u, axes=self.axes, norm=self.norm, workers=os.cpu_count())
        return k[(..., *self.kept)]

    def inverse(self, k: np.ndarray) -> np.ndarray:
        import scipy.fft

        workers = os.cpu_count()
        u: Any = scipy.fft.irfftn(self.on_grid(k), s=self.shape, axes=self.axes, norm=self.norm, workers=workers)
        return u

    def on_grid(self, k: np.ndarray) -> np.ndarray:
        """Return a spectrum with all modes of the grid. The modes that are not kept are zero."""
        *others, last = self.shape
        whole = np.zeros((*k.shape[: -len(self.shape)], *others, last // 2 + 1), k.dtype)
        whole[(..., *self.kept)] = k
        return whole

    def _along(self) -> list[np.ndarray]:
        """Return the wavenumbers of the grid along each axis."""
        kinds = [np.fft.fftfreq] * (len(self.shape) - 1) + [np.fft.rfftfreq]
        return [kind(n, 1 / n) for kind, n in zip(kinds, self.shape)]


@dataclass(frozen=True)
class Flow:
    """The incompressible Navier–Stokes equations for the spectrum of a velocity."""

    spectra: Spectra
    viscosity: float

    def velocity(self) -> np.ndarray:
        """Return a random velocity."""
        return self._projected(self.spectra.noise(len(self.spectra.shape)))

    def linear(self) -> np.ndarray:
        return -self.viscosity * np.sum(self.spectra.wavenumbers**2, axis=0)

    def nonlinear(self, u: np.ndarray) -> np.ndarray:
        """Return the advection in the convective form -(u·∇)u, projected on fields without divergence.

        decompops instead computes the divergence of the products uᵢuⱼ. Without divergence of u, both forms are equal.
        """
        k, inverse = self.spectra.wavenumbers, self.spectra.inverse
        velocity = inverse(u)
        advection = velocity[0] * inverse(1j * k[0] * u)
        for i in range(1, len(k)):
            advection += velocity[i] * inverse(1j * k[i] * u)
        return self._projected(-self.spectra.forward(advection))

    def step(self, u: np.ndarray, dt: float, order: Literal[2, 4]) -> np.ndarray:
        """Take a step with the schemes of Cox & Matthews (2002) and contour integrals of Kassam & Trefethen (2005)."""
        z = dt * self.linear()
        whole, (one, two, three), start = np.exp(z), _phi(z), dt * self.nonlinear(u)
        if order == 2:
            a = whole * u + one * start
            return a + two * (dt * self.nonlinear(a) - start)
        half, half_one = np.exp(z / 2), _phi(z / 2)[0] / 2
        a = half * u + half_one * start
        first = dt * self.nonlinear(a)
        second = dt * self.nonlinear(half * u + half_one * first)
        end = dt * self.nonlinear(half * a + half_one * (2 * second - start))
        middle = 2 * (two - 2 * three) * (first + second)
        return whole * u + (one - 3 * two + 4 * three) * start + middle + (4 * three - two) * end

    def _projected(self, v: np.ndarray) -> np.ndarray:
        k = self.spectra.wavenumbers
        squared = np.sum(k**2, axis=0)
        return v - k * np.sum(k * v, axis=0) / np.where(squared == 0, 1, squared)


def _phi(z: np.ndarray) -> tuple[Any, Any, Any]:
    circle = np.exp(2j * np.pi * (np.arange(32) + 0.5) / 32)  # z is real and r is never real, so z + r is never zero
    return (
        sum(((np.exp(w) - 1) / w).real for w in (z + r for r in circle)) / 32,
        sum(((np.exp(w) - 1 - w) / w**2).real for w in (z + r for r in circle)) / 32,
        sum(((np.exp(w) - 1 - w - w**2 / 2) / w**3).real for w in (z + r for r in circle)) / 32,
    )


@dataclass(frozen=True)
class Layer:
    """A layer of a Fourier neural operator with its input fields `v`.

    The parameters are the real and imaginary parts of the spectral weights, the matrix of the linear part, and a bias.
    """

    spectra: Spectra
    v: np.ndarray
    weight: np.ndarray
    matrix: np.ndarray
    bias: np.ndarray

    @property
    def inputs(self) -> tuple[np.ndarray, ...]:
        return self.v, self.weight, self.matrix, self.bias

    def value(self) -> np.ndarray:
        return self._activated()[0]

    def gradient(self) -> tuple[np.ndarray, ...]:
        """Return the gradients of half the sum of squares of the result with respect to all inputs."""
        result, slope = self._activated()
        by_sum = result * slope
        k, back = self.spectra.forward(self.v), self.spectra.forward(by_sum)
        convolved = self.spectra.inverse(np.einsum("oi...,o...->i...", self._factors().conj(), back))
        # A stored mode stands for itself and its complex conjugate, unless k is zero along the last axis.
        counts = math.prod(self.spectra.shape) * np.where(self.spectra.wavenumbers[-1] == 0, 1, 2)
        by_factors: Any = counts * k * back.conj()[:, None]
        return (
            convolved + np.einsum("oi,o...->i...", self.matrix, by_sum),
            np.stack([by_factors.real, -by_factors.imag]),
            np.tensordot(by_sum, self.v, (self.spectra.axes, self.spectra.axes)),
            np.sum(by_sum, axis=self.spectra.axes),
        )

    def _factors(self) -> np.ndarray:
        return self.weight[0] + 1j * self.weight[1]

    def _activated(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the result of the activation `jax.nn.gelu`, and the derivative of this activation at its argument."""
        k = np.einsum("oi...,i...->o...", self._factors(), self.spectra.forward(self.v))
        s = (
            self.spectra.inverse(k)
            + np.einsum("oi,i...->o...", self.matrix, self.v)
            + np.expand_dims(self.bias, self.spectra.axes)
        )
        c, d = math.sqrt(2 / math.pi), 0.044715
        bend = np.tanh(c * (s + d * s**3))
        return s * (1 + bend) / 2, (1 + bend) / 2 + s * (1 - bend**2) * c * (1 + 3 * d * s**2) / 2


def random_layer(spectra: Spectra, width: int) -> Layer:
    modes = spectra.wavenumbers.shape[1:]
    shapes = (2, width, width, *modes), (width, width), (width,)
    parameters = (random_field(shape, np.dtype(float)) / math.sqrt(width) for shape in shapes)
    return Layer(spectra, spectra.inverse(spectra.noise(width)), *parameters)
