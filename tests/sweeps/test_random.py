"""Tests of operators with random shapes, meshes, dtypes, batches and options, against NumPy."""

import math

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops.testing import assert_adjoint
from hypothesis import HealthCheck, given, settings, strategies as st
from jax.sharding import NamedSharding, PartitionSpec as P

from helpers import assert_close, expansion, make_mesh, put, random_field, spec_of


SETTINGS = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@st.composite
def decompositions(draw):
    rank = draw(st.integers(1, 3))
    sizes = draw(st.lists(st.integers(1, 8), min_size=rank, max_size=rank).filter(lambda s: math.prod(s) <= 8))
    names = draw(st.permutations(["x", "y", "c"][:rank]))
    mesh = make_mesh(tuple(sizes), "auto", tuple(names))
    shape = tuple(draw(st.lists(st.integers(1, 12), min_size=1, max_size=4).filter(lambda s: math.prod(s) < 3000)))
    axes = draw(st.lists(st.sampled_from(names), max_size=len(shape) - 1, unique=True))
    unused = [name for name in names if name not in axes]
    if axes and unused and draw(st.booleans()):  # Two mesh axes together shard one grid axis.
        axes[0] = (axes[0], unused[0])
    # Type checks draw random numbers, which would disturb this strategy. So the strategy only returns a function that
    # builds the decomposition.
    return lambda: dops.Decomposition(mesh, shape=shape, pad=True, axes=tuple(axes))


batches = st.lists(st.integers(1, 3), max_size=2).map(tuple)


def pencils_and_orders(ndim):
    return st.tuples(st.integers(0, ndim - 1), st.permutations(range(ndim)).map(tuple))


FULL, HALF, POINTS = dops.Fourier(), dops.Fourier(half=True), dops.Points()
SERIES = [basis(type) for basis in (dops.Cosine, dops.Sine) for type in (1, 2, 3, 4)]
POLYNOMIALS = [dops.Chebyshev(1), dops.Chebyshev(2)]
TWO_POINTS = (dops.Cosine(1), dops.Chebyshev(1))  # These bases need two points.


@st.composite
def transforms(draw, shape):
    """Draw the arguments of a transform, with any basis for each axis, and the dtype of the fields."""
    every = [FULL, POINTS, *SERIES, *POLYNOMIALS]
    bases = [draw(st.sampled_from([basis for basis in every if n > 1 or basis not in TWO_POINTS])) for n in shape]
    halved = draw(st.integers(-1, len(shape) - 1))
    if halved >= 0 or all(basis == POINTS for basis in bases):
        bases[halved] = HALF
    modes = tuple(
        n if basis == POINTS else draw(st.integers(1 + (basis in TWO_POINTS), n)) for basis, n in zip(bases, shape)
    )
    # If the last kept mode stands for two modes, SciPy gives the value of this mode only for Fourier modes.
    known = not {dops.Cosine(1), dops.Sine(2)}.intersection(basis for basis, n, m in zip(bases, shape, modes) if m < n)
    options = {
        "bases": bases,
        "modes": draw(st.sampled_from([None, modes])),
        "nyquist": known and draw(st.booleans()),
        "norm": draw(
            st.sampled_from(["backward", "forward", *([] if any(b in POLYNOMIALS for b in bases) else ["ortho"])])
        ),
        "axis_contiguous": draw(st.booleans()),
    }
    return options, draw(st.sampled_from(["float32", "float64"] if HALF in bases else ["complex64", "float64"]))


@SETTINGS
@given(make_dec=decompositions(), batch=batches, data=st.data())
def test_transform(make_dec, batch, data):
    dec = make_dec()
    options, dtype = data.draw(transforms(dec.shape))
    transform = dops.Transform(dec, **options)
    u, t = (random_field((*batch, *dec.shape), dtype, seed) for seed in range(2))
    x = dec.shard(u)
    y = random_field((*batch, *transform.out_layout.shape), np.result_type(jax.eval_shape(transform, x).dtype), 2)

    @jax.jit
    def everything(x, y):
        k = transform(x)
        back = transform.inverse(k)
        _, pull = jax.vjp(lambda x: transform(x * x), x)
        return k, back, transform(back), transform.H(y), pull(y)[0]

    def expected(u):
        return expansion(u, options["bases"], options["norm"], options["modes"], nyquist=options["nyquist"])

    rtol = 1e-5 if np.finfo(dtype).bits == 32 else 1e-10
    k, back, again, adjoint, pulled = everything(x, y)
    assert_close(transform.out_layout.gather(k), expected(u), rtol)
    if transform.modes is None:
        back = dec.gather(back, -1)
        assert_close(back if np.iscomplexobj(u) else back.real, u, rtol)
    assert_close(again, k, 10 * rtol)
    assert_adjoint(lambda _: k, lambda _: adjoint, np.asarray(x), y)
    # NumPy computes the derivative in the direction `t`. The product with `y` has no conjugation, as in JAX.
    values = transform.out_layout.gather(y)
    derivative = expected(2 * u * t)
    scale = np.linalg.norm(values) * np.linalg.norm(derivative)
    np.testing.assert_allclose(
        np.sum(values * derivative).real, np.sum(dec.gather(pulled, -1) * t).real, rtol=0, atol=rtol * scale
    )


