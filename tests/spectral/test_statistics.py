"""Tests of random fields and power spectra on any mesh against NumPy, and of statistics of many realisations."""

import contextlib
import itertools

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import spectral
from decompops.tools.hlo import collectives
from jax.sharding import PartitionSpec as P

from helpers import assert_close, finite_difference, make_mesh, random_field, spec_of


AXES = (-3, -2, -1)
LENGTHS = (1.0, 2.0, 1.5)
BOX = dops.Box(LENGTHS)


def length_of_waves(shape, lengths):
    k = [2 * np.pi * np.fft.fftfreq(n, length / n) for n, length in zip(shape, lengths)]
    return np.sqrt(sum(q**2 for q in np.meshgrid(*k, indexing="ij")))


def histogram(u, lengths, edges):
    """Return the mean k, the mean power and the number of modes of each shell, from the full spectrum."""
    shape = u.shape[-3:]
    k = length_of_waves(shape, lengths)
    power = abs(np.fft.fftn(u, axes=AXES)) ** 2 * np.prod(lengths) / np.prod(shape) ** 2
    shells = [(lower <= k) & (k < upper) for lower, upper in itertools.pairwise(edges)]
    modes = np.array([shell.sum() for shell in shells])
    mean = lambda values: np.stack([values[..., s].sum(-1) / max(s.sum(), 1) for s in shells], -1)
    return mean(k), mean(power), modes


@pytest.mark.xla
@pytest.mark.promotes_ranks
@pytest.mark.parametrize(
    ("sizes", "kind", "shape", "real"),
    [
        ((2, 4), "auto", (9, 10, 11), True),
        ((2, 2, 2), "explicit", (8, 6, 4), False),
    ],
)
def test_power_spectrum_is_a_histogram(sizes, kind, shape, real):
    mesh = make_mesh(sizes, kind)
    with jax.set_mesh(mesh) if kind == "explicit" else contextlib.nullcontext():
        fft = dops.FFT3D(mesh, shape=shape, box=BOX, pad=True, real=real, norm="ortho")
        u = random_field((2, 3, *shape), np.float64 if real else np.complex128)
        x = fft.decomposition.shard(u)
        edges = np.array([0.5, 4.0, 7.0, 7.01, 9.5, 30.0])  # The third shell is empty.
        step = 2 * np.pi / 2
        whole = np.array([-1.0, 1e3])

        spectrum = lambda x: spectral.power_spectrum(fft, x, edges=edges)
        compiled = jax.jit(spectrum).lower(x).compile()
        assert {c.kind for c in collectives(compiled.as_text())} == {"all-to-all", "all-reduce"}
        result = compiled(x)
        for got, expected in zip(result, histogram(u, LENGTHS, edges)):
            assert_close(got, expected, rtol=1e-13)
        assert result.modes.dtype == result.k.dtype == result.power.dtype == np.float64
        assert not result.modes[2]
        if kind == "explicit":  # Batch axes keep their sharding.
            assert spec_of(result.power) == P("c", None, None)
            return

        @jax.jit
        def everything(x):
            everywhere = spectral.power_spectrum(fft, x, edges=list(whole))
            return jax.vmap(spectrum)(x), spectral.power_spectrum(fft, x), everywhere

        mapped, default, everywhere = everything(x)
        assert_close(mapped.power, result.power, rtol=1e-13)
        highest = min(np.pi * n / length for n, length in zip(shape, LENGTHS))
        centres = step * np.arange(1, int(highest / step + 1e-9) + 1)
        assert len(default.k) == len(centres)
        for got, expected in zip(default, histogram(u, LENGTHS, [*(centres - step / 2), centres[-1] + step / 2])):
            assert_close(got, expected, rtol=1e-13)
        # By Parseval's theorem, the integral of the power over d³k / (2π)³ is the mean of |u|². Each mode has the
        # volume (2π)³ / V.
        integral = everywhere.power * everywhere.modes / np.prod(LENGTHS)
        assert_close(integral[..., 0], np.mean(abs(u) ** 2, AXES), rtol=1e-13)


