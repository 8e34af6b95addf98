"""Tests of the one rule for Nyquist modes: operators, inverses, adjoints, identities and equations, against NumPy.

`q` are the wavenumbers k with zero in place of Nyquist wavenumbers. First derivatives multiply by q, even derivatives
and inverses use k. Fields are random, so that all modes are alive.
"""

import functools

import decompops as dops
import jax
import numpy as np
import pytest
import scipy.signal
from decompops import spectral

from helpers import assert_close, make_mesh, random_field


LENGTHS = (1.0, 2.0, 3.5)
F, H = dops.Fourier(), dops.Fourier(half=True)
# The grid, the bases, the grid of the kept modes, and whether its Nyquist modes are kept.
CASES = {
    "one axis": ((8,), (H,), None, False),
    "two axes": ((6, 7), (F, F), None, False),
    "kept modes": ((9, 8, 8), (F, F, H), (6, 8, 4), True),
}
MORE = {
    "three axes": ((8, 6, 4), (F, F, H), None, False),
    "an odd axis": ((7,), (H,), None, False),
    "two even axes": ((8, 6), (F, H), None, False),
    "half along x": ((4, 6, 8), (H, F, F), None, False),
    "half along y": ((6, 4, 5), (F, H, F), None, False),
    "complex": ((4, 6, 8), (F, F, F), None, False),
    "dropped modes": ((9, 8, 8), (F, F, H), (6, 8, 4), False),
}


def resampled(u, shape):
    """Return fields on another grid, by SciPy. The last axes of `u` are the axes of the grid."""
    ndim = len(shape)
    return functools.reduce(lambda u, i: scipy.signal.resample(u, shape[i], axis=i - ndim), range(ndim), u)


class Modes:
    """Full spectra on the grid of the kept modes, by NumPy."""

    def __init__(self, shape, modes, nyquist):
        self.shape, self.kept = shape, modes or shape
        ndim, self.axes = len(shape), tuple(range(-len(shape), 0))
        along = [np.fft.fftfreq(n, 1 / n) for n in self.kept]
        ends = [2 * abs(k) == n for k, n in zip(along, self.kept)]
        reshape = lambda values, axis: np.reshape(values, [-1 if i == axis else 1 for i in range(ndim)])
        self.k = [reshape(2 * np.pi * k / length, i) for i, (k, length) in enumerate(zip(along, LENGTHS))]
        self.q = [
            reshape(np.where(end, 0, 2 * np.pi * k / length), i)
            for i, (k, end, length) in enumerate(zip(along, ends, LENGTHS))
        ]
        self.k2, self.q2 = (sum(k**2 for k in waves) + np.zeros(self.kept) for waves in (self.k, self.q))
        self.inner = self.k2 == self.q2
        # Without `nyquist`, a transform to fewer modes sets their Nyquist modes to zero.
        cut = [end & (not nyquist) & (m < n) for end, m, n in zip(ends, self.kept, shape)]
        self.alive = ~functools.reduce(
            np.logical_or, (reshape(c, i) for i, c in enumerate(cut)), np.zeros(self.kept, bool)
        )

    def there(self, u):
        return self.alive * np.fft.fftn(resampled(u, self.kept), axes=self.axes)

    def back(self, spectrum):
        return resampled(np.fft.ifftn(self.alive * spectrum, axes=self.axes), self.shape)


def inverse(symbol):
    return np.divide(1, symbol, out=np.zeros_like(symbol), where=symbol != 0)


def dot(q, v):
    return sum(map(np.multiply, q, v))


def curl(q, v):
    if len(q) == 2:
        return q[0] * v[1] - q[1] * v[0]
    return np.stack([q[i - 2] * v[i - 1] - q[i - 1] * v[i - 2] for i in range(3)])


def curl_of_axial(q, w):
    return np.stack([q[1] * w, -q[0] * w]) if len(q) == 2 else curl(q, w)


def operators(fft):
    names = ["Gradient", "Divergence", "Laplacian", "Poisson", "InverseDivergence", "LerayProjection"]
    names += ["Curl", "InverseCurl"] if fft.decomposition.ndim > 1 else []
    return {name: getattr(spectral, name)(fft) for name in names}


