"""Tests that random fields do not depend on the mesh, for keys of every implementation that JAX has.

test_statistics.py has the tests for JAX's default implementation.
"""

import decompops as dops
import jax
import numpy as np
import pytest
from decompops import spectral

from helpers import make_mesh


@pytest.mark.parametrize("implementation", ["rbg", "unsafe_rbg"])
def test_keys_of_every_implementation(implementation):
    """A key gives one field on every mesh, alone and in a batch, and other keys give other fields."""
    shape = (6, 5, 8)
    keys = jax.random.split(jax.random.key(3, impl=implementation), 2)
    found = []
    for sizes in ((1, 1), (2, 4)):
        fft = dops.FFT3D(make_mesh(sizes), shape=shape, real=True, pad=True)
        field = spectral.GaussianRandomField(fft, lambda k: k**-1.5)
        gather = fft.decomposition.gather

        @jax.jit
        def draw(keys, field=field, dec=fft.decomposition):
            noise = lambda key: spectral.white_noise(dec, key)
            return noise(keys[0]), jax.vmap(noise)(keys), jax.vmap(field)(keys), field(keys[1])

        one, both, fields, last = map(gather, draw(keys))
        np.testing.assert_array_equal(both[0], one)
        np.testing.assert_allclose(fields[1], last, atol=1e-13)
        assert np.abs(both[1] - both[0]).max() > 1
        found.append((one, last))
    for one, last in found[1:]:
        np.testing.assert_array_equal(one, found[0][0])
        np.testing.assert_allclose(last, found[0][1], atol=1e-12)
    assert 0.8 < found[0][0].std() < 1.2


def test_raw_keys():
    """Raw keys give the field of the key that they stand for, whatever JAX's default implementation is."""
    dec = dops.Decomposition(make_mesh((2, 2)), shape=(4, 4, 4))
    raw = jax.random.key_data(key := jax.random.key(5))
    np.testing.assert_array_equal(spectral.white_noise(dec, raw), spectral.white_noise(dec, key))
    with jax.default_prng_impl("rbg"):
        raw = jax.random.key_data(key := jax.random.key(5))
        np.testing.assert_array_equal(spectral.white_noise(dec, raw), spectral.white_noise(dec, key))
