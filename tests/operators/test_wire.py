"""Tests of exchanges in a narrower dtype: errors against NumPy's transform, derivatives, and bytes."""

import itertools
from dataclasses import replace

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops.tools.hlo import collectives
from jax.sharding import PartitionSpec as P

from helpers import make_mesh, random_field, thinned


SHAPE = (16, 8, 12)
# The largest allowed relative error of a transform in the 2-norm, for each dtype: half the machine epsilon of this
# dtype.
ERRORS = {"float32": 6e-8, "bfloat16": 4e-3, "float16": 5e-4}
BACKENDS = [dops.XLA(), dops.XLA(overlap=2), dops.Native(planning="estimate", threads=2)]


def relative(found, expected) -> float:
    return float(np.linalg.norm(np.asarray(found) - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize(
    ("real", "wire", "backend"),
    thinned(
        itertools.product((True, False), ERRORS, BACKENDS),
        lambda real, wire, backend: (
            (turn := list(ERRORS).index(wire) + BACKENDS.index(backend)) != 2 and real == (turn % 2 == 0)
        ),
    ),
)
def test_error_of_a_transform(backend, wire, real):
    fft = dops.FFT3D(make_mesh((2, 4)), shape=SHAPE, real=real, backend=replace(backend, wire=wire))
    u = random_field(SHAPE, np.float64 if real else np.complex128)
    k = fft(fft.decomposition.shard(u))
    error = relative(fft.out_layout.gather(k), (np.fft.rfftn if real else np.fft.fftn)(u))
    assert ERRORS[wire] / 8 < error < ERRORS[wire]
    back = relative(fft.inverse(k), u)
    assert ERRORS[wire] / 8 < back < 1.5 * ERRORS[wire]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("wire", ERRORS)
def test_padding_does_not_set_the_scale(backend, wire):
    """Padding may hold any numbers, such as 1 / 0. They change no digit of the result."""
    shape = (5, 6, 7)
    fft = dops.FFT3D(make_mesh((2, 2)), shape=shape, pad=True, real=True, backend=replace(backend, wire=wire))
    dec, transpose = fft.decomposition, dops.Transpose(fft.decomposition, "z", "x")
    u = 1e-6 * random_field(shape, np.float64)
    inside = dec.shard(np.ones(shape))
    spoilt = jnp.where(inside == 1, dec.shard(u), 1e8)
    assert relative(fft.out_layout.gather(fft(spoilt)), np.fft.rfftn(u)) < ERRORS[wire]
    assert relative(transpose.out_layout.gather(transpose(spoilt)), u) < ERRORS[wire]
    k = fft.out_layout.shard(np.fft.rfftn(u))
    spoilt = jnp.where(fft.out_layout.shard(np.ones(fft.out_layout.true_shape)) == 1, k, jnp.nan)
    assert relative(dec.gather(fft.inverse(spoilt)), u) < 1.5 * ERRORS[wire]


@pytest.mark.parametrize("size", [1e-30, 1e-3, 1e30])
def test_numbers_of_any_size(size):
    """Fields of any magnitude keep their precision in float16, because each field of a batch has its own scale.

    Without scales, numbers above 65504 would be infinite in float16, and small numbers would have fewer digits.
    """
    fft = dops.FFT3D(make_mesh((2, 4)), shape=SHAPE, backend=dops.XLA(wire="float16"))
    u = random_field((3, *SHAPE), np.complex64) * np.array([1, size, 0], np.float32)[:, None, None, None]
    k = np.asarray(fft(jnp.asarray(u)))
    for found, field in zip(k[:2], u[:2]):
        assert relative(found / size, np.fft.fftn(field.astype(complex)) / size) < ERRORS["float16"]
    assert not k[2].any()


@pytest.mark.parametrize("backend", BACKENDS[::2], ids=str)
@pytest.mark.parametrize(("dtype", "part"), [(np.float32, 0.9), (np.float64, 0.01)])
def test_the_largest_and_the_smallest_numbers(dtype, part, backend):
    transpose = dops.Transpose(make_mesh((2, 4)), "z", "x", shape=SHAPE, backend=replace(backend, wire="float16"))
    u = random_field(SHAPE)
    # Kernels scale a field by its 2-norm. In double precision, this norm must be finite.
    for largest in (part * np.finfo(dtype).max, 1e4 * np.finfo(dtype).tiny):
        found = np.asarray(transpose((u / abs(u).max() * largest).astype(dtype)))
        assert relative(found / largest, u / abs(u).max()) < ERRORS["float16"]


@pytest.mark.parametrize("wire", ["float32", "float16"])
def test_what_is_not_wider_stays_as_it_is(wire):
    transpose = dops.Transpose(make_mesh((2, 4)), "z", "x", backend=dops.XLA(wire=wire))
    for dtype in (np.int32, np.bool_, np.float16, jnp.bfloat16, *([np.float32] if wire == "float32" else [])):
        u = np.arange(512).reshape(8, 8, 8).astype(dtype)
        np.testing.assert_array_equal(transpose(u), u)


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_derivatives(backend):
    """Gradients are only as precise as the narrow dtype, because the transpose also sends in this dtype."""
    mesh = make_mesh((2, 4))
    fft = dops.FFT3D(mesh, shape=SHAPE, real=True, backend=replace(backend, wire="float16"))
    exact = dops.FFT3D(mesh, shape=SHAPE, real=True, backend=dops.XLA())
    u = exact.decomposition.shard(random_field(SHAPE))
    y = exact(exact.decomposition.shard(random_field(SHAPE, seed=1)))
    _, pull = jax.vjp(fft, u)
    (found,), (expected,) = pull(y), jax.vjp(exact, u)[1](y)
    assert 5e-5 < relative(found, np.asarray(expected)) < 1e-3
    assert relative(jax.jvp(fft, (u,), (u,))[1], np.asarray(exact(u))) < 1e-3

    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=fft.in_spec, out_specs=fft.in_spec)
    def gradient(block):  # The loss is half the sum of squares of one device's block of the spectrum.
        return jax.grad(lambda b: jnp.sum(jnp.abs(fft.local(b)) ** 2) / 2)(block)

    # NumPy computes R.T(conj(R u)), where R u is a half spectrum.
    half = np.fft.rfftn(np.asarray(u))
    whole = np.zeros(SHAPE, complex)
    whole[..., : half.shape[-1]] = np.conj(half)
    right = np.fft.fftn(whole).real
    assert relative(gradient(u), right) < 1e-3


@pytest.mark.parametrize(("wire", "share"), [("float32", 2), ("bfloat16", 4), ("float16", 4)])
@pytest.mark.parametrize("real", [True, False])
def test_bytes(wire, share, real):
    def exchanged(backend) -> int:
        operator = dops.FFT3D(make_mesh((2, 4)), shape=SHAPE, real=real, backend=backend)
        u = operator.decomposition.shard(random_field(SHAPE, np.float64 if real else np.complex128))
        found = collectives(jax.jit(operator).lower(u).compile().as_text())
        return sum(each.bytes for each in found if each.kind == "all-to-all")

    assert exchanged(dops.XLA()) == share * exchanged(dops.XLA(wire=wire))


def test_real_fields_travel_as_16_bits():
    transpose = dops.Transpose(make_mesh((8,)), "z", "x", backend=dops.XLA(wire="bfloat16"))
    u = jnp.asarray(random_field((8, 8, 8), np.float32))
    program = jax.jit(transpose).lower(u).compile()
    (found,) = collectives(program.as_text())
    assert found.bytes == 8 * 8 * 8 * 2 // 8 * 7 // 8
    np.testing.assert_array_equal(program(u), u.astype(jnp.bfloat16).astype(jnp.float32))


def test_halos_are_exact():
    halo = dops.HaloExchange(make_mesh((2, 4)), 1, shape=SHAPE, backend=dops.XLA(wire="bfloat16"))
    exact = dops.HaloExchange(make_mesh((2, 4)), 1, shape=SHAPE, backend=dops.XLA())
    u = halo.decomposition.shard(random_field(SHAPE))
    np.testing.assert_array_equal(halo(u), exact(u))


def test_only_exchanges_between_pencils_are_narrow():
    """Sums, whole grids of `Multigrid` and halos lose no digits. Else, a solver would end early or never."""

    def results(wire):
        backend = dops.Native(planning="estimate", wire=wire)
        dec = dops.Decomposition(make_mesh((2, 4)), shape=(8, 8, 8), box=dops.Box(1.0), backend=backend)
        layout, pm = dec.layout(), dops.particles.ParticleMesh(dec)
        u, v = (dec.shard(random_field((8, 8, 8), seed=seed)) for seed in (0, 1))
        p = pm.place(np.random.default_rng(0).random((50, 3)))
        diffusion = dops.finite_volume.Diffusion(dec, 1.0, boundary="dirichlet")
        yield from (dec.sum(u), dec.mean(u), dec.norm(u), dec.vdot(u, v), layout.max(u), layout.min(u))
        yield from (pm.sum(p, p.positions), pm.mean(p, p.positions))
        yield dops.solve.CG(diffusion, dops.solve.Multigrid(diffusion))(u)

    for found, exact in zip(results("bfloat16"), results(None), strict=True):
        np.testing.assert_array_equal(found, exact)


def test_groups_and_batches():
    mesh = make_mesh((2, 2, 2))
    fft = dops.FFT3D(mesh, axes=("x", "y"), backend=dops.XLA(wire="float16"))
    u = random_field((2, 8, 8, 8), np.complex128) * np.array([1, 1e9])[:, None, None, None]
    field = jax.device_put(u, jax.NamedSharding(mesh, P("c", *fft.in_spec)))
    k = np.asarray(jax.jit(jax.vmap(fft))(field))
    for found, one in zip(k, u):
        assert relative(found, np.fft.fftn(one)) < ERRORS["float16"]


@pytest.mark.parametrize("name", ["XLA", "Native", "MPI", "CuDecomp"])
def test_dtypes_instead_of_names(name, plain):
    make = getattr(plain, name)
    for wire in (np.float32, np.dtype(np.float32), jnp.bfloat16, jnp.dtype(jnp.bfloat16), np.float16):
        assert make(wire=wire) == make(wire=jnp.dtype(wire).name)


@pytest.mark.parametrize("name", ["XLA", "Native", "MPI", "CuDecomp"])
@pytest.mark.parametrize("wire", ["float8", "float64", np.int8, 2, [2], jax.jit])
def test_bad_input(name, wire, plain):
    with pytest.raises(ValueError, match=r"^`wire` must be one of \(None, 'float32', 'bfloat16', 'float16'\); got "):
        getattr(plain, name)(wire=wire)
