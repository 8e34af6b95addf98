"""Transforms as functions of arrays. This module finds how an array is sharded, and makes a plan for this sharding."""

import functools
import math
import operator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from .._backend.base import AbstractBackend, Call, Caller
from .._backend.xla.backend import XLA
from .._basis.base import AbstractBasis
from .._basis.points import Points
from .._common.blocks import flat_names
from .._common.compat import partitions
from .._common.host import check_no_keys, device_array
from .._common.placement import known, place as put
from .._common.sharding import array_spec, entries_of, explicit_spec, manual_axes, mesh_of
from .._common.typed import batch_in_type, plain
from .._core.config import resolve_backend
from .._core.primitive import apply, apply_on_one_device
from .._operator.transform import check_norm
from .._plan.plan import Plan
from .._plan.route import NoRouteError
from .._plan.whole import Entries, default_entries, undivided_axis, whole_array_plan


OutSharding = NamedSharding | PartitionSpec | None


@dataclass(frozen=True)
class Function:
    """The definition of one function of `dops.fft`.

    - `basis`, `last`: the basis of all transformed axes except the last one, and the basis of the last one.
    - `inverse`: whether the function maps coefficients to points.
    - `conjugated`: whether the matrix is complex conjugated, as in `hfft`. `norm` then scales the opposite direction.
    - `several`: whether the function has the arguments `axes` and `s` instead of `axis` and `n`.
    """

    name: str
    basis: AbstractBasis
    last: AbstractBasis
    inverse: bool = False
    conjugated: bool = False
    several: bool = False

    @property
    def is_half(self) -> bool:
        """Whether the function maps real numbers to their half spectrum, or back."""
        return self.last.kinds == ("real", "complex")


