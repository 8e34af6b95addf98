"""Tests of `decompops.testing`: right operators pass, and wrong ones do not."""

import itertools
import re

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import extend, spectral, testing
from decompops.extend import AbstractDerivable

from helpers import make_mesh, random_field, thinned


MESHES = [make_mesh((2, 4)), make_mesh((8,)), make_mesh((3, 2), "explicit")]
SHAPE = (9, 10, 7)


def failure(call, *args, **options):
    with pytest.raises(AssertionError) as error:
        call(*args, **options)
    return str(error.value)


@pytest.mark.parametrize("mesh", [MESHES[0], pytest.param(MESHES[1], marks=pytest.mark.sweep), MESHES[2]])
def test_adjoints_of_operators(mesh):
    for operator in (
        dops.FFT3D(mesh, SHAPE, pad=True),
        dops.FFT3D(mesh, SHAPE, real=True, pad=True),
        dops.HaloExchange(mesh, shape=SHAPE, pad=True, halo=2),
        spectral.Derivative(dops.FFT3D(mesh, SHAPE, real=True, pad=True), (1, 0, 2)),
    ):
        testing.assert_adjoint(operator)
        testing.assert_transposed(operator)


def test_wrong_adjoints_are_found():
    fft = dops.FFT3D(make_mesh((2, 4)), (8, 8, 8))
    testing.assert_adjoint(fft, lambda y: 8**3 * fft.inverse(y))
    assert re.match(
        r"FFT3D .* and its conjugate transpose must give equal inner", failure(testing.assert_adjoint, fft, fft.T)
    )
    assert "its transpose must give" in failure(testing.assert_transposed, fft, fft.H)
    x = np.ones(3)
    assert "equal inner products" in failure(testing.assert_adjoint, lambda x: 2 * x, lambda y: y, x, x)
    with pytest.raises(AssertionError, match="nan"):
        testing.assert_adjoint(fft, lambda y: np.nan * y)


def test_wrong_adjoints_are_found_in_broadcasts_and_in_any_unit():
    """A transpose without its sum, and a wrong factor of numbers whose squares are small."""
    rng = np.random.default_rng(0)
    for spread, x, y in (
        (lambda x: jnp.broadcast_to(x, 3), rng.random(1), rng.random(3)),
        (lambda x: jnp.stack([x, x]), rng.random(3), rng.random((2, 3))),
    ):
        testing.assert_adjoint(spread, lambda y, x=x: y.sum(0).reshape(x.shape), x, y)
        for check in (testing.assert_adjoint, testing.assert_transposed):
            assert f"that of `x`, {x.shape}; got {y.shape} and {y.shape}" in failure(check, spread, lambda y: y, x, y)
    for unit in (1e-25, 1e25):
        x, y = unit * rng.random(5), unit * rng.random(5)
        testing.assert_adjoint(lambda x: 2 * x, lambda y: 2 * y, x, y)
        assert "equal inner" in failure(testing.assert_adjoint, lambda x: 2 * x, lambda y: y, x, y)


def test_adjoints_of_results_with_fewer_bits():
    """In 32-bit mode, NumPy's arrays of float64 have results of 32 bits."""
    x, y = (np.random.default_rng(seed).random(64) + 0j for seed in range(2))
    with jax.enable_x64(False):
        testing.assert_adjoint(jnp.fft.fft, lambda y: 64 * jnp.fft.ifft(y), x, y)
        assert "equal inner" in failure(testing.assert_adjoint, jnp.fft.fft, jnp.fft.ifft, x, y)


def test_random_inputs_are_the_same_on_every_mesh():
    found = [
        (fft, testing.random_input(fft.in_structure, batch=(2,)))
        for fft in (dops.FFT3D(mesh, SHAPE, pad=True) for mesh in MESHES)
    ]
    first, *others = (fft.decomposition.gather(u) for fft, u in found)
    assert first.shape == (2, *SHAPE)
    for other in others:
        np.testing.assert_array_equal(first, other)
    real = testing.random_input(dops.FFT3D(MESHES[0], SHAPE, real=True, pad=True).in_structure, dtype=np.float32)
    assert real.dtype == np.float32


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("real", [True, False])
def test_random_inputs_have_the_given_dtype(name, real):
    fft = dops.FFT3D(MESHES[0], SHAPE, real=real, pad=True)
    found = testing.random_input(fft.in_structure, dtype=name)
    assert found.dtype == (name if real else "complex128" if name == "float64" else "complex64")
    whole = fft.decomposition.gather(found)
    expected = fft.decomposition.gather(testing.random_input(fft.in_structure))
    np.testing.assert_allclose(whole, expected, rtol=float(jnp.finfo(name).eps))


