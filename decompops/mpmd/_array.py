"""Arrays that only some groups of devices have."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec

from ._mesh import MpmdSharding, check_divides


class MpmdArray:
    """An array on one group of devices, or with a copy on each of several groups.

    The array is *partially addressable*: a process outside these groups has none of the data, but has the shape, dtype
    and sharding. All processes can therefore run the same script.

    **Arguments:**

    - `arrays`: the `jax.Array`s of this process, each on its group's mesh with the sharding that `sharding` defines. In
        a run of one process, pass one array for each group. In a run of several processes, each process passes the
        array of its group; a process outside the groups passes an empty list.
    - `sharding`: an [`MpmdSharding`][decompops.mpmd.MpmdSharding], with the groups and the sharding in each group.
    - `shape`, `dtype`: the shape and dtype of the whole array; needed only if `arrays` is empty.

    An `MpmdArray` is a PyTree with one leaf. If the process has exactly one array, the leaf is this array, so that
    `jax.jit`, `jax.grad` and other transformations accept the `MpmdArray`. Otherwise the leaf has the shape, dtype and
    sharding of `aval`, but no values: `jax.eval_shape`, `jax.make_jaxpr` and `jax.tree.map` accept a leaf without
    values, but `jax.jit` raises an error.

    **Raises:** `ValueError` for an array on another mesh, two arrays of one group, a missing array, and for shapes,
    dtypes or specs that differ. `TypeError` for an argument of the wrong type. `RuntimeError` for a deleted array.
    Using the values after `delete`, or outside the groups, raises `RuntimeError`, too.
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
                raise RuntimeError(
                    f"{where} has been deleted, perhaps because it was donated. Pass an array that still has values."
                )
            if array.sharding.mesh not in mpmd_mesh.groups:
                raise ValueError(f"{where} must be on the mesh of a group of {mpmd_mesh}; got {array.sharding}.")
            idx = mpmd_mesh.mpmd_idx(array.sharding.mesh)
            if idx not in idxs:
                raise ValueError(f"{where} must be in one of the groups {idxs}; got group {idx}.")
            if idx in found:
                raise ValueError(f"`arrays` must hold one array for each group; got two for group {idx}.")
            if not array.sharding.is_equivalent_to(sharding.group_sharding(idx), array.ndim):
                raise ValueError(
                    f"{where} must be sharded with the spec of `sharding`, {sharding.spec}; got {array.sharding.spec}."
                )
            found[idx] = array
        local = tuple(idx for idx in idxs if idx in mpmd_mesh.local_mpmd_idxs)
        missing = [idx for idx in local if idx not in found]
        if missing:
            raise ValueError(f"`arrays` must hold an array for each local group {local}; got none for {missing}.")
        known = [(array.shape, array.dtype) for array in found.values()]
        if not known and (shape is None or dtype is None):
            raise ValueError("`shape` and `dtype` must be given if `arrays` is empty.")
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
        """The dtype of the array."""
        return self._dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._shape)

    @property
    def aval(self) -> jax.ShapeDtypeStruct:
        """The shape and dtype of the array, and its sharding on the mesh of its first group, for tracing with JAX."""
        sharding = self._mpmd_sharding.group_sharding(self.mpmd_idxs[0])
        return jax.ShapeDtypeStruct(self._shape, self._dtype, sharding=sharding)

    @property
    def spec(self) -> PartitionSpec:
        """The partition spec of the array in each of its groups."""
        return self._mpmd_sharding.spec

    @property
    def mpmd_sharding(self) -> MpmdSharding:
        """The groups that have the array, and the sharding in each of them."""
        return self._mpmd_sharding

    @property
    def sharding(self) -> NamedSharding:
        """The sharding of the array over the devices of all its groups."""
        return self._mpmd_sharding.sharding

    @property
    def mpmd_idxs(self) -> tuple[int, ...]:
        """The indices of the groups that have the array."""
        return self._mpmd_sharding.mesh_ids

    @property
    def is_mpmd_replicated(self) -> bool:
        """Whether several groups have a copy of the array."""
        return len(self.mpmd_idxs) > 1

    @property
    def is_partially_addressable(self) -> bool:
        """Whether this process has data of the array."""
        return bool(self._arrays)

    @property
    def local_arrays(self) -> dict[int, jax.Array]:
        """The arrays of this process, by group index, each on its group's mesh; empty outside the groups."""
        if self.is_deleted():
            raise RuntimeError(
                f"{self!r} has been deleted: a reshard consumed it, or `delete` was called. Use the result of the "
                "reshard instead."
            )
        return dict(self._arrays)

    @property
    def to_mpmd_local_array(self) -> jax.Array | list[jax.Array] | None:
        """The array of this process, on its group's mesh; `None` outside the groups.

        If this process has devices of several groups, the result is a list of arrays, sorted by group index.
        """
        arrays = list(self.local_arrays.values())
        return arrays if len(arrays) > 1 else arrays[0] if arrays else None

    @property
    def first_mpmd_replica(self) -> jax.Array | None:
        """The array of the first group, if this process belongs to that group; else `None`."""
        return self.local_arrays.get(self.mpmd_idxs[0])

    def block_until_ready(self) -> "MpmdArray":
        """Wait until this process's part is computed. Return the `MpmdArray` itself."""
        for array in self.local_arrays.values():
            array.block_until_ready()
        return self

    def delete(self) -> None:
        """Free this process's part. Any process may call `delete`; that process cannot use the array afterwards."""
        self._deleted = True
        for array in self._arrays.values():
            array.delete()

    def is_deleted(self) -> bool:
        """Return whether the array was deleted, or consumed by a function that moves arrays."""
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
        """Return the array of one local group. Raises `RuntimeError` in a process that is in no group of the array."""
        arrays = self.local_arrays
        if not arrays:
            raise RuntimeError(
                f"{self!r} exists only in the groups {list(self.mpmd_idxs)}; "
                f"process {jax.process_index()} belongs to {list(self._mpmd_sharding.mpmd_mesh.local_mpmd_idxs)}. Use "
                "the values only in processes of the groups that have the array."
            )
        return next(iter(arrays.values()))


class MpmdArrayElsewhere(jax.ShapeDtypeStruct):
    """The leaf of an `MpmdArray` outside its groups. The class name appears in JAX's errors about missing values."""


class MpmdArrayInSeveralGroups(jax.ShapeDtypeStruct):
    """The leaf of an `MpmdArray` with several copies in this process. Users must choose one of `local_arrays`."""


def _flatten(array: MpmdArray) -> tuple[tuple[jax.Array | jax.ShapeDtypeStruct, ...], None]:
    arrays = tuple(array._arrays.values())
    if len(arrays) == 1:
        return arrays, None
    kind = MpmdArrayInSeveralGroups if arrays else MpmdArrayElsewhere
    return (kind(array.shape, array.dtype, sharding=array.aval.sharding),), None


def _unflatten(_: None, arrays: Sequence[Any]) -> Any:
    """Return the leaf instead of an `MpmdArray`, because functions under `jax.jit` compute with arrays."""
    return arrays[0]


jax.tree_util.register_pytree_node(MpmdArray, _flatten, _unflatten)
