"""Tests of spectral operators on grids of one, two and four axes, and with axes that are not transformed.

In some tests, two mesh axes together shard one grid axis.
"""

import contextlib
import itertools
import math

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.signal
from decompops import spectral
from decompops.testing import assert_adjoint, assert_transposed

from helpers import assert_close, make_mesh, random_field


LENGTHS = (1.0, 2.0, 3.5, 0.7)
# Each case has a shape, a mesh, the types of the mesh axes, and the options of the transform.
CASES = {
    "one": ((12,), (2,), "auto", {"axes": (), "real": True}),
    "two": ((9, 10), (8,), "auto", {"real": True, "pad": True}),
    "compound": ((8, 6), (2, 2), "explicit", {"axes": (("x", "y"),), "pad": True}),
    "four": ((4, 5, 3, 6), (2, 2, 2), "auto", {"real": True, "pad": True}),
    "carried": ((6, 5, 8), (2, 2), "auto", {"transformed": ("x", "y"), "real": True, "pad": True}),
}


@contextlib.contextmanager
def case(name):
    shape, sizes, kind, options = CASES[name]
    mesh = make_mesh(sizes, kind)
    with jax.set_mesh(mesh) if kind == "explicit" else contextlib.nullcontext():
        yield dops.FFT(mesh, shape=shape, box=dops.Box(LENGTHS[: len(shape)]), **options)


def numpy_operators(fft):
    """Return NumPy's results for a scalar and a vector field, computed with full spectra."""
    shape, ndim = fft.decomposition.shape, fft.decomposition.ndim
    axes = tuple(axis - ndim for axis in fft.transformed)

    def wavenumbers(nyquist):
        k = []
        for axis, (n, length) in enumerate(zip(shape, LENGTHS)):
            modes = np.fft.fftfreq(n, 1 / n) * (axis in fft.transformed)
            modes = modes if nyquist else np.where(2 * abs(modes) == n, 0, modes)
            k.append((2 * np.pi * modes / length).reshape([-1 if i == axis else 1 for i in range(ndim)]))
        return k

    even, k = wavenumbers(True), wavenumbers(False)
    square, odd_square = sum(q**2 for q in even), sum(q**2 for q in k)
    inverse = lambda s: np.divide(1, s, out=np.zeros_like(s), where=s != 0)
    there, back = (lambda u: np.fft.fftn(u, axes=axes)), (lambda s: np.fft.ifftn(s, axes=axes))
    times = lambda factor: lambda u, v: back(factor * there(u))
    vector = lambda function: lambda u, v: back(np.stack(function(there(u), [there(part) for part in v])))
    kept = math.prod(
        (3 * abs(np.rint(q * length / (2 * np.pi))) < n) | (axis not in fft.transformed)
        for axis, (q, n, length) in enumerate(zip(even, shape, LENGTHS))
    )
    found = {
        "derivative": times((1j * k[0]) ** 1 * (1j * even[1]) ** 2 if ndim > 1 else 1j * k[0]),
        "gradient": vector(lambda s, _: [1j * q * s for q in k]),
        "laplacian": times(-square),
        "poisson": times(-inverse(square)),
        "helmholtz": times(1 / (square + 2.0)),
        "gaussian": times(np.exp(-square * 0.2**2 / 2)),
        "isotropic": times(1 / (1 + np.sqrt(square))),
        "dealias": times(kept),
        "symbol": times(1 + sum(n * q**2 for n, q in enumerate(even))),
        "divergence": lambda u, v: back(sum(1j * q * there(part) for q, part in zip(k, v))),
        "leray": vector(lambda _, s: [a - q * inverse(odd_square) * sum(map(np.multiply, k, s)) for q, a in zip(k, s)]),
        "inverse divergence": vector(lambda s, _: [-1j * q * inverse(square) * s for q in k]),
    }
    if ndim == 2:
        found["curl"] = lambda u, v: back(1j * (k[0] * there(v[1]) - k[1] * there(v[0])))
        found["stream"] = vector(lambda s, _: [1j * k[1] * s, -1j * k[0] * s])
        found["inverse curl"] = vector(lambda s, _: [f * inverse(square) * s for f in (1j * k[1], -1j * k[0])])
    return found


