"""`Cosmology`: how a universe expands, and how small perturbations grow in it."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.core import Tracer
from jaxtyping import Float

from .._common.box import Number
from .._common.check import check_number


# The quadrature of the growth integral: rounding errors only, for all scale factors and densities.
POINTS, WEIGHTS = np.polynomial.legendre.leggauss(48)
POINTS, WEIGHTS = (POINTS + 1) / 2, WEIGHTS / 2


Scalars = Float[Array | np.ndarray, "*a"] | float


class Cosmology(eqx.Module):
    """A flat universe of matter and a cosmological constant. Times are scale factors a, with a = 1 today.

    All methods take numbers or arrays of scale factors, and can be differentiated with respect to them and `matter`.
    The results have the precision of the scale factors, and at least single precision.

    - `matter`: the density parameter Ωₘ today, a number between 0 and 1. With 1, the universe is that of Einstein and
        de Sitter, in which perturbations grow like a.

    **Raises:** `TypeError` or `ValueError` if `matter` is not one number above 0 and up to 1.

    Source: Peebles, The Large-Scale Structure of the Universe (1980), section 10.
    """

    matter: Number = 0.31

    def __check_init__(self):
        check_number("matter", self.matter, positive=True)
        if not isinstance(self.matter, Tracer) and float(self.matter) > 1:
            raise ValueError(f"`matter` must be at most 1, for a flat universe; got {self.matter!r}.")

    def expansion(self, a: Scalars) -> Float[Array, "*a"]:
        """Return the Hubble rate H(a) / H(1)."""
        a, matter = self._in_one_dtype(a)
        return jnp.sqrt(matter / a**3 + (1 - matter))

    def growth(self, a: Scalars) -> Float[Array, "*a"]:
        """Return the linear growth factor D(a), normalised to D(1) = 1."""
        a, _ = self._in_one_dtype(a)
        return a * self._growth_per_a(a) / self._growth_per_a(jnp.ones_like(a))

    def growth_rate(self, a: Scalars) -> Float[Array, "*a"]:
        """Return the linear growth rate `f = d ln D / d ln a`, which relates velocities to the density contrast."""
        a, matter = self._in_one_dtype(a)
        growth = self._growth_per_a(a)
        return (1 - 1.5 * matter * growth) / (growth * self._scaled_expansion(a) ** 2)

    def momentum_growth(self, a: Scalars) -> Float[Array, "*a"]:
        """Return the growth factor of the momenta a² dx/dt of small perturbations: `a³ dD/da H(a) / H(1)`."""
        a, matter = self._in_one_dtype(a)
        # The derivative of D = E(a) times an integral up to a.
        rate = (1 - 1.5 * matter * self._growth_per_a(a)) * a**1.5 / self._scaled_expansion(a)
        return rate / self._growth_per_a(jnp.ones_like(a))

    def _scaled_expansion(self, a: Array) -> Array:
        """Return the Hubble rate times a^1.5, which is finite at 0."""
        matter = jnp.asarray(self.matter, a.dtype)
        return jnp.sqrt(matter + (1 - matter) * a**3)

    def _growth_per_a(self, a: Array) -> Array:
        """Return the growth factor over a, normalised to `2/5 / matter` at early times."""
        matter = jnp.asarray(self.matter, a.dtype)
        points, weights = (jnp.asarray(x, a.dtype) for x in (POINTS, WEIGHTS))
        # The integral of (a E)⁻³ from 0 to a. It bends where matter and Λ are equal, at the scale factor a / c. With
        # points at a w, where w = v² / (1 + c (1 - v²)), the integrand is smooth in v for all c. The integral does not
        # depend on its points, so c needs no derivative: that of the root is infinite without Λ.
        c = lax.stop_gradient(a * jnp.cbrt(jnp.maximum(1 - matter, 0) / matter))
        v = jnp.expand_dims(points, tuple(range(1, a.ndim + 1)))
        q = 1 + c[None] * (1 - v**2)
        terms = 2 * v**4 * (1 + c[None]) * q**-3.5 * (matter + (1 - matter) * (a[None] * v**2 / q) ** 3) ** -1.5
        return self._scaled_expansion(a) * jnp.tensordot(weights, terms, 1, precision=lax.Precision.HIGHEST)

    def _in_one_dtype(self, a: Scalars) -> tuple[Array, Array]:
        a = jnp.asarray(a)
        a = a if jnp.issubdtype(a.dtype, jnp.floating) else a.astype(jnp.result_type(float))
        a = a.astype(jnp.float32) if a.dtype.itemsize < 4 else a  # a**3 would leave the range of half precision.
        return a, jnp.asarray(self.matter, a.dtype)
