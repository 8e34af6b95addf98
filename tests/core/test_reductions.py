"""Tests of `sum`, `mean`, `norm`, `vdot`, `max` and `min`: derivatives, spectra, groups and communication.

test_random.py tests these reductions with random fields.
"""

import itertools

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops._backend import execute
from decompops.tools.hlo import collectives
from jax.sharding import PartitionSpec as P

from helpers import assert_close, make_mesh, put, random_field, thinned


SHAPE = (9, 10, 7)  # On 2 x 4 devices, fields are padded to (10, 12, 7).


BACKENDS = pytest.mark.parametrize("backend", [dops.XLA(), dops.Native()], ids=["xla", "native"])


@pytest.mark.parametrize(
    ("kind", "backend"),
    thinned(
        itertools.product(("auto", "explicit"), (dops.XLA(), dops.Native())),
        lambda kind, backend: (kind == "auto") == (backend == dops.XLA()),
    ),
)
def test_derivatives_are_those_of_the_cells(kind, backend):
    """Derivatives of reductions are right for any values in the padding. In the padding, these derivatives are zero.

    The test calls the reductions eagerly and in `jit`.
    """
    dec = dops.Decomposition(make_mesh((2, 4), kind), shape=SHAPE, pad=True, backend=backend)
    u, v = random_field((2, *SHAPE)), random_field((2, *SHAPE), seed=1)
    widths = [(0, have - want) for have, want in zip(dec.padded_shape(), SHAPE)]
    x, y = (
        put(dec.mesh, np.pad(w, [(0, 0), *widths], constant_values=junk), None, "x", "y", None)
        for w, junk in ((u, np.inf), (v, np.nan))
    )
    norms = np.sqrt((u**2).sum((1, 2, 3), keepdims=True))
    with jax.set_mesh(dec.mesh):
        cases = (
            (lambda x, y: dec.sum(x), np.ones_like(u)),
            (lambda x, y: dec.mean(x), np.full_like(u, 1 / u[0].size)),
            (lambda x, y: dec.norm(x), u / norms),
            (dec.vdot, v),
            (lambda x, y: dec.max(x), u == u.max((1, 2, 3), keepdims=True)),
            (lambda x, y: dec.min(x), u == u.min((1, 2, 3), keepdims=True)),
        )

        def pull(x, y, cases=cases):
            return [jax.grad(lambda x, f=function: jnp.sum(f(x, y)))(x) for function, _ in cases]

        some = cases[kind == "explicit" :: 2]  # Each function is called eagerly on one kind of mesh.
        for gradients, those in ((jax.jit(pull)(x, y), cases), (pull(x, y, some), some)):
            for gradient, (_, expected) in zip(gradients, those, strict=True):
                assert_close(dec.gather(gradient), expected)
                assert np.isfinite(gradient).all()
                assert not np.asarray(gradient)[:, 9:].any()
                if kind == "explicit":  # On Auto axes, JAX replicates a gradient that does not depend on the field.
                    assert gradient.sharding.is_equivalent_to(x.sharding, 4)
    assert dec.sum(x).tolist() == pytest.approx(u.sum((1, 2, 3)))  # This call is eager, without an ambient mesh.
    _, tangent = jax.jvp(dec.norm, (dec.shard(u),), (dec.shard(v),))
    assert_close(tangent, (u * v / norms).sum((1, 2, 3)))


DTYPES = [np.bool_, np.int16, np.uint32, np.float16, np.float32, np.complex64]


@pytest.mark.parametrize(
    ("dtype", "backend"),
    thinned(
        itertools.product(DTYPES, (dops.XLA(), dops.Native())),
        lambda dtype, backend: (backend == dops.XLA()) == (DTYPES.index(dtype) % 2 == 0),
    ),
)
def test_dtypes(dtype, backend):
    """The results have the values and the dtypes of NumPy, or of `jnp` for half precision. All values are negative."""
    dec = dops.Decomposition(make_mesh((2, 4)), shape=SHAPE, pad=True, backend=backend)
    u = (-1 - 9 * np.abs(random_field((2, *SHAPE)))).astype(dtype)
    names = ["sum", "mean"] + ["max", "min"] * (dtype != np.complex64)
    wide = u.astype(np.float64) if u.dtype.kind == "f" else u
    for x in (dec.shard(u), dec.crop(dec.shard(u))):
        for name, found in zip(names, jax.jit(lambda x: [getattr(dec, one)(x) for one in names])(x)):
            assert_close(found, getattr(wide, name)((1, 2, 3)), 2e-3 if dtype == np.float16 else 1e-5)
            assert found.dtype == jax.eval_shape(getattr(jnp, name), u).dtype


