"""`CFL` and `ErrorControl` choose the lengths of the steps of a simulation."""

import abc
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Inexact

from .._common.box import Number
from .._common.broadcast import along
from .._common.check import brief, check_number
from ..spectral import _vector
from ._equation import Time
from ._integrator import AbstractIntegrator, scaled


class AbstractStepControl(eqx.Module):
    """A rule for the lengths of the steps of a one-step method, such as `ETDRK`."""

    @abc.abstractmethod
    def step(
        self, solver: AbstractIntegrator, t: Time, u: Inexact[Array, "*state"], h: Number, most: Number, args: Any
    ) -> tuple[Inexact[Array, "*state"], Array, Array]:
        """Try a step from the state `u` at the time `t`. The length of the step is at most `most`.

        `h` is the length that the previous step proposed. Returns the new state, the length of the step, and a proposal
        for the length of the next step. If the step is rejected, the returned length is zero.
        """


class CFL(AbstractStepControl):
    """Steps whose Courant number is fixed: `h = number / max(sum_i |u_i| / Δx_i)` for the velocity u on the grid.

    See Courant, Friedrichs & Lewy, Math. Ann. 100, 1928. `Δx_i` is the distance between neighbouring points along axis
    i. Along an axis between walls, `Δx_i` varies from point to point.

    **Arguments:**

    - `number`: the Courant number. The largest stable number depends on the method; 0.5 to 1 is usual for orders 3 and
        4.
    - `largest`: the length of the longest step.
    - `velocity`: a function from a state to the velocity on the grid, `(*batch, ndim, nx, ny, nz)`. The default is
        `equation.speeds`: the velocity of a flow, and the sum of the velocity and the speed of waves in
        `Magnetohydrodynamics` and `ShallowWater`.

    **Raises:** `ValueError` if `number` or `largest` is not positive, `TypeError` if one is not a real number, or if
    `velocity` is not a function. A simulation raises `ValueError` if `velocity` is not given and the state of the
    equation has no velocity, or if the result of `velocity` has another shape.
    """

    number: float = 0.5
    largest: float = eqx.field(default=math.inf, kw_only=True)
    velocity: Callable | None = eqx.field(default=None, kw_only=True)

    def __check_init__(self):
        check_number("number", self.number, positive=True)
        if not (self.velocity is None or callable(self.velocity)):
            raise TypeError(f"`velocity` must be a function, or None; got {brief(self.velocity)}.")
        _check_largest(self.largest)

    def step(
        self, solver: AbstractIntegrator, t: Time, u: Inexact[Array, "*state"], h: Number, most: Number, args: Any
    ) -> tuple[Inexact[Array, "*state"], Array, Array]:
        h = jnp.minimum(jnp.minimum(self.limit(solver, u), self.largest), most).astype(u.real.dtype)
        return with_dt(solver, h).step(t, u, args), h, h

    def limit(self, solver: AbstractIntegrator, u: Inexact[Array, "*state"]) -> Float[Array, ""]:
        """Return the length of a step from the state `u`, without the limit `largest`.

        For u = 0, this length is infinite.
        """
        equation: Any = solver.equation
        transform, ndim = equation.transform, equation.transform.decomposition.ndim
        fields = equation.speeds(u) if self.velocity is None else self.velocity(u)
        if fields is None:
            raise ValueError(
                f"`velocity` must be given for `{type(equation).__name__}`, whose state has no velocity; got None. "
                "Pass `CFL(velocity=...)`, a function from a state to the velocity on the grid."
            )
        if self.velocity is not None:
            fields = _checked_velocity(fields, transform)
        sizes = transform.box_lengths
        shape, stored = transform.decomposition.shape, transform.in_layout.shape
        rate: Any = 0.0
        for axis, part in enumerate(_vector.components(fields, ndim)[:ndim]):
            spacing = _spacing(transform.bases[axis].points(shape[axis]), stored[axis])
            width = jnp.asarray(along(spacing, axis - ndim, part.ndim), part.dtype)
            rate = rate + jnp.abs(part) / (width * _vector.cast(sizes[axis], part))
        return self.number / jnp.max(transform.in_layout.max(rate))


