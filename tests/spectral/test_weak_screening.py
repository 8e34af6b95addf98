"""The symbol of a screened kernel in single precision, against integrals in double precision."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.special
from decompops.spectral._green import screened_symbol


REACH = float(np.float32(np.sqrt(3)))
# The transforms of the kernel, cut off at REACH: integrands by the distance r, the wavenumber s and the screening q. On
# one and two axes, the jump at REACH is removed, and added as a constant in the mode zero. For a period as large as the
# ball of the radius REACH, this mode is that of the kernel with the jump.
INTEGRANDS = {
    1: lambda r, s, q: np.cos(s * r) * (np.exp(-q * r) - np.exp(-q * REACH) * (s > 0)) / q,
    2: lambda r, s, q: r * scipy.special.j0(s * r) * (scipy.special.k0(q * r) - scipy.special.k0(q * REACH) * (s > 0)),
    3: lambda r, s, q: r * np.sinc(s * r / np.pi) * np.exp(-q * r),
}
AREAS = {1: 2 * REACH, 2: np.pi * REACH**2, 3: 1.0}


@functools.cache
def symbol(axes: int):
    """Return a compiled function of q and s: the symbol and its derivative by q."""
    return jax.jit(jax.value_and_grad(lambda q, s: screened_symbol(axes, s * s, q, REACH, AREAS[axes])))


@pytest.mark.parametrize("axes", INTEGRANDS)
@pytest.mark.parametrize("q", [1e-8, 1e-4, 0.01, 0.57, 0.58, 2.0, 20.0])
def test_values_and_derivatives(axes, q):
    q = float(np.float32(q))
    integral = lambda q, s: scipy.integrate.quad(INTEGRANDS[axes], 0, REACH, (s, q), epsabs=0, limit=200)[0]
    for s in (0.0, 2.0, 9.0):
        value, slope = symbol(axes)(jnp.float32(q), jnp.float32(s))
        assert value.dtype == np.float32
        np.testing.assert_allclose(value, integral(q, s), rtol=1e-5)
        step = 1e-4 * q
        if q > 1e-3 or (axes < 3 and s == 0):  # The difference of two equal integrals is no reference.
            expected = (integral(q + step, s) - integral(q - step, s)) / (2 * step)
            np.testing.assert_allclose(slope, expected, rtol=2e-4)
