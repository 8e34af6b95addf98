"""Tests of bispectra on any mesh, against sums over all triangles of the full spectrum."""

import contextlib
import itertools

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import spectral
from decompops.tools.hlo import collectives

from helpers import assert_close, finite_difference, make_mesh, random_field


LENGTHS = (5.0, 6.0, 7.0)


def sums_over_triangles(u, lengths, edges, triangles):
    """Return the mean k, the bispectrum and the number of triangles of each bin, by a loop over pairs of two modes.

    Nyquist modes do not count.
    """
    shape = u.shape[-len(lengths) :]
    ndim, numbers = len(shape), [np.fft.fftfreq(n, 1 / n).astype(int) for n in shape]
    modes = np.stack([part.ravel() for part in np.meshgrid(*numbers, indexing="ij")], -1)
    length = lambda modes: np.linalg.norm(2 * np.pi * modes / np.array(lengths), axis=-1)
    on_grid = lambda modes: (2 * abs(modes) < shape).all(-1)
    shell = lambda modes: np.where(on_grid(modes), np.searchsorted(edges, length(modes), side="right") - 1, -1)
    c = np.fft.fftn(u, axes=range(-ndim, 0)) / np.prod(shape)
    coefficient = lambda modes: c[..., *(modes % shape).T]
    means, counts = [], []
    for i, j, last in triangles:
        total, count, second = 0, 0, modes[shell(modes) == j]
        for first in modes[shell(modes) == i]:
            third = -first - second
            fits = shell(third) == last
            product = coefficient(second[fits]) * coefficient(third[fits])
            total, count = total + coefficient(first[None]) * product.sum(-1, keepdims=True), count + fits.sum()
        means.append(np.real(total / max(count, 1) + np.zeros((*u.shape[:-ndim], 1))))
        counts.append(count)
    k = [length(modes[shell(modes) == number]).mean() for number in range(len(edges) - 1)]
    return np.array(k)[np.array(triangles)], np.concatenate(means, -1) * np.prod(lengths) ** 2, np.array(counts)


CASES = [
    ((8, 8, 8), (2, 4), "auto", True, (0.0, 0.1, 1.3, 2.0, 2.3)),
    ((9, 6, 7), (8,), "explicit", False, (0.5, 1.3, 2.6, 4.5)),  # Nyquist wavenumbers from 3.1 to 5.7.
    ((16, 15), (4,), "auto", True, (0.5, 1.9, 3.0, 4.9)),
    ((15,), (1,), "auto", True, (0.5, 1.5, 3.0, 5.5)),
    ((6, 7), (4,), "auto", True, (0.5, 1.9, np.inf)),
]


@pytest.mark.xla
@pytest.mark.parametrize(("shape", "sizes", "kind", "real", "edges"), CASES)
def test_bispectra_are_sums_over_all_triangles(shape, sizes, kind, real, edges):
    mesh, ndim, lengths = make_mesh(sizes, kind), len(shape), LENGTHS[: len(shape)]
    axes = {"axes": () if ndim == 1 else "x"} if len(sizes) == 1 else {}
    u = random_field((2, *shape))
    with jax.set_mesh(mesh) if kind == "explicit" else contextlib.nullcontext():
        fft = dops.FFT(mesh, shape=shape, ndim=ndim, box=dops.Box(lengths), pad=True, real=real, norm="ortho", **axes)
        x = fft.decomposition.shard(u)
        compiled = jax.jit(lambda x: spectral.bispectrum(fft, x, edges)).lower(x).compile()
        assert {c.kind for c in collectives(compiled.as_text())} <= {"all-to-all", "all-reduce"}
        found = compiled(x)
    every = list(itertools.combinations_with_replacement(range(len(edges) - 1), 3))
    k, expected, number = sums_over_triangles(u, lengths, edges, every)
    # Bins without triangles may be left out, and bins with triangles may not.
    kept = [every.index(tuple(triangle)) for triangle in np.asarray(found.triangles).tolist()]
    assert not np.delete(number, kept).any()
    assert number[kept].any()
    np.testing.assert_array_equal(found.number, number[kept])
    assert_close(found.bispectrum, expected[:, kept], 1e-12)
    assert_close(found.k, k[kept], 1e-14)