class ErrorControl(AbstractStepControl):
    """Steps whose estimated error stays within a tolerance, by step doubling (Hairer, Nørsett & Wanner, 1993, II.4).

    Each step is computed twice: as one step, and as two steps of half the length. The difference of the results,
    divided by `2**order - 1`, is the estimated error of the second result. If the error is at most `atol + rtol * |u|`,
    the second result is the new state. Otherwise the step is rejected, and a shorter step is tried. |u| is the 2-norm
    of the old state or of the second result, whichever is larger.

    **Arguments:**

    - `rtol`: the relative tolerance of a step, a nonnegative number.
    - `atol`: the absolute tolerance of a step in the 2-norm of the state, a nonnegative number.
    - `largest`: the length of the longest step.

    **Raises:** `ValueError` if a tolerance is negative, if both tolerances are zero, or if `largest` is not positive;
    `TypeError` if an argument is not a real number.
    """

    rtol: float = 1e-5
    atol: float = eqx.field(default=0.0, kw_only=True)
    largest: float = eqx.field(default=math.inf, kw_only=True)

    def __check_init__(self):
        check_number("rtol", self.rtol, least=0)
        check_number("atol", self.atol, least=0)
        _check_largest(self.largest)
        if not float(self.rtol) + float(self.atol) > 0:
            raise ValueError(f"`rtol` or `atol` must be positive; got `rtol={self.rtol}` and `atol={self.atol}`.")

    def step(
        self, solver: AbstractIntegrator, t: Time, u: Inexact[Array, "*state"], h: Number, most: Number, args: Any
    ) -> tuple[Inexact[Array, "*state"], Array, Array]:
        order = solver.order
        h = jnp.minimum(jnp.minimum(h, self.largest), most)
        whole, half = with_dt(solver, h), with_dt(solver, h / 2)
        new = half.step(t + h / 2, half.step(t, u, args), args)
        layout = solver.in_structure.layout
        # Norms relative to the largest number, because the squares of small or large numbers are zero or infinite.
        size = jnp.max(layout.max(jnp.maximum(jnp.abs(u), jnp.abs(new))))
        inverse = 1 / jnp.maximum(size, jnp.finfo(size.dtype).tiny)
        norm = lambda x: jnp.sqrt(jnp.sum(layout.norm(scaled(inverse, x)) ** 2))
        error = norm(new - whole.step(t, u, args)) / (2**order - 1)
        ratio = error / (self.atol * inverse + self.rtol * jnp.maximum(norm(u), norm(new)))
        ratio = jnp.where(error == 0, 0, ratio)  # Where the state is zero, a relative tolerance is zero, too.
        # If the ratio is NaN, the step is rejected, and the next step is shorter.
        factor = jnp.clip(0.9 * jnp.maximum(ratio, 1e-10) ** (-1 / (order + 1)), 0.2, 5.0)
        factor = jnp.where(jnp.isfinite(ratio), factor, 0.2)
        taken = ratio <= 1
        return new, jnp.where(taken, h, 0), h * factor


def with_dt(solver: AbstractIntegrator, dt: Number) -> AbstractIntegrator:
    """Return the same integrator with the time step `dt`."""
    return eqx.tree_at(lambda solver: solver.dt, solver, dt)


def _check_largest(largest: Any) -> None:
    """Raise `ValueError` or `TypeError` unless `largest` is a positive number or infinite."""
    if not (isinstance(largest, float) and largest == math.inf):
        check_number("largest", largest, positive=True)


def _checked_velocity(fields: Any, transform: Any) -> Array:
    """Return the result of a user's `velocity`, or raise `ValueError` if it is not a velocity on the grid."""
    wanted = (transform.decomposition.ndim, *transform.in_layout.shape)
    if getattr(fields, "shape", ())[-len(wanted) :] != wanted:
        got = f"shape {fields.shape}" if hasattr(fields, "shape") else repr(fields)
        raise ValueError(
            f"`velocity` must return an array of shape (*batch, {', '.join(map(str, wanted))}), the velocity on the "
            f"grid; got {got}."
        )
    return fields


def _spacing(points: np.ndarray, stored: int) -> np.ndarray:
    """Return the distance of each point to its nearest neighbour, or a single number if all distances are equal.

    For points in the padding, the distance is one.
    """
    gaps = np.diff(points) if len(points) > 1 else np.ones(1)
    if np.allclose(gaps, gaps[0], rtol=1e-9, atol=0):
        return gaps[:1]
    nearest = np.minimum(np.append(gaps, gaps[-1]), np.insert(gaps, 0, gaps[0]))
    return np.pad(nearest, (0, stored - len(points)), constant_values=1.0)