def test_the_power_of_known_waves():
    """The wave `a cos(k·x)` has the power V a² / 4 in each of the modes k and -k, where V is the volume of the box.

    The test also compares derivatives of the spectrum with finite differences.
    """
    shape, volume = (12, 8, 10), np.prod(LENGTHS)
    fft = dops.FFT3D(make_mesh((2, 4)), shape=shape, real=True)
    x, y, z = np.meshgrid(*[np.arange(n) * length / n for n, length in zip(shape, LENGTHS)], indexing="ij")
    edges = [2.0, 4.0, 8.0, 15.0]  # The three waves have |k| = π, 2π and √109 π / 3.
    u = 3 * np.cos(np.pi * y) + 0.5 * np.sin(2 * np.pi * x) + 2 * np.cos(2 * np.pi * x + np.pi * y - 8 * np.pi * z / 3)
    shard = fft.decomposition.shard

    @jax.jit
    def everything(u, direction, lengths):
        power = lambda u, lengths: spectral.power_spectrum(fft.replace(box=dops.Box(lengths)), u, edges=edges)
        weighted = lambda u, lengths: jnp.sum(power(u, lengths).power ** 2) + jnp.sum(power(u, lengths).k)
        by_field, by_lengths = jax.grad(weighted, (0, 1))(u, lengths)
        return power(u, lengths), jnp.sum(by_field * direction), by_lengths, weighted(u, lengths)

    noise, direction = random_field(shape), random_field(shape, seed=1)
    spectrum = everything(shard(u), shard(direction), jnp.asarray(LENGTHS))[0]
    expected = volume / 4 * 2 * np.array([9, 0.25, 4])
    assert_close(spectrum.power * spectrum.modes, expected, rtol=1e-12)
    run = lambda u, lengths: everything(shard(u), shard(direction), jnp.asarray(lengths))
    slope = run(noise, LENGTHS)[1]
    numeric = finite_difference(lambda u: run(u, LENGTHS)[3], noise, direction, 1e-4)
    assert float(slope) == pytest.approx(numeric, rel=1e-6)
    at, along = np.array([1.01, 2.02, 1.53]), np.array([0.3, -0.5, 0.2])  # For these lengths, no mode is on an edge.
    numeric = finite_difference(lambda lengths: run(noise, lengths)[3], at, along, 1e-6)
    assert np.dot(run(noise, at)[2], along) == pytest.approx(numeric, rel=1e-6)


def test_shells_by_default():
    """By default, there is one shell for each multiple of the smallest wavenumber.

    Rounding errors do not change the number of shells. An axis of one cell does not change the smallest wavenumber.
    """
    mesh = make_mesh((1, 1))

    def count(shape, lengths):
        fft = dops.FFT3D(mesh, shape=shape, box=dops.Box(lengths), pad=True, real=True)
        return jax.eval_shape(lambda u: spectral.power_spectrum(fft, u), jnp.ones(shape)).k.shape[0]

    assert [count((6, 6, 6), length) for length in (1.0, 1000.0, 2 * np.pi)] == [3, 3, 3]
    assert count((8, 6, 1), (4.0, 3.0, 0.5)) == 4
    assert count((1, 1, 1), 1.0) == 0


def test_noise_and_random_fields_are_the_same_on_every_mesh():
    """On every mesh, random fields equal their definition: on Auto and Explicit axes, eagerly and in `jax.jit`."""
    shape = (9, 10, 11)
    key = jax.random.key(7)
    noises, fields = [], []
    for sizes, kind in (((1, 1), "auto"), ((2, 4), "auto"), ((8, 1), "explicit"), ((2, 2, 2), "explicit")):
        mesh = make_mesh(sizes, kind)
        with jax.set_mesh(mesh) if kind == "explicit" else contextlib.nullcontext():
            fft = dops.FFT3D(mesh, shape=shape, box=BOX, pad=True, real=True)
            dec = fft.decomposition
            field = spectral.GaussianRandomField(fft, lambda k: k**-1.5)
            if len(sizes) == 3:
                noise, delta = spectral.white_noise(dec, key), field(key)
            else:
                make = lambda key, dec=dec, field=field: (noise := spectral.white_noise(dec, key), field.colour(noise))
                noise, delta = jax.jit(make)(key)
            for result in (noise, delta):
                assert result.sharding.is_equivalent_to(dec.sharding(), 3)
                padding = np.array(result)
                padding[: shape[0], : shape[1], : shape[2]] = 0
                assert not padding.any()
            noises.append(dec.gather(noise))
            fields.append(dec.gather(delta))
    k = length_of_waves(shape, LENGTHS)
    power = np.where(k > 0, np.where(k > 0, k, 1) ** -1.5, 0)
    expected = np.fft.ifftn(np.sqrt(power * np.prod(shape) / np.prod(LENGTHS)) * np.fft.fftn(noises[0])).real
    for noise, field in zip(noises, fields):
        np.testing.assert_array_equal(noise, noises[0])
        assert_close(field, expected, rtol=1e-13)


