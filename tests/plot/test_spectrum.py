"""Tests of the lines of `plot.spectrum` against NumPy and against known sums."""

from itertools import pairwise

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import plot

from helpers import make_mesh, random_field


def transform(shape, **options) -> dops.FFT:
    mesh = make_mesh((4,)) if len(shape) == 2 else make_mesh((2, 4))
    return dops.FFT(mesh, shape=shape, pad=True, **{"real": True} | options)


def line(axes, number: int = 0) -> tuple[np.ndarray, np.ndarray]:
    return axes.lines[number].get_data()


@pytest.mark.parametrize("shape", [(10, 12), (9, 10, 11)])
def test_power_and_energy_of_a_vector(shape):
    """The spectra agree with sums over shells of NumPy's transform of the whole field."""
    ndim, lengths = len(shape), (2.0, 3.0, 2.5)[: len(shape)]
    fft, u = transform(shape, box=dops.Box(lengths)), random_field((ndim, *shape))
    field = fft.decomposition.shard(u)
    edges = np.linspace(1, 9, 5)
    grid = np.meshgrid(*(2 * np.pi * np.fft.fftfreq(n, d / n) for n, d in zip(shape, lengths)), indexing="ij")
    k = np.sqrt(sum(component**2 for component in grid))
    squared = (abs(np.fft.fftn(u, axes=range(1, ndim + 1))) ** 2).sum(0) * np.prod(lengths) / np.prod(shape) ** 2
    shells = [(lower <= k) & (k < upper) for lower, upper in pairwise(edges)]
    means = np.array([(k[shell].mean(), squared[shell].mean()) for shell in shells]).T

    axes = plot.spectrum(fft, field, kind="power", edges=edges)
    np.testing.assert_allclose(line(axes), means, rtol=1e-10)
    assert [axes.get_xlabel(), axes.get_ylabel()] == ["k", "P(k)"]
    assert [axes.get_xscale(), axes.get_yscale()] == ["log", "log"]
    axes = plot.spectrum(fft, field, edges=edges, label="E [m³/s²]")
    energies = [squared[shell].sum() / (2 * np.prod(lengths) * 2) for shell in shells]  # The shells have the width 2.
    np.testing.assert_allclose(line(axes)[1], energies, rtol=1e-10)
    assert axes.get_ylabel() == "E [m³/s²]"


def test_energy_sums_to_half_of_the_mean_square():
    """The sum of the energy over shells of width one is half of the mean square of a field without higher modes."""
    fft = transform((16, 16, 16))
    u = dops.spectral.GaussianRandomField(fft, lambda k: jnp.where(k < 7.5, 1.0, 0.0))(jax.random.key(1))
    _, energy = line(plot.spectrum(fft, u))
    assert np.sum(energy) == pytest.approx(float(fft.decomposition.mean(u**2)) / 2, rel=1e-12)


def test_energy_between_walls():
    """A wave has half of its mean square, by quadrature, as energy: the density in a shell times its width."""
    bases, lengths, n = (dops.Cosine(2), dops.Fourier(half=True)), (2.0, 3.0), (12, 16)
    fft = dops.Transform(make_mesh((4,)), shape=n, bases=bases, axes="x", box=dops.Box(lengths))
    x, y = np.meshgrid((np.arange(12) + 0.5) / 12, np.arange(16) / 16, indexing="ij")
    u = 3 * np.cos(4 * np.pi * x) * np.sin(6 * np.pi * y)
    k = np.hypot(2 * np.pi, 2 * np.pi)
    _, energy = line(plot.spectrum(fft, fft.decomposition.shard(u), edges=(k - 0.3, k + 0.3)))
    np.testing.assert_allclose(energy * 0.6, np.mean(u**2) / 2, rtol=1e-12)


def test_slopes_touch_the_spectrum_from_above():
    fft = transform((16, 16, 16))
    field = fft.decomposition.shard(random_field((16, 16, 16)))
    axes = plot.spectrum(fft, field, slopes=(-5 / 3, 2, 0.123), name="now")
    k, energy = line(axes)
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == ["now", "$k^{-5/3}$", "$k^{2}$", "$k^{0.123}$"]
    for number, slope in enumerate((-5 / 3, 2, 0.123), 1):
        same, reference = line(axes, number)
        np.testing.assert_array_equal(same, k)
        np.testing.assert_allclose(np.diff(np.log(reference)) / np.diff(np.log(k)), slope, rtol=1e-8)
        assert (reference / energy).min() == pytest.approx(1, rel=1e-12)
        assert axes.lines[number].get_linestyle() != "-"


