"""Tests of `Convolution` against direct sums, SciPy and closed forms; of its derivatives, communication and memory."""

import contextlib
import math

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.signal
from decompops import spectral
from decompops.spectral import _convolution
from decompops.testing import assert_adjoint, assert_transposed
from decompops.tools.hlo import collectives

from helpers import assert_close, finite_difference, make_mesh, random_field


LENGTHS = (1.0, 1.5, 2.0)


def transform(sizes, shape, *, real=True, kind="auto", lengths=LENGTHS, **options):
    """Return a transform of a grid of one to three axes, in a box with these lengths."""
    mesh = make_mesh(sizes, kind)
    box = dops.Box(lengths[: len(shape)])
    return dops.FFT(mesh, shape=shape, real=real, pad=True, box=box, **options)


def direct(f, kernel, *, transposed=False):
    """Return the sum of `kernel[i - j] f[j]` over all j; if `transposed`, of `kernel[j - i] f[j]`."""
    result = np.zeros(f.shape, np.result_type(f, kernel))
    for index in np.ndindex(f.shape):
        row = kernel
        for axis, j in enumerate(index):
            i = np.arange(f.shape[axis])
            row = np.take(row, (j - i if transposed else i - j) % kernel.shape[axis], axis)
        result += row * f[index]
    return result


def doubled(shape, axes):
    return tuple(2 * n if axis in axes else n for axis, n in enumerate(shape))


def cell(fft):
    return math.prod(length / n for length, n in zip(fft.box_lengths, fft.decomposition.shape))


@pytest.mark.parametrize(
    ("sizes", "shape", "axes", "real"),
    [
        ((1,), (5,), (0,), True),
        ((1,), (5,), (0,), False),
        ((1, 1), (4, 5), (1,), True),
        ((8,), (6, 5), (0, 1), False),
        pytest.param((8,), (6, 5), (0, 1), True, marks=pytest.mark.sweep),
        pytest.param((1, 1), (4, 5, 3), (0, 1, 2), True, marks=pytest.mark.sweep),
        ((2, 4), (6, 7, 5), (0, 1, 2), True),
        pytest.param((2, 4), (6, 7, 5), (0, 1, 2), False, marks=pytest.mark.sweep),
        ((2, 4), (5, 8, 6), (2,), True),
        ((8,), (5, 4, 6), (0, 2), False),
        pytest.param((2, 4), (5, 6, 4), (1, 2), True, marks=pytest.mark.sweep),
        ((4, 2), (5, 6, 4), (0, 1), False),
        pytest.param((8,), (5, 3, 6), (1,), True, marks=pytest.mark.sweep),
        ((2, 4), (4, 8, 4), (0,), False),
    ],
)
def test_convolution_equals_direct_sums(sizes, shape, axes, real):
    dtype = np.float64 if real else np.complex128
    fft = transform(sizes, shape, real=real)
    kernel, f = random_field(doubled(shape, axes), dtype), random_field((2, *shape), dtype, seed=1)
    convolution, gather = spectral.Convolution(fft, kernel, axes), fft.decomposition.gather
    both = jax.jit(lambda f: (convolution(f), convolution.T(f)))
    for found, is_transposed in zip(both(f), (False, True)):
        expected = np.stack([direct(part, kernel, transposed=is_transposed) for part in f])
        assert_close(gather(found) / cell(fft), expected, 1e-12)


def test_convolution_equals_scipy():
    fft = transform((2, 4), (8, 9, 10), lengths=(8.0, 9.0, 10.0))
    f, g = random_field((8, 9, 10)), random_field((5, 3, 7), seed=1)
    kernel = np.zeros((16, 18, 20))
    kernel[:5, :3, :7] = g
    kernel = np.roll(kernel, (-2, -1, -3), (0, 1, 2))  # The middle of g belongs to the distance zero.
    convolution, gather = spectral.Convolution(fft, jnp.asarray(kernel)), fft.decomposition.gather
    assert_close(gather(convolution(f)), scipy.signal.fftconvolve(f, g, mode="same"), 1e-12)
    assert_close(gather(convolution.T(f)), scipy.signal.correlate(f, g, mode="same"), 1e-12)


def wave(kx, ky, kz):
    """Return a symbol that is not even along any axis."""
    return jax.lax.complex(1 / (1 + kx**2 + ky**2 + kz**2), 0.1 * kx - 0.05 * ky + 0.02 * kz)