def test_noise_is_white():
    """White noise has the right mean and variance within five standard deviations.

    No mode has a large power. If different lines of the field were correlated, some modes would have a large power.
    """
    shape = (16, 12, 20)
    dec = dops.Decomposition(make_mesh((2, 4)), shape=shape)
    make = jax.jit(lambda key: spectral.white_noise(dec, key))
    u, other = (np.asarray(make(jax.random.key(seed))) for seed in (0, 1))
    n = u.size
    assert len(np.unique([u, other])) == 2 * n
    assert abs(u.mean()) < 5 / np.sqrt(n)
    assert abs(u.var() - 1) < 5 * np.sqrt(2 / n)
    assert abs(np.mean(u * other)) < 5 / np.sqrt(n)
    # Powers of modes are exponentially distributed. The largest of n powers exceeds log(n / p) with a probability below
    # p.
    assert (abs(np.fft.fftn(u)) ** 2 / n).max() < np.log(n / 1e-6)
    assert (
        jax.eval_shape(lambda key: spectral.white_noise(dec, key, dtype="float32"), jax.random.key(0)).dtype
        == "float32"
    )


class PowerLaw(eqx.Module):
    """A power spectrum with parameters, which is zero beyond a cutoff."""

    amplitude: jax.Array
    slope: jax.Array

    def __call__(self, k):
        return jnp.where(k < 30, self.amplitude.astype(k.dtype) * k ** self.slope.astype(k.dtype), 0)


@pytest.mark.xla
def test_the_spectrum_of_many_realisations():
    """The mean spectrum of many random fields equals the given spectrum within its statistical error.

    In a shell of M modes, the mean of `power_spectrum` over R fields has the variance 2 mean(P²) / (M R).
    """
    shape, realisations = (8, 12, 10), 32
    mesh = make_mesh((2, 2, 2))
    with jax.set_mesh(mesh):
        fft = dops.FFT3D(mesh, shape=shape, box=BOX, real=True)
        law = PowerLaw(jnp.array(2.0), jnp.array(-1.0))
        edges = [1e-3, 8.0, 12.0, 16.0, 24.0, 32.0]

        def one(key):
            field = spectral.GaussianRandomField(fft, law)(key)
            return (
                field,
                spectral.power_spectrum(fft, field, edges=edges),
                spectral.mean_square(fft, fft(field)),
            )

        sharding = jax.NamedSharding(mesh, P("c"))
        keys = jax.device_put(jax.random.split(jax.random.key(3), realisations), sharding)
        compiled = jax.jit(jax.vmap(one)).lower(keys).compile()
        assert {(c.kind, c.group_size) for c in collectives(compiled.as_text())} <= {
            ("all-to-all", 2),
            ("all-reduce", 4),
            ("all-reduce", 2),
        }
        fields, spectra, squares = compiled(keys)
        assert spec_of(fields)[0] == "c"
        k = length_of_waves(shape, LENGTHS)
        power = np.where((k > 0) & (k < 30), 2 / np.where(k > 0, k, 1), 0)
        for i, (lower, upper) in enumerate(itertools.pairwise(edges)):
            shell = power[(lower <= k) & (k < upper)]
            deviation = np.sqrt(2 * np.mean(shell**2) / (len(shell) * realisations))
            assert abs(np.mean(spectra.power[:, i]) - shell.mean()) < 5 * deviation
        # The variance of the field is the integral of P. An estimate of the variance from R fields has the variance
        # 2 sum(P²) / (R V²).
        volume = np.prod(LENGTHS)
        deviation = np.sqrt(2 * np.sum(power**2) / realisations) / volume
        assert abs(np.mean(squares) - power.sum() / volume) < 5 * deviation
        assert_close(squares, np.mean(np.asarray(fields) ** 2, AXES), rtol=1e-12)


def test_derivatives_of_random_fields():
    """Test derivatives with respect to box lengths and parameters of a power spectrum that has zeros."""
    fft = dops.FFT3D(make_mesh((2, 4)), shape=(5, 6, 7), pad=True, real=True)

    def loss(law, lengths, dtype=None):
        field = spectral.GaussianRandomField(fft.replace(box=dops.Box(lengths)), law)(jax.random.key(0), dtype=dtype)
        return jnp.mean(field**2 + jnp.sin(field))

    at = lambda p: (PowerLaw(p[0], p[1]), jnp.array([1.0, 2.0, 1.5]) * p[2])
    run = jax.jit(jax.value_and_grad(lambda p: loss(*at(p))))
    p = np.array([2.0, -1.0, 1.0])
    _, g = run(p)
    for direction in np.eye(3):
        numeric = finite_difference(lambda p: run(p)[0], p, direction, 1e-6)
        assert np.dot(g, direction) == pytest.approx(numeric, rel=1e-6)
    single = jax.eval_shape(lambda p: loss(*at(p), dtype="float32"), p)  # Traced lengths keep single precision.
    assert single.dtype == np.float32


