"""Tests of filters against SciPy, and of dealiasing against products on a finer grid that resolves all their modes."""

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.ndimage
from decompops import spectral

from helpers import assert_close, finite_difference, make_mesh, random_field


def test_gaussian_filter_equals_scipy():
    """`GaussianFilter` equals SciPy's filter up to rounding.

    The widths are at least 2.5 cells, so the grid resolves the Gaussian, and aliasing is below rounding errors.
    """
    shape, lengths, width = (24, 20, 16), (3.0, 2.0, 1.0), 0.32
    fft = dops.FFT3D(make_mesh((2, 4)), shape=shape, box=dops.Box(lengths), real=True)
    u = random_field(shape)
    cells = [width * n / length for n, length in zip(shape, lengths)]
    expected = scipy.ndimage.gaussian_filter(u, cells, mode="wrap", truncate=9)
    got = jax.jit(spectral.GaussianFilter(fft, width))(fft.decomposition.shard(u))
    assert_close(got, expected, rtol=1e-11)
    same = jax.jit(spectral.GaussianFilter(fft, 0))(fft.decomposition.shard(u))
    assert_close(same, u, rtol=1e-14)


class PowerLaw(eqx.Module):
    """A filter's symbol that has a parameter and is singular at the wavenumber zero."""

    exponent: jax.Array

    def __call__(self, k):
        return jnp.where(k > 0, jnp.where(k > 0, k, 1) ** self.exponent.astype(k.dtype), 0)


def test_isotropic_filter_and_its_derivative_by_a_parameter():
    shape, lengths = (9, 10, 6), (1.0, 2.0, 3.0)
    fft = dops.FFT3D(make_mesh((2, 4)), shape=shape, box=dops.Box(lengths), pad=True)
    u = random_field(shape, np.complex128)
    k = [2 * np.pi * np.fft.fftfreq(n, length / n) for n, length in zip(shape, lengths)]
    length = np.sqrt(sum(q**2 for q in np.meshgrid(*k, indexing="ij")))

    def expected(exponent):
        factors = np.where(length > 0, np.where(length > 0, length, 1) ** exponent, 0)
        return np.fft.ifftn(factors * np.fft.fftn(u))

    x = fft.decomposition.shard(u)
    apply = lambda exponent: spectral.IsotropicFilter(fft, PowerLaw(exponent))(x)
    loss = lambda exponent: (jnp.sum(jnp.abs(y := apply(exponent)) ** 2), y)
    (_, y), slope = jax.jit(jax.value_and_grad(loss, has_aux=True))(jnp.array(-0.7))
    assert_close(fft.decomposition.gather(y), expected(-0.7))
    numeric = finite_difference(lambda e: np.sum(abs(expected(e)) ** 2), -0.7, 1.0, 1e-5)
    assert float(slope) == pytest.approx(numeric, rel=1e-8)