def test_tolerances_exceed_rounding_errors():
    found = {name: testing.tolerance(name) for name in ("float64", "complex64", "float16", "bfloat16", "int32", "bool")}
    expected = {
        "float64": 1e-10,
        "complex64": 1e-5,
        "float16": 10 / 2**10,
        "bfloat16": 10 / 2**7,
        "int32": 0,
        "bool": 0,
    }
    assert found == expected


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8", "int32", "uint16"])
def test_adjoints_of_every_dtype(dtype):
    """The sums neither overflow nor lose digits, so right adjoints pass, and wrong ones do not."""
    factor = np.asarray(2, dtype)
    x, y = (np.asarray(60 * np.random.default_rng(seed).random(5000), dtype) for seed in range(2))
    testing.assert_adjoint(lambda x: factor * x, lambda y: factor * y, x, y)
    testing.assert_transposed(lambda x: factor * x, lambda y: factor * y, x, y)
    assert "equal inner products" in failure(testing.assert_adjoint, lambda x: factor * x, lambda y: y, x, y)
    if not jnp.issubdtype(dtype, jnp.inexact):
        testing.assert_adjoint(lambda x: 0.1 * x.astype(float), lambda y: 0.1 * y.astype(float), x, y)


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float32", "float64", "complex64", "bool", "int8", "uint8", "int64", "uint64"]
)
def test_results_of_every_dtype_on_meshes(dtype):
    """The comparison finds one other number, even one that differs by one from an integer that float64 cannot hold."""
    shift = np.asarray(2**60 if dtype in ("int64", "uint64") else 0, dtype)
    u = random_field(SHAPE) > 0
    other = u.copy()
    other[0, 0, 0] = not u[0, 0, 0]
    u, other = u.astype(dtype) + shift, other.astype(dtype) + shift
    testing.assert_same_on_meshes(lambda mesh: jnp.asarray, MESHES, u)
    wrong = lambda mesh: lambda u: u if mesh.size == 1 else other
    assert "must be" in failure(testing.assert_same_on_meshes, wrong, MESHES, u)


def energy_of(fft):
    """Return a function that is no polynomial, so that differences are not exact."""
    return lambda u: fft.decomposition.sum(jnp.sin(jnp.abs(fft.inverse(jnp.tanh(1) * fft(u))) ** 2))


@pytest.mark.parametrize(
    ("dtype", "kind"),
    thinned(
        itertools.product((np.float64, np.complex128), ("auto", "explicit")),
        lambda dtype, kind: (dtype == np.float64) == (kind == "auto"),
    ),
)
def test_derivatives(kind, dtype):
    mesh = make_mesh((2, 2), kind)
    fft = dops.FFT3D(mesh, (4, 5, 6), pad=True)
    energy, shard = jax.jit(energy_of(fft)), fft.decomposition.shard
    x, direction = (shard(random_field((4, 5, 6), dtype, seed)) for seed in (0, 1))
    with jax.set_mesh(mesh):
        testing.assert_derivative(energy, x, direction, order=2)


def test_wrong_derivatives_are_found():
    @jax.custom_jvp
    def cube(x):
        return jnp.sum(x**3)

    x = np.linspace(1, 2, 5)
    cube.defjvp(lambda x, v: (cube(*x), 2 * jnp.sum(x[0] ** 2 * v[0])))
    assert "the forward derivative must be" in failure(testing.assert_derivative, cube, x, x)
    cube.defjvp(lambda x, v: (cube(*x), 3 * jnp.sum(jax.lax.stop_gradient(x[0]) ** 2 * v[0])))
    testing.assert_derivative(cube, x, x)
    assert "the second derivative must be" in failure(testing.assert_derivative, cube, x, x, order=2)


def test_results_on_meshes():
    u = random_field(SHAPE)
    make = lambda mesh: dops.FFT3D(mesh, SHAPE, real=True, pad=True)
    testing.assert_same_on_meshes(make, MESHES, u)

    def norms(mesh):
        fft = make(mesh)
        return lambda u: {"norm": fft.out_layout.norm(fft(u)), "field": fft.decomposition.gather(fft.inverse(fft(u)))}

    testing.assert_same_on_meshes(norms, MESHES, u)
    wrong = lambda mesh: lambda u: u * mesh.size
    assert "must be that of one device up to" in failure(testing.assert_same_on_meshes, wrong, MESHES, u)
    longer = lambda mesh: lambda: np.ones(mesh.size)
    assert "must have shape (1,), as on one device; got (8,)" in failure(testing.assert_same_on_meshes, longer, MESHES)
    other = lambda mesh: lambda: np.ones(3, "f4" if mesh.size > 1 else "f8")
    assert "must have dtype float64, as on one device; got float32" in failure(
        testing.assert_same_on_meshes, other, MESHES
    )
    more = lambda mesh: lambda: [1.0] * mesh.size
    assert "another structure" in failure(testing.assert_same_on_meshes, more, MESHES)