@BACKENDS
@pytest.mark.parametrize("dtype", [np.float64, np.float32, jnp.bfloat16])
def test_extremes_of_nan_and_infinities(dtype, backend):
    """As in NumPy, on whatever device the number is. XLA's collectives for CPUs ignore NaN."""
    dec = dops.Decomposition(make_mesh((2, 4)), shape=SHAPE, pad=True, backend=backend)
    u = random_field((8, *SHAPE)).astype(dtype)
    for field, place in zip(u, [(0, 0, 0), (8, 9, 6), (5, 3, 2), (4, 6, 0)]):
        field[place] = np.nan
    u[4], u[5, 0, 0, 0], u[6, 8, 0, 0] = -abs(u[4]), np.inf, -np.inf
    u[7] = np.where(u[7] > 0, 0.0, -0.0)
    numbers = u.astype(float)
    for found, expected in ((dec.max(u), numbers.max((1, 2, 3))), (dec.min(u), numbers.min((1, 2, 3)))):
        assert found.dtype == dtype
        np.testing.assert_array_equal(np.asarray(found, float), expected)


def test_the_derivative_of_a_sum_exchanges_nothing():
    dec = dops.Decomposition(make_mesh((2, 4)), shape=(8, 8, 8), backend=dops.Native())
    u = dec.shard(random_field((8, 8, 8)))
    texts = [jax.jit(f).lower(u).compile().as_text() for f in (dec.sum, jax.grad(dec.sum))]
    assert ["custom-call" in text for text in texts] == [True, False]
    assert collectives(texts[1]) == []


def test_second_derivatives_batches_and_one_result_everywhere():
    """Kernels add up in the order of the devices, so every device has the same bits."""
    dec = dops.Decomposition(make_mesh((2, 4)), shape=SHAPE, pad=True, backend=dops.Native())
    u = random_field((3, *SHAPE))
    x = dec.shard(u)
    assert_close(jax.jit(jax.hessian(lambda t: dec.norm(x * t) ** 2 @ jnp.ones(3)))(1.5), 2 * (u**2).sum())
    assert_close(jax.vmap(dec.vdot, in_axes=(0, None))(x, x[1]), (u * u[1]).sum((1, 2, 3)))
    copies = {shard.data.item() for shard in dec.sum(x[0]).addressable_shards}
    assert len(copies) == 1
    assert_close(copies.pop(), u[0].sum())


def test_the_sharding_tells_the_pencil():
    """A field of a shape that fits several pencils is not moved to other pencils to be reduced."""
    for kind in ("auto", "explicit"):
        dec = dops.Decomposition(make_mesh((2, 4), kind), shape=(8, 8, 8), backend=dops.Native())
        fft = dops.FFT3D(dec)
        u = random_field((8, 8, 8))
        k = fft(u)
        assert_close(dec.sum(k), np.fft.fftn(u).sum())
        with jax.set_mesh(dec.mesh):
            for function, x in ((dec.sum, dec.shard(u)), (fft.out_layout.sum, k)) + ((dec.sum, k),) * (
                kind == "explicit"
            ):
                program = jax.jit(function).lower(x).compile().as_text()
                assert program is not None
                assert not collectives(program)


def test_the_norm_of_zeros_has_a_derivative_of_zeros():
    dec = dops.Decomposition(make_mesh((2, 4)), shape=SHAPE, pad=True)
    assert not np.asarray(jax.grad(dec.norm)(dec.shard(np.zeros(SHAPE)))).any()


def test_an_infinite_slope_in_the_padding_goes_no_further_than_that():
    """The gradient of `log` is NaN only in the padding, which no operator reads.

    There is no NaN if the argument of `log` is set to 1 in the padding.
    """
    fft = dops.FFT3D(make_mesh((2, 4)), shape=SHAPE, pad=True, real=True)
    dec = fft.decomposition
    u = 2 + np.sin(random_field(SHAPE))
    safe = lambda x: jnp.log(jnp.where(x > 0, x, 1))
    for log in (jnp.log, safe):
        g = jax.jit(jax.grad(lambda x, log=log: dec.mean(log(x))))(dec.shard(u))
        assert np.isnan(g).any() == (log is jnp.log)
        assert_close(dec.gather(g), 1 / u / u.size)
    gradient = jax.jit(jax.grad(lambda x: dec.mean(jnp.log(fft.inverse(fft(x))))))(dec.shard(u))
    assert np.isfinite(gradient).all()
    assert_close(dec.gather(gradient), 1 / u / u.size)


@pytest.mark.parametrize("axis_contiguous", [False, True])
def test_spectra(axis_contiguous):
    """Test Parseval's theorem in both storage orders. In the sums, each stored mode of a half spectrum counts once."""
    u, v = random_field(SHAPE), random_field(SHAPE, seed=1)
    for real in (False, True):
        options = {"norm": "ortho", "axis_contiguous": axis_contiguous, "real": real}
        fft = dops.FFT3D(make_mesh((2, 4)), shape=SHAPE, pad=True, **options)
        k, q = fft(u), fft(v)
        layout = fft.out_layout
        expected_k, expected_q = ((np.fft.rfftn if real else np.fft.fftn)(x, norm="ortho") for x in (u, v))
        assert layout.norm(k + 0) == pytest.approx(np.linalg.norm(expected_k))
        assert complex(layout.vdot(k, 1j * q)) == pytest.approx(np.vdot(expected_k, 1j * expected_q))
        assert complex(layout.sum(k + 1)) == pytest.approx(np.sum(expected_k + 1))
        if not real:
            assert layout.norm(k) == pytest.approx(np.linalg.norm(u))