@SETTINGS
@given(make_dec=decompositions(), batch=batches, data=st.data())
def test_transpose(make_dec, batch, data):
    """Test `Transpose` between all pencils and storage orders.

    Halo layers of the input are dropped, and halo layers of the result are zero.
    """
    dec = make_dec()
    (source, source_order), (target, target_order) = (data.draw(pencils_and_orders(dec.ndim)) for _ in range(2))
    halos = [data.draw(st.lists(st.integers(0, 2), min_size=dec.ndim, max_size=dec.ndim)) for _ in range(2)]
    dtype = data.draw(st.sampled_from(["float32", "complex128", "int8", "bool"]))
    u = (np.arange(math.prod((*batch, *dec.shape))) % 101).reshape(*batch, *dec.shape).astype(dtype)
    transpose = dops.Transpose(
        dec,
        source,
        target,
        source_order=source_order,
        target_order=target_order,
        source_halo=halos[0],
        target_halo=halos[1],
    )
    before, after = (
        dops.HaloExchange(dec, halo, pencil=pencil, order=order)
        for halo, pencil, order in zip(halos, (source, target), (source_order, target_order))
    )

    @jax.jit
    def everything(x, y):
        v = transpose(before(x))
        cropped = after.crop(v)
        return v, cropped, after.crop.T(cropped), after.update(v), after(y)

    v, cropped, empty, full, expected = everything(before.in_layout.shard(u), after.in_layout.shard(u))
    sharding = NamedSharding(dec.mesh, P(*spec_of(v)[: len(batch)], *after.out_spec))
    assert v.sharding.is_equivalent_to(sharding, v.ndim)
    np.testing.assert_array_equal(after.in_layout.gather(cropped), u)
    np.testing.assert_array_equal(v, empty)  # Halo layers are zero.
    np.testing.assert_array_equal(full, expected)


@SETTINGS
@given(make_dec=decompositions(), data=st.data())
def test_halo(make_dec, data):
    """Compare `HaloExchange` with its definition.

    Block b of m cells is extended to `before + m + after` cells, which start with cell `b*m - before` of the field.
    """
    dec = make_dec()
    pairs = [tuple(data.draw(st.integers(0, 5)) for _ in range(2)) for _ in range(dec.ndim)]
    periodic = tuple(data.draw(st.booleans()) for _ in range(dec.ndim))
    pencil, order = data.draw(pencils_and_orders(dec.ndim))
    halo = dops.HaloExchange(dec, pairs, periodic=periodic, pencil=pencil, order=order)
    u = random_field(dec.shape) + 10  # No value in the field is zero.
    expected = u
    divided = iter((*dec.sizes, *[1] * dec.ndim))
    parts = [1 if axis == pencil else next(divided) for axis in range(dec.ndim)]
    for axis, (before, after), flag in zip(range(dec.ndim), pairs, periodic):
        n = u.shape[axis]
        cells = -(-n // parts[axis])
        g = (np.arange(parts[axis])[:, None] * cells + np.arange(-before, cells + after)).ravel()
        inside = (g >= -before) & (g < n + after) if flag else (g >= 0) & (g < n)
        expected = np.take(expected, g % n, axis)
        expected = expected * np.expand_dims(inside, [i for i in range(dec.ndim) if i != axis])
    x = halo.in_layout.shard(u)
    y = random_field(halo.plan().target.shape, seed=1)
    h, cropped, back = jax.jit(lambda x, y: (halo(x), halo.crop(halo(x)), halo.T(y)))(x, y)
    np.testing.assert_array_equal(h, expected.transpose(order))
    np.testing.assert_array_equal(halo.in_layout.gather(cropped), u)
    assert_adjoint(lambda _: h, lambda _: back, np.asarray(x), y)


@SETTINGS
@given(make_dec=decompositions(), batch=batches, data=st.data())
def test_reductions(make_dec, batch, data):
    """Reductions ignore values in the padding, in every pencil and storage order."""
    dec = make_dec()
    dtype = data.draw(st.sampled_from(["float16", "float32", "float64", "complex128", "int8", "bool"]))
    pencil, contiguous = data.draw(st.integers(0, dec.ndim - 1)), data.draw(st.booleans())
    u, v = (np.round(3 * random_field((*batch, *dec.shape), np.complex128, seed)) for seed in range(2))
    u, v = ((x if dtype == "complex128" else x.real).astype(dtype) for x in (u, v))
    layout = dec.layout(pencil, axis_contiguous=contiguous).blocks
    junk = {"b": True, "i": 100}.get(np.dtype(dtype).kind, np.nan)

    def stored(x):
        x = x.transpose(*range(len(batch)), *(len(batch) + axis for axis in layout.order))
        widths = [(0, have - want) for have, want in zip(layout.shape, x.shape[len(batch) :])]
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
    total, mean, square, product = (np.sum(x, axis=tuple(range(-dec.ndim, 0))) for x in expected)
    for result, like, right in zip(
        got, (jnp.sum, jnp.mean, jnp.linalg.norm, jnp.sum), (total, mean, square**0.5, product)
    ):
        assert result.dtype == like(jnp.zeros(1, dtype)).dtype
        assert result.shape == batch
        scale = np.abs(right).max() + 1
        np.testing.assert_allclose(result, right, rtol=0, atol=scale * (1e-3 if dtype == "float16" else 1e-6))


@pytest.mark.parametrize("sizes", [(2, 4), (1, 8), (8, 1)])
def test_a_padded_field_multiplied_by_anything_still_transforms_right(sizes):
    """A transform of a padded field is right, whatever values user code writes into the padding."""
    fft = dops.FFT3D(make_mesh(sizes), shape=(7, 9, 5), pad=True, real=True)
    u = fft.decomposition.shard(random_field((7, 9, 5)))
    k = fft(np.asarray(u) + 1)
    expected = np.fft.rfftn(np.asarray(u)[:7, :9, :5] + 1)
    assert_close(fft.out_layout.gather(k), expected)