def test_chosen_triangles():
    """The order of the sides does not matter. A transform may keep some modes only, and not transform an axis."""
    shape, edges = (7, 12, 10), (0.5, 1.9, 2.6, 4.0)
    fft = dops.FFT3D(make_mesh((2, 2)), shape=shape, pad=True, real=True, transformed="yz", modes=(7, 7, 6))
    u, some = random_field(shape), [(1, 2, 0), (2, 2, 1)]
    found = spectral.bispectrum(fft, fft.decomposition.shard(u), edges, triangles=some)
    c = np.fft.fft2(u)
    numbers = [abs(np.fft.fftfreq(n, 1 / n)) for n in shape[1:]]
    low = np.fft.ifft2(np.where((numbers[0][:, None] <= 3) & (numbers[1] <= 2), c, 0)).real
    # In the plane, modes that are not kept are zero, but they count.
    _, expected, number = sums_over_triangles(low, (2 * np.pi,) * 2, edges, some)
    assert (np.asarray(found.number) <= 7 * number).all()
    assert_close(found.bispectrum * found.number, np.sum(expected * number, 0), 1e-11)


def test_three_waves():
    """Three waves with the amplitude a whose wavevectors have the sum zero: `V² (a / 2)³` for two triangles of many."""
    shape, volume = (12, 16, 14), (2 * np.pi) ** 3
    fft = dops.FFT3D(make_mesh((2, 4)), shape=shape, pad=True, real=True)
    x, y, _ = np.meshgrid(*(2 * np.pi * np.arange(n) / n for n in shape), indexing="ij")
    u = 2 * (np.cos(2 * x) + np.cos(3 * y) + np.cos(2 * x + 3 * y))  # The sides are 2, 3 and √13.
    edges = (1.9, 2.1, 2.9, 3.1, 3.5, 3.7)
    found = spectral.bispectrum(fft, fft.decomposition.shard(u), edges, triangles=[(0, 2, 4), (0, 0, 0), (4, 0, 2)])
    np.testing.assert_allclose(found.bispectrum * found.number, [2 * volume**2, 0, 2 * volume**2], atol=1e-9)


@pytest.mark.sweep
def test_a_gaussian_field_has_none_and_its_square_has_one():
    """The mean of the reduced bispectrum of `g + f g²` is 2 f for a small f, and zero for f = 0."""
    fft = dops.FFT3D(make_mesh((1, 1)), shape=(16, 16, 16), real=True)
    edges, strength = (1.5, 2.5, 3.5, 4.5), 0.05
    g = spectral.GaussianRandomField(fft, lambda k: jnp.where(k < 5, 1.0, 0.0))

    def measure(key):
        u = g(key)
        signs = jnp.array([1.0, -1.0])[:, None, None, None]
        found = spectral.bispectrum(fft, u[None] + strength * signs * u[None] ** 2, edges)
        return *found.bispectrum, spectral.power_spectrum(fft, u, edges=edges).power, found.triangles

    plus, minus, power, triangles = jax.jit(jax.vmap(measure))(jax.random.split(jax.random.key(0), 16))
    p = np.mean(power, 0)[np.asarray(triangles[0])]
    scale = p[:, 0] * p[:, 1] + p[:, 1] * p[:, 2] + p[:, 2] * p[:, 0]
    # Half of the difference is odd in f. The rest is the bispectrum of g, and small terms.
    for part, expected in (((plus - minus) / 2, 2 * strength), ((plus + minus) / 2, 0)):
        mean, deviation = np.mean(part, 0) / scale, np.std(part, 0) / scale / np.sqrt(len(part))
        assert (abs(mean - expected) < 5 * deviation).all()
        assert deviation.max() < (0.02 if expected else 0.1)


