"""Bessel functions of real arguments, which JAX does not have or has in single precision only."""

import functools
import math
from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array, lax


_NODES = 28  # of the rule in the quarter period; the error is about J_112(50) = 1e-25
_FAR = 50.0
_TERMS = 7  # of each asymptotic series; the error is below 1e-16 from 50 on
_NEAR = 1.0  # Below, power series in x² / 4 replace the integrals, which need ever longer paths.
_POWERS = 10  # of each power series; the error is below 1e-18


def j0(x: Array) -> Array:
    """Return the Bessel function J0 of `x >= 0`."""
    near = below(x, _FAR)
    return jnp.where(x < _FAR, _mean(lambda sine: jnp.cos(near * sine), x), _wave(x, 0))


def j1(x: Array) -> Array:
    """Return the Bessel function J1 of `x >= 0`."""
    near = below(x, _FAR)
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
    x = above(x, _FAR)
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
    step, nodes, near = 0.05, 400, above(below(x, _FAR), _NEAR)

    def add(i: Array, total: Array) -> Array:
        t = ((i - nodes) * step).astype(x.dtype)
        tilt = math.pi / 2 * jnp.tanh(t)  # The path is w = t + i (π/2 + tilt).
        grows, turns = -jnp.sinh(t) * jnp.sin(tilt), jnp.cosh(t) * jnp.cos(tilt)  # of sinh w
        slope = math.pi / 2 / jnp.cosh(t) ** 2
        size, phase = jnp.exp(near * grows - order * t), near * turns - order * (math.pi / 2 + tilt)
        return total - size * (jnp.cos(phase) - slope * jnp.sin(phase))

    integral = lax.fori_loop(np.int32(0), np.int32(2 * nodes + 1), add, jnp.zeros_like(x)) * (step / math.pi)
    series = -(_pole(x, order) + _near(x) ** order * without_pole(x, order, -1)) / math.pi
    return jnp.where(x < _NEAR, series, jnp.where(x < _FAR, integral, _wave(x, order, second=True)))


def _decay(x: Array, order: int) -> Array:
    """Return K from the integral of `exp(-x cosh t) cosh(order t)`, and from its series.

    The trapezoidal rule converges exponentially, if its step becomes as narrow as the integrand.
    """
    far, nodes = above(x, _NEAR), 20
    step = 0.25 * jnp.sqrt(5 / above(far, 5.0))

    def add(i: Array, total: Array) -> Array:
        t = i.astype(x.dtype) * step
        return total + jnp.exp(-2 * far * jnp.sinh(t / 2) ** 2) * jnp.cosh(order * t)

    integral = step * jnp.exp(-far) * lax.fori_loop(np.int32(1), np.int32(nodes), add, 0.5 + 0 * x)
    series = (_pole(x, order) + (-_near(x)) ** order * without_pole(x, order, 1)) / 2
    return jnp.where(x < _NEAR, series, integral)


def _near(x: Array) -> Array:
    """Return x / 2 where the series apply."""
    return below(x, _NEAR) / 2


def _pole(x: Array, order: int) -> Array:
    return order / jnp.where(x > 0, _near(x), 1) if order else jnp.zeros_like(x)


def without_pole(x: Array, order: int, sign: int) -> Array:
    """Return the series of K (`sign = 1`) or Y (`sign = -1`) without its pole, for `0 < x < 1`.

    With h = x / 2 and this function's value r, `2 K = order / h + (-h)^order r` and `-π Y = order / h + h^order r`.

    Source: NIST, Digital Library of Mathematical Functions, equations 10.8.1 and 10.31.1.
    """
    powers = [float(sign) ** k / (math.factorial(k) * math.factorial(k + order)) for k in range(_POWERS)]
    harmonic = [sum(1 / i for i in range(1, k + 1)) - np.euler_gamma for k in range(_POWERS + order)]
    rest = [power * (harmonic[k] + harmonic[k + order]) for k, power in enumerate(powers)]
    half = _near(jnp.where(x > 0, x, 1))
    return polynomial(rest, half**2) - 2 * jnp.log(half) * polynomial(powers, half**2)


def below(x: Array, limit: float) -> Array:
    """Return `x`, or `limit` from the limit on. At the limit, JAX's derivative of `jnp.minimum` would be a half."""
    return jnp.where(x < limit, x, limit)


def above(x: Array, limit: float) -> Array:
    """Return `x`, or `limit` below the limit."""
    return jnp.where(x < limit, limit, x)


def polynomial(coefficients: Sequence[float], x: Array) -> Array:
    return functools.reduce(lambda total, one: total * x + float(one), reversed(coefficients), jnp.zeros_like(x))