def test_mean_square():
    """`mean_square` of a spectrum equals the mean square of its field, also for truncated spectra.

    If a half spectrum keeps all modes of an even number of points, the last mode counts once, because the spectrum also
    stores its conjugate.
    """
    shape, mesh = (5, 8, 6), make_mesh((2, 4))
    u = random_field((2, *shape))
    options = [
        ("backward", None, True),
        ("ortho", (4, 8, 6), True),
        ("forward", (5, 3, 4), True),
        ("ortho", None, False),
    ]
    ffts = [dops.FFT3D(mesh, shape=shape, pad=True, norm=norm, modes=modes, real=real) for norm, modes, real in options]
    dec = ffts[0].decomposition
    both = lambda fft, k: (spectral.mean_square(fft, k), fft.inverse(k))
    results = jax.jit(lambda u: [both(fft, fft(u)) for fft in ffts])(dec.shard(u))
    for whole in (0, 3):
        assert_close(results[whole][0], np.mean(u**2, AXES), rtol=1e-12)
    for got, back in results:
        assert_close(got, np.mean(abs(dec.gather(back)) ** 2, AXES), rtol=1e-12)
    spectrum = jnp.asarray(np.fft.rfftn(u, axes=AXES))  # This spectrum has no padding.
    assert_close(spectral.mean_square(ffts[0], spectrum), results[0][0], rtol=1e-12)


BAD = [
    (
        lambda d, f: d.spectral.white_noise(d.FFT3D(f.decomposition.mesh).decomposition, jax.random.key(0)),
        "`dec` must be a `Decomposition`; got Unbound",
    ),
    (lambda d, f: d.spectral.white_noise(f, jax.random.key(0)), "`dec` must be a `Decomposition`; got FFT3D"),
    (
        lambda d, f: d.spectral.white_noise(f.decomposition, jax.random.key(0), dtype=int),
        "`dtype` must be real; got int64",
    ),
    (lambda d, f: d.spectral.GaussianRandomField(f, 1.0), r"`power` must be a function of \|k\|; got 1.0"),
    (
        lambda d, f: d.spectral.GaussianRandomField(f.replace(real=False), abs),
        "`fft` must be built with `real=True`; got",
    ),
    (
        lambda d, f: d.spectral.power_spectrum(f, np.ones((4, 4, 4)), edges=[1.0, 1.0]),
        r"`edges` must .* increasing .*; got \[1.0, 1.0\]",
    ),
    (lambda d, f: d.spectral.power_spectrum(f, np.ones((4, 4, 4)), edges=2.0), "`edges` must .*; got 2.0"),
    (lambda d, f: d.spectral.power_spectrum(f, np.ones((4, 4, 4)), edges="few"), "`edges` must .*; got 'few'"),
    (
        lambda d, f: jax.jit(lambda e: d.spectral.power_spectrum(f, np.ones((4, 4, 4)), edges=e))(np.arange(3.0)),
        "`edges` must be .*, and not traced; got",
    ),
    (
        lambda d, f: jax.jit(lambda a: d.spectral.power_spectrum(f.replace(box=d.Box(a)), np.ones((4, 4, 4))))(1.0),
        "`edges` must be given if the lengths of the box are traced",
    ),
    (lambda d, f: d.spectral.power_spectrum(f, np.ones((4, 4, 5))), r"`u` must have shape .*; got \(4, 4, 5\)"),
    (
        lambda d, f: d.spectral.mean_square(f, np.ones((4, 4, 5), complex)),
        r"`spectrum` must have shape .*; got \(4, 4, 5\)",
    ),
    (lambda d, f: d.spectral.mean_square(f, np.ones((4, 4, 3))), "`spectrum` must be complex, .*; got float64"),
    (
        lambda d, f: d.spectral.mean_square(f.inverse, np.ones((4, 4, 3), complex)),
        "`fft` must be an `FFT` or a `Transform`; got",
    ),
]


@pytest.mark.parametrize(("call", "text"), BAD)
def test_bad_input(plain, call, text):
    with pytest.raises((ValueError, TypeError), match=text):
        call(plain, plain.FFT3D(make_mesh((1, 1)), shape=(4, 4, 4), real=True))


def test_noise_belongs_outside_of_shard_map_and_on_its_own_mesh(plain):
    mesh = make_mesh((2, 4))
    dec = plain.Decomposition(mesh, shape=(4, 4, 4))
    make = lambda key: plain.spectral.white_noise(dec, key)
    with pytest.raises(
        ValueError, match="`dec` must not shard the grid over mesh axis 'x' inside a `shard_map` over that"
    ):
        jax.jit(jax.shard_map(make, mesh=mesh, in_specs=P(), out_specs=P("x", "y")))(jax.random.key(0))
    with (
        jax.set_mesh(make_mesh((4, 2))),
        pytest.raises(ValueError, match="`mesh` of the operator must be the ambient mesh"),
    ):
        make(jax.random.key(0))
