"""Tests of cross-spectra, multipoles and energy spectra on any mesh, against sums of NumPy over the full spectrum."""

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


LENGTHS = (1.0, 2.0, 1.5)
ORDERS = (0, 2, 4)
EDGES = (-1.0, 2.0, 4.0, 7.0, 7.01, 9.5, 30.0)  # The fourth shell is empty.


def waves(shape, lengths):
    """Return the wavevectors of NumPy's full spectrum and their lengths."""
    k = np.meshgrid(*(2 * np.pi * np.fft.fftfreq(n, d / n) for n, d in zip(shape, lengths)), indexing="ij")
    return k, np.sqrt(sum(part**2 for part in k))


def coefficients(u, ndim):
    return np.fft.fftn(u, axes=range(-ndim, 0)) / np.prod(u.shape[-ndim:])


def over_shells(values, k, edges):
    """Return the sums of `values` over the shells of k."""
    shells = [(lower <= k) & (k < upper) for lower, upper in itertools.pairwise(edges)]
    return np.stack([values[..., shell].sum(-1) for shell in shells], -1)


def legendre(order, k, axis):
    """Return `(2l + 1) L_l(μ)` for the modes of the full spectrum. The mode zero has no direction."""
    parts, length = k
    cosine = parts[axis] / np.where(length == 0, 1, length)
    return np.where(length == 0, order == 0, (2 * order + 1) * np.polynomial.Legendre.basis(order)(cosine))


CASES = [
    ((12, 10, 9), (2, 4), "auto", True),
    ((12, 10, 9), (8,), "explicit", False),
    ((7, 12), (4,), "auto", True),
    ((9,), (1,), "auto", True),
]


@pytest.mark.xla
@pytest.mark.parametrize(("shape", "sizes", "kind", "real"), CASES)
def test_spectra_are_sums_over_the_full_spectrum(shape, sizes, kind, real):
    mesh, ndim, lengths = make_mesh(sizes, kind), len(shape), LENGTHS[: len(shape)]
    axes = {"axes": () if ndim == 1 else "x"} if len(sizes) == 1 else {}
    dtype, volume, k = float if real else complex, np.prod(lengths), waves(shape, lengths)
    u, v = random_field((2, 3, *shape), dtype), random_field((3, *shape), dtype, seed=1)
    with jax.set_mesh(mesh) if kind == "explicit" else contextlib.nullcontext():
        fft = dops.FFT(mesh, shape=shape, ndim=ndim, box=dops.Box(lengths), pad=True, real=real, norm="ortho", **axes)

        def measure(u, v):
            about = {"axis": ndim - 1, "orders": ORDERS, "edges": EDGES}
            return (
                spectral.cross_spectrum(fft, u, v, edges=EDGES),
                spectral.power_multipoles(fft, u, **about),
                spectral.power_multipoles(fft, u, v, **about | {"axis": 0}),
                spectral.energy_spectrum(fft, u),
            )

        compiled = jax.jit(measure).lower(*map(fft.decomposition.shard, (u, v))).compile()
        assert {c.kind for c in collectives(compiled.as_text())} <= {"all-to-all", "all-reduce"}
        cross, own, other, energy = compiled(*map(fft.decomposition.shard, (u, v)))
    a, b = coefficients(u, ndim), coefficients(v, ndim)
    modes = over_shells(np.ones(shape), k[1], EDGES)
    mean = lambda values: over_shells(values, k[1], EDGES) / np.maximum(modes, 1)
    product, square = volume * (a * b.conj()).real, volume * abs(a) ** 2
    assert_close(cross.power, mean(product), 1e-12)
    assert_close(cross.modes, modes, 1e-14)
    assert_close(cross.k, mean(k[1]), 1e-13)
    for found, values, axis in ((own, square, ndim - 1), (other, product, 0)):
        expected = [mean(values * legendre(order, k, axis)) for order in ORDERS]
        assert_close(found.power, np.stack(expected, -2), 1e-12)
    step = 2 * np.pi / max(lengths)
    bounds = step * (np.arange(len(energy.k) + 1) - 0.5)
    assert bounds[-2] <= k[1].max() < bounds[-1]
    assert_close(energy.width, np.diff(bounds), 1e-13)
    assert_close(energy.energy, over_shells(square.sum(1) / volume / 2, k[1], bounds) / step, 1e-12)
    # No mode is missing, and `Σ E(k) Δk` is half of the mean of |u|².
    total = np.sum(np.asarray(energy.energy * energy.width[None]), -1)
    assert_close(total, np.mean(np.sum(abs(u) ** 2, 1), tuple(range(-ndim, 0))) / 2, 1e-13)


