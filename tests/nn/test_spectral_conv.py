"""Tests of `SpectralConv3D` against the same convolution, computed with `jnp.fft` on one device."""

import contextlib
import functools
from collections import Counter

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops.nn import SpectralConv3D
from decompops.tools.hlo import collectives
from jax.sharding import NamedSharding, PartitionSpec as P

from helpers import assert_close, make_mesh, random_field, spec_of, thinned


SHAPE, MODES = (9, 10, 11), (3, 5, 2)


def transform(mesh, shape=SHAPE, **options):
    return dops.FFT3D(mesh, shape=shape, pad=True, real=True, **options)


def dense(weight, x):
    """Apply the layer on the whole grid, with all modes in natural order."""
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
    """Return the result, and the gradients with respect to the weights and the input."""
    loss = lambda weights, x: (jnp.sum(jnp.sin(v := function(weights, x))), v)
    (_, v), gradients = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(weights, x)
    return v, gradients


def call(layer, u):
    return layer(u)


@pytest.mark.parametrize(
    ("sizes", "kind", "shape", "modes", "channels", "stored"),
    [
        ((2, 4), "auto", SHAPE, MODES, (2, 3), [None, "x", None, None]),  # Four devices divide no other axis.
        ((2, 4), "explicit", (8, 8, 8), 3, (2, 4), ["y", "x", None, None]),
        pytest.param((2, 4), "auto", (8, 8, 8), 4, (3, 4), ["x", None, None, "y"], marks=pytest.mark.sweep),
        pytest.param((2, 4), "explicit", SHAPE, MODES, (1, 8), [("y", "x"), None, None, None], marks=pytest.mark.sweep),
        ((3, 2), "auto", SHAPE, (2, 5, 4), (2, 3), [None, None, "x", "y"]),  # Weights are sharded like spectra.
        ((8, 1), "auto", (5, 3, 7), (3, 2, 4), (8, 1), [None, "x", None, "y"]),  # The layer keeps all modes.
        pytest.param((8,), "explicit", SHAPE, MODES, (2, 8), ["x", None, None, None], marks=pytest.mark.sweep),
        ((8,), "auto", (4, 10, 16), (1, 4, 8), (2, 3), [None, None, None, "x"]),  # z is not sharded in the spectrum.
        pytest.param((1, 1), "auto", SHAPE, MODES, (2, 3), [None, None, "x", "y"], marks=pytest.mark.sweep),
    ],
)
def test_values_and_gradients_equal_the_dense_convolution(sizes, kind, shape, modes, channels, stored, spoilt):
    mesh = make_mesh(sizes, kind)
    layer = SpectralConv3D(transform(mesh, shape), *channels, modes, key=jax.random.key(0))
    dec, x = layer.fft.decomposition, random_field((channels[0], *shape))
    with jax.set_mesh(mesh) if kind == "explicit" else contextlib.nullcontext():
        got, (for_layer, for_input) = run(call, layer, spoilt(dec, x))

    expected, (for_weight, for_x) = run(dense, jnp.asarray(np.asarray(layer.weight)), jnp.asarray(x))
    assert_close(got, dec.shard(np.asarray(expected)))  # The padding must be zero.
    assert_close(for_input, dec.shard(np.asarray(for_x)))
    assert_close(for_layer.weight, for_weight)
    assert spec_of(for_layer.weight) == spec_of(layer.weight) == P(None, *stored, None)
    if kind == "explicit":
        assert jax.typeof(got).sharding.spec == P(None, *dec.spec("z"))


def test_the_weights_have_the_same_shape_and_values_everywhere():
    layers = [
        SpectralConv3D(transform(make_mesh(sizes, kind), shape), 12, 20, 3, key=jax.random.key(1))
        for sizes, kind, shape in [((2, 4), "auto", SHAPE), ((8, 1), "explicit", (16, 8, 8)), ((1, 1), "auto", SHAPE)]
    ]
    first, *others = [np.asarray(layer.weight) for layer in layers]
    assert first.shape == (2, 20, 12, 5, 3, 5)
    for other in others:
        assert_close(other, first, rtol=1e-14)
    assert abs(np.mean(np.sum(first**2, 0)) * (12 + 20) / 2 - 1) < 0.03
    layout = layers[0].weight_layout
    natural = layout.gather(layers[0].weight)
    assert np.array_equal(natural, np.moveaxis(first, -1, -3))
    assert eqx.tree_equal(layout.shard(natural), layers[0].weight)


@pytest.mark.xla
def test_each_device_draws_its_own_weights():
    draw = lambda key: SpectralConv3D(transform(make_mesh((2, 4))), 16, 16, 4, key=key).weight
    program = jax.jit(draw).lower(jax.random.key(0)).compile()
    whole = 8 * 2 * 16 * 16 * 7 * 4 * 7
    assert not collectives(program.as_text())
    assert program.memory_analysis().output_size_in_bytes == whole / 8
    assert program.memory_analysis().temp_size_in_bytes < whole / 2


