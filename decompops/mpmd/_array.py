"""Arrays that exist in some groups of devices only."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec

from ._mesh import MpmdSharding, check_divides


class MpmdArray:
    """An array that exists in one group of devices, or as a copy in each of several.

    It is *partially addressable*: a process outside these groups has none of its data, but knows its shape, dtype and
    place, so that all processes can run the same script.

    **Arguments:**

    - `arrays`: this process's `jax.Array`s: in a run of several processes one, or none outside the groups; in a run of
        one process one for each group. Each lies on its group's mesh, as `sharding` says.
    - `sharding`: the groups, and how each divides the array: an [`MpmdSharding`][decompops.mpmd.MpmdSharding].
    - `shape`, `dtype`: needed where this process has no array.

    As a PyTree it is its local array, so that `jax.jit`, `jax.grad` and their like take it where there is just one.
    Where there is none, or one for each of several groups, it is its `aval`: `jax.eval_shape`, `jax.make_jaxpr` and
    `jax.tree.map` take it everywhere, and `jax.jit` refuses to run on it.

    **Raises** `ValueError` for an array on another mesh, two for one group, a missing one, and for shapes, dtypes or
    specs that differ. Using its values after `delete`, or outside its groups, raises `RuntimeError`.
    """

    def __init__(
        self,
        arrays: Sequence[jax.Array],
        sharding: MpmdSharding,
        shape: Sequence[int] | None = None,
        dtype: Any = None,
    ):
        if not isinstance(sharding, MpmdSharding):
            raise TypeError(f"`sharding` must be an MpmdSharding; got {type(sharding).__name__}.")
        if not isinstance(arrays, list | tuple):
            raise TypeError(f"`arrays` must be a list of arrays; got {type(arrays).__name__}.")
        mpmd_mesh = sharding.mpmd_mesh
        idxs = sharding.mesh_ids
        found: dict[int, jax.Array] = {}
        for number, array in enumerate(arrays):
            where = f"`arrays[{number}]`"
            if isinstance(array, Tracer) or not isinstance(array, jax.Array):
                raise TypeError(f"{where} must be a jax.Array with values; got {type(array).__name__}.")
            if not isinstance(array.sharding, NamedSharding):
                raise TypeError(f"{where} must have a NamedSharding; got {array.sharding}.")
            if array.is_deleted():
                raise RuntimeError(f"{where} has been deleted.")
            if array.sharding.mesh not in mpmd_mesh.groups:
                raise ValueError(f"{where} must lie on the mesh of a group of {mpmd_mesh}; got {array.sharding}.")
            idx = mpmd_mesh.mpmd_idx(array.sharding.mesh)
            if idx not in idxs:
                raise ValueError(f"{where} must lie in one of the groups {idxs}; got group {idx}.")
            if idx in found:
                raise ValueError(f"`arrays` must hold one array for a group; got two for group {idx}.")
            if not array.sharding.is_equivalent_to(sharding.group_sharding(idx), array.ndim):
                raise ValueError(
                    f"{where} must be divided as `sharding` says, by {sharding.spec}; got {array.sharding.spec}."
                )
            found[idx] = array
        local = tuple(idx for idx in idxs if idx in mpmd_mesh.local_mpmd_idxs)
        missing = [idx for idx in local if idx not in found]
        if missing:
            raise ValueError(f"`arrays` must hold this process's arrays of the groups {local}; got none for {missing}.")
        known = [(array.shape, array.dtype) for array in found.values()]
        if not known and (shape is None or dtype is None):
            raise ValueError("`shape` and `dtype` must be given where `arrays` is empty.")
        self._shape = known[0][0] if shape is None else tuple(shape)
        self._dtype = known[0][1] if dtype is None else jax.dtypes.canonicalize_dtype(dtype)
        for other_shape, other_dtype in known:
            if (other_shape, other_dtype) != (self._shape, self._dtype):
                raise ValueError(
                    f"`arrays` must have the shape {self._shape} and dtype {self._dtype}; "
                    f"got {other_shape} and {other_dtype}."
                )
        check_divides("sharding", sharding.sharding, self._shape)
        self._arrays = {idx: found[idx] for idx in sorted(found)}
        self._deleted = False
        self._mpmd_sharding = sharding

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole array."""
        return self._shape

    @property
    def dtype(self) -> np.dtype:
        """The dtype."""
        return self._dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._shape)

    @property
    def aval(self) -> jax.ShapeDtypeStruct:
        """Its shape, dtype and sharding on the mesh of its first group: what JAX traces functions of it with."""
        sharding = self._mpmd_sharding.group_sharding(self.mpmd_idxs[0])
        return jax.ShapeDtypeStruct(self._shape, self._dtype, sharding=sharding)

    @property
    def spec(self) -> PartitionSpec:
        """How a group divides it among its devices."""
        return self._mpmd_sharding.spec

    @property
    def mpmd_sharding(self) -> MpmdSharding:
        """Its groups, and how they divide it."""
        return self._mpmd_sharding

    @property
    def sharding(self) -> NamedSharding:
        """Its sharding over the devices of all its groups."""
        return self._mpmd_sharding.sharding

    @property
    def mpmd_idxs(self) -> tuple[int, ...]:
        """The groups that have it."""
        return self._mpmd_sharding.mesh_ids

    @property
    def is_mpmd_replicated(self) -> bool:
        """Whether several groups have it."""
        return len(self.mpmd_idxs) > 1

    @property
    def is_partially_addressable(self) -> bool:
        """Whether this process has a part of it."""
        return bool(self._arrays)

    @property
    def local_arrays(self) -> dict[int, jax.Array]:
        """This process's arrays, by group, each on its group's mesh. Empty outside the groups."""
        if self.is_deleted():
            raise RuntimeError(f"{self!r} has been deleted: it was consumed, or `delete` was called.")
        return dict(self._arrays)

    @property
    def to_mpmd_local_array(self) -> jax.Array | list[jax.Array] | None:
        """This process's array, on its group's mesh. `None` outside the groups.

        A list, by group, where one process has several of its groups.
        """
        arrays = list(self.local_arrays.values())
        return arrays if len(arrays) > 1 else arrays[0] if arrays else None

    @property
    def first_mpmd_replica(self) -> jax.Array | None:
        """The array of its first group, where this process belongs to that; else `None`."""
        return self.local_arrays.get(self.mpmd_idxs[0])

    def block_until_ready(self) -> "MpmdArray":
        """Wait for this process's part."""
        for array in self.local_arrays.values():
            array.block_until_ready()
        return self

    def delete(self) -> None:
        """Free this process's part. Every process may call it, and cannot use the array any more."""
        self._deleted = True
        for array in self._arrays.values():
            array.delete()

    def is_deleted(self) -> bool:
        """Whether it has been freed, or consumed."""
        return self._deleted or any(array.is_deleted() for array in self._arrays.values())

    def __int__(self) -> int:
        return int(self._only())

    def __float__(self) -> float:
        return float(self._only())

    def __format__(self, spec: str) -> str:
        return format(self._only(), spec) if spec else repr(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._only(), dtype=dtype, copy=copy)

    def __jax_array__(self) -> jax.Array:
        return self._only()

    def __repr__(self) -> str:
        state = "deleted" if self.is_deleted() else "here" if self._arrays else "elsewhere"
        dtype = jax.numpy.dtype(self.dtype).name
        return f"MpmdArray({dtype}{list(self.shape)}, groups={list(self.mpmd_idxs)}, spec={self.spec}, {state})"

    def _only(self) -> jax.Array:
        """Its value, whichever group's."""
        arrays = self.local_arrays
        if not arrays:
            raise RuntimeError(
                f"{self!r} exists only in the groups {list(self.mpmd_idxs)}; "
                f"process {jax.process_index()} belongs to {list(self._mpmd_sharding.mpmd_mesh.local_mpmd_idxs)}."
            )
        return next(iter(arrays.values()))


class MpmdArrayElsewhere(jax.ShapeDtypeStruct):
    """The leaf of an `MpmdArray` outside its groups. JAX's errors name this class where they need values."""


class MpmdArrayInSeveralGroups(jax.ShapeDtypeStruct):
    """The leaf of an `MpmdArray` with several copies in this process: the user must take one of `local_arrays`."""


def _flatten(array: MpmdArray) -> tuple[tuple[jax.Array | jax.ShapeDtypeStruct, ...], None]:
    arrays = tuple(array._arrays.values())
    if len(arrays) == 1:
        return arrays, None
    kind = MpmdArrayInSeveralGroups if arrays else MpmdArrayElsewhere
    return (kind(array.shape, array.dtype, sharding=array.aval.sharding),), None


def _unflatten(_: None, arrays: Sequence[Any]) -> Any:
    """A function under `jax.jit` must see what it can compute with: so what is put together again is the array."""
    return arrays[0]


jax.tree_util.register_pytree_node(MpmdArray, _flatten, _unflatten)