def test_axes_that_are_not_transformed_and_walls():
    """The energy is a mean over axes that are not transformed, and by quadrature between walls."""
    mesh, shape, box = make_mesh((2, 2)), (6, 7, 8), dops.Box(LENGTHS)
    u = random_field((2, *shape))
    planes = dops.FFT3D(mesh, shape=shape, box=box, pad=True, real=True, transformed=("x", "y"))
    bases = (dops.Cosine(2), dops.Fourier(), dops.Fourier(half=True))
    walls = dops.Transform(mesh, shape=shape, bases=bases, box=box, pad=True)
    for fft in (planes, walls):
        found = jax.jit(lambda u, fft=fft: spectral.energy_spectrum(fft, u))(fft.decomposition.shard(u))
        assert float(jnp.sum(found.energy * found.width)) == pytest.approx(np.mean(np.sum(u**2, 0)) / 2, rel=1e-12)


def test_the_multipoles_of_known_waves():
    """A wave along the axis has `L_l(1) = 1`; a wave across it has `L_0 = 1`, `L_2 = -1/2` and `L_4 = 3/8`."""
    shape = (12, 8, 10)
    fft = dops.FFT3D(make_mesh((2, 4)), shape=shape, real=True)
    x, _, z = np.meshgrid(*(2 * np.pi * np.arange(n) / n for n in shape), indexing="ij")
    u = fft.decomposition.shard(3 * np.cos(2 * z) + 2 * np.sin(4 * x))
    edges = (1.5, 2.5, 3.5, 4.5)
    found = spectral.power_multipoles(fft, u, edges=edges)
    factors = np.array([[1, 5, 9], [0, 0, 0], [1, -5 / 2, 27 / 8]]).T
    expected = (2 * np.pi) ** 3 * 2 * np.array([9 / 4, 0, 1]) * factors
    assert_close(found.power * found.modes[None], expected, 1e-12)
    about_x = spectral.power_multipoles(fft, u, axis="x", orders=(2,), edges=edges)
    assert_close((about_x.power[0] * about_x.modes)[0], expected[0, 0] * -5 / 2, 1e-12)


def test_multipoles_of_redshift_space():
    """The multipoles of `P (1 + β μ²)²` are those of Kaiser (MNRAS 227, 1987), as far as modes sample directions."""
    n, beta, power = 32, 1.0, 3.0
    fft = dops.FFT3D(make_mesh((2, 4)), shape=(n,) * 3, box=dops.Box(50.0), real=True)
    parts, k = waves((n,) * 3, (50.0,) * 3)
    phases = np.fft.fftn(random_field((n,) * 3))
    amplitude = np.sqrt(power / 50.0**3) * n**3 * (1 + beta * (parts[2] / np.where(k == 0, 1, k)) ** 2)
    u = np.fft.ifftn(amplitude * phases / abs(phases)).real
    step = 2 * np.pi / 50
    found = spectral.power_multipoles(fft, fft.decomposition.shard(u), edges=(10.2 * step, 15.7 * step))
    kaiser = np.array([1 + 2 * beta / 3 + beta**2 / 5, 4 * beta / 3 + 4 * beta**2 / 7, 8 * beta**2 / 35])
    np.testing.assert_allclose(found.power[:, 0] / power, kaiser, atol=0.01)