def operators(fft):
    ndim = fft.decomposition.ndim
    found = {
        "derivative": spectral.Derivative(fft, (1, 2, 0, 0)[:ndim]),
        "gradient": spectral.Gradient(fft),
        "laplacian": spectral.Laplacian(fft),
        "poisson": spectral.Poisson(fft),
        "helmholtz": spectral.Helmholtz(fft, 2.0),
        "gaussian": spectral.GaussianFilter(fft, 0.2),
        "isotropic": spectral.IsotropicFilter(fft, lambda k: 1 / (1 + k)),
        "dealias": spectral.Dealias(fft),
        "symbol": spectral.SpectralOperator(fft, lambda *k: 1 + sum(n * q**2 for n, q in enumerate(k))),
        "divergence": spectral.Divergence(fft),
        "leray": spectral.LerayProjection(fft),
        "inverse divergence": spectral.InverseDivergence(fft),
    }
    if ndim == 2:
        curl = spectral.Curl(fft)
        found |= {"curl": curl, "stream": curl.T, "inverse curl": spectral.InverseCurl(fft)}
    return found


VECTORS = {"divergence", "leray", "curl"}


@pytest.mark.parametrize("name", CASES)
def test_every_operator_equals_numpy(name):
    with case(name) as fft:
        dec, dtype = fft.decomposition, np.float64 if fft.real else np.complex128
        u, v = random_field(dec.shape, dtype), random_field((dec.ndim, *dec.shape), dtype, seed=1)
        ours, expected = operators(fft), numpy_operators(fft)
        assert ours.keys() == expected.keys()
        run = jax.jit(lambda u, v: {name: operator(v if name in VECTORS else u) for name, operator in ours.items()})
        for operator, result in run(dec.shard(u), dec.shard(v)).items():
            right = expected[operator](u, v)
            assert_close(dec.gather(result), right.real if fft.real else right)


def test_transposes_of_the_curl_in_two_dimensions():
    fft = dops.FFT2D(make_mesh((4,)), shape=(8, 5), pad=True)
    curl, dec = spectral.Curl(fft), fft.decomposition
    v, w = random_field((2, 8, 5), complex), random_field((8, 5), complex, seed=1)
    of = lambda operator: lambda x: dec.gather(operator(dec.shard(x)))
    assert_transposed(of(curl), of(curl.T), v, w)
    assert_adjoint(of(curl), of(curl.H), v, w)
    assert str(curl.T.in_structure) == "c[*, 8, 5] y-pencils 4"
    assert str(curl.out_structure) == "c[*, 8, 5] y-pencils 4"
    with pytest.raises(ValueError, match=r"`Curl` must get c\[\*, 2, 8, 5\]"):
        curl @ spectral.Laplacian(fft) @ spectral.Divergence(fft)


@pytest.mark.parametrize("name", ["one", "compound", "four", "carried"])
def test_statistics_equal_their_definitions(name):
    with case(name) as fft:
        dec = fft.decomposition
        u = random_field(dec.shape, np.float64 if fft.real else np.complex128)
        edges = (0.0, 3.0, 7.0, 20.0)
        scaled = [fft.replace(norm=norm) for norm in ("backward", "ortho", "forward")]
        found, means = jax.jit(
            lambda u: (
                spectral.power_spectrum(fft, u, edges=edges),
                [spectral.mean_square(fft, fft(u)) for fft in scaled],
            )
        )(dec.shard(u))
        axes = tuple(fft.transformed)
        power = np.abs(np.fft.fftn(u, axes=axes)) ** 2
        shape, lengths = np.array(dec.shape)[list(axes)], np.array(LENGTHS)[list(axes)]
        k = np.zeros(dec.shape)
        for axis in axes:
            modes = 2 * np.pi * np.fft.fftfreq(dec.shape[axis], LENGTHS[axis] / dec.shape[axis])
            k = k + modes.reshape([-1 if i == axis else 1 for i in range(dec.ndim)]) ** 2
        k = np.sqrt(k)
        for shell, (lower, upper) in enumerate(itertools.pairwise(edges)):
            inside = (k >= lower) & (k < upper)
            assert int(found.modes[shell]) == inside.sum()
            assert float(found.k[shell]) == pytest.approx(k[inside].mean(), rel=1e-12)
            expected = power[inside].mean() * np.prod(lengths) / np.prod(shape) ** 2
            assert float(found.power[shell]) == pytest.approx(expected, rel=1e-12)
        for mean in means:
            assert float(mean) == pytest.approx(np.mean(np.abs(u) ** 2), rel=1e-12)


