"""Tests of `Resample` against SciPy, and of its inverse and its transposes."""

import contextlib

import decompops as dops
import jax
import numpy as np
import pytest
import scipy.signal
from decompops import spectral
from decompops.testing import assert_adjoint, assert_transposed
from decompops.tools.hlo import collectives
from jax.sharding import PartitionSpec as P

from helpers import assert_close, make_mesh, random_field


def scipy_resample(u, shape):
    for axis, n in zip((-3, -2, -1), shape):
        u = scipy.signal.resample(u, n, axis=axis)
    return u


@pytest.mark.parametrize(
    ("sizes", "kind", "real", "old", "new"),
    [
        ((2, 4), "auto", True, (8, 6, 10), (12, 9, 15)),  # The new grid is finer.
        ((2, 4), "explicit", True, (9, 10, 11), (4, 6, 8)),  # The new grid is coarser, with even numbers of modes.
        ((2, 4), "auto", False, (9, 6, 12), (4, 10, 8)),  # The new grid is finer along one axis only.
        ((8, 1), "auto", True, (8, 6, 10), (6, 12, 7)),
    ],
)
def test_resample_equals_scipy(sizes, kind, real, old, new):
    mesh = make_mesh(sizes, kind)
    with jax.set_mesh(mesh) if kind == "explicit" else contextlib.nullcontext():
        dtype = np.float64 if real else np.complex128
        resample = spectral.Resample(dops.FFT3D(mesh, shape=old, pad=True, real=real, norm="ortho"), new)
        dec, target = resample.decomposition, resample.resampled
        u = random_field((2, *old), dtype)
        x = dec.shard(u)
        y = target.shard(random_field((2, *new), dtype, seed=1))

        @jax.jit
        def everything(x, y):
            return resample(x), (resample.T if real else resample.H)(y), resample.inverse(y)

        forward, transposed, back = everything(x, y)
        assert forward.dtype == u.dtype
        assert forward.sharding.is_equivalent_to(jax.NamedSharding(mesh, P(None, *target.spec())), 4)
        assert_close(target.gather(forward), scipy_resample(u, new), rtol=1e-12)
        assert_close(dec.gather(back), scipy_resample(target.gather(y), old), rtol=1e-12)
        by_dot_product = assert_transposed if real else assert_adjoint
        by_dot_product(lambda _: forward, lambda _: transposed, np.asarray(x), np.asarray(y))


def test_there_and_back():
    """A round trip to a finer grid changes no mode, including Nyquist modes.

    A round trip to a coarser grid removes modes, and a second round trip changes nothing more.
    """
    old = (8, 6, 9)
    fft = dops.FFT3D(make_mesh((2, 4)), shape=old, pad=True, real=True)
    finer, coarser = spectral.Resample(fft, (10, 12, 9)), spectral.Resample(fft, (4, 5, 6))
    u = random_field(old)
    once = coarser.inverse @ coarser
    x = fft.decomposition.shard(u)
    same, low, lower = jax.jit(lambda x: ((finer.inverse @ finer)(x), once(x), once(once(x))))(x)
    assert_close(fft.decomposition.gather(same), u, rtol=1e-13)
    assert_close(lower, low, rtol=1e-13)
    assert finer.inverse.inverse is finer
    assert (finer.in_spec, finer.out_spec) == (P("x", "y", None), P("x", "y", None))


@pytest.mark.xla
def test_resample_communicates_the_fewest_modes():
    """Each exchange is as small as the two grids allow, for 16³ cells on 2x4 devices."""
    fft = dops.FFT3D(make_mesh((2, 4)), shape=(16, 16, 16), real=True)
    x = jax.ShapeDtypeStruct((16, 16, 16), np.float32, sharding=fft.decomposition.sharding())
    blocks = {  # The four exchanges gather y, gather x, shard x, and shard y.
        8: ((8, 4, 8), (8, 8, 2), (8, 4, 2), (4, 8, 2)),
        16: ((8, 4, 12), (8, 16, 3), (16, 8, 3), (8, 16, 3)),
        32: ((8, 4, 12), (8, 16, 3), (32, 8, 3), (16, 32, 3)),
    }
    for n, exchanged in blocks.items():
        found = collectives(jax.jit(spectral.Resample(fft, (n, n, n))).lower(x).compile().as_text())
        assert {c.kind for c in found} == {"all-to-all"}
        shares = (3 / 4, 1 / 2, 1 / 2, 3 / 4)  # In each exchange, a device sends this part of its block.
        expected = [int(8 * np.prod(block) * share) for block, share in zip(exchanged, shares)]
        assert sorted(c.bytes for c in found) == sorted(expected)


BAD = [
    (lambda d, f: d.spectral.Resample(f, 4), r"`shape` must be three positive integers along x, y, z; got 4"),
    (lambda d, f: d.spectral.Resample(f, (4, 0, 4)), r"`shape` must be three positive integers .*; got \(4, 0, 4\)"),
    (lambda d, f: d.spectral.Resample(d.FFT3D(make_mesh((1, 1))), (4, 4, 4)), "`fft` must be built with a `shape`"),
    (
        lambda d, f: d.spectral.Resample(f.replace(modes=3), (4, 4, 4)),
        r"`fft` must keep all modes; got `modes=\(3, 3, 3\)`",
    ),
    *(
        (
            lambda d, f, basis=basis: d.spectral.Resample(
                d.Transform(f.decomposition, bases=(getattr(d, basis)(2), *[d.Fourier()] * 2)), (4, 4, 4)
            ),
            f"`fft` must be periodic along x, with the basis `Fourier`; got {basis}",
        )
        for basis in ("Cosine", "Sine", "Chebyshev")
    ),
    (lambda d, f: d.spectral.Resample(f, (6, 6, 6))(np.ones((6, 6, 6))), r"`x` must have shape .*; got \(6, 6, 6\)"),
]


@pytest.mark.parametrize(("call", "text"), BAD)
def test_bad_input(plain, call, text):
    with pytest.raises((ValueError, TypeError), match=text):
        call(plain, plain.FFT3D(make_mesh((1, 1)), shape=(4, 4, 4), real=True))