@pytest.mark.parametrize(
    ("sizes", "axes", "real"), [((2, 4), (0, 1), True), ((1, 1), (0, 2), False), ((8,), (0, 1, 2), True)]
)
def test_symbols(sizes, axes, real):
    shape = (4, 6, 5)
    fft = transform(sizes, shape, real=real)
    f = random_field(shape, np.float64 if real else np.complex128)
    big = doubled(shape, axes)
    k = []
    for axis, (n, m, length) in enumerate(zip(shape, big, LENGTHS)):
        modes = np.fft.fftfreq(m, 1 / m)
        modes = np.where(2 * abs(modes) == m, 0, modes) * 2 * np.pi / (length * m / n)
        k.append(np.expand_dims(modes, [i for i in range(3) if i != axis]))
    factors = 1 / (1 + sum(part**2 for part in k)) + 1j * (0.1 * k[0] - 0.05 * k[1] + 0.02 * k[2])
    expected = np.fft.ifftn(factors * np.fft.fftn(f, s=big, axes=(0, 1, 2)), axes=(0, 1, 2))
    expected = expected[tuple(map(slice, shape))]
    convolution = spectral.Convolution(fft, spectral.KernelSymbol(wave, nyquist=False), axes)
    expected = expected.real if real else expected
    assert_close(fft.decomposition.gather(convolution(f)), expected, 1e-12)
    layout = fft.in_layout
    local = jax.jit(jax.shard_map(convolution.local, mesh=layout.mesh, in_specs=layout.spec, out_specs=layout.spec))
    assert_close(
        fft.decomposition.gather(local(fft.decomposition.shard(f))), expected.real if real else expected, 1e-12
    )


@pytest.mark.parametrize("kind", [pytest.param("auto", marks=pytest.mark.sweep), "explicit"])
def test_adjoints_and_transformations(kind):
    shape = (4, 6, 5)
    fft = transform((2, 2, 2), shape, real=False, kind=kind, axes=("x", "y"))
    with jax.set_mesh(fft.decomposition.mesh) if kind == "explicit" else contextlib.nullcontext():
        convolution = spectral.Convolution(fft, random_field(doubled(shape, (0, 2)), np.complex128), ("x", "z"))
        dec = fft.decomposition
        u, v = (np.asarray(dec.shard(random_field((4, *shape), np.complex128, seed=seed))) for seed in (1, 2))
        assert_transposed(convolution, convolution.T, u, v)
        assert_adjoint(convolution, convolution.H, u, v)
        x = dec.shard(random_field((4, *shape), np.complex128))
        expected = convolution(x)
        assert expected.sharding.is_equivalent_to(x.sharding, x.ndim)
        assert_close(jax.vmap(convolution)(x), expected, 1e-14)
        (pulled,) = jax.vjp(convolution, x)[1](expected)
        assert_close(pulled, convolution.T(expected), 1e-12)
        compiled = jax.jit(lambda x: (convolution(x), jax.vmap(convolution)(x), *jax.jvp(convolution, (x,), (x,))))
        for found in compiled(x):
            assert_close(found, expected, 1e-14)


@pytest.mark.parametrize("backend", [dops.XLA(), dops.Native(planning="estimate", threads=2)])
def test_gradients_with_respect_to_parameters(backend):
    fft = transform((2, 2), (3, 4, 5), backend=backend)
    f = fft.decomposition.shard(random_field((3, 4, 5)))

    def energy_of_screened_charges(screening):
        return jnp.sum(f * spectral.Convolution(fft, spectral.YukawaKernel(screening))(f))

    def energy_of_symbol(length):
        symbol = eqx.Partial(lambda length, *k: 1 / (1 + (length * k[0]) ** 2 + k[1] ** 2), length)
        return jnp.sum(f * spectral.Convolution(fft, spectral.KernelSymbol(symbol))(f))

    energy = energy_of_symbol if isinstance(backend, dops.XLA) else energy_of_screened_charges
    derivatives = jax.jit(lambda x: (energy(x), *jax.value_and_grad(jax.grad(energy))(x)))
    found = derivatives(jnp.asarray(2.0))
    for order in range(2):
        expected = finite_difference(lambda x, i=order: derivatives(x)[i], np.asarray(2.0), np.asarray(1.0), 1e-4)
        assert abs(float(found[order + 1]) / expected - 1) < 1e-6


@pytest.mark.parametrize("kind", ["auto", pytest.param("explicit", marks=pytest.mark.sweep)])
def test_gradients_inside_a_shard_map_over_a_further_mesh_axis(kind, monkeypatch):
    """The kernel is replicated over this axis, and the fields are not."""
    monkeypatch.setattr(_convolution, "_BYTES", 1000)  # several pieces
    shape, further = (4, 6, 5), jax.P("c")
    fft = transform((2, 2, 2), shape, kind=kind, axes=("x", "y"))
    kernel, f = random_field(doubled(shape, (0, 1, 2))), random_field((2, *shape), seed=1)

    def energy(scale, f):
        squares = spectral.Convolution(fft, scale * jnp.asarray(kernel))(f) ** 2
        return jax.lax.psum(jnp.sum(squares) / 2, "c")

    mapped = jax.shard_map(
        energy, mesh=fft.decomposition.mesh, in_specs=(jax.P(), further), out_specs=jax.P(), axis_names={"c"}
    )
    by_scale, by_field = jax.jit(jax.grad(mapped, argnums=(0, 1)))(1.0, fft.decomposition.shard(f))
    results = cell(fft) * np.stack([direct(part, kernel) for part in f])
    assert_close(by_scale, np.sum(results**2), 1e-12)
    expected = cell(fft) * np.stack([direct(part, kernel, transposed=True) for part in results])
    assert_close(fft.decomposition.gather(by_field), expected, 1e-12)


