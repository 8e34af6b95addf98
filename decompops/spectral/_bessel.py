"""Bessel functions of real arguments, which JAX does not have or has in single precision only."""

import functools
import math
import operator
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import Array, lax


_NODES = 28  # of the rule in the quarter period; the error is about J_112(50) = 1e-25
_FAR = 50.0
_TERMS = 7  # of each asymptotic series; the error is below 1e-16 from 50 on


def j0(x: Array) -> Array:
    """Return the Bessel function J0 of `x >= 0`."""
    return jnp.where(x < _FAR, _mean(lambda sine: jnp.cos(jnp.minimum(x, _FAR) * sine)), _wave(x, 0))


def j1(x: Array) -> Array:
    """Return the Bessel function J1 of `x >= 0`."""
    return jnp.where(x < _FAR, _mean(lambda sine: sine * jnp.sin(jnp.minimum(x, _FAR) * sine)), _wave(x, 1))


def k0(x: Array) -> Array:
    """Return the modified Bessel function K0 of `x > 0`."""
    return _decay(x, 0)


def k1(x: Array) -> Array:
    """Return the modified Bessel function K1 of `x > 0`."""
    return _decay(x, 1)


def _mean(function: Callable) -> Array:
    """Return the mean of a function of `sin θ` over all angles, which converges exponentially."""
    sines = np.sin((np.arange(_NODES) + 0.5) * math.pi / (2 * _NODES))
    return functools.reduce(operator.add, map(function, map(float, sines))) / _NODES


def _wave(x: Array, order: int) -> Array:
    """Return Hankel's asymptotic series for large `x` (Abramowitz and Stegun, 9.2.5)."""
    x = jnp.maximum(x, _FAR)
    sums, term = [jnp.zeros_like(x), jnp.zeros_like(x)], jnp.ones_like(x)
    for k in range(2 * _TERMS):
        sums[k % 2] += term * (-1.0) ** (k // 2)
        term = term * (4 * order**2 - (2 * k + 1) ** 2) / (8 * (k + 1)) / x
    phase = x - (2 * order + 1) * math.pi / 4
    return jnp.sqrt(2 / (math.pi * x)) * (sums[0] * jnp.cos(phase) - sums[1] * jnp.sin(phase))


def _decay(x: Array, order: int) -> Array:
    """Return the integral of `exp(-x cosh t) cosh(order t)` by the trapezoidal rule, which converges exponentially."""
    step, nodes = 0.25, 100

    def add(i: Array, total: Array) -> Array:
        t = (i * step).astype(x.dtype)
        return total + jnp.exp(-x * jnp.cosh(t)) * jnp.cosh(order * t)

    ends = jnp.exp(-x) / 2
    return step * lax.fori_loop(np.int32(1), np.int32(nodes), add, ends)
