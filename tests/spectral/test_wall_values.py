"""Tests of vectors on grids with points on walls: no component across a wall is lost silently."""

import itertools

import decompops as dops
import jax
import numpy as np
import pytest
from decompops import spectral

from helpers import assert_close, make_mesh, thinned


N = 12
BASES = [kind(number) for kind in (dops.Cosine, dops.Sine) for number in (1, 2, 3, 4)]


def transform(basis, *, real=True) -> dops.Transform:
    bases, box = (dops.Fourier(half=real), basis), dops.Box((2 * np.pi, 1.0))
    return dops.Transform(make_mesh((2,)), bases=bases, shape=(8, N), axes="x", box=box, pad=True)


@pytest.mark.parametrize("basis", BASES, ids=repr)
def test_each_basis_keeps_or_refuses_velocities_across_walls(basis):
    """A basis refuses all vectors, or those that its slopes cannot represent at a wall, and is exact for the others."""
    fft = transform(basis)
    if basis.type in (1, 3) and basis != dops.Cosine(1):
        with pytest.raises(ValueError, match="which has no point at such a wall"):
            spectral.Divergence(fft)
        return
    divergence, y = spectral.Divergence(fft), basis.points(N)
    across = np.zeros((2, 8, N))
    if set(y) & {0.0, 1.0}:
        across[1] = np.cos(0.7 * y)
        with pytest.raises(ValueError, match=r"must be zero at walls where its basis is zero; got 1\. Set each"):
            divergence(fft.decomposition.shard(across))
    k = np.pi * (np.array([1.0, 2.0, 5.0]) if basis.type < 3 else np.array([0.5, 1.5, 4.5]))[:, None]
    amplitudes = np.array([0.3, -1.1, 0.7])
    if isinstance(basis, dops.Cosine):
        across[1], slope = amplitudes @ np.sin(k * y), (amplitudes * k[:, 0]) @ np.cos(k * y)
    else:
        across[1], slope = amplitudes @ np.cos(k * y), -(amplitudes * k[:, 0]) @ np.sin(k * y)
    found = fft.decomposition.gather(divergence(fft.decomposition.shard(across)))
    assert_close(found, slope * np.ones((8, 1)), 1e-12)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    thinned(
        itertools.product((spectral.Divergence, spectral.Curl), (np.float32, np.float64, np.complex128)),
        lambda kind, dtype: (kind is spectral.Curl) == (dtype is np.float64),
    ),
)
def test_velocities_through_walls_are_refused(kind, dtype):
    fft = transform(dops.Cosine(1), real=dtype is not np.complex128)
    across = np.zeros((3, 2, 8, N), dtype)
    across[1, 1, :, -1] = 0.5
    operator = kind(fft)
    for place in (np.asarray, fft.decomposition.shard):
        with pytest.raises(ValueError, match=rf"the field of `{kind.__name__}` must be zero .*; got 0\.5\."):
            operator(place(across))
    without = across.copy()
    without[..., 1, :, -1] = 0
    # A traced field has no values to check, and a projection is meant to remove them.
    for removing in (jax.jit(operator), spectral.LerayProjection(fft)):
        found, expected = (fft.decomposition.gather(removing(fft.decomposition.shard(v))) for v in (across, without))
        assert_close(found, expected, 1e-6)
