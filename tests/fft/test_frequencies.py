"""Tests of frequencies for spacings and dtypes of few bits, and of their errors."""

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest


@pytest.mark.parametrize("d", [np.uint8(200), jnp.int32(60000), np.float16(100)], ids=str)
def test_frequencies_of_few_bits(d):
    """`n d` is beyond the range of the dtype of `d`, and `n` is beyond float16."""
    n = 70000
    for name in ("fftfreq", "rfftfreq"):
        function, theirs = getattr(dops.fft, name), getattr(np.fft, name)
        np.testing.assert_allclose(function(n, d), theirs(n, float(d)), rtol=1e-12)
        np.testing.assert_allclose(jax.jit(function, static_argnums=0)(n, d), theirs(n, float(d)), rtol=1e-12)
        np.testing.assert_allclose(function(n, 0.01, dtype=np.float16), theirs(n, 0.01), rtol=1e-3)


def test_a_spacing_below_single_precision():
    """Single precision holds the length of the box and the frequencies, but not the spacing."""
    found = dops.fft.fftfreq(8, 1e-38, dtype=np.float32)
    np.testing.assert_allclose(found, np.fft.fftfreq(8, 1e-38), rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"d": 0.0}, ValueError, r"`d` must not be zero; got 0\.0"),
        ({"d": (1.0, 2.0)}, TypeError, r"`d` must be one real number; got \(1\.0, 2\.0\)"),
        ({"dtype": int}, TypeError, "`dtype` must be real; got int64"),
    ],
)
def test_errors(plain, options, error, message):
    for function in (plain.fft.fftfreq, plain.fft.rfftfreq):
        with pytest.raises(error, match=message):
            function(6, **options)