@pytest.mark.xla
def test_derivatives_and_their_memory():
    """Derivatives agree with finite differences, and keep a few fields only."""
    fft = dops.FFT3D(make_mesh((2,)), shape=(9, 10, 8), axes="x", pad=True, real=True)
    u, d = random_field((9, 10, 8)), random_field((9, 10, 8), seed=1)
    shard, gather = fft.decomposition.shard, fft.decomposition.gather

    def loss(u, lengths):
        found = spectral.bispectrum(fft.replace(box=dops.Box(lengths)), u, (0.5, 1.6, 2.4))
        return jnp.sum(jnp.sin(found.bispectrum / 10)) + jnp.sum(found.k)

    at, along = np.array([6.2, 6.3, 6.1]), np.array([0.3, -0.5, 0.2])
    both = jax.value_and_grad(loss, (0, 1))
    program = jax.jit(lambda u, d, lengths: jax.jvp(lambda u: both(u, lengths), (u,), (d,)))
    first = lambda u, lengths: program(shard(u), shard(d), lengths)[0]
    run, slope = lambda u, lengths: first(u, lengths)[0], lambda u: inner(first(u, at)[1][0])
    inner = lambda a: float(np.sum(gather(a) * d))
    assert slope(u) == pytest.approx(finite_difference(lambda u: run(u, at), u, d, 1e-5), rel=1e-6)
    numeric = finite_difference(lambda lengths: run(u, lengths), at, along, 1e-6)
    assert float(np.dot(first(u, at)[1][1], along)) == pytest.approx(numeric, rel=1e-6)
    numeric = finite_difference(slope, u, d, 1e-5)
    _, (_, (second, _)) = program(shard(u), shard(d), at)
    assert inner(second) == pytest.approx(numeric, rel=1e-6)

    # For each of 36 pairs of shells, the derivative needs three fields. It keeps fields of one pair at a time.
    larger = dops.FFT3D(make_mesh((1, 1)), shape=(24, 24, 24), real=True)
    slope = jax.grad(lambda u: jnp.sum(spectral.bispectrum(larger, u, np.linspace(0.5, 8, 9)).bispectrum))
    compiled = jax.jit(slope).lower(jnp.ones((24, 24, 24))).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 20 * 25**3 * 8


BAD = [
    (lambda s, f, u: s.bispectrum(f, u, (-0.5, 2.0)), "`edges` must be at least zero; got -0.5"),
    (lambda s, f, u: s.bispectrum(f, u, (2.0, 1.0)), "`edges` must be two or more increasing numbers"),
    (lambda s, f, u: s.bispectrum(f, u, (1, 2), triangles=[(0, 0)]), r"`triangles` must be triples .* 0 to 0; got"),
    (lambda s, f, u: s.bispectrum(f, u, (1, 2), triangles=[(0, 0, 1)]), r"`triangles` must be triples .*; got \[\(0"),
    (lambda s, f, u: s.bispectrum(f, u, (1, 2), triangles=[]), r"`triangles` must be triples .*; got \[\]"),
    (lambda s, f, u: s.bispectrum(f, u, (0.1, 0.5, 1, 2), triangles=[(2, 0, 0)]), "`triangles` .* close; got .*1 to 2"),
    (lambda s, f, u: s.bispectrum(f.replace(real=False), u + 0j, (1, 2)), "`u` must be real; got complex128"),
]


@pytest.mark.parametrize(("call", "text"), BAD)
def test_bad_input(plain, call, text):
    fft = plain.FFT3D(make_mesh((1, 1)), shape=(8, 8, 8), real=True)
    with pytest.raises((ValueError, TypeError), match=text):
        call(plain.spectral, fft, np.ones((8, 8, 8)))


def test_walls_are_refused(plain):
    bases = (plain.Cosine(2), plain.Fourier(), plain.Fourier(half=True))
    fft = plain.Transform(make_mesh((1, 1)), shape=(8, 8, 8), bases=bases, box=plain.Box())
    for call in (
        lambda u: plain.spectral.bispectrum(fft, u, (1, 2)),
        lambda u: plain.spectral.correlation_function(fft, u),
    ):
        with pytest.raises(ValueError, match="`fft` must be periodic along x, with the basis `Fourier`; got Cosine"):
            call(np.ones((8, 8, 8)))


@pytest.mark.parametrize("sizes", [(1,), (2, 2)])
def test_explicit_axes_without_an_ambient_mesh(sizes):
    """`jax.make_mesh` makes such axes."""
    found, field, edges = [], random_field((6, 4, 4)), np.arange(0.5, 3)
    for kind in ("explicit", "auto"):
        fft = dops.FFT(make_mesh(sizes, kind), shape=(6, 4, 4), real=True, pad=True)
        found.append(spectral.bispectrum(fft, fft.decomposition.shard(field), edges).bispectrum)
    assert_close(*found)
