"""Tests of correlation functions on any mesh, against means over all pairs of points of the grid."""

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


def pairs(u, lengths, edges):
    """Return the mean separation, the mean correlation and the number of separations of each bin."""
    ndim = len(lengths)
    shape, axes = u.shape[-ndim:], tuple(range(-ndim, 0))
    found = [[] for _ in edges[1:]]
    for shift in itertools.product(*map(range, shape)):
        nearest = [min(s, n - s) * length / n for s, n, length in zip(shift, shape, lengths)]
        place = np.searchsorted(edges, np.linalg.norm(nearest), side="right") - 1
        if 0 <= place < len(found):
            moved = np.roll(u, [-s for s in shift], axes)  # u(x + r)
            found[place].append((np.linalg.norm(nearest), np.mean(u.conj() * moved, axes).real))
    r, correlation = zip(*(map(np.array, zip(*entries)) for entries in found))
    return [part.mean() for part in r], np.stack([part.mean(0) for part in correlation], -1), [len(part) for part in r]


CASES = [
    ((6, 5, 4), (2, 4), "auto", True),
    ((6, 5, 4), (8,), "explicit", False),
    ((9, 8), (4,), "auto", True),
    ((10,), (1,), "auto", True),
]


@pytest.mark.xla
@pytest.mark.parametrize(("shape", "sizes", "kind", "real"), CASES)
def test_correlations_are_means_over_all_pairs(shape, sizes, kind, real):
    mesh, ndim, lengths = make_mesh(sizes, kind), len(shape), LENGTHS[: len(shape)]
    axes = {"axes": () if ndim == 1 else "x"} if len(sizes) == 1 else {}
    u = random_field((2, 3, *shape), float if real else complex)
    edges = (0.0, 0.05, 0.45, 0.61)
    with jax.set_mesh(mesh) if kind == "explicit" else contextlib.nullcontext():
        fft = dops.FFT(mesh, shape=shape, ndim=ndim, box=dops.Box(lengths), pad=True, real=real, norm="ortho", **axes)
        x = fft.decomposition.shard(u)
        measure = lambda x: [spectral.correlation_function(fft, x, edges=e) for e in (edges, None)]
        compiled = jax.jit(measure).lower(x).compile()
        assert {c.kind for c in collectives(compiled.as_text())} <= {"all-to-all", "all-reduce"}
        found, default = compiled(x)
    step = min(length / n for length, n in zip(lengths, shape))
    bounds = step * (np.arange(len(default.r) + 1) + 0.5)
    assert bounds[-1] - step / 2 <= min(lengths) / 2 < bounds[-1] + step / 2
    for got, expected in zip((found, default), (pairs(u, lengths, edges), pairs(u, lengths, bounds))):
        for a, b in zip(got, expected):
            assert_close(a, b, 1e-12)


def test_planes_are_averaged():
    """Along an axis that is not transformed, the correlation function is a mean over the points."""
    fft = dops.FFT3D(make_mesh((2, 2)), shape=(6, 5, 4), box=dops.Box(LENGTHS), pad=True, real=True, transformed="yz")
    u, edges = random_field((6, 5, 4)), (0.0, 0.05, 0.45, 0.61)
    found = spectral.correlation_function(fft, fft.decomposition.shard(u), edges=edges)
    assert_close(found.correlation, np.mean(pairs(u, LENGTHS[1:], edges)[1], 0), 1e-12)


def test_a_wave():
    """The correlation of `cos(k x)` is `cos(k r) / 2`, also in single precision, with r on the bounds of bins."""
    fft = dops.FFT3D(make_mesh((2, 4)), shape=(10, 8, 8), box=dops.Box((1.0, 100.0, 100.0)), real=True, pad=True)
    u = np.cos(2 * np.pi * np.arange(10) / 10)[:, None, None] * np.ones((8, 8))
    x = fft.decomposition.shard(u.astype(np.float32))
    found = spectral.correlation_function(fft, x, edges=(0.0, 0.1, 0.2, 0.3, 0.4))
    assert {part.dtype for part in found} == {np.dtype(np.float32)}
    np.testing.assert_array_equal(found.separations, [1, 2, 2, 2])
    np.testing.assert_allclose(found.correlation, np.cos(2 * np.pi * np.arange(4) / 10) / 2, atol=1e-6)


def test_derivatives():
    """First derivatives by the field and the box, and a second derivative, agree with finite differences."""
    fft = dops.FFT3D(make_mesh((2, 2)), shape=(5, 6, 4), pad=True, real=True)
    u, d = random_field((5, 6, 4)), random_field((5, 6, 4), seed=1)
    shard, gather = fft.decomposition.shard, fft.decomposition.gather

    def loss(u, lengths):
        found = spectral.correlation_function(fft.replace(box=dops.Box(lengths)), u, edges=(0.0, 0.11, 0.45, 0.71))
        return jnp.sum(jnp.sin(found.correlation)) + jnp.sum(found.r**2)

    at, along = np.array([1.01, 2.02, 1.53]), np.array([0.3, -0.5, 0.2])
    both = jax.value_and_grad(loss, (0, 1))
    along_d = jax.jit(lambda u, lengths, d: jax.jvp(lambda u: both(u, lengths), (u,), (d,)))
    run = lambda u, lengths: along_d(shard(u), lengths, shard(d))
    (_, (du, dl)), (_, (ddu, _)) = run(u, at)
    inner = lambda a: float(np.sum(gather(a) * d))
    numeric = finite_difference(lambda u: run(u, at)[0][0], u, d, 1e-5)
    assert inner(du) == pytest.approx(numeric, rel=1e-6)
    numeric = finite_difference(lambda lengths: run(u, lengths)[0][0], at, along, 1e-6)
    assert float(np.dot(dl, along)) == pytest.approx(numeric, rel=1e-6)
    numeric = finite_difference(lambda u: inner(run(u, at)[0][1][0]), u, d, 1e-5)
    assert inner(ddu) == pytest.approx(numeric, rel=1e-6)


def test_bad_input(plain):
    fft = plain.FFT3D(make_mesh((1, 1)), shape=(4, 4, 4), real=True)
    measure = lambda u, **options: plain.spectral.correlation_function(fft, u, **options)
    with pytest.raises(ValueError, match="`edges` must be two or more increasing numbers"):
        measure(np.ones((4, 4, 4)), edges=(1, 1))
    with pytest.raises(ValueError, match=r"`u` must have shape .*; got \(4, 4, 5\)"):
        measure(np.ones((4, 4, 5)))
    boxed = lambda a: plain.spectral.correlation_function(fft.replace(box=plain.Box(a)), np.ones((4, 4, 4)))
    with pytest.raises(ValueError, match="`edges` must be given if the lengths of the box are traced"):
        jax.jit(boxed)(1.0)
