"""Random shapes, meshes, dtypes, batches and options against NumPy."""

import math

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from helpers import assert_adjoint, assert_close, make_mesh, put, random_field


SETTINGS = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@st.composite
def decompositions(draw):
    rank = draw(st.integers(1, 3))
    sizes = draw(st.lists(st.integers(1, 8), min_size=rank, max_size=rank).filter(lambda s: math.prod(s) <= 8))
    names = draw(st.permutations(["x", "y", "c"][:rank]))
    mesh = make_mesh(tuple(sizes), "auto", tuple(names))
    axes = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
    shape = tuple(draw(st.lists(st.integers(1, 12), min_size=3, max_size=3)))
    # Made in the tests: the checks of annotations draw random numbers, which strategies may not.
    return lambda: dops.Decomposition(mesh, shape=shape, pad=True, axes=tuple(axes))


batches = st.lists(st.integers(1, 3), max_size=2).map(tuple)


@SETTINGS
@given(make_dec=decompositions(), batch=batches, data=st.data())
def test_fft(make_dec, batch, data):
    dec = make_dec()
    dtype = data.draw(st.sampled_from([np.float32, np.float64, np.complex64, np.complex128]))
    real = not np.issubdtype(dtype, np.complexfloating) and data.draw(st.booleans())
    norm = data.draw(st.sampled_from(["backward", "ortho", "forward"]))
    axis_contiguous = data.draw(st.booleans())
    seed = data.draw(st.integers(0, 2**32 - 1))
    fft = dops.FFT3D(dec, real=real, norm=norm, axis_contiguous=axis_contiguous)
    u = random_field((*batch, *dec.shape), dtype, seed)
    k = fft(u)
    expected = (np.fft.rfftn if real else np.fft.fftn)(
        u.astype(np.result_type(dtype, np.float64)), axes=(-3, -2, -1), norm=norm
    )
    rtol = 1e-5 if np.finfo(dtype).bits == 32 else 1e-10
    assert_close(fft.out_layout.gather(k), expected, rtol)
    assert_close(dec.gather(fft.inverse(k)), u, rtol)
    y = np.asarray(k) * np.asarray(random_field(k.shape, np.float64, seed)).astype(k.real.dtype)
    assert_adjoint(fft, fft.H, np.asarray(fft.inverse(k)), y)


@SETTINGS
@given(make_dec=decompositions(), batch=batches, data=st.data())
def test_transpose(make_dec, batch, data):
    dec = make_dec()
    source, target = (data.draw(st.sampled_from("xyz")) for _ in range(2))
    dtype = data.draw(st.sampled_from(["float32", "complex128", "int8", "bool"]))
    u = (np.arange(math.prod((*batch, *dec.shape))) % 101).reshape(*batch, *dec.shape).astype(dtype)
    transpose = dops.Transpose(dec, source, target)
    v = jax.jit(transpose)(u)
    assert v.shape[-3:] == dec.padded_shape(target)
    np.testing.assert_array_equal(dec.gather(v), u)
    np.testing.assert_array_equal(dec.gather(transpose.inverse(v)), u)


@SETTINGS
@given(make_dec=decompositions(), data=st.data())
def test_halo(make_dec, data):
    """Cell by cell from the definition: block `b` holds cells `b*m - before ... b*m + m + after` of the field."""
    dec = make_dec()
    pairs = [tuple(data.draw(st.integers(0, 5)) for _ in range(2)) for _ in range(3)]
    periodic = tuple(data.draw(st.booleans()) for _ in range(3))
    halo = dops.HaloExchange(dec, pairs, periodic=periodic)
    u = random_field(dec.shape) + 10  # no true value is zero
    expected = u
    for axis, parts, (before, after), flag in zip(range(3), (*dec.sizes, 1), pairs, periodic):
        n = u.shape[axis]
        cells = -(-n // parts)
        g = (np.arange(parts)[:, None] * cells + np.arange(-before, cells + after)).ravel()
        inside = (g >= -before) & (g < n + after) if flag else (g >= 0) & (g < n)
        expected = np.take(expected, g % n, axis)
        expected = expected * np.expand_dims(inside, [i for i in range(3) if i != axis])
    h = halo(u)
    np.testing.assert_array_equal(h, expected)
    np.testing.assert_array_equal(dec.gather(halo.crop(h)), u)
    y = random_field(h.shape, seed=1)
    assert_adjoint(halo, halo.T, np.asarray(dec.shard(u)), y)


@SETTINGS
@given(make_dec=decompositions(), batch=batches, data=st.data())
def test_reductions(make_dec, batch, data):
    """Over the cells alone, whatever stands in the padding, of fields in every pencil and storage order."""
    dec = make_dec()
    dtype = data.draw(st.sampled_from(["float16", "float32", "float64", "complex128", "int8", "bool"]))
    pencil, contiguous = data.draw(st.sampled_from("xyz")), data.draw(st.booleans())
    u, v = (np.round(3 * random_field((*batch, *dec.shape), np.complex128, seed)) for seed in range(2))
    u, v = ((x if dtype == "complex128" else x.real).astype(dtype) for x in (u, v))
    layout = dec.blocks(pencil, axis_contiguous=contiguous)
    junk = {"b": True, "i": 100}.get(np.dtype(dtype).kind, np.nan)

    def stored(x):
        x = x.transpose(*range(len(batch)), *(len(batch) + axis for axis in layout.order))
        widths = [(0, have - want) for have, want in zip(layout.shape, x.shape[-3:])]
        x = np.pad(x, [(0, 0)] * len(batch) + widths, constant_values=junk)
        return put(dec.mesh, x, *[None] * len(batch), *layout.spec)

    def reductions(u, v):
        options = {"pencil": pencil, "axis_contiguous": contiguous}
        one = [reduce(u, **options) for reduce in (dec.sum, dec.mean, dec.norm)]
        return *one, dec.vdot(u, v, **options)

    got = jax.jit(reductions)(stored(u), stored(v))
    wide = np.result_type(dtype, np.float64)
    a, b = u.astype(wide), v.astype(wide)
    expected = (a, a / math.prod(dec.shape), abs(a) ** 2, a.conj() * b)
    total, mean, square, product = (np.sum(x, axis=(-3, -2, -1)) for x in expected)
    for result, like, right in zip(
        got, (jnp.sum, jnp.mean, jnp.linalg.norm, jnp.sum), (total, mean, square**0.5, product)
    ):
        assert result.dtype == like(jnp.zeros(1, dtype)).dtype
        assert result.shape == batch
        scale = np.abs(right).max() + 1
        np.testing.assert_allclose(result, right, rtol=0, atol=scale * (1e-3 if dtype == "float16" else 1e-6))


@pytest.mark.parametrize("sizes", [(2, 4), (1, 8), (8, 1)])
def test_a_padded_field_multiplied_by_anything_still_transforms_right(sizes):
    """Padding may hold anything by the time a field comes back from user code."""
    fft = dops.FFT3D(make_mesh(sizes), shape=(7, 9, 5), pad=True, real=True)
    u = fft.decomposition.shard(random_field((7, 9, 5)))
    k = fft(np.asarray(u) + 1)
    expected = np.fft.rfftn(np.asarray(u)[:7, :9, :5] + 1)
    assert_close(fft.out_layout.gather(k), expected)
