"""Derivatives of solutions of first and second order, in all modes of JAX, against exact ones."""

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import finite_volume, solve, spectral

from helpers import assert_close, make_mesh, random_field


SHAPE = (4, 6)
U, V, A = (random_field(SHAPE, seed=seed) for seed in range(3))
A = A**2 + 1
MODES = {
    "grad": lambda f: jax.grad(f),
    "jacfwd": lambda f: jax.jacfwd(f),
    "jvp": lambda f: lambda s: jax.jvp(f, (s,), (1.0,))[1],
    "grad of grad": lambda f: jax.grad(jax.grad(f)),
    "hessian": lambda f: jax.hessian(f),
    "jacfwd of jacfwd": lambda f: jax.jacfwd(jax.jacfwd(f)),
    "jvp of grad": lambda f: lambda s: jax.jvp(jax.grad(f), (s,), (1.0,))[1],
    "grad of jvp": lambda f: jax.grad(lambda s: jax.jvp(f, (s,), (1.0,))[1]),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("kind", "by"), [("explicit", "coefficient"), ("auto", "right-hand side")])
def test_a_system_with_a_diagonal_matrix(kind, by, mode):
    dec = dops.Decomposition(make_mesh((2, 2), kind), shape=SHAPE)
    a, u, v = map(dec.shard, (A, U, V))

    def function(s):
        solver = solve.CG(dops.Multiply(dec, a * s if by == "coefficient" else a), rtol=1e-12)
        x = solver(u if by == "coefficient" else u * s)
        return dec.sum(x * v) if by == "coefficient" else dec.sum(x**3)

    order = 1 if mode in ("grad", "jacfwd", "jvp") else 2
    if by == "coefficient":  # The function is C / s.
        expected = np.sum(U * V / A) * (-1, 2)[order - 1]
    else:  # The function is C s³.
        expected = np.sum((U / A) ** 3) * (3, 6)[order - 1]
    assert_close(jax.jit(MODES[mode](function))(1.0), expected, 1e-9)


@pytest.mark.parametrize("mode", ["jacfwd", "grad of grad", "hessian"])
def test_diffusion_with_a_guess_and_a_null_space(mode):
    dec = dops.Decomposition(make_mesh((2, 2)), shape=SHAPE)
    a, b, guess = dec.shard(A), dec.shard(U - U.mean()), dec.shard(V)

    def function(s):
        solver = solve.CG(finite_volume.Diffusion(dec, a * s), rtol=1e-12)
        return dec.sum(solver.solve(b, guess=guess).value ** 2)

    value = float(jax.jit(function)(1.0))  # The function is C / s².
    assert_close(jax.jit(MODES[mode](function))(1.0), value * (-2 if mode == "jacfwd" else 6), 1e-7)


@pytest.mark.parametrize("mode", ["jacfwd", "hessian", "grad of grad"])
def test_eager_derivatives_on_an_auto_mesh(mode):
    dec = dops.Decomposition(make_mesh((2,), "auto"), shape=SHAPE)
    a, u = dec.shard(A), dec.shard(U)
    function = lambda s: jnp.sum(solve.CG(dops.Multiply(dec, a * s), rtol=1e-12)(u))
    assert_close(MODES[mode](function)(1.0), np.sum(U / A) * (-1 if mode == "jacfwd" else 2), 1e-9)


@pytest.mark.parametrize("mode", ["jacfwd", "hessian"])
def test_an_operator_whose_function_closes_over_what_is_traced(mode):
    dec = dops.Decomposition(make_mesh((2, 2)), shape=SHAPE)
    fft, u = dops.FFT(dec, real=True), dec.shard(U)

    def function(s):
        operator = spectral.SpectralOperator(fft, lambda *k: s * (1 + k[0] ** 2 + k[1] ** 2))
        return dec.sum(solve.CG(operator, rtol=1e-12)(u) ** 2)

    value = float(jax.jit(function)(1.0))  # The function is C / s².
    squares = (1 + sum(np.meshgrid(*(np.fft.fftfreq(n, 1 / n) ** 2 for n in SHAPE), indexing="ij"))) ** 2
    assert_close(value, np.sum(np.abs(np.fft.fftn(U)) ** 2 / squares) / U.size, 1e-9)
    assert_close(jax.jit(MODES[mode](function))(1.0), value * (-2 if mode == "jacfwd" else 6), 1e-7)
