"""Tests of `VariableLaplacian`: against NumPy, exact solutions, and the numbers of steps that its systems need."""

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import solve, spectral

from helpers import assert_close, make_mesh, random_field


BOX = (1.0, 2.0, 3.0)


def expected(a: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Apply the operator by full FFTs, from its definition."""
    result = np.zeros(u.shape)
    for axis, (n, length) in enumerate(zip(u.shape, BOX)):
        k = np.fft.fftfreq(n, length / n / (2 * np.pi)).reshape([-1 if i == axis else 1 for i in range(3)])
        shift = np.exp(0.5j * k * length / n)
        middle = np.where(np.isclose(np.abs(k), np.pi * n / length), 0, shift)
        a_there = np.exp(np.fft.ifftn(middle * np.fft.fftn(np.log(a))).real)
        slope = np.fft.ifftn(1j * k * shift * np.fft.fftn(u)).real
        result += np.fft.ifftn(1j * k * shift.conj() * np.fft.fftn(a_there * slope)).real
    return result


@pytest.mark.parametrize(("shape", "sizes"), [((6, 7, 5), (2, 4)), ((6, 8, 4), (1, 1))])
def test_the_operator_is_its_definition_symmetric_and_keeps_constants_in_its_null_space(shape, sizes):
    fft = dops.FFT3D(make_mesh(sizes), shape=shape, box=dops.Box(BOX), real=True, pad=True)
    dec = fft.decomposition
    a, u, v = np.exp(0.5 * random_field(shape)), random_field(shape, seed=1), random_field(shape, seed=2)
    operator = spectral.VariableLaplacian(fft, dec.shard(a))
    apply = eqx.filter_jit(lambda operator, u: operator(u))
    found = dec.gather(apply(operator, dec.shard(u)))
    assert_close(found, expected(a, u))
    assert_close(dec.gather(apply(operator.T, dec.shard(u))), found)
    assert abs(np.vdot(v, found) - np.vdot(expected(a, v), u)) < 1e-10 * np.linalg.norm(v) * np.linalg.norm(found)
    assert_close(dec.gather(apply(operator, dec.shard(np.ones(shape)))) + 1, np.ones(shape))
    assert abs(found.sum()) < 1e-10 * np.abs(found).sum()
    constant = spectral.VariableLaplacian(fft, dec.shard(np.full(shape, 2.5)))
    assert_close(apply(constant, dec.shard(u)), 2.5 * spectral.Laplacian(fft)(dec.shard(u)))
    assert_close(
        dec.gather(eqx.filter_jit(constant.approximate_inverse)(dec.shard(u))),
        dec.gather(spectral.Poisson(fft)(dec.shard(u))) / 2.5,
    )


def test_smooth_fields_have_exact_results():
    n = 32
    fft = dops.FFT3D(make_mesh((1, 1)), shape=(n, n, n))
    x, y, z = np.meshgrid(*[np.arange(n) * 2 * np.pi / n] * 3, indexing="ij")
    a, u = np.exp(np.sin(x) * np.cos(y)), np.sin(x + z) + 1j * np.cos(2 * y)
    slope = (a * np.cos(x) * np.cos(y), -a * np.sin(x) * np.sin(y))
    exact = slope[0] * np.cos(x + z) + slope[1] * -2j * np.sin(2 * y) + a * (-2 * np.sin(x + z) - 4j * np.cos(2 * y))
    assert_close(spectral.VariableLaplacian(fft, a)(u), exact)


@pytest.mark.parametrize("n", [32, 64])
def test_preconditioned_systems_need_few_steps_also_for_white_noise(n):
    fft = dops.FFT3D(make_mesh((1, 1)), shape=(n, n, n), real=True)
    x, y, z = np.meshgrid(*[np.arange(n) * 2 * np.pi / n] * 3, indexing="ij")
    laplacian = spectral.VariableLaplacian(fft, np.exp(np.log(10) / 2 * np.sin(x) * np.cos(y) * np.cos(z)))
    noise = random_field((n, n, n))
    smooth = np.cos(x) * np.sin(y + z) + np.sin(3 * x)
    b = np.stack([noise - noise.mean(), smooth])
    found = solve.CG(laplacian, laplacian.approximate_inverse, rtol=1e-8).solve(b)
    assert found.converged.all()
    assert found.iterations.max() <= 12
    assert np.linalg.norm(laplacian(found.value) - b) < 2e-8 * np.linalg.norm(b)
    if n == 32:  # Poisson as a preconditioner needs more steps, but converges too: the operator keeps Nyquist modes.
        assert solve.CG(laplacian, spectral.Poisson(fft), rtol=1e-8).solve(b).iterations.max() <= 35


def test_derivatives_with_respect_to_the_coefficient(plain):
    shape = (4, 5, 6)
    fft = dops.FFT3D(make_mesh((1, 1)), shape=shape, box=dops.Box(BOX), real=True)
    a, u, da = np.exp(0.3 * random_field(shape)), random_field(shape, seed=1), random_field(shape, seed=2)
    loss = lambda a: jnp.sum(spectral.VariableLaplacian(fft, a)(jnp.asarray(u)) ** 2)
    step = 1e-5
    change = (np.sum(expected(a + step * da, u) ** 2) - np.sum(expected(a - step * da, u) ** 2)) / (2 * step)
    np.testing.assert_allclose(np.vdot(jax.jit(jax.grad(loss))(jnp.asarray(a)), da), change, rtol=1e-6)
    with pytest.raises(TypeError, match="`coefficient` must be real; got complex128"):
        plain.spectral.VariableLaplacian(plain.FFT3D(make_mesh((1, 1)), shape=shape), a + 1j)
    with pytest.raises(ValueError, match="`coefficient` must have shape"):
        plain.spectral.VariableLaplacian(plain.FFT3D(make_mesh((1, 1)), shape=shape), a[1:])
    with pytest.raises(ValueError, match="`fft` must transform all axes"):
        plain.spectral.VariableLaplacian(plain.FFT3D(make_mesh((1, 1)), shape=shape, modes=(2, 3, 4)), a)