def test_random_fields_are_coloured_white_noise_that_does_not_depend_on_the_mesh():
    key, shape = jax.random.key(3), (6, 10)
    decs = [
        dops.Decomposition(make_mesh(sizes), shape=shape, axes=axes, pad=True)
        for sizes, axes in [((1,), ("x",)), ((2, 2), (("x", "y"),))]
    ]
    one, other = (dec.gather(spectral.white_noise(dec, key)) for dec in decs)
    np.testing.assert_array_equal(other, one)
    assert abs(one.mean()) < 0.5
    assert 0.7 < one.std() < 1.3
    field = spectral.GaussianRandomField(dops.FFT(decs[1], real=True, box=dops.Box((1.0, 2.0))), lambda k: jnp.exp(-k))(
        key
    )
    kx, ky = (2 * np.pi * np.fft.fftfreq(n, length / n) for n, length in zip(shape, (1.0, 2.0)))
    k = np.hypot(kx[:, None], ky)
    amplitude = np.where(k == 0, 0, np.sqrt(np.exp(-k) * 60 / 2.0))
    assert_close(decs[1].gather(field), np.fft.ifftn(amplitude * np.fft.fftn(one)).real)
    four = [dops.Decomposition(make_mesh(sizes), shape=(3, 2, 5, 4), pad=True) for sizes in ((1, 1), (2, 2, 2))]
    first, second = (dec.gather(spectral.white_noise(dec, key)) for dec in four)
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(("name", "target"), [("one", (15,)), ("two", (12, 6)), ("carried", (9, 4, 8))])
def test_resampling_equals_scipy(name, target):
    with case(name) as fft:
        u = random_field(fft.decomposition.shape)
        resample = spectral.Resample(fft, target)
        expected = u
        for axis, n in enumerate(target):
            expected = scipy.signal.resample(expected, n, axis=axis)
        assert_close(resample.resampled.gather(jax.jit(resample)(fft.decomposition.shard(u))), expected)


def test_arguments_that_do_not_fit_the_grid_are_refused(plain):
    two, four = (plain.FFT(make_mesh((1,)), shape=shape, real=True) for shape in ((6, 6), (4, 4, 4, 4)))
    carried = plain.FFT3D(make_mesh((1,)), shape=(4, 6, 8), transformed=("x", "y"))
    for make, message in (
        (lambda d: d.spectral.Curl(four), r"`fft` must transform a grid of two or three axes.*; got a grid of 4 axes"),
        (
            lambda d: d.spectral.InverseCurl(four),
            r"`fft` must transform a grid of two or three axes.*; got a grid of 4 axes",
        ),
        (
            lambda d: d.spectral.Derivative(two, (1, 0, 0)),
            r"`orders` must have one number for each of the axes x, y; got",
        ),
        (lambda d: d.spectral.Derivative(carried, (1, 0, 2)), r"`orders` must be zero along z, which `fft` does not"),
        (lambda d: d.spectral.Divergence(two)(np.ones((3, 6, 6))), r"of shape \(\*batch, 2, nx, ny\); got \(3, 6, 6\)"),
        (lambda d: d.spectral.Resample(carried, (4, 6, 4)), r"`shape` must have 8 cells along z.*; got \(4, 6, 4\)"),
        (lambda d: d.spectral.Resample(two, (4, 6, 4)), r"`shape` must be two positive integers along x, y; got"),
        (lambda d: d.spectral.SpectralOperator(two, 1), r"`symbol` must be a function of \(kx, ky\); got 1"),
        (
            lambda d: d.spectral.Helmholtz(carried.replace(box=d.Box(1.0)), -((2 * np.pi) ** 2)),
            "`shift` must not be minus the",
        ),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            make(plain)
    # `fft` does not transform z, so the length along z does not matter for the check that `shift` is no eigenvalue.
    assert plain.spectral.Helmholtz(carried.replace(box=plain.Box((1.0, 1.0, 2 * np.pi))), -1.0).shift == -1.0
