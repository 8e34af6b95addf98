"""Tests of linear systems that lineax solves, against operators that solve the same systems mode by mode."""

import builtins

import decompops as dops
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
from decompops import spectral

from helpers import assert_close, make_mesh, random_field


def screened(fft):
    """Return the operator `1 - ∇²`, whose inverse is `Helmholtz(fft, 1)`."""
    return spectral.SpectralOperator(fft, lambda kx, ky, kz: 1 + kx**2 + ky**2 + kz**2)


def solve(operator, b, solver=None, tags=lx.positive_semidefinite_tag):
    matrix = spectral.as_linear_operator(operator, b, tags)
    return lx.linear_solve(matrix, b, solver or lx.CG(rtol=1e-12, atol=1e-12), throw=False).value


@pytest.mark.parametrize(
    ("sizes", "shape", "solver", "tags"),
    [
        ((2, 4), (9, 10, 11), lx.CG(rtol=1e-12, atol=1e-12), lx.positive_semidefinite_tag),
        ((8, 1), (8, 6, 10), lx.GMRES(rtol=1e-12, atol=1e-12, restart=40), ()),
    ],
)
def test_krylov_solvers_find_the_solution_of_helmholtz_and_keep_its_sharding(sizes, shape, solver, tags):
    fft = dops.FFT3D(make_mesh(sizes), shape=shape, pad=True, real=True)
    dec = fft.decomposition
    b = dec.shard(random_field(shape))
    u, expected = jax.jit(lambda b: (solve(screened(fft), b, solver, tags), spectral.Helmholtz(fft, 1.0)(b)))(b)
    assert_close(u, expected, rtol=1e-9)
    assert u.sharding.is_equivalent_to(dec.sharding(), 3)


def test_systems_on_explicit_axes_are_solved_inside_auto_axes():
    """Systems on Explicit axes can be solved inside `auto_axes`.

    lineax does not support Explicit axes, because it does not expect shardings in the types that it compares.
    """
    mesh, shape = make_mesh((2, 4), "explicit"), (8, 6, 10)
    fft = dops.FFT3D(mesh, shape=shape, pad=True, real=True)
    dec = fft.decomposition
    b = dec.shard(random_field(shape))
    find = jax.sharding.auto_axes(lambda b: solve(screened(fft), b), out_sharding=dec.sharding())
    with jax.set_mesh(mesh):
        u = jax.jit(find)(b)
        assert_close(u, spectral.Helmholtz(fft, 1.0)(b), rtol=1e-9)
        assert jax.typeof(u).sharding.spec == dec.spec()


def test_structure_and_tags():
    fft = dops.FFT3D(make_mesh((1, 1)), shape=(4, 6, 5), real=True)
    u, v = jax.ShapeDtypeStruct((4, 6, 5), np.float32), jnp.ones((3, 4, 6, 5))
    make = spectral.as_linear_operator
    gradient = make(spectral.Gradient(fft), u)
    assert gradient.in_structure() == u
    assert gradient.out_structure() == jax.ShapeDtypeStruct((3, 4, 6, 5), np.float32)
    assert not lx.is_symmetric(gradient)
    positive = [
        make(spectral.LerayProjection(fft), v),
        make(spectral.Dealias(fft), u),
        make(spectral.GaussianFilter(fft, 1.0), u),
    ]
    assert [lx.is_positive_semidefinite(matrix) for matrix in positive] == [True] * 3
    negative = [make(spectral.Laplacian(fft), u), make(spectral.Poisson(fft), u)]
    assert [lx.is_negative_semidefinite(matrix) for matrix in negative] == [True] * 2
    assert lx.is_symmetric(make(spectral.Curl(fft), v))
    several = make(spectral.Derivative(fft, (2, 0, 0)), u, (lx.symmetric_tag, lx.negative_semidefinite_tag))
    assert lx.is_symmetric(several)
    assert lx.is_negative_semidefinite(several)


def test_the_tags_are_true():
    """The lineax tags of operators (such as "symmetric") are true for their matrices, on small odd and even grids."""
    shape = (2, 3, 4)
    fft = dops.FFT3D(make_mesh((1, 1)), shape=shape, box=dops.Box((1.0, 2.0, 3.0)), real=True)
    some = {
        "positive": [
            spectral.Dealias(fft),
            spectral.GaussianFilter(fft, 0.3),
            spectral.LerayProjection(fft),
        ],
        "negative": [spectral.Laplacian(fft), spectral.Poisson(fft)],
        "symmetric": [spectral.Curl(fft)],
    }

    @jax.jit
    def matrices():
        identity = {n: jnp.eye(n * 24).reshape(-1, *[n] * (n > 1), *shape) for n in (1, 3)}
        apply = lambda op: op(identity[3 if op.components[0] == "vector" else 1])
        return jax.tree.map(apply, some, is_leaf=lambda node: isinstance(node, dops.AbstractOperator))

    for kind, results in matrices().items():
        for result in results:
            matrix = np.asarray(result).reshape(result.shape[0], -1)
            np.testing.assert_allclose(matrix, matrix.T, atol=1e-10)
            if kind != "symmetric":
                values = np.linalg.eigvalsh(matrix) * (1 if kind == "positive" else -1)
                assert values.min() > -1e-10
                assert values.max() > 0.1


def test_bad_input(plain, monkeypatch):
    fft = plain.FFT3D(make_mesh((1, 1)), shape=(4, 4, 4), real=True)
    make = plain.spectral.as_linear_operator
    with pytest.raises(ValueError, match=r"`x` must have shape .*; got \(4, 4, 5\)"):
        make(plain.spectral.Laplacian(fft), jnp.ones((4, 4, 5)))
    with pytest.raises(TypeError, match="`x` must be real for a real transform; got complex128"):
        make(plain.spectral.Laplacian(fft), jnp.ones((4, 4, 4), complex))
    original = builtins.__import__

    def without_lineax(name, *rest):
        if name == "lineax":
            raise ImportError
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_lineax)
    with pytest.raises(ImportError, match="`as_linear_operator` needs lineax: pip install lineax"):
        make(plain.spectral.Laplacian(fft), jnp.ones((4, 4, 4)))
