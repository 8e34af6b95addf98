"""Values at walls that the basis of a component cannot represent, because it is zero there."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from .._common.broadcast import along
from .._common.remember import remembered
from .._operator.transform import AbstractTransform
from . import _vector
from ._check import check_fft
from ._modes import SlopeAxes, wall_axes


# Values of a component on a wall: the number of the component, the axis that ends at the wall (negative, counted from
# the end), and the place on this axis.
Place = tuple[int, int, int]


@remembered
def lost_places(fft: AbstractTransform, slopes: SlopeAxes) -> tuple[Place, ...]:
    """Return the points on walls where components are lost that are slopes along the axes `slopes`."""
    shape = check_fft(fft)
    points = {axis: fft.bases[axis].points(shape[axis]) for axis in wall_axes(fft)}
    on_walls = {axis: [i for i in (0, -1) if x[i] in (0, 1)] for axis, x in points.items()}
    return tuple(
        (component, axis - len(shape), i % shape[axis])
        for component, axes in enumerate(slopes)
        for axis in axes
        for i in on_walls.get(axis, ())
    )


def slip(fields: Any, ndim: int, places: tuple[Place, ...], moving: Any = None) -> float:
    """Return how far values of fields at walls are from zero and, if they are given, from the values `moving`.

    For each value, the nearer one counts. `moving` has one number for each of `places`. The result is zero for
    differences at the level of rounding, and for traced values.
    """
    known = isinstance(fields, Array | np.ndarray) and not isinstance(fields, Tracer)
    if not known or not places or not fields.size:
        return 0.0
    values = jnp.zeros(len(places)) if moving is None else moving  # In a function that JAX traces, both are tracers.
    if isinstance(values, Tracer):
        return 0.0
    dtype = np.result_type(fields.dtype, np.float32)
    values = np.asarray(values, dtype)
    if isinstance(fields, np.ndarray):  # A large array of the host does not go to one device.
        count = max(component for component, _, _ in places) + 1
        parts = [fields[(..., i, *[slice(None)] * ndim)].astype(dtype) for i in range(count)]
        gap, size = _slip(np, parts, places, values)
    else:
        gap, size = _slip_on_devices(fields, ndim, places, values)
    return float(gap) if gap > np.sqrt(np.finfo(dtype).eps) * size else 0.0


@eqx.filter_jit
def _slip_on_devices(fields: Array, ndim: int, places: tuple[Place, ...], values: Any) -> tuple[Array, Array]:
    parts = _vector.components(fields, ndim)
    return _slip(jnp, [part.astype(values.dtype) for part in parts], places, values)


def _slip(xp: Any, parts: list[Any], places: tuple[Place, ...], values: Any) -> tuple[Any, Any]:
    """Return the largest slip, and the largest value of the components in `places`. `xp` is NumPy or `jax.numpy`."""
    gaps, sizes = [], []
    for (component, axis, place), value in zip(places, values):
        part = parts[component]
        there = along(np.arange(part.shape[axis]), axis, part.ndim) == place
        gaps.append(xp.max(xp.where(there, xp.minimum(abs(part), abs(part - value)), 0)))
        sizes.append(xp.max(abs(part)))
    return xp.max(xp.stack(gaps)), xp.max(xp.stack(sizes))
