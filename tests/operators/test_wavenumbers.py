"""Tests of the wavenumbers of `FFT3D`, and of their derivatives with respect to the lengths of the box."""

import itertools

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers import assert_close, make_mesh, spec_of, thinned


OPTIONS = list(itertools.product([False, True], [False, True], ["auto", "explicit"]))
# Each pair of values of two options stays in CI.
PAIRS = thinned(OPTIONS, lambda real, contiguous, kind: (real + contiguous + (kind == "auto")) % 2 == 0)


@pytest.mark.parametrize(("real", "axis_contiguous", "kind"), PAIRS)
def test_wavenumbers(real, axis_contiguous, kind):
    mesh, shape, lengths = make_mesh((2, 4), kind), (6, 9, 10), (1.0, 2.0, 4.0)
    with jax.set_mesh(mesh):
        fft = dops.FFT3D(mesh, shape=shape, pad=True, real=real, axis_contiguous=axis_contiguous)
        expected = [np.fft.fftfreq(n, L / n) * 2 * np.pi for n, L in zip(shape, lengths)]
        if real:
            expected[2] = np.fft.rfftfreq(10, 4 / 10) * 2 * np.pi
        stored = ("y", "z", "x") if axis_contiguous else ("x", "y", "z")
        wide = fft.replace(box=dops.Box(lengths))
        for waves in (wide.wavenumbers(), jax.jit(wide.wavenumbers)()):
            for name, k, values in zip("xyz", waves, expected):
                position = stored.index(name)
                assert k.ndim == 3
                assert k.size == k.shape[position] == fft.plan().target.shape[position]
                np.testing.assert_allclose(np.ravel(k)[: len(values)], values, rtol=1e-14)
                assert not np.ravel(k)[len(values) :].any()
                assert spec_of(k)[position] == fft.out_spec[position]


def test_wavenumbers_of_one_length_and_of_a_dtype():
    fft = dops.FFT3D(make_mesh((2, 4)), shape=(8, 8, 8))
    kx, ky, kz = fft.replace(box=dops.Box(1)).wavenumbers()
    np.testing.assert_allclose(np.ravel(kx), 2 * np.pi * np.fft.fftfreq(8, 1 / 8))
    assert [k.shape for k in (kx, ky, kz)] == [(8, 1, 1), (1, 8, 1), (1, 1, 8)]
    assert {k.dtype for k in (kx, ky, kz)} == {np.dtype("float64")}
    assert {k.dtype for k in fft.wavenumbers(dtype="float32")} == {np.dtype("float32")}


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_wavenumbers_differentiate_by_the_lengths_of_the_box(kind):
    mesh = make_mesh((2, 4), kind)
    with jax.set_mesh(mesh):
        fft = dops.FFT3D(mesh, shape=(8, 6, 7), pad=True)
        power = lambda lengths: sum(jnp.sum(k**2) for k in fft.replace(box=dops.Box(lengths)).wavenumbers())
        lengths = np.array([1.0, 2.0, 3.0])
        g = jax.jit(jax.grad(power))(jnp.asarray(lengths))
        # k is proportional to 1 / length. So for each axis, d(sum of k^2) / d(length) is -2 / length * (sum of k^2).
        parts = [np.sum((2 * np.pi * np.fft.fftfreq(n, box / n)) ** 2) for n, box in zip((8, 6, 7), lengths)]
        assert_close(g, -2 * np.array(parts) / lengths)
        assert_close(jax.grad(lambda box: power((box, 1, box)))(2.0), -2 * (parts[0] / 4 + parts[2] * 9 / 4) / 2)