@pytest.mark.parametrize("slopes", [-5 / 3, (-5 / 3,), np.array([-5 / 3]), jnp.array([-5 / 3]), np.float64(-5 / 3)])
def test_one_slope_in_any_form(slopes):
    fft = transform((8, 8))
    axes = plot.spectrum(fft, fft.decomposition.shard(random_field((8, 8))), slopes=slopes)
    assert [line.get_label() for line in axes.lines[1:]] == ["$k^{-5/3}$"]


def test_modes_that_a_transform_drops_are_not_drawn():
    fft = transform((16, 16, 16))
    kept = fft.replace(modes=10)
    u = kept.inverse(kept(fft.decomposition.shard(random_field((16, 16, 16)))))
    axes = plot.spectrum(fft, u)
    assert line(axes)[0].max() < np.sqrt(3) * 5
    assert line(axes)[1].min() > 1e-10
    again = plot.spectrum(fft, 2 * u, ax=axes)
    assert again is axes
    np.testing.assert_allclose(line(axes, 1)[1], 4 * line(axes)[1], rtol=1e-10)


def test_complex_fields_of_a_complex_transform():
    fft = transform((8, 8), real=False)
    u = np.exp(1j * 2 * np.pi * 2 * np.arange(8) / 8)[:, None] * np.ones(8)
    k, power = line(plot.spectrum(fft, fft.decomposition.shard(u), kind="power", edges=(0.5, 1.5, 2.5)))
    # Of the modes in the last shell, four have |k| = 2, and eight have |k|² = 5.
    np.testing.assert_allclose((k[-1], power[-1]), ((8 + 8 * 5**0.5) / 12, 4 * np.pi**2 / 12), rtol=1e-12)


def test_errors(plain):
    fft = plain.FFT3D(make_mesh((2, 4)), shape=(8, 8, 8), real=True, pad=True)
    u = random_field((8, 8, 8))
    bases = (plain.Chebyshev(), plain.Fourier(half=True))
    walls = plain.Transform(make_mesh((2,)), shape=(8, 8), bases=bases, box=plain.Box(), pad=True)
    draw = plain.plot.spectrum
    for error, message, call in (
        (TypeError, "`fft` must be an `FFT` or a `Transform`", lambda: draw(fft.decomposition, u)),
        (ValueError, "`fft` must be built with a `shape`", lambda: draw(plain.FFT3D(make_mesh((2, 4))), u)),
        (
            ValueError,
            "`fft` must have bases whose modes each",
            lambda: draw(walls, random_field((8, 8))),
        ),
        (ValueError, "`kind` must be one of", lambda: draw(fft, u, kind="enstrophy")),
        (TypeError, "`slopes` must be one real number", lambda: draw(fft, u, slopes=("steep",))),
        *((TypeError, "`slopes` must be one real number", lambda s=s: draw(fft, u, slopes=s)) for s in (None, "a", 1j)),
        *(
            (
                ValueError,
                "`field` must have finite values, whose squares do not overflow; got a spectrum with NaN or infinity",
                lambda bad=bad, kind=kind: draw(fft, np.where(np.arange(8) == 3, bad, u), kind=kind),
            )
            for bad in (np.nan, np.inf, -np.inf, 1e200)  # The last one has an infinite square.
            for kind in ("energy", "power")
        ),
        (ValueError, "`field` must have power", lambda: draw(fft, 0 * u)),
        (ValueError, "`field` must have power", lambda: draw(fft, 1 + 0 * u)),
        (TypeError, "`field` must be real", lambda: draw(fft, u.astype(complex))),
        (ValueError, "`field` must be a scalar", lambda: draw(fft, u[None, None])),
        (ValueError, "`edges` must be two or more increasing numbers", lambda: draw(fft, u, edges=(2, 1))),
    ):
        with pytest.raises(error, match=message):
            call()
