"""Tests of the composition with `@`, and of operators as parts of Equinox models."""

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops.testing import assert_adjoint, assert_transposed
from jax.sharding import PartitionSpec as P

from helpers import assert_close, make_mesh, random_field


def heat_filter(fft):
    def apply(k):
        kx, ky, kz = fft.wavenumbers()
        return k * jnp.exp(-0.1 * (kx**2 + ky**2 + kz**2)).astype(k.dtype)

    return apply


def expected_heat(u):
    k = np.fft.fftfreq(8, 1 / 8)
    kx, ky, kz = np.meshgrid(k, k, k, indexing="ij")
    return np.fft.ifftn(np.fft.fftn(u) * np.exp(-0.1 * (kx**2 + ky**2 + kz**2)))


def test_filter_pipeline():
    fft = dops.FFT3D(make_mesh((2, 4)), shape=(8, 8, 8))
    pipeline = fft.inverse @ heat_filter(fft) @ fft
    u = random_field((8, 8, 8))
    assert_close(pipeline(u), expected_heat(u))
    assert (pipeline.in_spec, pipeline.out_spec) == (P("x", "y", None), P("x", "y", None))
    assert len(pipeline.operators) == 3
    assert_close(jax.jit(pipeline)(u), expected_heat(u))


def test_sequential_of_equinox():
    fft = dops.FFT3D(make_mesh((2, 4)), shape=(8, 8, 8))
    model = eqx.nn.Sequential([fft, eqx.nn.Lambda(heat_filter(fft)), fft.inverse])
    u = random_field((8, 8, 8))
    assert_close(eqx.filter_jit(model)(u, key=jax.random.key(0)), expected_heat(u))


def test_transposes_of_a_composition():
    mesh = make_mesh((2, 4))
    dec = dops.Decomposition(mesh, shape=(5, 6, 7), pad=True)
    fft, rotate = dops.FFT3D(dec), dops.Transpose(dec, "x", "y")
    product = rotate @ fft
    x = np.asarray(dec.shard(random_field((5, 6, 7), np.complex128)))
    y = np.asarray(dec.shard(random_field((5, 6, 7), np.complex128, 1), "y"))
    assert_transposed(product, product.T, x, y)
    assert_adjoint(product, product.H, x, y)
    assert product.out_spec == product.T.in_spec == P("x", None, "y")


def test_local_inside_shard_map():
    mesh = make_mesh((2, 4))
    fft = dops.FFT3D(mesh)
    twice = fft.inverse @ (lambda k: 2 * k) @ fft
    u = random_field((8, 8, 8), np.complex128)
    mapped = jax.shard_map(twice.local, mesh=mesh, in_specs=P("x", "y", None), out_specs=P("x", "y", None))
    assert_close(jax.jit(mapped)(u), 2 * u)


def test_a_function_in_between_has_no_transpose(plain):
    fft = plain.FFT3D(make_mesh((2, 4)))
    with pytest.raises(TypeError, match=r"`operators` must all be operators for `\.T` and `\.H`; got"):
        (fft @ jnp.conj).T  # noqa: B018
    with pytest.raises(TypeError, match=r"`@` composes operators and callables; got ndarray. To apply .* call it"):
        fft @ np.ones((8, 8, 8))
    with pytest.raises(TypeError, match="`@` composes operators and callables; got ndarray"):
        np.ones((3, 3)) @ fft
    with pytest.raises(ValueError, match="`operators` must contain at least one operator"):
        plain.Compose((jnp.conj,))
