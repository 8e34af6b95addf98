"""Tests of derivatives of programs that compute on two groups of devices, with a reshard between the groups."""

import itertools

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import mpmd
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from groups import make_groups, placed
from helpers import TYPES, assert_close, random_field


@pytest.mark.parametrize("wrap", [jax.jit, lambda f: f], ids=["jit", "eager"])
@pytest.mark.parametrize("kinds", list(itertools.product(TYPES, TYPES)), ids="-".join)
def test_derivatives(kinds, wrap):
    """Test first and second derivatives in forward and reverse mode.

    The program first computes on pencils on four devices, and then on slabs on two other devices.
    """
    source = NamedSharding(make_groups((2, 2, 2), kinds[0]).groups[0], P("x", "y"))
    slabs = NamedSharding(Mesh(jax.devices()[4:6], ("s",), axis_types=(TYPES[kinds[1]],)), P("s"))
    home = NamedSharding(Mesh(jax.devices()[:1], ("d",)), P())
    u, v = random_field((4, 4, 4)), random_field((4, 4, 4), seed=1)
    x, dx = (placed(a, source) for a in (u, v))
    before, after = wrap(lambda x: x**3), wrap(lambda x: jnp.sum(jnp.sin(x)))

    def energy(x):
        return mpmd.reshard(after(mpmd.reshard(before(x), slabs)), home)

    slope = jax.grad(energy)(x)
    value, change = jax.jvp(energy, (x,), (dx,))
    _, pull = jax.vjp(lambda x: mpmd.reshard(before(x), slabs), x)
    (pulled,) = pull(placed(v, slabs))
    _, bent = jax.jvp(jax.grad(energy), (x,), (dx,))
    np.testing.assert_allclose(slope, 3 * u**2 * np.cos(u**3), atol=1e-12)
    np.testing.assert_allclose(value, np.sum(np.sin(u**3)), rtol=1e-12)
    np.testing.assert_allclose(change, np.sum(3 * u**2 * np.cos(u**3) * v), rtol=1e-12)
    np.testing.assert_allclose(pulled, 3 * u**2 * v, atol=1e-12)
    np.testing.assert_allclose(bent, (6 * u * np.cos(u**3) - 9 * u**4 * np.sin(u**3)) * v, atol=1e-10)
    assert slope.sharding.device_set == pulled.sharding.device_set == source.device_set


def test_derivatives_through_operators_of_two_groups():
    """Test derivatives of a program that computes a Laplacian in one group and an energy in another group.

    All mesh axes are Explicit.
    """
    groups = make_groups((2, 2, 2), "explicit")
    one, two = (dops.FFT3D(group, shape=(4, 4, 4), real=True) for group in groups.groups)
    laplacian = dops.spectral.Laplacian(one)
    home = NamedSharding(Mesh(jax.devices()[:1], ("d",)), P())
    x = one.decomposition.shard(u := random_field((4, 4, 4)))

    def energy(x):
        v = mpmd.reshard(laplacian(x), two.decomposition.sharding())
        return mpmd.reshard(jnp.sum(jnp.abs(two(v)) ** 2), home)

    k2 = sum(k**2 for k in np.meshgrid(*[np.fft.fftfreq(4, 1 / 4)] * 3))
    spectrum = np.fft.fftn(u)
    # Along z, the half spectrum holds the modes k = 0 and k = 2, and only one mode of the pair k = 1 and k = -1. So the
    # sum over the half spectrum contains only half of the energy of this pair.
    counted = np.where(np.isin(np.arange(4), (0, 2)), 1, 0.5)
    expected = 2 * 64 * np.fft.ifftn(counted * k2**2 * spectrum).real
    assert_close(jax.grad(energy)(x), expected)
