"""Bessel functions of real arguments, which JAX does not have or has in single precision only."""

import math
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import Array, lax


_NODES = 28  # of the rule in the quarter period; the error is about J_112(50) = 1e-25
_FAR = 50.0
_TERMS = 7  # of each asymptotic series; the error is below 1e-16 from 50 on


def j0(x: Array) -> Array:
    """Return the Bessel function J0 of `x >= 0`."""
    near = jnp.minimum(x, _FAR)
    return jnp.where(x < _FAR, _mean(lambda sine: jnp.cos(near * sine), x), _wave(x, 0))


def j1(x: Array) -> Array:
    """Return the Bessel function J1 of `x >= 0`."""
    near = jnp.minimum(x, _FAR)
    return jnp.where(x < _FAR, _mean(lambda sine: sine * jnp.sin(near * sine), x), _wave(x, 1))


def y0(x: Array) -> Array:
    """Return the Bessel function Y0 of `x > 0`."""
    return _second(x, 0)


def y1(x: Array) -> Array:
    """Return the Bessel function Y1 of `x > 0`."""
    return _second(x, 1)


def k0(x: Array) -> Array:
    """Return the modified Bessel function K0 of `x > 0`."""
    return _decay(x, 0)


def k1(x: Array) -> Array:
    """Return the modified Bessel function K1 of `x > 0`."""
    return _decay(x, 1)


def _mean(function: Callable, like: Array) -> Array:
    """Return the mean of a function of `sin θ` over all angles, which converges exponentially."""
    sines = jnp.asarray(np.sin((np.arange(_NODES) + 0.5) * math.pi / (2 * _NODES)), like.dtype)

    def add(i: Array, total: Array) -> Array:
        return total + function(sines[i])

    return lax.fori_loop(np.int32(0), np.int32(_NODES), add, jnp.zeros_like(like)) / _NODES


def _wave(x: Array, order: int, *, second: bool = False) -> Array:
    """Return Hankel's asymptotic series of J or, if `second`, of Y for large `x` (Abramowitz and Stegun, 9.2.5-6)."""
    x = jnp.maximum(x, _FAR)
    sums, term = [jnp.zeros_like(x), jnp.zeros_like(x)], jnp.ones_like(x)
    for k in range(2 * _TERMS):
        sums[k % 2] += term * (-1.0) ** (k // 2)
        term = term * (4 * order**2 - (2 * k + 1) ** 2) / (8 * (k + 1)) / x
    phase = x - (2 * order + (3 if second else 1)) * math.pi / 4
    return jnp.sqrt(2 / (math.pi * x)) * (sums[0] * jnp.cos(phase) - sums[1] * jnp.sin(phase))


def _second(x: Array, order: int) -> Array:
    """Return Y from an integral of the Hankel function (Abramowitz and Stegun, 9.1.25), and from its series.

    The path of integration goes from -∞ to ∞ + iπ, through the saddle point. There, the integrand is smooth and does
    not oscillate, so the trapezoidal rule converges exponentially.
    """
    step, nodes, near = 0.05, 400, jnp.minimum(x, _FAR)

    def add(i: Array, total: Array) -> Array:
        t = ((i - nodes) * step).astype(x.dtype)
        tilt = math.pi / 2 * jnp.tanh(t)  # The path is w = t + i (π/2 + tilt).
        grows, turns = -jnp.sinh(t) * jnp.sin(tilt), jnp.cosh(t) * jnp.cos(tilt)  # of sinh w
        slope = math.pi / 2 / jnp.cosh(t) ** 2
        size, phase = jnp.exp(near * grows - order * t), near * turns - order * (math.pi / 2 + tilt)
        return total - size * (jnp.cos(phase) - slope * jnp.sin(phase))

    integral = lax.fori_loop(np.int32(0), np.int32(2 * nodes + 1), add, jnp.zeros_like(x)) * (step / math.pi)
    return jnp.where(x < _FAR, integral, _wave(x, order, second=True))


def _decay(x: Array, order: int) -> Array:
    """Return the integral of `exp(-x cosh t) cosh(order t)` by the trapezoidal rule, which converges exponentially."""
    step, nodes = 0.25, 100

    def add(i: Array, total: Array) -> Array:
        t = (i * step).astype(x.dtype)
        return total + jnp.exp(-x * jnp.cosh(t)) * jnp.cosh(order * t)

    ends = jnp.exp(-x) / 2
    return step * lax.fori_loop(np.int32(1), np.int32(nodes), add, ends)