@BACKENDS
@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_nothing_but_an_all_reduce_in_each_group(kind, backend):
    mesh = make_mesh((2, 2, 2), kind)
    dec = dops.Decomposition(mesh, shape=(9, 11, 7), pad=True, backend=backend)
    u = random_field((4, 9, 11, 7))
    x = dec.shard(u)

    def everything(x):
        return dec.sum(x), dec.mean(x), dec.norm(x), dec.vdot(x + 1, x)

    with jax.set_mesh(mesh):
        for function in (everything, jax.grad(lambda x: sum(map(jnp.sum, everything(x))))):
            program = jax.jit(function).lower(x).compile().as_text()
            found = collectives(program)
            if backend == dops.XLA():
                assert {one.kind for one in found} == {"all-reduce"}
                assert max(one.group_size for one in found) <= 4
            else:
                assert not found
        # The call also works inside a `shard_map` over the batch axis.
        mean = jax.shard_map(dec.mean, in_specs=P("c"), out_specs=P("c"), axis_names={"c"})
        assert_close(jax.jit(mean)(x), u.mean((1, 2, 3)))
        assert_close(jax.jit(jax.vmap(dec.mean))(x), u.mean((1, 2, 3)))


@pytest.mark.parametrize(("at_once", "exchanges"), [(8, 1), (7, 2)])
def test_few_devices_exchange_all_numbers_at_once(at_once, exchanges, monkeypatch):
    monkeypatch.setattr(execute, "AT_ONCE", at_once)
    dec = dops.Decomposition(make_mesh((4, 2)), shape=(8, 6, at_once), backend="native")
    u = random_field(dec.shape)
    x = dec.shard(u)
    program = jax.jit(lambda x: dec.sum(x)).lower(x).compile()
    assert program.as_text().count(" custom-call(") == exchanges
    assert_close(program(x), u.sum())
    assert float(dec.max(x)) == u.max()


@BACKENDS
def test_derivatives_inside_auto_axes(backend):
    mesh = make_mesh((2, 4), "explicit")
    dec = dops.Decomposition(mesh, shape=(8, 8, 8), backend=backend)
    u = random_field((8, 8, 8))
    gradient = jax.sharding.auto_axes(jax.grad(lambda x: dec.mean(x**2) + dec.vdot(x, x)), out_sharding=dec.sharding())
    assert_close(jax.jit(gradient)(dec.shard(u)), (2 / 512 + 2) * u)


def test_cropped_fields_and_numpy_arrays():
    u, v = random_field(SHAPE, np.complex128), random_field(SHAPE, np.complex128, 1)
    dec = dops.Decomposition(make_mesh((2, 4)), shape=SHAPE, pad=True)
    assert complex(dec.mean(u)) == pytest.approx(u.mean())
    assert complex(dec.vdot(jnp.asarray(u), v)) == pytest.approx(np.vdot(u, v))


def test_bad_input(plain):
    mesh = make_mesh((2, 4))
    dec = plain.Decomposition(mesh, shape=(9, 8, 8), pad=True)
    padded, true = np.ones((10, 8, 8)), np.ones((9, 8, 8))
    even = plain.Decomposition(mesh, shape=(8, 8, 8))
    inside = jax.shard_map(even.sum, mesh=mesh, in_specs=P("x", "y"), out_specs=P())
    for call, message in (
        (lambda: dec.sum(np.ones((8, 8, 8))), r"`field` must end with the shape .*; got \(8, 8, 8\)"),
        (lambda: dec.mean(np.ones((8, 8))), r"`field` must have shape \(\*batch, nx, ny, nz\); got \(8, 8\)"),
        (lambda: dec.norm(true, axis_contiguous=True), "`pencil` must be given for an axis-contiguous field; got None"),
        (lambda: dec.vdot(true, np.ones((8, 8, 8))), r"`v` must have shape .*; got \(8, 8, 8\)"),
        (lambda: dec.vdot(padded, true), r"or neither; got \(10, 8, 8\) and \(9, 8, 8\)"),
        (lambda: inside(np.ones((8, 8, 8))), "`field` must be a global field; got .* `shard_map` over mesh axis 'x'"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(TypeError, match="`field` must hold real numbers, which have an order; got complex128"):
        dec.max(true + 0j)


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16])
@pytest.mark.parametrize("backend", ["native", "xla"])
def test_sums_of_half_precision_are_rounded_once(backend, dtype):
    """The sums of single blocks may have more digits than half precision, or be too large for it."""
    dec = dops.Decomposition(make_mesh((8,)), shape=(64, 8, 8), backend=backend)
    u = np.ones((64, 8, 8), np.float32)
    u[:32] = -1
    u[0, 0, 0] = 0.5
    assert float(dec.sum(dec.shard(u.astype(dtype)))) == 1.5
    u = np.repeat([3000.0, -3000.0], 32)[:, None, None] * np.ones((8, 8))
    assert float(dec.sum(dec.shard(u.astype(dtype)))) == 0
