"""Tests of `Multiply`, the product with a field."""

import decompops as dops
import equinox as eqx
import jax
import numpy as np
import pytest
from decompops import finite_volume, solve, spectral
from decompops.testing import assert_adjoint, assert_transposed

from helpers import assert_close, make_mesh, random_field


SHAPE = (6, 7, 5)


@pytest.mark.parametrize(("factor", "field"), [(np.float64, np.complex64), (np.complex128, np.float32)])
def test_products(factor, field):
    dec = dops.Decomposition(make_mesh((2, 4)), shape=SHAPE, pad=True)
    a, u, y = random_field(SHAPE, factor), random_field((2, *SHAPE), field, 1), random_field((2, *SHAPE), np.complex64)
    multiply = dops.Multiply(dec, a)
    assert multiply(dec.shard(u)).dtype == np.complex64
    run = lambda operator: lambda x: dec.gather(operator(dec.shard(x)))
    assert_close(run(multiply)(u), a * u)
    assert_transposed(run(multiply), run(multiply.T), u, y)
    assert_adjoint(run(multiply), run(multiply.H), u, y)


@pytest.mark.parametrize("field", [bool, np.int8, np.uint8, np.int64])
@pytest.mark.parametrize("factor", [np.float32, np.complex128])
def test_products_with_integers(factor, field):
    """The product has the dtype of the factor, which an integer dtype would cut."""
    dec = dops.Decomposition(make_mesh((2, 4)), shape=SHAPE, pad=True)
    a, u = random_field(SHAPE, factor), (3 * random_field((2, *SHAPE))).astype(field)
    product = dops.Multiply(dec, a)(dec.shard(u))
    assert product.dtype == factor
    assert_close(dec.gather(product), a * u.astype(factor))


def test_pipelines_have_transposes_and_gradients():
    fft = dops.FFT3D(make_mesh((2, 4)), shape=(8, 8, 8), real=True)
    dec = fft.decomposition
    a, u, y = random_field((8, 8, 8)), random_field((8, 8, 8), seed=1), random_field((3, 8, 8, 8), seed=2)
    flux = lambda a: dops.Multiply(dec, a) @ spectral.Gradient(fft)
    assert_transposed(flux(a), flux(a).T, u, y)
    gradient = jax.jit(jax.grad(lambda a: (flux(a)(u) * y).sum()))(dec.shard(a))
    assert_close(gradient, (np.asarray(spectral.Gradient(fft)(u)) * y).sum(0))


def test_jit_of_an_operator_with_arrays_says_what_to_do():
    dec = dops.Decomposition(make_mesh((2, 4)), shape=SHAPE, pad=True)
    multiply, u = dops.Multiply(dec, np.full(SHAPE, 3.0)), dec.shard(np.ones(SHAPE))
    for operator in (multiply, multiply @ multiply, solve.CG(multiply)):
        with pytest.raises(TypeError, match=r"holds arrays, and has no hash; .*eqx.filter_jit\(operator\)\(x\)"):
            jax.jit(operator)(u)
    assert_close(dec.gather(eqx.filter_jit(solve.CG(multiply))(u)), np.full(SHAPE, 1 / 3))


def test_copies_that_hold_something_else_than_arrays_are_printed():
    """`jax.tree.map` makes such copies: the specs of a `shard_map`, the shardings of a checkpoint, a mask of optax."""
    dec = dops.Decomposition(make_mesh((2, 4)), shape=SHAPE, pad=True)
    multiply, volumes = dops.Multiply(dec, np.ones(SHAPE)), finite_volume.Diffusion(dec, boundary="dirichlet")
    for operator in (multiply, volumes, multiply @ volumes, solve.CG(volumes)):
        for put in (lambda x: jax.P(), lambda x: x.sharding, lambda x: x.dtype, lambda x: True, lambda x: object()):
            assert repr(jax.tree.map(put, operator)) == repr(operator)
    assert repr(volumes.specs) == repr(volumes)


def test_bad_input(plain):
    dec = plain.Decomposition(make_mesh((1, 1)), shape=SHAPE)
    with pytest.raises(TypeError, match="`decomposition` must be a `Decomposition`"):
        plain.Multiply(make_mesh((1, 1)), np.ones(SHAPE))
    with pytest.raises(TypeError, match="`factor` must be real or complex floating-point numbers; got int64"):
        plain.Multiply(dec, np.ones(SHAPE, int))
    with pytest.raises(ValueError, match="`factor` must have shape"):
        plain.Multiply(dec, np.ones((4, 4, 4)))
