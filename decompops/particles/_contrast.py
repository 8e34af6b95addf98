"""Deposits for statistics: interlaced, and with the window divided out."""

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from .._core.window import Window
from .._operator.fft import FFT
from ..spectral import _vector
from ._deposit import deposited, weights_of
from ._home import Home
from ._modes import Interlacing, UnbiasedDeconvolution
from ._particles import Particles
from ._sum import in_use, summed
from ._windows import WindowName, window_of


@eqx.filter_jit
def interlaced(home: Home, window: WindowName | Window, p: Particles, values: Array | None) -> Array:
    """Return the mean of the modes of two deposits. See `ParticleMesh.deposit_interlaced`."""
    both = [deposited(home, window_of(window), p, values, offset) for offset in (0.0, 0.5)]
    fft = FFT(home.decomposition, real=not jnp.iscomplexobj(both[0]))
    return Interlacing(fft)(jnp.stack(both, axis=-home.decomposition.ndim - 1))


@eqx.filter_jit
def contrast(home: Home, window: WindowName | Window, p: Particles, weights: Array | None) -> Array:
    """Return the density contrast. See `ParticleMesh.contrast`."""
    density = interlaced(home, window, p, weights)
    mean = home.decomposition.mean(density)
    deconvolution = UnbiasedDeconvolution(FFT(home.decomposition, real=True), window)
    return deconvolution(density / jnp.broadcast_to(mean, density.shape)) - 1


@eqx.filter_jit
def shot_noise(home: Home, p: Particles, weights: Array | None) -> Array:
    """Return the power spectrum of particles at random. See `ParticleMesh.shot_noise`."""
    weights = in_use(home, p, weights_of(p, weights))
    caller = home.decomposition.backend.caller()
    shares = weights / summed(home, p, weights, caller)  # Squares of weights could overflow, or be zero.
    return _vector.times_each(home.decomposition.box_lengths, summed(home, p, shares**2, caller))
