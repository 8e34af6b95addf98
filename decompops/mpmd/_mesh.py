"""Meshes whose devices form groups, and the shardings of arrays on these groups."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .._common.blocks import entry_names, spec_entry
from .._common.sharding import mesh_like, no_ambient_mesh


Device: TypeAlias = Any  # A `jax.Device`, which type checkers do not recognize as a class.


@dataclass(frozen=True)
class MpmdMesh:
    """A JAX mesh with a group axis, which divides the devices into groups that run different programs.

    **Arguments:**

    - `mesh`: any mesh of two or more axes, with Auto or Explicit axis types.
    - `axis`: the name of the group axis. Its size is the number of groups.

    In a run of several processes, all devices of a process must be in the same group. The names in this module follow
    [JaxPP](https://github.com/NVIDIA/jaxpp).

    **Raises:** `ValueError` if `axis` is not an axis of the mesh, is the only axis, or separates the devices of a
    process in a run of several processes. `TypeError` if `mesh` is not a mesh.

    !!! example

        ```python
        mesh = jax.make_mesh((2, 2, 2), ("group", "x", "y"))
        mpmd_mesh = mpmd.MpmdMesh(mesh, "group")
        solver, learner = mpmd_mesh.groups  # two meshes with axes x and y
        fft = dops.FFT3D(solver)
        ```
    """

    mesh: Mesh
    axis: str

    def __post_init__(self):
        if not isinstance(self.mesh, Mesh):
            raise TypeError(f"`mesh` must be a jax.sharding.Mesh; got {type(self.mesh).__name__}.")
        if self.axis not in self.mesh.axis_names:
            raise ValueError(f"`axis` must be one of the mesh axes {self.mesh.axis_names}; got {self.axis!r}.")
        if len(self.mesh.axis_names) == 1:
            raise ValueError(
                f"`mesh` must have axes besides `axis`, for the devices of a group; got {self.mesh.axis_names}."
            )
        groups: dict[int, set[int]] = {}
        for device, index in self._index_of.items():
            groups.setdefault(device.process_index, set()).add(index)
        divided = {process: sorted(found) for process, found in groups.items() if len(found) > 1}
        if divided and len(groups) > 1:
            raise ValueError(
                "In a run of several processes, `axis` must keep all devices of a process in one group; "
                f"got processes with devices in several groups: {divided}."
            )

    @property
    def mpmd_dim(self) -> int:
        """The number of groups."""
        return self.mesh.shape[self.axis]

    @cached_property
    def groups(self) -> tuple[Mesh, ...]:
        """The meshes of the groups, without the group axis."""
        names = [name for name in self.mesh.axis_names if name != self.axis]
        return tuple(mesh_like(self.mesh, devices, names) for devices in np.moveaxis(self.mesh.devices, self._at, 0))

    def submesh(self, mesh_ids: Iterable[int]) -> Mesh:
        """Return the devices of some groups as one mesh, with all axes of `mesh`.

        **Arguments:**

        - `mesh_ids`: the indices of the groups, in any order.

        **Raises:** `ValueError` for an unknown group, and if `mesh_ids` is empty.
        """
        found = self._as_indices(mesh_ids)
        if not found:
            raise ValueError("`mesh_ids` must name at least one group; got none.")
        devices = np.take(self.mesh.devices, found, self._at)
        return mesh_like(self.mesh, devices, self.mesh.axis_names)

    @cached_property
    def local_mpmd_idxs(self) -> tuple[int, ...]:
        """The indices of the groups that have devices of this process: at most one in a run of several processes."""
        me = jax.process_index()
        return tuple(sorted({index for device, index in self._index_of.items() if device.process_index == me}))

    @property
    def my_mpmd_idx(self) -> int:
        """The index of this process's group.

        **Raises:** `ValueError` if this process has no device of any group, or devices of several groups.
        """
        if len(self.local_mpmd_idxs) != 1:
            raise ValueError(
                f"`my_mpmd_idx` needs a process that belongs to exactly one group; process {jax.process_index()} has "
                f"devices of the groups {self.local_mpmd_idxs}."
            )
        return self.local_mpmd_idxs[0]

    def mpmd_idx(self, mesh: Mesh) -> int:
        """Return the index of the group that has this mesh.

        **Raises:** `ValueError` if no group has this mesh.
        """
        if mesh not in self.groups:
            found = _described(mesh) if isinstance(mesh, Mesh) else repr(mesh)
            raise ValueError(f"`mesh` must be one of the groups of {self}; got {found}.")
        return self.groups.index(mesh)

    def __repr__(self) -> str:
        return f"MpmdMesh({_described(self.mesh)}, axis={self.axis!r})"

    @cached_property
    def _at(self) -> int:
        return self.mesh.axis_names.index(self.axis)

    @cached_property
    def _index_of(self) -> dict[Device, int]:
        return {device: position[self._at] for position, device in np.ndenumerate(self.mesh.devices)}

    def _as_indices(self, mesh_ids: Iterable[int]) -> tuple[int, ...]:
        rule = f"`mesh_ids` must be indices of groups from 0 to {self.mpmd_dim - 1}; got {mesh_ids!r}."
        if not isinstance(mesh_ids, Iterable):
            raise TypeError(rule)
        found = tuple(mesh_ids)
        for index in found:
            is_number = isinstance(index, int | np.integer) and not isinstance(index, bool)
            if not is_number or not 0 <= index < self.mpmd_dim:
                raise ValueError(rule)
        return tuple(sorted({int(index) for index in found}))


@dataclass(frozen=True)
class MpmdSharding:
    """The groups that have an array, and the sharding of the array in each group.

    **Arguments:**

    - `mpmd_mesh`: the mesh.
    - `mesh_ids`: the indices of the groups, each of which has the whole array. If `mesh_ids` is empty, group 0 has
        the array.
    - `spec`: the partition spec of the array on the mesh of a group. The group axis is removed from the spec.

    An `MpmdSharding` is hashable. Two objects are equal if they have the same mesh, groups and spec.

    **Raises:** `ValueError` for an unknown group or mesh axis.
    """

    mpmd_mesh: MpmdMesh
    mesh_ids: tuple[int, ...]
    spec: PartitionSpec

    def __init__(self, mpmd_mesh: MpmdMesh, mesh_ids: Iterable[int], spec: PartitionSpec):
        if not isinstance(mpmd_mesh, MpmdMesh):
            raise TypeError(f"`mpmd_mesh` must be an MpmdMesh; got {type(mpmd_mesh).__name__}.")
        check_spec("spec", spec)
        unknown = sorted(names_in(spec) - set(mpmd_mesh.mesh.axis_names))
        if unknown:
            raise ValueError(f"`spec` must name axes of {mpmd_mesh}; got {spec}, with {unknown}.")
        object.__setattr__(self, "mpmd_mesh", mpmd_mesh)
        object.__setattr__(self, "mesh_ids", mpmd_mesh._as_indices(mesh_ids) or (0,))
        object.__setattr__(self, "spec", without_axis(spec, mpmd_mesh.axis))

    @property
    def sharding(self) -> NamedSharding:
        """The sharding of the array over the devices of all its groups. Each group has a copy."""
        return NamedSharding(self.mpmd_mesh.submesh(self.mesh_ids), self.spec)

    def group_sharding(self, mpmd_idx: int) -> NamedSharding:
        """Return the sharding of the array on the mesh of one of its groups.

        **Raises:** `ValueError` if the group does not have the array.
        """
        if mpmd_idx not in self.mesh_ids:
            raise ValueError(f"`mpmd_idx` must be one of the groups {self.mesh_ids}; got {mpmd_idx!r}.")
        return NamedSharding(self.mpmd_mesh.groups[mpmd_idx], self.spec)

    def __repr__(self) -> str:
        return f"MpmdSharding({self.mpmd_mesh}, mesh_ids={self.mesh_ids}, spec={self.spec})"


@contextmanager
def without_context() -> Iterator[None]:
    """Compute eagerly on the devices of any group, independently of the caller's context.

    The caller's `jax.set_mesh` and `jax.disable_jit` have no effect on these computations. The caller may take
    derivatives with respect to other arrays. Inside `jax.jit`, a `TypeError` is raised.
    """
    if isinstance(jnp.zeros(()), Tracer):
        raise TypeError(
            "Functions that move arrays between groups must be called outside of `jax.jit` and other transformations; "
            "pass the moved arrays to your function as arguments."
        )
    with jax.disable_jit(False), no_ambient_mesh():
        yield


def check_spec(name: str, spec: PartitionSpec) -> None:
    """Raise an error unless `spec` is a `PartitionSpec` that contains only `None` and mesh axes, each at most once."""
    if not isinstance(spec, PartitionSpec):
        raise TypeError(f"`{name}` must be a jax.sharding.PartitionSpec; got {spec!r}.")
    plain = not spec.unreduced and not spec.reduced
    plain = plain and all(entry is None or isinstance(entry, str | tuple) for entry in spec)
    names = [axis for entry in spec for axis in entry_names(entry)] if plain else []
    if not plain or len(set(names)) < len(names):
        raise ValueError(f"`{name}` must contain only mesh axes, each at most once; got {spec}.")


def check_divides(name: str, sharding: NamedSharding, shape: tuple[int, ...]) -> None:
    """Raise `ValueError` unless an array of this shape can have this sharding without padding."""
    check_spec(name, sharding.spec)
    parts = [math.prod(sharding.mesh.shape[axis] for axis in entry_names(entry)) for entry in sharding.spec]
    if len(parts) > len(shape) or any(length % n for length, n in zip(shape, parts)):
        raise ValueError(
            f"`{name}` must divide the axes of an array of shape {shape} evenly; got {sharding.spec} on "
            f"{dict(sharding.mesh.shape)}."
        )


def names_in(spec: PartitionSpec) -> set[str]:
    """Return the names of the mesh axes in a spec."""
    return {name for entry in spec for name in entry_names(entry)}


def without_axis(spec: PartitionSpec, axis: str) -> PartitionSpec:
    """Return a spec without one mesh axis, in its shortest form, so that equal shardings have equal specs."""
    entries = [spec_entry(name for name in entry_names(entry) if name != axis) for entry in spec]
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)


def _described(mesh: Mesh) -> str:
    axes = ", ".join(f"{name}={size}" for name, size in mesh.shape.items())
    return f"Mesh({axes}; devices {[device.id for device in mesh.devices.flat]})"
