"""Tests of how solvers end: null spaces, right-hand sides of zeros and NaN, errors."""

import warnings

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import finite_volume, solve

from helpers import assert_close, make_mesh, random_field
from systems import SHAPE, WEIGHTS, decomposition, stencil


LAPLACIAN = (6.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0)


@pytest.mark.parametrize("method", list(WEIGHTS))
def test_constants(method):
    """With constants in the null space, solutions have zero mean, with padding, and so do solutions of transposes."""
    dec = decomposition((1, 1)) if method is not solve.CG else decomposition((2, 4))
    operator, b = stencil(dec, LAPLACIAN), random_field(SHAPE) + 3
    solver = method(operator, null_space="constants", rtol=1e-10)
    eigenvalues = sum(
        (2 - 2 * np.cos(2 * np.pi * np.fft.fftfreq(n))).reshape([-1 if i == axis else 1 for i in range(3)])
        for axis, n in enumerate(SHAPE)
    )
    eigenvalues[0, 0, 0] = np.inf
    expected = np.fft.ifftn(np.fft.fftn(b) / eigenvalues).real

    @jax.jit
    def found(b):
        x, turned = jax.vjp(solver, b)
        return x, turned(b)[0]

    for x in found(dec.shard(b)):
        assert_close(dec.gather(x), expected, rtol=1e-8)
    assert_close(np.linalg.norm(found(dec.shard(b))[0]), np.linalg.norm(expected))


@pytest.mark.parametrize("method", [solve.CG, solve.MINRES])
def test_a_tolerance_below_the_rounding_error_leaves_a_good_solution(method):
    """Rounding errors in the null space do not grow, also if the method goes on after it has found the solution."""
    dec = dops.Decomposition(make_mesh((2, 4)), shape=(16, 16, 16), box=dops.Box(1.0))
    operator = finite_volume.Diffusion(dec, np.ones((16, 16, 16), np.float32), boundary="neumann")
    x = np.cos(np.pi * (np.arange(16) + 0.5) / 16).astype(np.float32)
    b = dec.shard(x[:, None, None] + np.zeros((16, 16, 16), np.float32))
    options = {"rtol": 1e-9, "null_space": "constants", "if_unconverged": "return", "max_steps": 100}
    solver = method(operator, solve.Multigrid(operator), **options)
    error = np.asarray(b) - np.asarray(operator(solver(b)))
    assert np.linalg.norm(error) < 1e-4 * np.linalg.norm(b)


def test_the_null_space_of_an_operator_is_known(plain):
    fft = plain.FFT3D(make_mesh((1, 1)), shape=SHAPE, real=True)
    laplacian = plain.spectral.VariableLaplacian(fft, np.exp(0.2 * random_field(SHAPE)))
    b = random_field(SHAPE)
    solver = plain.solve.CG(laplacian, plain.spectral.Poisson(fft), rtol=1e-9)
    with pytest.raises(plain.solve.NotConverged, match=r'zero mean.* Pass `null_space="constants"`'):
        solver(b + 1)
    assert solver.solve(b + 1).reason == plain.solve.Reason.INCOMPATIBLE
    assert np.isnan(solver.solve(b + 1).value).all()
    b -= b.mean()
    x = solver(b)
    assert_close(laplacian(x), b, rtol=1e-7)
    assert abs(np.mean(x)) < 1e-12


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_mean_of_rounding_errors_is_ignored(dtype):
    dec = dops.Decomposition(make_mesh((1, 1)), shape=SHAPE)
    operator = finite_volume.Diffusion(dec, np.ones(SHAPE, dtype), boundary="neumann")
    b = random_field(SHAPE) + 1
    b = jnp.asarray(b - b.mean(), dtype)
    norm = float(np.linalg.norm(np.asarray(b, float)))
    assert abs(np.mean(np.asarray(b, float))) * b.size**0.5 > 1e-9 * norm
    found = solve.CG(operator, rtol=1e-9, if_unconverged="return").solve(b)
    assert found.reason != solve.Reason.INCOMPATIBLE
    assert solve.CG(operator, rtol=1e-9).solve(b + 0.1).reason == solve.Reason.INCOMPATIBLE