def test_the_convolution_is_the_same_on_another_grid():
    """A field of few modes gives the same result on a grid that is twice as fine and on another mesh."""
    coarse, fine = transform(make_mesh((2, 4)), (6, 8, 7)), transform(make_mesh((4, 2)), (12, 16, 14), modes=5)
    layer = SpectralConv3D(coarse, 1, 2, (3, 2, 2), key=jax.random.key(2))
    there = layer.replace(fft=fine)
    expected = SpectralConv3D(fine, 1, 2, (3, 2, 2), key=jax.random.key(2))
    assert eqx.tree_equal(there, expected, rtol=1e-14)
    assert there.weight.sharding == expected.weight.sharding
    assert eqx.tree_equal(there.replace(fft=coarse), layer)

    angles = [2 * np.pi * np.arange(n) / n for n in (12, 16, 14)]
    x, y, z = np.meshgrid(*angles, indexing="ij")
    u = (0.5 + np.sin(2 * x - y + z) + np.cos(x + y))[None]
    jitted, every_other = jax.jit(call), np.s_[:, ::2, ::2, ::2]
    v = layer.fft.decomposition.gather(jitted(layer, u[every_other]))
    assert_close(v, there.fft.decomposition.gather(jitted(there, u))[every_other])


def communicated(sizes, kind, channels, modes):
    """Return the collectives of the layer, of its gradient and of its transforms, and the bytes of its weights."""
    fft = transform(make_mesh(sizes, kind), (24, 24, 24), backend=dops.XLA())
    layer = SpectralConv3D(fft, channels, channels, modes, key=jax.random.key(0))
    kept, mesh = layer.transform, fft.decomposition.mesh
    u = jax.ShapeDtypeStruct((channels, 24, 24, 24), np.float64, sharding=NamedSharding(mesh, P(None, *fft.in_spec)))

    functions = call, jax.grad(lambda layer, u: jnp.sum(jnp.sin(layer(u)))), lambda layer, u: kept.inverse(kept(u))
    with jax.set_mesh(mesh) if kind == "explicit" else contextlib.nullcontext():
        texts = [jax.jit(function).lower(layer, u).compile().as_text() for function in functions]
    return *map(collectives, texts), layer.weight.nbytes


@pytest.mark.xla
def test_where_the_mesh_divides_the_modes_weights_are_not_communicated():
    forward, backward, transforms, _ = communicated((3, 2), "auto", 2, (3, 5, 4))
    assert [c.kind for c in forward] == [c.kind for c in transforms] == ["all-to-all"] * 4
    assert [c.bytes for c in forward] == [c.bytes for c in transforms]
    # No collective sums the gradients of the weights over devices, because each device has its own part of the weights.
    assert [c.kind for c in backward] == ["all-to-all"] * 6


@pytest.mark.xla
@pytest.mark.parametrize(
    ("modes", "partners", "kind"),
    thinned(
        [(*case, kind) for case in (((3, 5, 4), 2), ((3, 4, 3), 8)) for kind in ("auto", "explicit")],
        lambda modes, partners, kind: (partners == 2) == (kind == "auto"),
    ),
)
def test_where_the_mesh_does_not_divide_the_modes_weights_are_exchanged_once(kind, modes, partners):
    forward, backward, transforms, size = communicated((2, 4), kind, 8, modes)
    # Blocks have padding: nine modes become ten, seven become eight, and three become four.
    padded = {2: 10 / 9, 8: 8 / 7 * 4 / 3}[partners]
    one = ("all-to-all", round(size / 8 * padded) * (partners - 1) // partners, partners)
    listed = lambda found: Counter((c.kind, c.bytes, c.group_size) for c in found)
    assert listed(forward) == listed(transforms) + Counter([one])
    assert {c.kind for c in backward} == {"all-to-all"}
    assert len(backward) == 6 + 2
    assert listed(backward)[one] == 2


@pytest.mark.xla
@pytest.mark.parametrize(("channels", "exchanges"), [(3, 0), (2, 1)])
def test_replicated_weights_are_gathered_in_the_gradient_only(channels, exchanges):
    """If weights are replicated, the gradient of a layer has all-gathers, but the layer itself has none.

    The weights are replicated over both mesh axes, or over one mesh axis while the other mesh axis shards the channels.
    """
    forward, backward, transforms, size = communicated((2, 4), "auto", channels, 3)
    extra = Counter(c.bytes for c in forward) - Counter(c.bytes for c in transforms)
    padded = 6 / 5 * 4 / 3
    # Each device sends only its own part of the weights.
    assert extra == Counter(exchanges * [round(size / 8 * padded) // 2])
    kinds = Counter(c.kind for c in backward)
    assert set(kinds) == {"all-to-all", "all-gather"}
    assert kinds["all-to-all"] == 6 + 2 * exchanges


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
        "`fft` must be built with a `shape`": (plain.FFT3D(mesh, real=True), 1, 1, 2),
        "`in_channels` must be an integer of at least one; got 0": (fft, 0, 1, 2),
        "`out_channels` must be an integer of at least one; got -1": (fft, 1, -1, 2),
        r"`modes` must be at least one and at most \(5, 5, 6\) wavenumbers.*; got 6": (fft, 1, 1, 6),
        r"`modes` must be at least one and at most .*; got \(2, 0, 2\)": (fft, 1, 1, (2, 0, 2)),
        r"`modes` must be at least one and at most .*; got \(2, 2\)": (fft, 1, 1, (2, 2)),
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
    with pytest.raises(ValueError, match=r"`modes` must be at least one and at most \(2, 2, 2\)"):
        layer.replace(fft=plain.FFT3D(mesh, shape=(4, 4, 4), pad=True, real=True))
    with jax.set_mesh(make_mesh((4, 2))), pytest.raises(ValueError, match="`mesh` of the operator must be the ambient"):
        layer(np.zeros((2, *SHAPE)))
