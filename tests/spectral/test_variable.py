"""Tests of `VariableLaplacian`: against NumPy, exact solutions, and the numbers of steps that its systems need."""

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import solve, spectral

from coefficients import LENGTHS as BOX, variable_laplacian as expected
from helpers import assert_close, make_mesh, random_field


F, H, C, S = dops.Fourier(), dops.Fourier(half=True), dops.Cosine, dops.Sine


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


@pytest.mark.parametrize("n", [32, pytest.param(64, marks=pytest.mark.sweep)])
def test_preconditioned_systems_need_few_steps_also_for_white_noise(n):
    fft = dops.FFT3D(make_mesh((1, 1)), shape=(n, n, n), real=True, backend="native")
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
    with pytest.raises(ValueError, match="`fft` must keep all modes"):
        plain.spectral.VariableLaplacian(plain.FFT3D(make_mesh((1, 1)), shape=shape, modes=(2, 3, 4)), a)
    with pytest.raises(ValueError, match=r"`fft` must transform all axes.*got Points\(\) along z"):
        plain.spectral.VariableLaplacian(plain.FFT3D(make_mesh((1, 1)), shape=shape, transformed="xy"), a)


def series(basis, s: np.ndarray, n: int, order: int = 0) -> np.ndarray:
    """Return the modes of a basis between walls, or their slopes, at positions `s` on an axis of length one."""
    k = np.pi * (np.arange(n) + (0.5 if basis.type == 4 else isinstance(basis, dops.Sine)))
    phase = order * np.pi / 2 - (np.pi / 2 if isinstance(basis, dops.Sine) else 0)
    return k**order * np.cos(np.outer(s, k) + phase)