class Centred(AbstractDerivable):
    """Subtracts the mean. `clears` says where the padding is set to zero: before the mean, and in the result."""

    decomposition: dops.Decomposition
    clears: tuple[bool, bool] = eqx.field(static=True)
    is_invertible = False

    def apply(self, x, form, *, local):
        mask = self.decomposition.shard(np.ones(SHAPE))
        before, after = (mask if needed else 1.0 for needed in self.clears)
        return (before * x - jnp.sum(before * x) / float(np.prod(SHAPE))) * after

    def structures(self, form, given):
        return 2 * (dops.Multiply(self.decomposition, np.ones(SHAPE)).in_structure,)


def test_wrong_padding_is_found():
    """An operator must ignore the padding of its input, and the padding of its result must be zero."""
    make = lambda *clears: lambda mesh: Centred(dops.Decomposition(mesh, shape=SHAPE, pad=True), clears)
    u = 1 + random_field(SHAPE)
    testing.assert_same_on_meshes(make(True, True), MESHES, u)
    assert "must be that of one device" in failure(testing.assert_same_on_meshes, make(False, True), MESHES, u)
    assert "The padding of the result" in failure(testing.assert_same_on_meshes, make(True, False), MESHES, u)


@pytest.mark.parametrize("unit", [1e-40, 1e40])
def test_results_with_infinities_and_in_any_unit(unit):
    u = unit * np.array([1.0, np.inf, -np.inf, 2.0])
    testing.assert_same_on_meshes(lambda mesh: lambda u: u, MESHES[:1], u)
    for others in ([1, np.inf, np.inf, 2], [1, np.nan, -np.inf, 2], [1, np.inf, -np.inf, 2.001]):
        wrong = lambda mesh, others=others: lambda u: u if mesh.size == 1 else unit * np.array(others)
        assert "got an error of" in failure(testing.assert_same_on_meshes, wrong, MESHES[:1], u)


def test_bad_arguments(plain):
    with pytest.raises(TypeError, match="`x` and `y` must be given for a function"):
        testing.assert_adjoint(lambda x: x, lambda y: y)
    x = np.ones(3)
    with pytest.raises(TypeError, match=r"`adjoint` must be given for a function without `\.H`; got <function"):
        testing.assert_adjoint(lambda x: x, x=x, y=x)
    with pytest.raises(TypeError, match=r"`transposed` must be given for a function without `\.T`; got <function"):
        testing.assert_transposed(lambda x: x, x=x, y=x)
    fft = dops.FFT3D(MESHES[0], SHAPE, pad=True)
    with pytest.raises(TypeError, match=r"`dtype` must be a dtype of real floating-point .*; got 'int32'"):
        testing.random_input(fft.in_structure, dtype="int32")
    for name, call in (
        ("structure", lambda: testing.random_input(fft)),
        ("batch", lambda: testing.random_input(fft.in_structure, batch=(-1,))),
        ("seed", lambda: testing.random_input(fft.in_structure, seed="a")),
        ("dtype", lambda: testing.random_input(fft.in_structure, dtype="flot32")),
        ("dtype", lambda: testing.tolerance(None)),
        ("ndim", lambda: extend.axis_names(-1)),
    ):
        with pytest.raises((TypeError, ValueError), match=f"^`{name}` must be "):
            call()
    with pytest.raises(ValueError, match="`meshes` must have at least one mesh"):
        testing.assert_same_on_meshes(lambda mesh: abs, [])
    with pytest.raises(TypeError, match=r"`meshes` must be meshes of `jax.make_mesh`; got \(2, 4\)"):
        testing.assert_same_on_meshes(lambda mesh: abs, [(2, 4)])
    with pytest.raises(ValueError, match="`order` must be an integer of at least one"):
        testing.assert_derivative(jnp.sum, np.ones(3), np.ones(3), order=0)
    with pytest.raises(ValueError, match="`order` must be 1 or 2; got 3"):
        testing.assert_derivative(jnp.sum, np.ones(3), np.ones(3), order=3)
    with pytest.raises(ValueError, match=r"`step` must be a positive, finite number; got 0\.0"):
        testing.assert_derivative(jnp.sum, np.ones(3), np.ones(3), step=0.0)
    with pytest.raises(TypeError, match=r"`x` must have real or complex floating-point numbers; got .* int64\[3\]"):
        testing.assert_derivative(jnp.sum, np.arange(3), np.arange(3))
    for function in (lambda x: x, lambda x: None, lambda x: jnp.sum(x).astype(complex)):
        with pytest.raises(TypeError, match="`function` must return one real floating-point number; got "):
            testing.assert_derivative(function, np.ones(3), np.ones(3))
