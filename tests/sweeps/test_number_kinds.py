"""Fields of integers and in half precision give the results of the same numbers in single precision, or an error."""

import functools

import decompops as dops
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import finite_volume, nn, particles, spectral

from helpers import assert_close, make_mesh, thinned


SHAPE = (9, 8, 4)
BOX = dops.Box((9.0, 8.0, 4.0))
# Differences of these numbers are negative, and sums of their powers are beyond float16.
NUMBERS = np.random.default_rng(0).integers(0, 120, (3, *SHAPE))
KINDS = [np.uint8, np.int8, np.int32, np.bool_, np.float16, jnp.bfloat16]
MESH = make_mesh((2, 4))


def _structure_functions(u):
    found = spectral.structure_functions(_fft(), u, separations=(1, 3), orders=(2, 3))
    return found.longitudinal, found.transverse


def _scales(u):
    # This viscosity is zero in float16.
    scales = spectral.turbulence_scales(_fft(), u, viscosity=1e-9)
    return scales.dissipation, scales.reynolds


def _group_norm(u):
    return (nn.GroupNorm(_fft().decomposition, 1, 3, dtype=np.float32)(u).astype(np.float32),)


def _between_walls(basis, u):
    bases = (basis, dops.Fourier(), dops.Fourier(half=True))
    transform = dops.Transform(MESH, shape=SHAPE, bases=bases, box=BOX, pad=True, backend="native")
    operator = spectral.Helmholtz(transform, 3.0, "dirichlet")
    return (operator.solution(transform.decomposition.shard(u), 1.0),)


def _variable_coefficient(u):
    """Half precision holds these coefficients, but rounds their logarithms."""
    laplacian = spectral.VariableLaplacian(_fft(), np.where(u[1] > 60, 2.0**13, 2.0**-10).astype(_floating(u.dtype)))
    return laplacian(u[0]), laplacian.approximate_inverse(u[0].astype(np.float32))


def _floating(dtype):
    return dtype if jnp.issubdtype(dtype, jnp.floating) else np.dtype(np.float32)


def _finite_volumes(u):
    """In this box, squares of widths and of their inverses are beyond float16."""
    dec = dops.Decomposition(MESH, shape=SHAPE, box=dops.Box((9e-4, 8e-4, 4e-4)), pad=True)
    u = u.astype(_floating(u.dtype))
    positive = np.maximum(u, np.ones((), u.dtype))
    body = finite_volume.Body(u[1], "dirichlet")  # The few cells with zeros.
    walls = {"boundary": "neumann", "cells": (positive[0, :, 0, 0], None, None)}
    operator = finite_volume.Diffusion(dec, positive, u[2], body=body, **walls)
    gradient, divergence = finite_volume.Gradient(dec, positive[0], **walls), finite_volume.Divergence(dec, **walls)
    return operator(u), operator.source(None, None, None, body=u[0]), gradient(u[0]), divergence(u)


def _fft():
    return dops.FFT3D(MESH, shape=SHAPE, real=True, box=BOX, pad=True, backend="native")


PROGRAMS = {
    "structure functions": _structure_functions,
    "scales": _scales,
    "finite volumes": _finite_volumes,
    "variable coefficient": _variable_coefficient,
    "GroupNorm": _group_norm,
    "Chebyshev walls": functools.partial(_between_walls, dops.Chebyshev()),
    "walls of cells": functools.partial(_between_walls, dops.Cells.clustered(SHAPE[0], 2.0)),
}


@pytest.mark.parametrize(
    ("name", "kinds"),
    thinned(
        [(name, KINDS[first::2]) for name in PROGRAMS for first in (0, 1)],
        lambda name, kinds: kinds == KINDS[list(PROGRAMS).index(name) % 2 :: 2],
    ),
)
def test_fields(name, kinds):
    program = PROGRAMS[name]
    for dtype in kinds:
        u = np.asarray(jnp.asarray(NUMBERS, dtype))
        for found, expected in zip(program(u), program(u.astype(np.float32)), strict=True):
            assert found.dtype == np.float32, dtype
            # `GroupNorm` computes in single precision, and returns half precision.
            half = name == "GroupNorm" and jnp.issubdtype(dtype, jnp.floating)
            assert_close(found, expected, rtol=2e-2 if half else None)


def test_statistics_of_real_fields_refuse_complex_ones(plain):
    fft = plain.FFT3D(MESH, shape=SHAPE, real=True, box=plain.Box((9.0, 8.0, 4.0)), pad=True)
    for call in (
        lambda u: plain.spectral.structure_functions(fft, u, separations=(1,)),
        lambda u: plain.spectral.turbulence_scales(fft, u, 0.1),
        plain.nn.GroupNorm(fft.decomposition, 1, 3),
    ):
        with pytest.raises(TypeError, match="must be real; got complex64"):
            call(NUMBERS.astype(np.complex64))


def test_deposits_in_half_precision_lose_no_mass():
    """A cell with many particles is beyond the integers of float16."""
    pm = particles.ParticleMesh(dops.Decomposition(MESH, shape=(8, 8, 4), box=dops.Box(8.0)), "cic")
    positions = np.full((5000, 3), 1.25, np.float32)
    p = pm.place(positions, m=np.ones(5000, np.float16))
    assert_close(pm.deposit(p, p["m"]), pm.deposit(p))
    assert_close(pm.shot_noise(p, p["m"]), pm.shot_noise(p))


def test_particles_refuse_a_field_of_integers(plain):
    pm = plain.particles.ParticleMesh(plain.Decomposition(MESH, shape=(8, 8, 4), box=plain.Box(8.0)), "cic")
    p = pm.place(np.ones((3, 3), np.float32))
    for dtype in (np.int32, np.bool_):
        with pytest.raises(TypeError, match="`field` must be real or complex floating-point numbers; got"):
            pm.read(p, np.ones((8, 8, 4), dtype))