def midway(basis, n: int, length: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return matrices from points to places midway, for slopes of u and values of log(a), and the weights there."""
    if isinstance(basis, dops.Fourier):
        k = np.fft.fftfreq(n, 1 / n)  # n is odd.
        shift = np.fft.ifft(np.exp(1j * np.pi * k / n)[:, None] * np.fft.fft(np.eye(n), axis=0), axis=0).real
        slope = np.fft.ifft(2j * np.pi * k[:, None] * np.fft.fft(np.eye(n), axis=0), axis=0).real
        return shift @ slope / length, shift, np.ones(n)
    s, faces = (np.arange(n) + 0.5) / n, np.arange(n + 1) / n
    slope = series(basis, faces, n, 1) @ np.linalg.inv(series(basis, s, n)) / length
    values = series(dops.Cosine(2), faces, n) @ np.linalg.inv(series(dops.Cosine(2), s, n))
    return slope, values, np.where((faces == 0) | (faces == 1), 0.5, 1.0)


def between_walls(bases, a: np.ndarray) -> np.ndarray:
    """Return the matrix of the operator: minus the second derivatives of the sum of a |∇u|² / 2 over all faces."""
    matrix, shape = np.zeros((a.size, a.size)), a.shape
    for axis, (basis, n, length) in enumerate(zip(bases, shape, BOX)):
        slope, values, weights = midway(basis, n, length)
        full = [np.eye(m) for m in shape]
        full[axis] = slope
        whole = np.einsum("ai,bj,ck->abcijk", *full).reshape(-1, a.size)
        there = np.moveaxis(np.exp(np.tensordot(values, np.log(a), (1, axis))), 0, axis)
        weighted = there * weights.reshape([-1 if i == axis else 1 for i in range(3)])
        matrix = matrix - whole.T @ (weighted.reshape(-1, 1) * whole)
    return matrix


# Walls across each axis, with each condition; on a mesh that does not divide the grid.
WALLS = [
    pytest.param((F, H, S(2)), (5, 7, 6), "auto", None, marks=pytest.mark.sweep),
    ((S(4), C(4), C(2)), (6, 6, 7), "explicit", None),
    ((C(2), F, H), (8, 5, 7), "auto", "constants"),
]


@pytest.mark.parametrize(("bases", "shape", "kind", "null_space"), WALLS)
def test_between_walls_the_operator_is_its_definition(bases, shape, kind, null_space):
    backend = "xla" if kind == "explicit" else "native"
    fft = dops.Transform(
        make_mesh((2, 4), kind), bases=bases, shape=shape, box=dops.Box(BOX), pad=True, backend=backend
    )
    dec, size = fft.decomposition, int(np.prod(shape))
    a, da, u = np.exp(0.5 * random_field(shape)), random_field(shape, seed=1), random_field(shape, seed=2)
    eye = dec.shard(np.eye(size).reshape(size, *shape))

    def applied(a):
        laplacian = spectral.VariableLaplacian(fft, a)
        assert laplacian.null_space == null_space
        return laplacian(eye)

    along = jax.jit(lambda a, da: jax.jvp(applied, (a,), (da,)))
    found, tangent = (dec.gather(part).reshape(size, size) for part in along(dec.shard(a), dec.shard(da)))
    exact = between_walls(bases, a)
    assert_close(found, exact)
    np.testing.assert_allclose(found, found.T, rtol=0, atol=1e-13 * np.abs(found).max())
    largest = np.linalg.eigvalsh(found)[::-1]
    assert np.sum(largest > 1e-12 * largest[-1]) == (1 if null_space else 0)
    if null_space:
        np.testing.assert_allclose(found @ np.ones(size), 0, atol=1e-12 * np.abs(found).max())
    # In all modes, also that of white noise, a constant comes out of the operator.
    constant = dec.gather(along(dec.shard(np.full(shape, 2.5)), dec.shard(da))[0]).reshape(size, size)
    laplacian = dec.gather(jax.jit(spectral.Laplacian(fft))(dec.shard(u)))
    assert_close((u.ravel() @ constant).reshape(shape), 2.5 * laplacian)
    # The derivative with respect to the coefficient.
    step = 1e-5
    change = (between_walls(bases, a + step * da) - between_walls(bases, a - step * da)) @ u.ravel() / (2 * step)
    assert_close(tangent @ u.ravel(), change, 1e-8)


@pytest.mark.parametrize(("bases", "value"), [((S(2), F, C(2)), np.sin), ((C(4), F, S(4)), np.cos)])
def test_between_walls_smooth_fields_have_exact_results(bases, value):
    n = 24
    fft = dops.Transform(make_mesh((1, 1)), bases=bases, shape=(n, n, n), box=dops.Box((np.pi, 2 * np.pi, np.pi)))
    half = 0.5 if bases[0].type == 4 else 0.0
    x, y, z = np.meshgrid(*[basis.points(n) * length for basis, length in zip(bases, fft.box_lengths)], indexing="ij")
    p, q = 1 + half, 2 - half  # u is sin(x) cos(2 z), or cos(3/2 x) sin(3/2 z), times a wave along y.
    other, slope = (np.cos, np.cos) if value is np.sin else (np.sin, lambda s: -np.sin(s))
    across = {np.sin: lambda s: np.cos(s), np.cos: lambda s: -np.sin(s)}
    u = value(p * x) * np.exp(1j * y) * other(q * z)
    u_x, u_z = (
        p * slope(p * x) * np.exp(1j * y) * other(q * z),
        q * value(p * x) * np.exp(1j * y) * across[other](q * z),
    )
    log_a = 0.5 * np.cos(x) * np.cos(y) * np.cos(z)
    a_x, a_y, a_z = (
        0.5 * np.prod(parts, 0)
        for parts in (
            (-np.sin(x), np.cos(y), np.cos(z)),
            (np.cos(x), -np.sin(y), np.cos(z)),
            (np.cos(x), np.cos(y), -np.sin(z)),
        )
    )
    exact = np.exp(log_a) * (-(p**2 + 1 + q**2) * u + a_x * u_x + a_y * 1j * u + a_z * u_z)
    assert_close(jax.jit(lambda a, u: spectral.VariableLaplacian(fft, a)(u))(np.exp(log_a), u), exact)


@pytest.mark.parametrize("n", [pytest.param(12, marks=pytest.mark.sweep), 24])
@pytest.mark.parametrize("bases", [(F, H, C(2)), pytest.param((C(4), S(4), S(2)), marks=pytest.mark.sweep)])
def test_between_walls_the_number_of_steps_does_not_grow(bases, n):
    box = dops.Box((2 * np.pi,) * 3)
    fft = dops.Transform(make_mesh((1, 1)), bases=bases, shape=(n, n, n), box=box, backend="native")
    x, y, z = np.meshgrid(*[basis.points(n) * 2 * np.pi for basis in bases], indexing="ij")
    a, noise = np.exp(np.log(10) / 2 * np.cos(x) * np.cos(y) * np.cos(z)), random_field((n, n, n))
    singular = not any(isinstance(basis, dops.Sine) or basis.type == 4 for basis in bases if basis not in (F, H))
    b = noise - noise.mean() if singular else noise

    @jax.jit
    def solution(a, b):
        laplacian = spectral.VariableLaplacian(fft, a)
        assert bool(laplacian.null_space) == singular
        found = solve.CG(laplacian, laplacian.approximate_inverse, rtol=1e-8).solve(b)
        return found.iterations, laplacian(found.value) - b

    iterations, residual = solution(a, b)
    assert iterations <= 16
    assert np.linalg.norm(residual) < 2e-8 * np.linalg.norm(b)


def test_bases_with_other_points_are_refused(plain):
    others = plain.Fourier(), plain.Fourier(half=True)
    for basis in (plain.Cosine(1), plain.Sine(1), plain.Sine(3), plain.Chebyshev(2), plain.Cells.clustered(6, 2.0)):
        fft = plain.Transform(make_mesh((1, 1)), bases=(basis, *others), shape=(6, 6, 6), box=plain.Box(BOX))
        with pytest.raises(ValueError, match=r"`fft` must transform all axes.*got .* along x"):
            plain.spectral.VariableLaplacian(fft, np.ones((6, 6, 6)))