def test_zeros_and_nan(plain):
    dec = plain.Decomposition(make_mesh((1, 1)), shape=SHAPE)
    operator = plain.Multiply(dec, np.abs(random_field(SHAPE)) + 1)
    for method in (plain.solve.CG, plain.solve.MINRES, plain.solve.BiCGStab, plain.solve.GMRES):
        b = random_field((3, *SHAPE))
        b[0], b[1, 2, 3, 4] = 0, np.nan
        found = method(operator).solve(b, np.ones((3, *SHAPE)))
        assert found.reason.tolist() == [0, 4, 0]
        assert not np.any(found.value[0])
        assert np.isnan(found.value[1]).all()
        assert_close(operator(found.value[2]), b[2], rtol=1e-4)
        assert found.iterations[:2].tolist() == [0, 0]
    with pytest.raises(plain.solve.NotConverged, match=r"`CG` did not converge for 1 of 3 fields: .* NaN or infinity"):
        plain.solve.CG(operator)(b)
    spoilt = plain.Multiply(dec, np.where(b[2] > 2, np.nan, 1.0))
    assert plain.solve.CG(spoilt).solve(b[2]).reason == plain.solve.Reason.NOT_FINITE


def test_eager_calls_under_debug_nans(plain):
    """The residuals after the last step are NaN, but they are no error."""
    dec = plain.Decomposition(make_mesh((1, 1)), shape=SHAPE)
    weights, b = np.abs(random_field(SHAPE)) + 1, random_field(SHAPE)
    solver, spoilt = (plain.solve.CG(plain.Multiply(dec, a), rtol=1e-11) for a in (weights, weights * np.nan))
    with jax.debug_nans(True):
        assert_close(solver(b), b / weights, 1e-9)
        assert_close(jax.grad(lambda b: jnp.sum(solver(b)))(b), 1 / weights, 1e-9)
        with pytest.raises(plain.solve.NotConverged, match="contains NaN or infinity"):
            spoilt(b)


def test_a_solver_that_does_not_converge_is_never_silent(plain):
    fft = plain.FFT3D(make_mesh((1, 1)), shape=SHAPE, real=True)
    operator, b = plain.spectral.SpectralOperator(fft, lambda *k: 1 + sum(x**2 for x in k)), random_field(SHAPE)
    make = lambda choice: plain.solve.CG(operator, max_steps=4, if_unconverged=choice)
    with pytest.raises(plain.solve.NotConverged, match="after 4 steps, because it needs more steps") as caught:
        make("raise")(b)
    assert caught.value.solution.iterations == 4
    with pytest.warns(RuntimeWarning, match="after 4 steps"):
        expected = make("warn")(b)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_close(make("return")(b), expected)
    for choice in ("raise", "warn", "return"):
        found = jax.jit(lambda b, choice=choice: make(choice)(b))(b)
        assert np.isnan(found).all() == (choice != "return")
    assert "NOT_CONVERGED" in repr(make("raise").solve(b))


def test_methods_break_down_with_an_error_that_says_what_they_need(plain):
    dec = plain.Decomposition(make_mesh((1, 1)), shape=SHAPE)
    signs, b = np.where(random_field(SHAPE) > 0, 1.0, -1.0), random_field(SHAPE, seed=1)
    indefinite = plain.Multiply(dec, signs * (1 + np.abs(b)))
    with pytest.raises(plain.solve.NotConverged, match=r"not defined: `operator` and .* Take `MINRES`"):
        plain.solve.CG(indefinite)(b)
    assert_close(indefinite(plain.solve.MINRES(indefinite, rtol=1e-9)(b)), b, rtol=1e-8)


