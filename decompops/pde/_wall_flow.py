"""The common base of flows between two no-slip walls."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.core import Tracer
from jaxtyping import Inexact, Real, Shaped

from .._basis.chebyshev import Chebyshev
from .._basis.fourier import Fourier
from .._common.blocks import axis_names
from .._common.box import Number
from .._common.broadcast import aligned, along
from .._common.check import brief
from .._core.structure import Structure
from ..spectral import _vector
from ..spectral._chebyshev import Lines
from ..spectral._check import check_fft
from ..spectral._walls import slip
from ._equation import AbstractSplitEquation, Time, check_fields
from ._products import AbstractProducts
from ._stokes import WallModes
from ._wall_values import constant


# The velocities of both walls along y, or along each axis of the walls; or a function of time that returns them.
WallVelocity = Real[Array | np.ndarray, "2 *along"] | tuple[Number | tuple[Number, ...], ...] | Callable


class AbstractWallFlow(AbstractProducts, AbstractSplitEquation):
    """A flow between two no-slip walls normal to the first axis of the grid. It is periodic along the other axes.

    The axis right before the grid axes holds the components of a state: first the spectra of the velocity components,
    then the spectra of `scalars` more fields. The first axis of a spectrum is never sharded, so only transforms
    communicate.
    """

    first_basis = (Chebyshev,)
    scalars: ClassVar[int] = 0
    wall_velocity: ClassVar[WallVelocity | None] = None
    # The fields that may be functions of time.
    wall_values: ClassVar[tuple[str, ...]] = ("wall_velocity",)

    def __check_init__(self):
        shape = check_fft(self.fft, real=True)
        if len(shape) not in (2, 3):
            raise ValueError(f"`fft` must transform a grid of two or three axes; got {len(shape)} axes.")
        first, *others = zip(self.fft.bases, axis_names(len(shape)))
        for basis, name in others:
            if isinstance(basis, Chebyshev):
                raise ValueError(
                    f"`fft` must have its walls normal to {first[1]}, the only axis that is whole on each device in "
                    f"spectra; got {basis} along {name}. Make {name} the first axis of the grid."
                )
            if not isinstance(basis, Fourier):
                raise ValueError(f"`fft` must be periodic along {name}; got {basis}. Use `Fourier()` there.")
        if not isinstance(first[0], Chebyshev):
            raise ValueError(
                f"`fft` must have the basis `Chebyshev()` along {first[1]}; got {first[0]}. Build "
                "`fft` with `bases=(Chebyshev(), ...)`, and `Fourier()` or `Fourier(half=True)` along the other axes."
            )
        if self.transform.out_layout.blocks.shape[0] < 5:
            raise ValueError(
                f"`fft` must keep at least 5 modes along {first[1]}; got modes {self.transform.modes or shape}. Pass a "
                "larger `shape`."
            )
        if callable(self.wall_velocity):
            _check_wall_velocity(self.wall_velocity(jnp.zeros(())), len(shape))
        elif self.wall_velocity is not None:
            _check_wall_velocity(self.wall_velocity, len(shape))

    @property
    def ndim(self) -> int:
        """The number of axes of the grid, which is the number of velocity components."""
        return self.fft.decomposition.ndim

    @property
    def in_structure(self) -> Structure:
        return replace(self.transform.out_structure, components=(self.ndim + self.scalars,))

    def state(self, fields: Shaped[Array | np.ndarray, "*fields"]) -> Inexact[Array, "*spectrum"]:
        """Return the state for fields `(*batch, components, nx, ny, nz)`.

        **Raises:** `ValueError` for a wrong number of components, or if the fluid at a wall neither rests nor moves
        with the wall at the time zero. To start at another time, call `equation.at(t).state(fields)`. Traced
        fields, and fields without points at the walls, are not checked: their velocity at the walls becomes the
        velocity of the walls in the first implicit step.

        A force need not vanish at the walls: its spectrum is `equation.transform(fields)`.
        """
        check_fields(self, fields)
        n = check_fft(self.fft)[0]
        points = self.fft.bases[0].points(n)
        walls = self.at(jnp.zeros(())).wall_velocities(jnp.zeros(()))
        velocities = jnp.pad(walls, ((0, 0), (1, 0)))  # No fluid crosses a wall.
        on_walls = [place for place in (0, n - 1) if points[place] in (0, 1)]  # `Chebyshev(2)` has no points there.
        places = tuple((axis, -self.ndim, place) for place in on_walls for axis in range(self.ndim))
        if gap := slip(fields, self.ndim, places, velocities.ravel()):
            raise ValueError(
                "`fields` must have a velocity at each wall that is zero or the velocity of the wall; got a difference "
                f"of {gap:.3g}. The walls have the velocities {velocities.tolist()}. Pass `wall_velocity=...` to the "
                "equation, or change the first and the last plane of the velocity along x. For the spectrum of a "
                "force, call `equation.transform(fields)`."
            )
        return self.transform(fields)

    def at(self, t: Time) -> "AbstractWallFlow":
        """Return the equation with the wall values that it has at the time `t`: numbers in place of functions."""
        values = ((name, getattr(self, name)) for name in self.wall_values)
        moved = {name: value(t) for name, value in values if callable(value)}
        return replace(self, **moved) if moved else self

    def fields(self, u: Inexact[Array, "*spectrum"]) -> Shaped[Array, "*fields"]:
        return self.transform.inverse(u)

    def modes(self, u: Inexact[Array, "*spectrum"]) -> WallModes:
        """Return the `WallModes` of spectra with the shape and dtype of `u`."""
        _, *along = self.wavenumbers(u)
        slope = -2 / _vector.cast(self.fft.box_lengths[0], u)
        return WallModes(Lines(u.shape[-self.ndim], self.ndim), self.nabla(u), _vector.squared(tuple(along)), slope)

    def divergence(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*scalar"]:
        """Return the spectrum of the divergence of the velocity. In computed states, it is zero up to rounding."""
        self.check(u)
        return self.nabla(u).divergence(u)

    def wall_slopes(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*slopes"]:
        """Return the normal derivative `∂/∂x` of each component of a state, averaged over each wall.

        **Returns:** a real array of shape `(*batch, components, 2)`. Index 0 of the last axis is the wall at x = 0.
        """
        self.check(u)
        modes, one = self.modes(u), self.one(u)
        lines = modes.lines
        parts = _vector.times(modes.slope, lines.wall_slopes(lines.pairs(u)))
        even, odd = (lax.index_in_dim(parts, i, axis=lines.axis + 1, keepdims=False) for i in (0, 1))
        inverse = aligned(_vector.inverse(one), u)
        grid = tuple(range(-self.ndim, 0))
        return jnp.stack([jnp.sum(jnp.real(part * inverse), axis=grid) for part in (odd + even, odd - even)], axis=-1)

    def gradient_squares(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*squares"]:
        """Return the volume mean of `|∇c|²` for each component c of a state: a real array `(*batch, components)`.

        The sum over the velocity components, times the viscosity, is the dissipation rate of kinetic energy. The mean
        is computed on the grid of products by quadrature, so its accuracy depends on the resolution.
        """
        self.check(u)
        slopes = (self.nabla(u).rise(axis, u) for axis in range(self.ndim))
        return _vector.total(self.products.volume_mean(self.to_grid(slope) ** 2) for slope in slopes)

    def volume_means(self, u: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*means"]:
        """Return the volume mean of each component of a state: a real array of shape `(*batch, components)`."""
        self.check(u)
        k, inverse = np.arange(u.shape[-self.ndim]), aligned(_vector.inverse(self.one(u)), u)
        means = 1 / (1.0 - np.where(k % 2, 0, k) ** 2) * (k % 2 == 0)  # The mean of each Chebyshev polynomial.
        means = jnp.asarray(along(means, -self.ndim, u.ndim), jnp.finfo(u.dtype).dtype)
        return jnp.sum(jnp.real(_vector.times(means, u) * inverse), axis=tuple(range(-self.ndim, 0)))

    def plane_mean(self, fields: Shaped[Array, "*field"]) -> Shaped[Array, "*profile"]:
        """Return the mean of fields over each plane parallel to the walls, of shape `(*batch, nx)`.

        If the field is padded along x, the result is padded as well. Raises `ValueError` if the field does not lie on
        the grid of `fft`.
        """
        self.fft.in_layout.check(fields, "fields")
        shape = check_fft(self.fft)[1:]
        for axis, n in enumerate(shape, 1 - self.ndim):
            inside = along(jnp.arange(fields.shape[axis]), axis, fields.ndim) < n
            fields = jnp.where(inside, fields, 0)
        return jnp.sum(fields, axis=tuple(range(1 - self.ndim, 0))) / math.prod(shape)

    def along_y(
        self, column: Inexact[Array, "*column"], u: Inexact[Array, "*spectrum"]
    ) -> Inexact[Array, "*#spectrum"]:
        """Return the spectrum of a field along the second axis of the grid that depends on x only, for states like `u`.

        `column` is a constant field, or the Chebyshev coefficients of the field, of shape `(nx, 1, 1)`.
        """
        shape = u.shape[-self.ndim - 1 :]
        if column.ndim == 0:
            column = column * jnp.asarray(np.eye(1, shape[1]), column.dtype).reshape(-1, *[1] * (self.ndim - 1))
        second = np.eye(1, shape[0], 1).reshape(-1, *[1] * self.ndim)
        return jnp.asarray(second, u.dtype) * (column.astype(u.dtype) * self.one(u))[None]

    def wall_velocities(self, like: Inexact[Array, "*array"]) -> Real[Array, "2 along"]:
        """Return the velocities of both walls along each axis but the first, in the precision of `like`."""
        dtype = jnp.finfo(like.dtype).dtype
        if self.wall_velocity is None:
            return jnp.zeros((2, self.ndim - 1), dtype)
        velocity = jnp.asarray(constant("wall_velocity", self.wall_velocity), dtype)
        return velocity if velocity.ndim == 2 else jnp.pad(velocity[:, None], ((0, 0), (0, self.ndim - 2)))

    def moving_walls(self, like: Inexact[Array, "*spectrum"]) -> list[Array] | None:
        """Return the velocities of the walls as `stokes` takes them."""
        if self.wall_velocity is None:
            return None
        return [self.uniform_walls(bottom, top, like) for bottom, top in self.wall_velocities(like).T]

    def uniform_walls(self, bottom: Number, top: Number, like: Inexact[Array, "*spectrum"]) -> Array:
        """Return values that are constant on each wall as `implicit` takes them: half their sum and half difference."""
        bottom, top = _vector.cast(bottom, like), _vector.cast(top, like)
        halves = jnp.stack([bottom + top, bottom - top]) / 2
        return halves.astype(like.dtype).reshape(1, 2, *[1] * (self.ndim - 1)) * self.one(like)[None]

    def one(self, like: Inexact[Array, "*spectrum"]) -> Inexact[Array, "*#spectrum"]:
        """Return the coefficient of T_0 in the spectrum of the field 1, for each mode along the walls."""
        transform = self.transform
        inverse = math.prod(basis.inverse_scale(n) for basis, n in zip(transform.bases, check_fft(transform)))
        value = 0.5 if transform.norm == "forward" else 0.5 / inverse
        dtype = jnp.finfo(like.dtype).dtype
        _, *along = self.wavenumbers(like)
        stored = lax.slice_in_dim(transform.multiplicity(dtype=dtype), 0, 1, axis=0)  # It is zero in padding.
        return jnp.where((_vector.squared(tuple(along)) == 0) & (stored > 0), jnp.asarray(value, like.dtype), 0)


def _check_wall_velocity(value: Any, ndim: int) -> None:
    try:
        velocity = jnp.asarray(value)
    except (TypeError, ValueError):  # The tuples have different lengths, or hold other objects.
        velocity = jnp.zeros(())
    if velocity.shape not in ((2,), (2, ndim - 1)) or jnp.iscomplexobj(velocity):
        raise ValueError(
            f"`wall_velocity` must be two numbers, the velocities of the walls along y, or two tuples of {ndim - 1} "
            f"numbers, one for each axis along the walls; got {brief(value)}."
        )
    if not isinstance(velocity, Tracer) and not np.all(np.isfinite(velocity)):
        raise ValueError(f"`wall_velocity` must be finite; got {value!r}.")