@pytest.mark.parametrize("axes", [("x", "y", "z"), pytest.param(("z",), marks=pytest.mark.sweep)])
def test_kernels_and_xla_agree(axes):
    results = []
    for backend in (dops.XLA(), dops.Native(planning="estimate", threads=2)):
        fft = transform((2, 4), (9, 10, 11), backend=backend)
        u = random_field((3, 9, 10, 11))
        convolution = spectral.Convolution(fft, spectral.PoissonKernel(), axes)
        both = jax.jit(lambda u, convolution=convolution: (convolution(u), convolution.T(u)))
        results.append(list(map(fft.decomposition.gather, both(u))))
    assert_close(*results, 1e-12)


@pytest.mark.xla
@pytest.mark.parametrize("sizes", [*(pytest.param(sizes, marks=pytest.mark.sweep) for sizes in ((1, 1), (8,))), (2, 4)])
def test_communication_and_memory(sizes):
    """Exchanges send 2 fields from z to y, and 4 from y to x, where a doubled grid sends 8 each time."""
    n = 64
    fft = transform(sizes, (n, n, n))
    f = fft.decomposition.shard(random_field((n, n, n)))
    field = f.nbytes / f.sharding.num_devices
    arrays, rest = eqx.partition(spectral.Convolution(fft, spectral.PoissonKernel()), eqx.is_array)

    def energy(arrays, f):
        return jnp.sum(f * eqx.combine(arrays, rest)(f))

    def compiled(function):
        program = jax.jit(function).lower(arrays, f).compile()
        return collectives(program.as_text()), program.memory_analysis().temp_size_in_bytes / (
            f.nbytes / f.sharding.num_devices
        )

    found, memory = compiled(lambda arrays, f: eqx.combine(arrays, rest)(f))
    assert {each.kind for each in found} == ({"all-to-all"} if sizes != (1, 1) else set())
    assert memory < 4.5
    first, last = (1 - 1 / m for m in (sizes[0], sizes[-1]))
    on_paper = 2 * field * ((2 * last if len(sizes) == 2 else 0) + 4 * first)
    assert on_paper <= sum(each.bytes * each.times for each in found) <= 1.1 * on_paper
    found, memory = compiled(jax.grad(energy, argnums=1))
    assert {each.kind for each in found} <= {"all-to-all", "all-reduce"}
    assert memory < 10

    def build(f):  # JAX learns the devices from `f`.
        return spectral.Convolution(fft, spectral.PoissonKernel()).spectrum, f[0, 0, 0]

    program = jax.jit(build).lower(f).compile()
    assert {each.kind for each in collectives(program.as_text())} <= {"all-to-all", "all-reduce"}
    assert program.memory_analysis().temp_size_in_bytes / field < 4.5


def test_bad_arguments(plain):
    shape = (4, 4, 4)
    fft = transform((1, 1), shape)
    with pytest.raises(ValueError, match="`open` must name at least one axis"):
        spectral.Convolution(fft, jnp.cos, ())
    with pytest.raises(ValueError, match="`kernel` must be an array of shape"):
        spectral.Convolution(fft, np.zeros((8, 8, 7)))
    with pytest.raises(TypeError, match="`kernel` must be real"):
        spectral.Convolution(fft, np.zeros((8, 8, 8), complex))
    with pytest.raises(TypeError, match="`kernel` must be a kernel"):
        spectral.Convolution(fft, "poisson")
    with pytest.raises(TypeError, match=r"`kernel` must be an object; got a class. Write `PoissonKernel\(...\)`"):
        spectral.Convolution(fft, spectral.PoissonKernel)
    with pytest.raises(ValueError, match="must have the basis `Fourier`"):
        spectral.Convolution(fft.replace(modes=(2, 2, 2)), spectral.PoissonKernel())
    convolution = spectral.Convolution(fft, spectral.PoissonKernel())
    with pytest.raises(TypeError, match="must be real for a real transform"):
        convolution(np.zeros(shape, complex))
    with pytest.raises(ValueError, match="must have shape"):
        convolution(np.zeros((4, 4, 5)))
    assert np.isnan(np.asarray(convolution(np.full(shape, np.nan)))).all()
    assert convolution(np.zeros((0, *shape))).shape == (0, *shape)
    assert_close(convolution(np.ones(shape, np.int32)), convolution(np.ones(shape)), 1e-6)


STRENGTH = 1.0


def values(x, y):
    return STRENGTH / (1 + x**2 + y**2)


def test_a_convolution_sees_the_variables_that_a_function_reads(monkeypatch):
    fft = dops.FFT2D(make_mesh((2,)), shape=(4, 4), real=True, box=dops.Box((1.0, 1.0)))
    u, results = random_field((4, 4)), []
    for strength in (1.0, 3.0):
        monkeypatch.setitem(globals(), "STRENGTH", strength)
        results.append(np.asarray(spectral.Convolution(fft, values)(u)))
    assert_close(results[1], 3 * results[0])
