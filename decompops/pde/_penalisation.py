"""Bodies in a flow, by volume penalisation."""

import functools
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Inexact

from .._common.box import Number
from .._common.broadcast import aligned
from .._common.check import as_tuples, brief, check_choice, check_number
from .._common.host import device_array
from .._operator.placed import Placed
from .._operator.transform import AbstractTransform
from ..spectral import _vector
from ..spectral._check import check_fft, varying_axes
from ..spectral._dealiasing import AbstractDealiasing, Truncate, check_dealiasing
from ..spectral._modes import slope_axes
from ._equation import Time
from ._forcing import check_term_state
from ._products import AbstractProducts


# With masks `(1 - tanh(2 d / δ)) / 2` of this thickness δ, in units of √(ν η), a flow along a wall is the flow along a
# wall at d = 0: Hester, Vasil & Burns (2021), section 4.
THICKNESS = 2.6482282


class Penalisation(AbstractProducts):
    """A body in a flow, by volume penalisation: the force `-χ (u - v) / η` on a velocity u.

    The mask χ is one in the body and zero outside. The flow fills the whole box, and in the body it relaxes to the
    velocity v of the body within the short time η. Pass the term as the argument `forcing` of `NavierStokes`. Each
    evaluation takes two batched transforms. Several bodies are one body, whose distance is the smallest of theirs.

    The boundary is smooth, over about `width` cells. With `viscosity`, η is chosen such that the flow outside is that
    around a body with a sharp boundary. If `width` is at least 1.5, the grid resolves the boundary, and the error is of
    second order in the spacing. With the default, the error is smaller on coarse grids, but falls about like the
    spacing, and changes with the place of the boundary between points. Between two walls, both are equally accurate at
    about 32 cells. By default, η is about `h² / (14 ν)` for the largest spacing h, so explicit methods allow time steps
    up to about `0.15 h² / ν`.

    !!! example

        ```python
        sphere = lambda x, y, z: jnp.sqrt((x - 2) ** 2 + (y - 3) ** 2 + (z - 3) ** 2) - 0.5
        body = pde.Penalisation(fft, sphere, viscosity=0.01)
        equation = pde.NavierStokes(fft, 0.01, forcing=body)
        drag, *lift = body.force(equation.state(velocity))
        ```

    A body that moves is a function `(t, u, args)` that builds the term at the time t, and calls it.

    The same term damps waves and wakes before they leave a periodic box and enter it again: `body` is then a field
    between zero and one, `value` the velocity far away, and `time` the time in which the flow relaxes to it.

    **Arguments:**

    - `fft`, `dealiasing`: the same as the arguments of the equation.
    - `body`: the signed distance from the boundary, negative inside: a function of the coordinates `(x, y, z)`, arrays
        that broadcast against a field. It may be an `equinox.Module` with parameters, so that JAX can differentiate
        with respect to the shape. A root has no derivative at zero, such as at the centre of a sphere: there, write
        `jnp.sqrt(jnp.maximum(square, 1e-30))`. Or the mask itself, a field on the grid of `products`.
    - `viscosity`: ν of the equation, a positive number.
    - `time`: η, a positive number, in place of `viscosity`.
    - `value`: v, one number for each component, or a function of the coordinates that returns one number or array for
        each. The default is a body at rest.
    - `width`: the thickness of the boundary in cells of the grid of `products`, a positive number. The cells count by
        their longest side. It has no meaning if `body` is a mask.
    - `components`: "vector" for a velocity; "scalar" for a scalar such as a temperature, with one entry in `value`.

    All numbers may be traced.

    **Raises:** the errors of `AbstractEquation`; `TypeError` or `ValueError` unless exactly one of `viscosity` and
    `time` is given, for numbers that are not positive, for a `value` with another number of components, and for a mask
    with another shape than fields on the grid of `products`.

    Source: Angot, Bruneau & Fabrie, Numer. Math. 81 (1999); Hester, Vasil & Burns, J. Comput. Phys. 430 (2021).
    """

    fft: AbstractTransform
    body: Callable[..., Array] | Float[Array | np.ndarray, "*grid"]
    viscosity: Number | None = eqx.field(kw_only=True, default=None)
    time: Number | None = eqx.field(kw_only=True, default=None)
    value: tuple[Number, ...] | Callable | None = eqx.field(kw_only=True, default=None)
    width: Number = eqx.field(kw_only=True, default=0.7)
    components: Literal["vector", "scalar"] = eqx.field(kw_only=True, default="vector", static=True)
    dealiasing: AbstractDealiasing | None = eqx.field(kw_only=True, default=Truncate(), static=True)

    def __check_init__(self):
        check_dealiasing("dealiasing", self.dealiasing)
        check_fft(self.fft)
        check_choice("components", self.components, ("vector", "scalar"))
        if (self.viscosity is None) == (self.time is None):
            raise ValueError(
                f"`viscosity` or `time` must be given, and not both; got {self.viscosity!r} and {self.time!r}."
            )
        for name in ("viscosity", "time", "width"):
            value = getattr(self, name)
            if value is not None:
                check_number(name, value, positive=True)
        if not (self.value is None or callable(self.value)):
            self._check_value(self.value, "be a tuple of {} numbers, or a function")
            for number in self.value:
                check_number("value", number)
        if not callable(self.body):
            if not np.ndim(self.body):  # This is no mask, but an object such as a `finite_volume.Body`.
                raise TypeError(f"`body` must be a function of the coordinates, or a mask; got {self.body!r}.")
            self.products.in_layout.check(self.body, "body")
            if jnp.iscomplexobj(self.body):
                raise TypeError(f"`body` must be real, a mask between zero and one; got {self.body.dtype}.")

    def mask(self, dtype: Any = None) -> Float[Array, "*grid"]:
        """Return the mask χ, a field on the grid of `products`."""
        if callable(self.body):
            distance = self._distance(self.products.coordinates(dtype=dtype))
            mask = self._whole((1 - jnp.tanh(2 * distance / self._thickness(distance))) / 2)
        else:
            mask = Placed(self.products.decomposition)(device_array(self.body, "body"))
        return mask if dtype is None else mask.astype(dtype)

    def __call__(self, t: Time, u: Inexact[Array, "*spectrum"], args: Any = None) -> Inexact[Array, "*spectrum"]:
        check_term_state(self, u)
        return -self.from_grid(self._pull(u), self._slopes)

    def force(self, u: Inexact[Array, "*spectrum"]) -> Float[Array, "*components"]:
        """Return the force of the flow on the body: the integral of `χ (u - v) / η` over the box.

        The density of the fluid is one. If v changes with time, the body also needs a force for the fluid inside it.

        **Arguments:** `u`, a state of the equation.

        **Returns:** an array of shape `(*batch, components)`, or `(*batch,)` for a scalar.
        """
        check_term_state(self, u)
        return self._integral(self._pull(u))

    def torque(self, u: Inexact[Array, "*spectrum"], about: tuple[Number, ...]) -> Float[Array, "*components"]:
        """Return the torque of the flow on the body about a point.

        The arms are differences of coordinates in the box. So the body must not cross an end of the box.

        **Arguments:**

        - `u`: a state of the equation.
        - `about`: the coordinates of the point.

        **Returns:** an array of shape `(*batch, 3)`, or `(*batch,)` on a grid of two axes.

        **Raises:** `ValueError` if the grid does not have two or three axes, or for a wrong number of coordinates.
        """
        check_term_state(self, u)
        ndim = self.fft.decomposition.ndim
        if self.components != "vector" or ndim not in (2, 3):
            raise ValueError(f"`fft` must transform a vector on two or three axes, for a torque; got {self.fft!r}.")
        about = as_tuples(about)
        if not isinstance(about, tuple) or len(about) != ndim:
            raise ValueError(f"`about` must be a tuple of {ndim} numbers; got {about!r}.")
        pull = _vector.components(self._pull(u), ndim)
        points = self.products.coordinates(dtype=pull[0].dtype)
        arms = [aligned(x - _vector.cast(origin, x), pull[0]) for x, origin in zip(points, about)]
        turn = lambda i, j: arms[i] * pull[j] - arms[j] * pull[i]
        return self._integral(turn(0, 1) if ndim == 2 else _vector.stack((turn(1, 2), turn(2, 0), turn(0, 1)), ndim))

    def _whole(self, values: Array) -> Array:
        """Return values that broadcast to the grid of products as a field on it."""
        shape = self.products.in_layout.shape
        return Placed(self.products.decomposition)(jnp.broadcast_to(values, (*values.shape[: -len(shape)], *shape)))

    def _distance(self, points: Any) -> Array:
        found, shape = self.body(*points), self.products.in_layout.shape  # pyright: ignore[reportCallIssue]
        try:
            distance = jnp.asarray(found)
            fits = jnp.broadcast_shapes(distance.shape[-len(shape) :], shape) == shape
        except (TypeError, ValueError):
            distance, fits = jnp.zeros(()), False
        if not fits or distance.dtype.kind in "bc":
            raise ValueError(
                "`body` must return the signed distance from the boundary, negative inside: a real number or array "
                f"that broadcasts to {shape}; got {brief(found)}."
            )
        return distance

    def _check_value(self, value: Any, rule: str) -> None:
        count = self.fft.decomposition.ndim if self.components == "vector" else 1
        if not isinstance(value, tuple) or len(value) != count:
            raise ValueError(f"`value` must {rule.format(count)}; got {value!r}.")

    @property
    def _slopes(self) -> tuple[tuple[int, ...], ...]:
        return slope_axes(self.components, self.fft.decomposition.ndim)

    def _thickness(self, like: Array) -> Array:
        grid = self.products
        lengths, shape = grid.box_lengths, grid.decomposition.shape
        cells = [_vector.cast(lengths[axis], like) / shape[axis] for axis in varying_axes(shape)]
        return _vector.cast(self.width, like) * functools.reduce(jnp.maximum, cells)

    def _pull(self, u: Array) -> Array:
        """Return `χ (u - v) / η` on the grid of products."""
        field, ndim = self.to_grid(u, self._slopes), self.fft.decomposition.ndim
        real = jnp.finfo(field.dtype).dtype
        mask, value = self.mask(real), self.value
        if callable(value):
            value = value(*self.products.coordinates(dtype=real))
            if isinstance(value, list) or getattr(value, "ndim", 0) > 0:
                value = tuple(value)
            self._check_value(value, "return a tuple of {} numbers or arrays")
        if value is not None:
            target = [self._whole(jnp.asarray(part, real)) for part in value]
            field = field - aligned(_vector.stack(target, ndim) if self.components == "vector" else target[0], field)
        return _vector.times(mask / self._time(mask), field)

    def _time(self, like: Array) -> Array:
        if self.time is not None:
            return _vector.cast(self.time, like)
        return (self._thickness(like) / THICKNESS) ** 2 / _vector.cast(self.viscosity, like)

    def _integral(self, field: Array) -> Array:
        """Return the integral of a field on the grid of products over the box."""
        mean = self.products.volume_mean(field)
        lengths = (_vector.cast(length, mean) for length in self.products.box_lengths)
        return functools.reduce(lambda product, length: product * length, lengths, mean)