@pytest.mark.parametrize("name", [*CASES, *(pytest.param(name, marks=pytest.mark.sweep) for name in MORE)])
def test_operators_and_identities(name):
    """All operators and compositions equal NumPy's, in every mode. The exact identities hold to rounding."""
    shape, bases, kept, nyquist = (CASES | MORE)[name]
    ndim = len(shape)
    mesh = make_mesh((2,) if ndim == 2 else (1,) if ndim == 1 else (2, 2))
    axes = {"axes": ()} if ndim == 1 else {}
    fft = dops.Transform(
        mesh,
        shape=shape,
        box=dops.Box(LENGTHS[: len(shape)]),
        bases=bases,
        modes=kept,
        nyquist=nyquist,
        pad=True,
        **axes,
    )
    dec, modes = fft.decomposition, Modes(shape, kept, nyquist)
    dtype = complex if fft.takes_complex else float
    f, v = random_field(shape, dtype), random_field((ndim, *shape), dtype, seed=1)
    w = random_field((3, *shape) if ndim == 3 else shape, dtype, seed=2)
    some = operators(fft)

    @jax.jit
    def run(f, v, w):
        grad, div, lap, solve, push, leray = (some[name] for name in list(some)[:6])
        found = {
            "gradient": grad(f),
            "poisson": solve(f),
            "push": push(f),
            "grad poisson": grad(solve(f)),
            "leray": leray(v),
            "div grad": div(grad(f)),
            "div push": div(push(f)),
            "lap poisson": lap(solve(f)),
            "push div": push(div(v)),
            "push.T": push.T(v),
            "div poisson": div(solve(v)),
            "leray leray": leray(leray(v)),
            "leray grad": leray(grad(f)),
            "div leray": div(leray(v)),
        }
        if ndim > 1:
            rot, turn = some["Curl"], some["InverseCurl"]
            found |= {
                "turn": turn(w),
                "rot turn": rot(turn(rot(v))),
                "turn rot": turn(rot(v)),
                "rot": rot(v),
                "rot grad": rot(grad(f)),
                "div turn": div(turn(w)),
                "leray turn": leray(turn(w)),
            }
        return found

    found = {key: dec.gather(value) for key, value in run(*map(dec.shard, (f, v, w))).items()}
    q, k2, q2 = modes.q, modes.k2, modes.q2
    f_, v_, w_ = map(modes.there, (f, v, w))
    solid = v_ - np.stack([part * inverse(q2) * dot(q, v_) for part in q])
    push = np.stack([-1j * part * inverse(k2) * f_ for part in q])
    expected = {
        "gradient": np.stack([1j * part * f_ for part in q]),
        "poisson": -inverse(k2) * f_,
        "push": push,
        "grad poisson": push,
        "leray": solid,
        "div grad": -q2 * f_,
        "div push": q2 * inverse(k2) * f_,
        "lap poisson": np.where(k2 == 0, 0, f_),
        "push div": q2 * inverse(k2) * (v_ - solid),
        "push.T": 1j * inverse(k2) * dot(q, v_),
        "div poisson": -1j * inverse(k2) * dot(q, v_),
        "leray leray": solid,
        "leray grad": 0 * v_,
        "div leray": 0 * f_,
    }
    if ndim > 1:
        turn = 1j * inverse(k2) * curl_of_axial(q, w_)
        expected |= {
            "turn": turn,
            "rot": 1j * curl(q, v_),
            "turn rot": q2 * inverse(k2) * solid,
            "rot turn": q2 * inverse(k2) * 1j * curl(q, v_),
            "rot grad": 0 * (v_ if ndim == 3 else f_),
            "div turn": 0 * f_,
            "leray turn": turn,
        }
    assert found.keys() == expected.keys()
    size = np.abs(found["div grad"]).max()
    for key, value in expected.items():
        assert np.abs(found[key] - modes.back(value)).max() < 1e-12 * max(size, 1), key
    # Identities that hold only in modes without Nyquist wavenumbers, and no amplification in any mode.
    inner = modes.inner & (k2 > 0)
    assert_close(np.where(inner, modes.there(found["div push"]), 0), np.where(inner, f_, 0), 1e-12)
    assert_close(np.where(inner, modes.there(found["div grad"]), 0), np.where(inner, -k2 * f_, 0), 1e-12)
    pushed = np.sqrt(np.sum(np.abs(modes.there(found["push"])) ** 2, 0))
    assert np.all(pushed <= np.sqrt(inverse(k2)) * np.abs(f_) + 1e-12)
    assert np.linalg.norm(found["push"]) <= max(LENGTHS[:ndim]) / (2 * np.pi) * np.linalg.norm(f) * (1 + 1e-12)
    if ndim > 1:
        turned = np.sqrt(np.sum(np.abs(modes.there(found["turn"])) ** 2, 0))
        source = np.sqrt(np.sum(np.abs(w_) ** 2, 0)) if ndim == 3 else np.abs(w_)
        assert np.all(turned <= np.sqrt(inverse(k2)) * source + 1e-12)
    even = any(n % 2 == 0 for n in modes.kept) and bool((modes.alive & ~modes.inner).any())
    assert even == bool(np.abs(modes.there(found["div push"]) - np.where(k2 > 0, f_, 0)).max() > 1e-6)
