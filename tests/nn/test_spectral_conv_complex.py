"""Tests of `SpectralConv` on complex fields against the same convolution, computed with `numpy.fft`."""

import contextlib

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops.nn import SpectralConv
from decompops.tools.hlo import collectives
from jax.sharding import PartitionSpec as P

from helpers import assert_close, finite_difference, make_mesh, random_field, spec_of


SHAPE, MODES, KEY = (9, 10, 11), (3, 5, 2), jax.random.key(0)
CASES = [
    ((2, 4), "auto", SHAPE, MODES, (2, 3)),
    ((2, 4), "explicit", (8, 8, 8), 3, (2, 4)),
    ((8, 1), "explicit", (5, 3, 7), (3, 2, 4), (8, 1)),  # The layer keeps all modes.
    ((2, 4), "auto", (8, 12), (4, 6), (3, 2)),
    ((1, 1), "auto", SHAPE, MODES, (2, 3)),
]


def build(sizes, kind, shape, modes, channels, **options):
    fft = dops.FFT(make_mesh(sizes, kind), shape=shape, axes=("x", "y")[: len(shape) - 1], pad=True)
    return SpectralConv(fft, *channels, modes, **options, key=KEY)


def convolved(layer, x):
    """Apply the convolution with NumPy. Modes with |k| < modes of both signs have weights along each axis."""
    shape, axes = x.shape[1:], tuple(range(1, x.ndim))
    real, imaginary = layer.weight_layout.gather(layer.weight)
    assert real.shape[2:] == tuple(2 * m - 1 for m in layer.modes)
    wavenumbers = [np.r_[0:m, 1 - m : 0] for m in layer.modes]
    kept = np.ix_(range(len(x)), *[k % n for k, n in zip(wavenumbers, shape)])
    spectrum = np.fft.fftn(x, axes=axes)
    whole = np.zeros((len(real), *shape), complex)
    target = np.ix_(range(len(real)), *[k % n for k, n in zip(wavenumbers, shape)])
    whole[target] = np.einsum("oi...,i...->o...", real + 1j * imaginary, spectrum[kept])
    return np.fft.ifftn(whole, axes=axes)


@jax.jit
def pulled_back(layer, u, y):
    """Return the result, and its transposed derivative with respect to the weights and the input applied to `y`."""
    v, pullback = jax.vjp(lambda layer, u: layer(u), layer, u)
    return v, *pullback(y)


@pytest.mark.parametrize(("sizes", "kind", "shape", "modes", "channels"), CASES)
def test_values_and_derivatives(sizes, kind, shape, modes, channels, spoilt):
    layer = build(sizes, kind, shape, modes, channels)
    dec = layer.fft.decomposition
    x, y = (random_field((count, *shape), np.complex128, seed) for seed, count in enumerate(channels))
    with jax.set_mesh(dec.mesh) if kind == "explicit" else contextlib.nullcontext():
        got, for_layer, for_input = pulled_back(layer, spoilt(dec, x), dec.shard(y))
    expected = convolved(layer, x)
    assert_close(got, dec.shard(expected))  # The padding must be zero.
    # The layer is linear in the fields and in the weights, so both products are the same number.
    assert_close(np.sum(dec.gather(for_input) * x), np.sum(y * expected))
    assert_close(np.sum(np.asarray(for_layer.weight) * np.asarray(layer.weight)), np.sum((y * expected).real))
    assert spec_of(for_layer.weight) == spec_of(layer.weight)
    if kind == "explicit":
        assert jax.typeof(got).sharding.spec == P(None, *dec.spec(-1))


def test_the_gradient_of_the_weights_equals_finite_differences():
    layer = build((2, 4), "auto", SHAPE, MODES, (2, 1))
    u = layer.fft.decomposition.shard(random_field((2, *SHAPE), np.complex128))

    @jax.jit
    @jax.value_and_grad
    def loss(weight):
        v = eqx.tree_at(lambda layer: layer.weight, layer, weight)(u)
        return jnp.sum(jnp.sin(v.real) + v.imag**2)

    weight, direction = np.asarray(layer.weight), random_field(layer.weight.shape, seed=1)
    slope = np.sum(np.asarray(loss(layer.weight)[1]) * direction)
    numeric = finite_difference(lambda w: loss(w)[0], weight, direction, 1e-5)
    np.testing.assert_allclose(slope, numeric, rtol=1e-7)


def test_the_weights_do_not_depend_on_the_mesh_and_the_grid():
    one, other = build((2, 4), "auto", SHAPE, 3, (2, 2)), build((8, 1), "explicit", (16, 8, 8), 3, (2, 2))
    assert eqx.tree_equal(one.replace(fft=other.fft), other, rtol=1e-14)
    assert one.title == "SpectralConv3D"


def test_dtypes_and_structures():
    layer = build((2, 4), "auto", (8, 8, 8), 2, (1, 2), dtype=np.float32)
    assert layer.weight.dtype == np.float32
    assert (layer.in_structure.kind, layer.out_structure.kind) == (layer.fft.in_structure.kind, "complex")
    for dtype in (np.complex64, np.float32):  # A real field is a complex field whose imaginary part is zero.
        result = jax.eval_shape(layer, jax.ShapeDtypeStruct((5, 1, 8, 8, 8), dtype))
        assert (result.dtype, result.shape) == (np.complex64, (5, 2, 8, 8, 8))
    with pytest.raises(TypeError, match="`dtype` must be real; got complex64"):
        build((2, 4), "auto", (8, 8, 8), 2, (1, 2), dtype=np.complex64)


def test_bad_input(plain):
    mesh = make_mesh((2, 4))
    fft, real = (plain.FFT3D(mesh, shape=(8, 8, 8), real=real) for real in (False, True))
    layer, on_real = (plain.nn.SpectralConv(one, 1, 1, 2, key=KEY) for one in (fft, real))
    cosines = plain.Transform(mesh, shape=(8, 8, 8), bases=(plain.Fourier(), plain.Cosine(2), plain.Fourier()))
    options = {"width": 2, "modes": 2, "depth": 1, "key": KEY}
    for message, make in {
        "`fft` must be built without `real=True`, like .*; got a real transform": lambda: layer.replace(fft=real),
        "`fft` must be built with `real=True`, like .*; got a complex transform": lambda: on_real.replace(fft=fft),
        "`fft` must be periodic along y, with the basis `Fourier`": lambda: plain.nn.SpectralConv(
            cosines, 1, 1, 2, key=KEY
        ),
        "real fields; got a complex transform. Pass the real and the imaginary part": lambda: plain.nn.FNO(
            fft, 1, 1, **options
        ),
    }.items():
        with pytest.raises(ValueError, match=message):
            make()
    with pytest.raises(TypeError, match="complex"):
        on_real(np.zeros((1, 8, 8, 8), complex))


@pytest.mark.xla
def test_no_device_gathers_the_weights_or_a_field():
    layer = build((2, 4), "auto", (8, 8, 8), 3, (8, 8))
    u = layer.fft.decomposition.shard(random_field((8, 8, 8, 8), np.complex128))
    program = jax.jit(lambda layer, u: layer(u)).lower(layer, u).compile()
    assert {one.kind for one in collectives(program.as_text())} == {"all-to-all"}