@pytest.mark.parametrize("dtype", ["float32", "complex64", "float64", "complex128"])
def test_only_single_precision_is_told_to_take_double_precision(plain, dtype):
    dec = plain.Decomposition(make_mesh((1, 1)), shape=SHAPE)
    b = random_field(SHAPE, seed=1)
    advice = ", or fields in double precision." if dtype in ("float32", "complex64") else "."
    solver = plain.solve.CG(plain.Multiply(dec, 1 + b**2), rtol=1e-20)
    with pytest.raises(plain.solve.NotConverged, match=f"Pass a larger `rtol`{advice}$") as caught:
        solver(b.astype(dtype))
    assert caught.value.solution.reason == plain.solve.Reason.STAGNATED


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("CG", {"rtol": -1.0}, "`rtol` must be .*; got -1.0"),
        ("CG", {"rtol": 0.0}, "`rtol` or `atol` must be positive; got zero"),
        ("CG", {"max_steps": 0}, "`max_steps` must be .*; got 0"),
        ("CG", {"null_space": "linear"}, "`null_space` must be .*; got 'linear'"),
        ("CG", {"if_unconverged": "ignore"}, "`if_unconverged` must be .*; got 'ignore'"),
        ("GMRES", {"restart": 0}, "`restart` must be .*; got 0"),
        ("CG", {"preconditioner": 3}, "`preconditioner` must be a linear function .*; got 3"),
        ("CG", {"preconditioner": solve.Multigrid}, "`preconditioner` must be a linear function .*; got <class"),
    ],
)
def test_bad_options(plain, name, arguments, message):
    dec = plain.Decomposition(make_mesh((1, 1)), shape=SHAPE)
    with pytest.raises((TypeError, ValueError), match=message):
        getattr(plain.solve, name)(plain.Multiply(dec, np.ones(SHAPE)), **arguments)


def test_bad_operators_and_fields(plain):
    mesh = make_mesh((1, 1))
    fft = plain.FFT3D(mesh, shape=SHAPE, real=True)
    ones = plain.Multiply(fft.decomposition, np.ones(SHAPE))
    with pytest.raises(TypeError, match=r"`operator` must be an operator of decompops; got .* Pass a comp"):
        plain.solve.CG(lambda x: x)
    with pytest.raises(ValueError, match="`operator` must be built with a mesh and a `shape`"):
        plain.solve.CG(plain.FFT3D(mesh))
    for operator in (plain.spectral.Gradient(fft), fft):
        with pytest.raises(ValueError, match="`operator` must return fields like those it takes"):
            plain.solve.CG(operator)
    with pytest.raises(ValueError, match="`preconditioner` must take fields like"):
        plain.solve.CG(ones, plain.Multiply(plain.Decomposition(mesh, shape=(4, 4, 4)), np.ones((4, 4, 4))))
    solver = plain.solve.CG(ones, lambda r: r)
    with pytest.raises(TypeError, match=r"`b` must be .* floating-point numbers; got int64\. Pass `b.astype"):
        solver(np.ones(SHAPE, int))
    with pytest.raises(ValueError, match="`b` must have shape"):
        solver(np.ones((4, 4, 4)))
    for guess, error, message in (
        (np.ones((2, *SHAPE)), ValueError, r"`guess` must broadcast to the shape of `b`, .*; got \(2, "),
        (np.ones(SHAPE, complex), TypeError, "`guess` must be real for a real system; got complex128"),
    ):
        with pytest.raises(error, match=message):
            solver.solve(np.ones(SHAPE), guess)
    with pytest.raises(ValueError, match=r"`CG.local` does not exist"):
        solver.local(jnp.ones(SHAPE))
    with pytest.raises(TypeError, match=r"`preconditioner` must be an operator for `.T`"):
        _ = solver.T
    for wrong, message in (
        (lambda r: None, r"must return a field like .* float64 \(.*; got None"),
        (lambda r: r.astype(np.float32), r"must return a field like .* float64 \(.*; got float32 \("),
        (lambda r: jnp.stack([r, r]), r"must return a field like .*; got float64 \(2, "),
        (lambda r: jnp.abs(r), "must be a linear function of a field, which JAX can transpose"),
    ):
        with pytest.raises(TypeError, match=f"`preconditioner` {message}"):
            plain.solve.GMRES(ones, wrong)(np.ones(SHAPE))
    with pytest.raises(TypeError, match="`operator` must keep the dtype"):
        plain.solve.CG(plain.Multiply(fft.decomposition, np.ones(SHAPE, complex)))(np.ones(SHAPE))


def test_a_method_that_makes_no_step_ends():
    """A method of another package ends with `BREAKDOWN` if it forgets to call `system.moved`; it does not hang."""

    class Idle(solve.AbstractSolver):
        needs = "nothing"

        def cycle(self, system, state, r):
            return state

    found = Idle(stencil(decomposition((1, 1)), (7.0, *LAPLACIAN[1:]))).solve(random_field(SHAPE))
    assert (found.reason, found.iterations) == (solve.Reason.BREAKDOWN, 0)
