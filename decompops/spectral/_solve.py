"""Inverses of differential operators, and the projection onto divergence-free fields."""

import functools
import math
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jaxtyping import Inexact

from .._common.box import Number
from .._common.check import check_number
from .._operator.transform import AbstractTransform
from . import _vector
from ._check import check_fft
from ._elliptic import AbstractElliptic, AnyWalls, as_walls
from ._modes import Components
from ._operator import AbstractSpectralOperator


class Poisson(AbstractElliptic):
    """The solution u of Poisson's equation `∇²u = f`, with the boundary conditions of the bases of `fft` or of `walls`.

    Most bases set the boundary conditions: `Fourier` is periodic, `Cosine` has zero slopes at the walls, `Sine` zero
    values. Two bases along the first axis, x, leave the conditions at the two walls to `walls`, and set the
    discretisation between them:

    - `Cells`: fields hold the means over finite volumes. Second differences approximate `∂²/∂x²`, with errors of second
        order in the cell widths. For each mode along the walls, the operator solves one tridiagonal system.
    - `Chebyshev`: fields are polynomials, and `∂²/∂x²` is exact for them. For smooth solutions, errors fall faster than
        any power of the number of polynomials, down to rounding (Greengard, SIAM J. Numer. Anal. 28, 1991). For each
        mode along the walls, the operator computes two products with a matrix of nx² numbers.

    If the boundary conditions are periodic or Neumann along every axis, a solution exists only for an f with zero mean.
    With such boundary conditions, the operator ignores the mean of f, and the mean of u is zero. In both means, a point
    on a wall has half the weight of other points. Means over `Cells` and polynomials are means over the volume.

    !!! example

        ```python
        u = spectral.Poisson(fft)(f)
        bases = (dops.Cells.clustered(96, 2.0), dops.Fourier(), dops.Fourier(half=True))
        transform = dops.Transform(mesh, shape=(96, 128, 128), bases=bases, box=dops.Box((2.0, 6.0, 3.0)))
        pressure = spectral.Poisson(transform, "neumann")(f)
        ```

    **Arguments:**

    - `fft`: the transform, built with a `shape`; with `real=True` for real fields. With walls, it also needs a `box`,
        and the bases along the other axes must be `Fourier`, `Cosine`, `Sine` or `Points`.
    - `walls`: for `Cells` and `Chebyshev`, the condition at both walls or a pair of conditions: "dirichlet" for u = 0,
        "neumann" for `∂u/∂x = 0`. For nonzero values and slopes, call `solution`. `None` for other bases.

    **Returns** (when called): u, of the shape and dtype of f.

    **Raises:** `ValueError` if `walls` is unknown, missing, or given for other bases; if `fft` has walls and no `box`;
    if `Cells` or `Chebyshev` is the basis of an axis other than the first; or if `fft` keeps fewer than three Chebyshev
    polynomials.
    """

    fft: AbstractTransform
    walls: AnyWalls = eqx.field(static=True, converter=as_walls, default=None)

    @property
    def sign(self) -> int:
        return -1

    @property
    def constant(self) -> Number:
        return 0.0

    def without_walls(self, spectrum: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*spectrum"]:
        return _vector.inverse_laplacian(self.wavenumbers(spectrum), spectrum)


class InverseDivergence(AbstractSpectralOperator):
    """The curl-free vector field v with `∇·v = f`, for a periodic scalar f: `v = ∇ (∇²)⁻¹ f`.

    For example, v is a force and f its source, or v is a displacement and f a density. The mean of f is ignored, and
    the mean of v is zero. The result is the `Gradient` of `Poisson`. In a mode with a Nyquist wavenumber, `∇·v` is
    smaller than f: see "The Nyquist mode" in docs/spectral_operators.md.

    **Arguments:**

    - `fft`: the transform, built with a `shape`; with `real=True` for real fields.

    **Returns** (when called): v of shape `(*batch, 3, nx, ny, nz)`, for f of shape `(*batch, nx, ny, nz)`.
    """

    fft: AbstractTransform
    components: ClassVar[tuple[Components, Components]] = ("scalar", "vector")
    inverts: ClassVar[bool] = True

    def multiply(self, spectrum: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*result"]:
        return self.nabla(spectrum).gradient(_vector.inverse_laplacian(self.wavenumbers(spectrum), spectrum))


class InverseCurl(AbstractSpectralOperator):
    """The divergence-free vector field v with `∇×v = w`, for a periodic, divergence-free w: `v = -∇× (∇²)⁻¹ w`.

    For example, v is a velocity and w its vorticity (Biot and Savart), or v is a magnetic field and w its current. The
    mean of v is zero. In a mode with a Nyquist wavenumber, `∇×v` is smaller than w: see "The Nyquist mode" in
    docs/spectral_operators.md.

    **Arguments:**

    - `fft`: the transform, built with a `shape`; with `real=True` for real fields.

    **Returns** (when called): v of shape `(*batch, 3, nx, ny, nz)`, for w of the same shape. On a grid of two axes, w
    is a scalar of shape `(*batch, nx, ny)`, and v has shape `(*batch, 2, nx, ny)`.

    **Raises:** `ValueError` if the grid has neither two nor three axes.
    """

    fft: AbstractTransform
    components: ClassVar[tuple[Components, Components]] = ("axial", "vector")
    inverts: ClassVar[bool] = True

    def multiply(self, spectrum: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*result"]:
        return self.nabla(spectrum).curl_of_axial(-_vector.inverse_laplacian(self.wavenumbers(spectrum), spectrum))


class Helmholtz(AbstractElliptic):
    """The solution u of `(shift - ∇²) u = f`, with the boundary conditions of the bases of `fft` or of `walls`.

    With a positive `shift`, this is the screened (modified) Helmholtz equation. For example, an implicit diffusion step
    solves such an equation. With `shift = -κ²`, this is the Helmholtz equation `(∇² + κ²) u = -f`.

    **Arguments:**

    - `fft`, `walls`: the same as in `Poisson`.
    - `shift`: a real number, with the unit 1/length². It may be traced, so that JAX can differentiate with
        respect to it.

    **Returns** (when called): u, of the shape and dtype of f.

    **Raises:** the errors of `Poisson`. `TypeError` if `shift` is not one real number. `ValueError` if `shift` is a
    resonance: `-shift` is then the square of a wavenumber of the grid. Zero is a resonance if all axes are periodic or
    Neumann. Between `walls`, also `ValueError` if `shift` is negative, because the systems are solved without pivoting.
    A traced `shift` is not checked; where a traced zero is a resonance between `walls`, u has zero mean.
    """

    fft: AbstractTransform
    shift: Number
    walls: AnyWalls = eqx.field(static=True, converter=as_walls, default=None)

    def __check_init__(self):
        check_fft(self.fft)
        check_number("shift", self.shift, least=-math.inf if self.walls is None else 0)
        if any(isinstance(number, Tracer) for number in (self.shift, *self.fft.box_lengths)):
            return
        shift = float(self.shift)
        if _has_resonance(self.fft, shift) if self.walls is None else shift == 0 and self._has_constants:
            raise ValueError(
                "`shift` must not be minus the square of a wavenumber of the grid, because `shift - ∇²` then has no "
                f"inverse; got {self.shift!r}. For `shift=0`, use `Poisson`, which solves `∇²u = f`."
            )

    @property
    def sign(self) -> int:
        return 1

    @property
    def constant(self) -> Number:
        return self.shift

    def without_walls(self, spectrum: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*spectrum"]:
        squared = _vector.squared(self.wavenumbers(spectrum))
        return _vector.times(1 / (jnp.asarray(self.shift, squared.dtype) + squared), spectrum)


class LerayProjection(AbstractSpectralOperator):
    """The divergence-free part of a vector field: `v - ∇ (∇·∇)⁻¹ ∇·v`.

    This is the orthogonal projection onto the fields whose `Divergence` is zero. The mean is divergence-free, so the
    projection keeps it. A Nyquist wavenumber counts as zero. So the projection does not change the x component of a
    mode that is a Nyquist mode along x. The same holds for the other axes.

    Between walls, component i has the modes that the derivative of a scalar has along axis i. The projection removes
    other modes: the mean of component i along axis i if the basis of scalars is `Sine(2)`, the Nyquist mode
    if it is `Cosine(2)`, and values at the walls if it is `Cosine(1)`.

    **Arguments:**

    - `fft`: the transform, built with a `shape`; with `real=True` for real fields.

    **Returns** (when called): a vector field of the shape and dtype of v, such as `(*batch, 3, nx, ny, nz)`.
    """

    fft: AbstractTransform
    components: ClassVar[tuple[Components, Components]] = ("vector", "vector")
    removes_wall_values: ClassVar[bool] = True

    def multiply(self, spectrum: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*spectrum"]:
        return self.nabla(spectrum).projection(spectrum)


def _has_resonance(fft: AbstractTransform, shift: float) -> bool:
    if shift > 0:
        return False
    shape = fft.modes or check_fft(fft)
    along = zip(fft.bases, shape, map(float, fft.box_lengths))
    squares = [np.unique((basis.wavenumbers(n) / length) ** 2) for basis, n, length in along]
    *others, last = squares
    sums = functools.reduce(lambda sums, more: np.unique(np.add.outer(sums, more)), others, np.zeros(1))
    needed = -shift - sums[sums <= -shift * (1 + 1e-12)]  # the squares along the last axis that cause a resonance
    nearest = last[np.minimum(np.searchsorted(last, needed - 1e-12 * -shift), len(last) - 1)]
    return bool((np.abs(nearest - needed) <= 1e-12 * -shift).any())
