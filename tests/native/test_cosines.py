"""Tests of cosine and sine transforms in the compiled kernels, against SciPy."""

from functools import partial

import decompops as dops
import jax
import numpy as np
import pytest
import scipy.fft
from decompops._backend.native.library import NATIVE
from decompops._basis import short_lines

from helpers import make_mesh, put, random_field


pytestmark = pytest.mark.skipif(NATIVE.problem() is not None, reason=str(NATIVE.problem()))


@pytest.mark.parametrize("name", ["dct", "dst"])
@pytest.mark.parametrize("type", [2, 3])
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_long_lines(name, type, dtype):
    """Kernels transform so long lines in several groups, of which the last one is not full."""
    mesh = make_mesh((2, 4))
    u = random_field((4, 8, 200, 66), dtype)
    x = put(mesh, u, "x", "y")
    options = {"type": type, "mesh": mesh, "backend": dops.Native(planning="estimate")}
    for axis in (-1, -2):
        transform = jax.jit(partial(getattr(dops.fft, name), axis=axis, **options))
        assert "decompops_native" in transform.lower(x).as_text()
        np.testing.assert_allclose(transform(x), getattr(scipy.fft, name)(u, type, axis=axis), rtol=0, atol=1e-12)


def test_lengths_that_xla_transforms():
    """Of short lengths, XLA transforms those with a prime factor above 11. Kernels transform all long lengths."""
    lengths = {n for n in range(1, 300) if short_lines.are_faster_than_kernels(2, n)}
    assert lengths == {
        n for n in range(1, 193) for p in range(13, n + 1) if n % p == 0 and all(p % q for q in range(2, p))
    }
