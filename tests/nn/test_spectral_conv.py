"""`SpectralConv3D` against the same convolution with `jnp.fft` on one device."""

import contextlib
import functools

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops._hlo import collectives
from decompops.nn import SpectralConv3D
from jax.sharding import PartitionSpec as P

from helpers import assert_close, make_mesh, random_field, spec_of


SHAPE, MODES = (9, 10, 11), (3, 5, 2)


def transform(mesh, shape=SHAPE, **options):
    return dops.FFT3D(mesh, shape=shape, pad=True, real=True, **options)


def true_weight(layer, weight):
    """Without padding: `(2, out, in, y, z, x)`."""
    mx, my, mz = layer.modes
    return np.asarray(weight)[..., : 2 * my - 1, :mz, : 2 * mx - 1]


def spoil_padding(layer):
    weight = np.full(layer.weight.shape, np.nan)
    true_weight(layer, weight)[:] = true_weight(layer, layer.weight)
    return eqx.tree_at(lambda layer: layer.weight, layer, jax.device_put(weight, layer.weight.sharding))


def dense(weight, x):
    """The layer on the whole grid, with all modes in natural order."""
    shape, (my, mz, mx) = x.shape[-3:], weight.shape[-3:]
    kx, ky = (np.fft.fftfreq(n, 1 / n).astype(int) for n in (mx, my))
    kept = (..., kx[:, None, None], ky[:, None], np.arange(mz))
    w = jax.lax.complex(weight[0], weight[1]).transpose(0, 1, 4, 2, 3)
    spectrum = jnp.fft.rfftn(x, axes=(-3, -2, -1))
    product = jnp.einsum("oixyz,ixyz->oxyz", w, spectrum[kept])
    whole = jnp.zeros((len(product), *spectrum.shape[-3:]), product.dtype).at[kept].set(product)
    return jnp.fft.irfftn(whole, shape, axes=(-3, -2, -1))


@functools.partial(jax.jit, static_argnums=0)
def run(function, weights, x):
    """The result, and the gradients by the weights and the input."""
    loss = lambda weights, x: (jnp.sum(jnp.sin(v := function(weights, x))), v)
    (_, v), gradients = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(weights, x)
    return v, gradients


def call(layer, u):
    return layer(u)


@pytest.mark.parametrize(
    ("sizes", "kind", "shape", "modes"),
    [
        ((2, 4), "auto", SHAPE, MODES),
        ((2, 4), "explicit", (8, 8, 8), 3),
        ((8, 1), "auto", (5, 3, 7), (3, 2, 4)),  # all modes
        ((8,), "explicit", SHAPE, MODES),
        ((1, 1), "auto", SHAPE, MODES),
    ],
)
def test_values_and_gradients_are_those_of_the_dense_convolution(sizes, kind, shape, modes, spoilt):
    mesh = make_mesh(sizes, kind)
    layer = SpectralConv3D(transform(mesh, shape), 2, 3, modes, key=jax.random.key(0))
    dec, x = layer.fft.decomposition, random_field((2, *shape))
    with jax.set_mesh(mesh) if kind == "explicit" else contextlib.nullcontext():
        got, (for_layer, for_input) = run(call, spoil_padding(layer), spoilt(dec, x))

    weight = true_weight(layer, layer.weight)
    expected, (for_weight, for_x) = run(dense, jnp.asarray(weight), jnp.asarray(x))
    assert_close(got, dec.shard(np.asarray(expected)))  # padding is zero
    assert_close(for_input, dec.shard(np.asarray(for_x)))
    assert_close(true_weight(layer, for_layer.weight), for_weight)
    assert_close(jnp.sum(jnp.abs(for_layer.weight)), np.abs(for_weight).sum())  # nothing in padding
    if kind == "explicit":
        assert jax.typeof(got).sharding.spec == P(None, *dec.spec("z"))


