"""The solver of the entry: incompressible Navier–Stokes in a periodic box, on all devices that divide the grid."""

import functools
import math
from typing import Any, Literal

import decompops as dops
import jax
import jax.numpy as jnp
from decompops.pde import ETDRK, NavierStokes
from decompops.spectral import LerayProjection, Pad
from jax import Array
from jax.sharding import AxisType


@functools.cache
def transform(shape: tuple[int, ...], length: float) -> dops.FFT:
    """Return the transform of a periodic cube, on a mesh of slabs."""
    count = math.gcd(shape[0], shape[1], jax.device_count())  # Slabs along x for fields, and along y for spectra.
    mesh = jax.make_mesh((count,), ("x",), devices=jax.devices()[:count], axis_types=(AxisType.Auto,))
    return dops.FFT(mesh, shape=shape, box=dops.Box(length), real=True, pad=True)


@functools.partial(jax.jit, static_argnames=("steps", "length", "order"))
def advance(v0: Array, viscosity: Array, dt: Array, *, steps: int, length: float, order: Literal[1, 2, 3, 4]) -> Array:
    """Return the velocity after `steps` steps. A velocity has the shape (nx, ny, nz, 3), or (nx, ny, 1, 2) in 2D.

    The divergence of `v0` is removed first, so that the derivative by `v0` is divergence-free, too.
    """
    ndim = v0.shape[-1]
    grid = v0.shape[:ndim]
    equation = NavierStokes(transform(grid, length), viscosity, dealiasing=Pad(3 / 2))
    u = LerayProjection(equation.transform).multiply(equation.state(jnp.moveaxis(v0.reshape(*grid, ndim), -1, 0)))
    u, _ = ETDRK(equation, dt, order).rollout(u, steps)
    return jnp.moveaxis(equation.fields(u), 0, -1).reshape(v0.shape)


@functools.partial(jax.jit, static_argnames=("steps", "length", "order"))
def pull_back(cotangent: Array, numbers: dict[str, Array], **static: Any) -> dict[str, Array]:
    """Return the derivatives of `advance` by v0, viscosity and dt, applied to a cotangent of the result."""
    _, pull = jax.vjp(lambda numbers: advance(**numbers, **static), numbers)
    return pull(jnp.asarray(cotangent))[0]