def coefficients(modes, seed):
    """Return random coefficients of a real field for all modes below `modes / 2`, in the order of wavenumbers."""
    rng = np.random.default_rng(seed)
    size = tuple(2 * ((m - 1) // 2) + 1 for m in modes)
    c = rng.standard_normal(size) + 1j * rng.standard_normal(size)
    return c + np.conj(c[::-1, ::-1, ::-1])  # The coefficient of the mean is in the middle.


def field(c, shape):
    """Return the real field with these coefficients on a grid that has all their modes."""
    full = np.zeros(shape, complex)
    signed = [np.arange(n) - n // 2 for n in c.shape]
    full[np.ix_(*signed)] = c
    return np.fft.ifftn(full, norm="forward").real


def exact_product(a, b, modes):
    """Return a product's exact coefficients below `modes / 2`, computed on a grid with all modes of the product."""
    shape = tuple(2 * n for n in a.shape)
    product = np.fft.fftn(field(a, shape) * field(b, shape), norm="forward")
    signed = [np.arange(2 * ((m - 1) // 2) + 1) - (m - 1) // 2 for m in modes]
    return product[np.ix_(*signed)]


def centred(spectrum, modes):
    """Return all coefficients below `modes / 2` of a half spectrum, with the mean in the middle."""
    full = np.fft.fftn(np.fft.irfftn(spectrum, modes, (0, 1, 2), norm="forward"), norm="forward")
    return full[np.ix_(*[np.arange(2 * ((m - 1) // 2) + 1) - (m - 1) // 2 for m in modes])]


@pytest.mark.parametrize(("sizes", "shape"), [((2, 4), (8, 9, 10)), ((8, 1), (7, 6, 12))])
def test_products_are_free_of_aliasing(sizes, shape):
    fft = dops.FFT3D(make_mesh(sizes), shape=shape, pad=True, real=True, norm="forward")

    # The 3/2 rule uses the modes of `fft` on a finer grid.
    padded = spectral.dealiased(fft, spectral.Pad(3 / 2))
    grid = padded.decomposition.shape
    assert all(3 * m <= 2 * n < 3 * m + 4 for m, n in zip(shape, grid))
    assert spectral.dealiased(padded, spectral.Pad(3 / 2)) == padded
    a, b = coefficients(shape, 0), coefficients(shape, 1)
    multiply = jax.jit(lambda u, v: padded(padded.inverse(padded(u)) * padded.inverse(padded(v))))
    product = multiply(*(padded.decomposition.shard(field(c, grid)) for c in (a, b)))
    found = centred(padded.out_layout.gather(product), shape)
    assert_close(found, exact_product(a, b, shape), rtol=1e-13)

    # The 2/3 rule uses the grid of `fft` with fewer modes.
    cut = spectral.dealiased(fft)
    kept = cut.modes
    assert all(3 * ((m - 1) // 2) < n <= 3 * ((m + 1) // 2) for m, n in zip(kept, shape))
    assert spectral.dealiased(cut) == cut
    dealias = spectral.Dealias(fft)
    a, b = coefficients(kept, 2), coefficients(kept, 3)
    u, v = (fft.decomposition.shard(field(c, shape)) for c in (a, b))
    run = jax.jit(lambda u, v: (dealias(u * v), dealias(u), dealias(dealias(jnp.sin(u))), dealias(jnp.sin(u))))
    product, same, twice, once = map(fft.decomposition.gather, run(u, v))
    assert_close(product, field(exact_product(a, b, kept), shape), rtol=1e-13)
    assert_close(same, field(a, shape), rtol=1e-13)
    assert_close(twice, once, rtol=1e-13)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.parametrize("n", [12, 42, 300])
def test_a_mask_keeps_the_same_modes_in_every_precision(n, dtype):
    """For these grids, a mode lies right on the bound, where the rounding of its wavenumber must not matter."""
    fft = dops.Transform(
        make_mesh((1,)), shape=(n, n), axes="x", bases=(dops.Fourier(), dops.Cosine(2)), box=dops.Box(3.0)
    )
    ones = jnp.ones(fft.out_layout.shape, dtype)
    whole, half = abs(np.fft.fftfreq(n, 1 / n))[:, None], np.arange(n) / 2
    most = 2 * (n // 6) - 1
    assert_close(spectral.Mask(2 / 3).masked(fft, ones), ((whole <= most) & (half <= most)).astype(float))


BAD = [
    (lambda d, f: d.spectral.IsotropicFilter(f, 2.0), r"`function` must be a function of \|k\|; got 2.0"),
    (
        lambda d, f: d.spectral.IsotropicFilter(f, lambda k: jnp.ones((2, 1, 1, 1)))(np.ones((4, 4, 4))),
        r"`function` must return factors that broadcast against the spectrum .*; got \(2, 1, 1, 1\)",
    ),
    (lambda d, f: d.spectral.GaussianFilter(f, -1.0), "`width` must be a finite number of at least 0; got -1.0"),
    (lambda d, f: d.spectral.GaussianFilter(f, np.float32(-1)), "`width` must be .* at least 0; got"),
    (lambda d, f: d.spectral.GaussianFilter(f, np.inf), "`width` must be .* at least 0; got inf"),
    (lambda d, f: d.spectral.GaussianFilter(f, np.ones(3)), r"`width` must be one real number; got array"),
    (lambda d, f: d.spectral.GaussianFilter(f, None), "`width` must be one real number; got None"),
    (lambda d, f: d.spectral.dealiased(f, "1/2"), r"`rule` must be `spectral.Truncate\(2/3\)`, .* or None; got '1/2'"),
    (lambda d, f: d.spectral.Truncate(1.5), "`fraction` must be more than 0 and at most 1; got 1.5"),
    (lambda d, f: d.spectral.Mask(0), "`fraction` must be more than 0 and at most 1; got 0"),
    (lambda d, f: d.spectral.Pad(0.5), "`factor` must be a finite number of at least 1; got 0.5"),
    (lambda d, f: d.spectral.dealiased(d.FFT3D(f.decomposition.mesh)), "`fft` must be built with a `shape`"),
    (lambda d, f: d.spectral.Dealias(f.decomposition), "`fft` must be an `FFT` or a `Transform`; got Decomposition"),
]


@pytest.mark.parametrize(("call", "text"), BAD)
def test_bad_input(plain, call, text):
    with pytest.raises((ValueError, TypeError), match=text):
        call(plain, plain.FFT3D(make_mesh((1, 1)), shape=(4, 4, 4), real=True))