def test_the_weights_are_divided_like_the_spectrum_and_the_same_everywhere():
    layers = [
        SpectralConv3D(transform(make_mesh(sizes, kind), shape), 12, 20, 3, key=jax.random.key(1))
        for sizes, kind, shape in [((2, 4), "auto", SHAPE), ((8, 1), "explicit", (16, 8, 8)), ((1, 1), "auto", SHAPE)]
    ]
    first, *others = [true_weight(layer, layer.weight) for layer in layers]
    for other in others:
        assert_close(other, first, rtol=1e-14)
    assert abs(np.mean(np.sum(first**2, 0)) * (12 + 20) / 2 - 1) < 0.03
    assert spec_of(layers[0].weight) == P(None, None, None, *layers[0].transform.out_spec)
    assert {shard.data.size for shard in layers[0].weight.addressable_shards} == {layers[0].weight.size // 8}


def test_on_another_grid_it_is_the_same_convolution():
    """A field of few modes, on a grid and on one twice as fine, on another mesh."""
    coarse, fine = transform(make_mesh((2, 4)), (6, 8, 7)), transform(make_mesh((4, 2)), (12, 16, 14), modes=5)
    layer = SpectralConv3D(coarse, 1, 2, (3, 2, 2), key=jax.random.key(2))
    there = layer.on(fine)
    expected = SpectralConv3D(fine, 1, 2, (3, 2, 2), key=jax.random.key(2))
    assert eqx.tree_equal(there, expected, rtol=1e-14)
    assert there.weight.sharding == expected.weight.sharding
    assert eqx.tree_equal(there.on(coarse), layer)

    angles = [2 * np.pi * np.arange(n) / n for n in (12, 16, 14)]
    x, y, z = np.meshgrid(*angles, indexing="ij")
    u = (0.5 + np.sin(2 * x - y + z) + np.cos(x + y))[None]
    jitted, every_other = jax.jit(call), np.s_[:, ::2, ::2, ::2]
    v = layer.fft.decomposition.gather(jitted(layer, u[every_other]))
    assert_close(v, there.fft.decomposition.gather(jitted(there, u))[every_other])


def test_it_communicates_what_the_transforms_of_the_kept_modes_do():
    fft = transform(make_mesh((2, 4)), (16, 16, 16))
    layer = SpectralConv3D(fft, 2, 2, 3, key=jax.random.key(0))
    kept = fft.replace(modes=5, axis_contiguous=True)

    def found(function, *lead):
        u = jax.ShapeDtypeStruct((*lead, 16, 16, 16), np.float64, sharding=fft.decomposition.sharding("z"))
        if lead:
            u = u.update(sharding=jax.NamedSharding(fft.decomposition.mesh, P(None, *fft.in_spec)))
        return collectives(jax.jit(function).lower(layer, u).compile().as_text())

    transforms = found(lambda layer, u: kept.inverse(kept(u)))
    forward = found(call, 2)
    assert [c.kind for c in forward] == [c.kind for c in transforms] == ["all-to-all"] * 4
    assert [c.bytes for c in forward] == [2 * c.bytes for c in transforms]
    # Not even the gradients of weights are summed over devices: each has its own.
    backward = found(jax.grad(lambda layer, u: jnp.sum(jnp.sin(layer(u)))), 2)
    assert [c.kind for c in backward] == ["all-to-all"] * 6


def test_dtypes():
    fft = transform(make_mesh((2, 4)), (8, 8, 8))
    layer = SpectralConv3D(fft, 1, 2, 2, dtype=np.float32, key=jax.random.key(0))
    assert layer.weight.dtype == np.float32
    u = jax.ShapeDtypeStruct((5, 1, 8, 8, 8), np.float32)
    assert jax.eval_shape(layer, u).dtype == np.float32
    with pytest.raises(TypeError, match=r"`dtype` must be float32 or float64.*; got float16"):
        SpectralConv3D(fft, 1, 2, 2, dtype=np.float16, key=jax.random.key(0))


def test_bad_input(plain):
    mesh, key = make_mesh((2, 4)), jax.random.key(0)
    fft = plain.FFT3D(mesh, shape=SHAPE, pad=True, real=True)
    cases = {
        "`fft` must be built with `real=True`": (plain.FFT3D(mesh, shape=SHAPE, pad=True), 1, 1, 2),
        "`fft` must be built with a `shape`": (plain.FFT3D(mesh, real=True), 1, 1, 2),
        "`in_channels` must be an integer of at least one; got 0": (fft, 0, 1, 2),
        "`out_channels` must be an integer of at least one; got -1": (fft, 1, -1, 2),
        r"`modes` must be one to \(5, 5, 6\) wavenumbers.*; got 6": (fft, 1, 1, 6),
        r"`modes` must be one to .*; got \(2, 0, 2\)": (fft, 1, 1, (2, 0, 2)),
        r"`modes` must be one to .*; got \(2, 2\)": (fft, 1, 1, (2, 2)),
    }
    for message, arguments in cases.items():
        with pytest.raises(ValueError, match=message):
            plain.nn.SpectralConv3D(*arguments, key=key)
    layer = plain.nn.SpectralConv3D(fft, 2, 1, 3, key=key)
    for shape in ((3, *SHAPE), SHAPE):
        with pytest.raises(ValueError, match=r"`x` must have shape \(\*batch, 2, nx, ny, nz\), with 2 channels; got"):
            layer(np.zeros(shape))
    with pytest.raises(ValueError, match=r"`x` must have shape \(\*batch, 9, 10, 11\)"):
        layer(np.zeros((2, 8, 8, 8)))
    with pytest.raises(ValueError, match=r"`modes` must be one to \(2, 2, 2\)"):
        layer.on(plain.FFT3D(mesh, shape=(4, 4, 4), pad=True, real=True))
    with jax.set_mesh(make_mesh((4, 2))), pytest.raises(ValueError, match="`mesh` of the operator must be the ambient"):
        layer(np.zeros((2, *SHAPE)))