def test_derivatives():
    """First derivatives by both fields and the box, and a second derivative, agree with finite differences."""
    fft, shape = dops.FFT3D(make_mesh((2, 2)), shape=(5, 6, 4), pad=True, real=True), (2, 5, 6, 4)
    edges = (0.0, 3.5, 6.6, 11.3)  # The shells keep their modes when the lengths change a little.
    shard = fft.decomposition.shard

    def loss(u, v, lengths):
        boxed = fft.replace(box=dops.Box(lengths))
        multipoles = spectral.power_multipoles(boxed, u, v, edges=edges).power
        energy = spectral.energy_spectrum(boxed, u, edges=edges).energy
        return jnp.sum(multipoles**2) + jnp.sum(jnp.sin(energy))

    u, v, d = (random_field(shape, seed=seed) for seed in range(3))
    at, along = np.array([1.01, 2.02, 1.53]), np.array([0.3, -0.5, 0.2])
    both = jax.value_and_grad(loss, (0, 1, 2))
    along_d = jax.jit(lambda u, v, lengths, d: jax.jvp(lambda u: both(u, v, lengths), (u,), (d,)))
    run = lambda u, v, lengths: along_d(shard(u), shard(v), lengths, shard(d))
    (_, (du, dv, dl)), (_, (ddu, _, _)) = run(u, v, at)
    by_u = finite_difference(lambda u: run(u, v, at)[0][0], u, d, 1e-5)
    by_v = finite_difference(lambda v: run(u, v, at)[0][0], v, d, 1e-5)
    by_box = finite_difference(lambda lengths: run(u, v, lengths)[0][0], at, along, 1e-6)
    inner = lambda a, b: float(np.sum(fft.decomposition.gather(a) * b))
    assert inner(du, d) == pytest.approx(by_u, rel=1e-6)
    assert inner(dv, d) == pytest.approx(by_v, rel=1e-6)
    assert float(np.dot(dl, along)) == pytest.approx(by_box, rel=1e-6)
    second = finite_difference(lambda u: inner(run(u, v, at)[0][1][0], d), u, d, 1e-5)
    assert inner(ddu, d) == pytest.approx(second, rel=1e-6)


def test_single_precision_and_vmap():
    fft = dops.FFT3D(make_mesh((2, 4)), shape=(8, 8, 8), real=True)
    u = random_field((2, 3, 8, 8, 8), np.float32)
    measure = lambda u: (spectral.power_multipoles(fft, u, u), spectral.energy_spectrum(fft, u))
    mapped, double = jax.jit(lambda u: (jax.vmap(measure)(u), measure(u.astype(np.float64))))(u)
    for narrow, wide in zip(mapped, double):
        assert {part.dtype for part in narrow} == {np.dtype(np.float32)}
        assert_close(narrow[1], np.asarray(wide[1], np.float32), 1e-5)


BAD = [
    (lambda s, f, u: s.power_multipoles(f, u, axis="w"), '`axis` must be "x" or "y" or "z"'),
    (lambda s, f, u: s.power_multipoles(f.replace(transformed=(0, 1)), u), "`axis` must be an axis that `fft` trans"),
    (lambda s, f, u: s.power_multipoles(f, u, orders=(0, 1)), r"`orders` must be .* even .*; got \(0, 1\)"),
    (lambda s, f, u: s.power_multipoles(f, u, orders=()), r"`orders` must be .*; got \(\)"),
    (lambda s, f, u: s.cross_spectrum(f, u, u[..., 1:]), r"`v` must have shape .*; got \(4, 4, 3\)"),
    (lambda s, f, u: s.energy_spectrum(f, u), r"`u` must have an axis of components .*pass `u\[None\]`"),
    (lambda s, f, u: s.cross_spectrum(f, u, u, edges=(1, 1)), "`edges` must be two or more increasing numbers"),
    (lambda s, f, u: s.energy_spectrum(f, u[None], edges=(0, np.inf)), r"`edges` must be finite, .*; got \(0, inf\)"),
    (lambda s, f, u: s.energy_transfer(f, np.stack(3 * [u]), edges=(0, np.inf)), "`edges` must be finite, because"),
    (lambda s, f, u: s.energy_spectrum(f.decomposition, u), "`fft` must be an `FFT` or a `Transform`"),
]


@pytest.mark.parametrize(("call", "text"), BAD)
def test_bad_input(plain, call, text):
    fft = plain.FFT3D(make_mesh((1, 1)), shape=(4, 4, 4), real=True)
    with pytest.raises((ValueError, TypeError), match=text):
        call(plain.spectral, fft, np.ones((4, 4, 4)))