class Place(NamedTuple):
    """The mesh of an array, and the sharding of the array if it is known.

    - `sharding`: the sharding on the mesh, if the array is not traced.
    - `typed`: the Explicit mesh axes in the type of a traced array, if its mesh is known.
    - `manual`: the mesh axes that a surrounding `shard_map` maps over.
    """

    mesh: Mesh | AbstractMesh
    sharding: NamedSharding | None
    typed: PartitionSpec | None
    manual: frozenset[str]

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the mesh axes that may shard the array."""
        return {name: size for name, size in self.mesh.shape.items() if name not in self.manual}

    def dividing(self, entries: Entries) -> set[str]:
        """Return the mesh axes in `entries` that have several devices."""
        return {name for name in flat_names(entries) if self.sizes[name] > 1}

    def entries(self, shape: tuple[int, ...]) -> Entries | None:
        """Return the mesh axes that shard each axis of an array of `shape` at this place; `None` if not known."""
        if self.sharding is not None:
            same = dict(self.sharding.mesh.shape) == dict(self.mesh.shape)
            return entries_of(self.sharding, len(shape)) if same else None
        explicit = set(flat_names(explicit_spec(self.mesh, (self.mesh.axis_names,))))
        if self.typed is None or not explicit:
            return None
        auto = {name: size for name, size in self.sizes.items() if name not in explicit}
        return default_entries(shape, auto, partitions(self.typed))


def transform(
    function: Function,
    x: Any,
    lengths: Any,
    axes: Any,
    norm: Any,
    mesh: Mesh | AbstractMesh | None,
    out_sharding: OutSharding,
    backend: AbstractBackend | str | None,
) -> Array:
    """Apply `function` to an array, sharded or not. All other arguments are arguments of the public functions."""
    place = _place(function.name, x, mesh, out_sharding)
    x = as_array(x)
    backend = resolve_backend(backend, None if place is None else place.mesh)
    given = _hashable(lengths)
    given = (given,) if function.several and not isinstance(given, tuple | None) else given
    arguments = given, _hashable(axes), norm, out_sharding
    widest = jax.dtypes.canonicalize_dtype(np.float64)
    shape = x.shape
    if 0 in shape:
        x, shape = _filled(function, x, *arguments[:2], 1 if place is None else math.prod(place.sizes.values()))
    call, dtype = _call(function, shape, x.dtype, place, *arguments, backend, backend.caller(), widest)
    if shape != x.shape:
        return _empty(x.shape, shape, call, dtype, place)
    x = x if x.dtype == dtype else x.astype(dtype)
    return apply_on_one_device(call, x) if place is None else apply(call, x)


def _filled(function: Function, x: Array, lengths: Any, axes: Any, devices: int) -> tuple[Array, tuple[int, ...]]:
    """Pad transformed axes without elements with zeros, as NumPy does, if `lengths` are given.

    Also returns the shape with a batch that all devices divide in the place of an empty batch.
    """
    numbers = _axes(function, axes, lengths, x.ndim)
    if lengths is not None and any(x.shape[axis] == 0 for axis in numbers):
        points = _points(function, tuple(n or 1 for n in x.shape), numbers, lengths)
        x = jnp.zeros([n or points[axis] * (axis in numbers) for axis, n in enumerate(x.shape)], x.dtype)
    return x, tuple(n if axis in numbers else n or devices for axis, n in enumerate(x.shape))


def _empty(shape: tuple[int, ...], filled: tuple[int, ...], call: Call, dtype: np.dtype, place: Place | None) -> Array:
    """Return the result for an empty batch of a `shape`, sharded like the result for the shape `filled`."""
    target = call.plan.target
    lengths = tuple(0 if n < m else result for n, m, result in zip(shape, filled, target.shape))
    result = jnp.zeros(lengths, call.plan.result_dtype(dtype))
    return result if place is None else put(result, NamedSharding(call.mesh, array_spec(call.mesh, target.spec)))


def as_array(x: Any) -> Array:
    """Return a JAX or NumPy array as a JAX array. Raises `TypeError` for other objects."""
    if isinstance(x, Array):
        check_no_keys(x.dtype)
        return plain(x)
    if not isinstance(x, np.ndarray | np.generic):
        raise TypeError(f"`x` must be a JAX or NumPy array; got {type(x).__name__}. Pass `jnp.asarray(x)`.")
    return device_array(x)


def refuse_blocks(name: str, mesh: Mesh | AbstractMesh | None) -> None:
    """Raise `ValueError` inside a `shard_map` over the whole mesh, where only a block of the array is known."""
    manual = manual_axes()
    if manual and (mesh is None or manual.issuperset(mesh.axis_names)):
        raise ValueError(
            f"`x` must be a global array; got a block inside a `shard_map` over the whole mesh, {sorted(manual)}. Call "
            f"`dops.fft.{name}` outside of the `shard_map`. To transform each block by itself, call `jnp.fft.{name}`."
        )


def check_array_axes(name: str, axes: Any, ndim: int) -> tuple[int, ...]:
    """Return the numbers of array axes, counted from 0. Raises `ValueError` for invalid or repeated axes."""
    several = isinstance(axes, tuple)
    try:
        numbers = tuple(operator.index(axis) for axis in (axes if several else (axes,)))
    except TypeError:
        numbers = ()
    if not numbers or not all(-ndim <= axis < ndim for axis in numbers):
        rule = "axes of the array, each" if several else "an axis of the array,"
        raise ValueError(f"`{name}` must be {rule} from {-ndim} to {ndim - 1}; got {axes!r}.")
    if len({axis % ndim for axis in numbers}) < len(numbers):
        raise ValueError(f"`{name}` must be different axes of the array; got {axes!r}.")
    return tuple(axis % ndim for axis in numbers)


def _hashable(value: Any) -> Any:
    """Return one number or several as an int or a tuple of ints; other objects, which `_call` refuses, as they are."""
    value = value.tolist() if isinstance(value, np.ndarray) else value
    if isinstance(value, list | tuple | range):
        return tuple(map(_hashable, value))
    return _Refused(repr(value)) if isinstance(value, float | bool) else value


class _Refused(str):
    """The text of a number that is not an integer. In the key of a cache, 8.0 would equal 8."""

    __slots__ = ()
    __repr__ = str.__str__  # Errors print the number without quotes.


def _place(name: str, x: Any, mesh: Mesh | AbstractMesh | None, out_sharding: OutSharding) -> Place | None:
    """Return the `Place` of `x` on the first known mesh: `mesh`, the mesh of `x` or of `out_sharding`; else `None`."""
    if not isinstance(mesh, Mesh | AbstractMesh | None):
        raise TypeError(f"`mesh` must be a `jax.sharding.Mesh`; got {mesh!r}.")
    if not isinstance(out_sharding, OutSharding):
        raise TypeError(f"`out_sharding` must be a `PartitionSpec` or a `NamedSharding`; got {out_sharding!r}.")
    manual = manual_axes()
    value = x if manual or not isinstance(x, Array) else known(x)
    own = mesh_of(value)
    wanted = out_sharding.mesh if isinstance(out_sharding, NamedSharding) else None
    mesh = next((found for found in (mesh, own, wanted) if found is not None and not found.empty), None)
    refuse_blocks(name, mesh)
    sharding = None if isinstance(value, Tracer) else getattr(value, "sharding", None)
    if mesh is None:
        if out_sharding is not None:
            raise ValueError(
                f"`out_sharding` must be a `NamedSharding` if `x` is not on a mesh; got {out_sharding}. Pass a "
                "`NamedSharding`, or pass `mesh=mesh` as well."
            )
        if sharding is not None and not sharding.is_fully_replicated:
            raise ValueError(f"`x` must be on a mesh if it is sharded; got {sharding}. Pass `mesh=mesh`.")
        return None
    sharding = sharding if isinstance(sharding, NamedSharding) and not manual else None
    is_typed = isinstance(value, Tracer) and own is not None and dict(own.shape) == dict(mesh.shape)
    return Place(mesh, sharding, batch_in_type(x, 0) if is_typed else None, frozenset(manual))


@functools.lru_cache(maxsize=4096)  # Repeated eager calls need no new plan.
def _call(
    function: Function,
    shape: tuple[int, ...],
    dtype: np.dtype,
    place: Place | None,
    lengths: Any,
    axes: Any,
    norm: Any,
    out_sharding: OutSharding,
    backend: AbstractBackend,
    caller: Caller,
    widest: np.dtype,
) -> tuple[Call, np.dtype]:
    """Return the `Call` for a function, and the dtype to which `x` is cast."""
    del widest  # An argument only for the key of the cache, because the result depends on JAX's 64-bit mode.
    if not all(isinstance(n, int) for n in shape):  # `jax.export` allows symbols.
        raise ValueError(
            f"`x` must have lengths that are numbers; got shape {shape}. Map the function over axes whose lengths are "
            f"symbols: `jax.vmap(dops.fft.{function.name})(x)`."
        )
    if not shape or 0 in shape:
        raise ValueError(f"`x` must have at least one axis, and cells along each; got shape {shape}.")
    is_complex = bool(jnp.issubdtype(dtype, jnp.complexfloating))
    if function.is_half and not function.inverse and is_complex:
        raise TypeError(
            f"`x` must be real for `{function.name}`; got {dtype}. Pass `x.real`, or call "
            f"`{function.name.replace('ihfft', 'ifft').replace('rfft', 'fft')}`, which takes complex numbers."
        )
    numbers = _axes(function, axes, lengths, len(shape))
    points = _points(function, shape, numbers, lengths)
    bases: list[AbstractBasis] = [Points()] * len(shape)
    for axis in numbers:
        bases[axis] = function.last if axis == numbers[-1] else function.basis
    stored = tuple(basis.stored(n) for basis, n in zip(bases, points))
    # Functions such as `fft` first cast real input to complex numbers.
    is_complex = not function.is_half and (is_complex or function.last.kinds[1] == "complex")
    plan_on = functools.partial(
        whole_array_plan,
        function.name,
        tuple(bases),
        (points, points, shape) if function.inverse else (shape, points, stored),
        scale=_scale(function, norm, math.prod(bases[axis].inverse_scale(points[axis]) for axis in numbers)),
        is_complex=is_complex,
    )
    if place is None:
        undivided = (None,) * len(shape)
        plan, mesh, backend = plan_on((undivided, undivided), {}), AbstractMesh((1,), ("device",)), XLA()
    else:
        backend.check(place.mesh)
        result = points if function.inverse else stored
        plan, mesh = _plan_at(plan_on, function, place, shape, result, out_sharding), place.mesh
    plan = plan.inverse() if function.inverse else plan
    plan = plan.conjugate() if function.conjugated else plan
    return Call(plan, mesh, backend, caller=caller), plan.input_dtype(dtype)


def _axes(function: Function, axes: Any, lengths: Any, ndim: int) -> tuple[int, ...]:
    """Return the numbers of the axes to transform."""
    if not function.several:
        return check_array_axes("axis", axes, ndim)
    if axes is None:
        axes = tuple(range(-ndim if lengths is None else -len(lengths), 0))
    numbers = check_array_axes("axes", axes if isinstance(axes, tuple) else (axes,), ndim)
    if lengths is not None and len(lengths) != len(numbers):
        raise ValueError(f"`s` must have one length for each of `axes`, {axes}; got {lengths!r}.")
    return numbers


def _points(function: Function, shape: tuple[int, ...], axes: tuple[int, ...], lengths: Any) -> tuple[int, ...]:
    """Return the number of points along each array axis, in real space."""
    points = list(shape)
    name = "s" if function.several else "n"
    if function.is_half and function.inverse:
        points[axes[-1]] = 2 * (shape[axes[-1]] - 1)
    if lengths is not None:
        try:
            given = tuple(map(operator.index, lengths if function.several else (lengths,)))
        except TypeError:
            given = (0,)
        if min(given) < 1:
            rule = "positive integers" if function.several else "a positive integer"
            raise ValueError(f"`{name}` must be {rule}; got {lengths!r}.")
        for axis, n in zip(axes, given):
            points[axis] = n
    if min(points) < 1:
        raise ValueError(f"`{name}` must be given if a half spectrum has only one mode; got `x` of shape {shape}.")
    return tuple(points)


def _scale(function: Function, norm: Any, inverse: float) -> float:
    """Return the factor of the transform from points to coefficients. `inverse` is this factor for `norm="forward"`."""
    norm = check_norm(norm)
    if norm == "ortho":
        return math.sqrt(inverse)
    return inverse if (norm == "forward") != function.conjugated else 1.0


def _plan_at(
    plan_on: functools.partial[Plan],
    function: Function,
    place: Place,
    shape: tuple[int, ...],
    result: tuple[int, ...],
    out_sharding: OutSharding,
) -> Plan:
    """Return the plan from points to coefficients for an array at `place`."""
    given, wanted = place.entries(shape), _wanted(place, result, out_sharding)
    if given is not None and wanted is not None and (own := place.dividing(given)) != place.dividing(wanted):
        raise ValueError(
            f"`out_sharding` must use the same mesh axes as the sharding of `x`, {sorted(own)}; got "
            f"{PartitionSpec(*wanted)}. Reshard the result instead: `jax.sharding.reshard(y, out_sharding)`."
        )
    sizes = {name: n for name, n in place.sizes.items() if wanted is None or name in place.dividing(wanted)}
    if function.inverse:
        # If the sharding of the coefficients is not known, they are assumed to be sharded like the result of the
        # forward function.
        ends = wanted if given or wanted else default_entries(result, sizes), given
    else:
        ends = given or default_entries(shape, sizes), wanted
    try:
        return plan_on(ends, place.mesh.shape)
    except NoRouteError as error:
        spec = PartitionSpec(*(given or next(filter(None, ends))))
        help = "Shard `x` over fewer mesh axes, or choose lengths that more devices divide."
        if given is None:  # Sharding `x` in another way would change nothing here.
            help = (
                "This is the default layout, because the sharding of `x` is not known. Pass an `out_sharding` with "
                "fewer mesh axes, such as `jax.P()`."
            )
        elif len(shape) == 1:
            help = "Replicate an array of one axis, or stack several into one array of two axes."
        elif out_sharding is not None:
            help = "Leave out `out_sharding`, or shard `x` over fewer mesh axes."
        raise ValueError(
            f"`x` must be sharded so that `{function.name}` can make each transformed axis whole on a device, and the "
            f"devices divide the result; got shape {shape} sharded as {spec} on {place.sizes}, and a result of shape "
            f"{result}. {help}"
        ) from error


def _wanted(place: Place, result: tuple[int, ...], out_sharding: OutSharding) -> Entries | None:
    """Check `out_sharding`, and return the mesh axes that shard each axis of the result; `None` if it is not given."""
    if out_sharding is None:
        return None
    sizes = place.sizes
    spec = out_sharding.spec if isinstance(out_sharding, NamedSharding) else out_sharding
    if isinstance(out_sharding, NamedSharding) and dict(out_sharding.mesh.shape) != dict(place.mesh.shape):
        raise ValueError(
            f"`out_sharding` must be on the mesh of `x`, {dict(place.mesh.shape)}; got {dict(out_sharding.mesh.shape)}."
        )
    given = partitions(spec)
    names = [name for entry in given for name in (entry if isinstance(entry, tuple) else (entry,))]
    if not all(name is None or name in sizes for name in names) or len(given) > len(result):
        raise ValueError(
            f"`out_sharding` must have mesh axes from {tuple(sizes)} for the {len(result)} axes of the result; got "
            f"{spec}."
        )
    entries = (*given, *[None] * (len(result) - len(given)))
    axis = undivided_axis(result, entries, sizes)
    if axis is not None:
        raise ValueError(
            f"`out_sharding` must divide the result, of shape {result}; got {spec}, whose mesh axes {entries[axis]!r} "
            f"do not divide {result[axis]} cells along axis {axis}."
        )
    return entries
