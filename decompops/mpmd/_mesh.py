"""Meshes whose devices fall into groups, and the places that arrays have on them."""

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

from .._blocks import entry_names, spec_entry
from .._sharding import mesh_like, no_ambient_mesh


Device: TypeAlias = Any  # a jax.Device, which type checkers do not know for a class


@dataclass(frozen=True)
class MpmdMesh:
    """A JAX mesh, one axis of which divides its devices into groups that run different programs.

    **Arguments:**

    - `mesh`: any mesh of two axes or more, Auto or Explicit.
    - `axis`: the name of the axis that tells the groups apart. There are as many groups as it is long.

    In a run of several processes each process belongs to exactly one group. The terms are those of
    [JaxPP](https://github.com/NVIDIA/jaxpp).

    **Raises** `ValueError` where `axis` is no axis of the mesh, is its only one, or divides the devices of a process.

    !!! example

        ```python
        mesh = jax.make_mesh((2, 2, 2), ("group", "x", "y"))
        mpmd_mesh = MpmdMesh(mesh, "group")
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
                f"`mesh` must have axes beside `axis`, for the devices of a group; got {self.mesh.axis_names}."
            )
        groups: dict[int, set[int]] = {}
        for device, index in self._index_of.items():
            groups.setdefault(device.process_index, set()).add(index)
        divided = {process: sorted(found) for process, found in groups.items() if len(found) > 1}
        if divided and len(groups) > 1:
            raise ValueError(
                "In a run of several processes `axis` must leave the devices of each process in one group; "
                f"got processes in groups {divided}."
            )

    @property
    def mpmd_dim(self) -> int:
        """The number of groups."""
        return self.mesh.shape[self.axis]

    @cached_property
    def groups(self) -> tuple[Mesh, ...]:
        """The groups' meshes, without the axis that tells the groups apart."""
        names = [name for name in self.mesh.axis_names if name != self.axis]
        return tuple(mesh_like(self.mesh, devices, names) for devices in np.moveaxis(self.mesh.devices, self._at, 0))

    def submesh(self, mesh_ids: Iterable[int]) -> Mesh:
        """The devices of some groups as one mesh, with all axes.

        **Arguments:** `mesh_ids`: the groups' numbers. Their order does not matter.

        **Raises** `ValueError` where there is no such group, or none is given.
        """
        found = self._checked(mesh_ids)
        if not found:
            raise ValueError("`mesh_ids` must name at least one group; got none.")
        devices = np.take(self.mesh.devices, found, self._at)
        return mesh_like(self.mesh, devices, self.mesh.axis_names)

    @cached_property
    def local_mpmd_idxs(self) -> tuple[int, ...]:
        """The groups that have devices of this process: in a run of several processes one, or none."""
        me = jax.process_index()
        return tuple(sorted({index for device, index in self._index_of.items() if device.process_index == me}))

    @property
    def my_mpmd_idx(self) -> int:
        """The group of this process.

        **Raises** `ValueError` where it has several groups (in a run of one process), or none.
        """
        if len(self.local_mpmd_idxs) != 1:
            raise ValueError(
                f"Process {jax.process_index()} must belong to one group to have `my_mpmd_idx`; "
                f"it has devices of the groups {self.local_mpmd_idxs}."
            )
        return self.local_mpmd_idxs[0]

    def mpmd_idx(self, mesh: Mesh) -> int:
        """The number of the group whose mesh this is.

        **Raises** `ValueError` where it is no group's.
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

    def _checked(self, mesh_ids: Iterable[int]) -> tuple[int, ...]:
        rule = f"`mesh_ids` must be numbers of groups from 0 to {self.mpmd_dim - 1}; got {mesh_ids!r}."
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
    """Where an array lives: in which groups, and how it is divided in each of them.

    **Arguments:**

    - `mpmd_mesh`: the mesh.
    - `mesh_ids`: the numbers of the groups that have the array, each of them the whole of it. Empty for an array that
        nothing uses: it goes to group 0.
    - `spec`: how a group divides it among its devices. The axis that tells the groups apart is removed from it.

    Hashable, and equal where the places are.

    **Raises** `ValueError` where there is no such group or axis.
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
        object.__setattr__(self, "mesh_ids", mpmd_mesh._checked(mesh_ids) or (0,))
        object.__setattr__(self, "spec", without_axis(spec, mpmd_mesh.axis))

    @property
    def sharding(self) -> NamedSharding:
        """The array's sharding over the devices of all its groups, which have a copy each."""
        return NamedSharding(self.mpmd_mesh.submesh(self.mesh_ids), self.spec)

    def group_sharding(self, mpmd_idx: int) -> NamedSharding:
        """The array's sharding on the mesh of one of its groups.

        **Raises** `ValueError` where it is not in that group.
        """
        if mpmd_idx not in self.mesh_ids:
            raise ValueError(f"`mpmd_idx` must be one of the groups {self.mesh_ids}; got {mpmd_idx!r}.")
        return NamedSharding(self.mpmd_mesh.groups[mpmd_idx], self.spec)

    def __repr__(self) -> str:
        return f"MpmdSharding({self.mpmd_mesh}, mesh_ids={self.mesh_ids}, spec={self.spec})"


@contextmanager
def without_context() -> Iterator[None]:
    """Compute on the devices of one group or another, at once.

    So the caller's `jax.set_mesh` and `jax.disable_jit` do not matter, nor that it differentiates by something else.
    """
    if isinstance(jnp.zeros(()), Tracer):
        raise TypeError("Arrays move between groups outside of `jax.jit` and its like only: take them as arguments.")
    with jax.disable_jit(False), no_ambient_mesh():
        yield


def check_spec(name: str, spec: PartitionSpec) -> None:
    """A spec of the plain kind, in which each axis stands once."""
    if not isinstance(spec, PartitionSpec):
        raise TypeError(f"`{name}` must be a jax.sharding.PartitionSpec; got {spec!r}.")
    plain = not spec.unreduced and not spec.reduced
    plain = plain and all(entry is None or isinstance(entry, str | tuple) for entry in spec)
    names = [axis for entry in spec for axis in entry_names(entry)] if plain else []
    if not plain or len(set(names)) < len(names):
        raise ValueError(f"`{name}` must name each mesh axis once at most, and nothing else; got {spec}.")


def check_divides(name: str, sharding: NamedSharding, shape: tuple[int, ...]) -> None:
    """A sharding that can be that of an array of this shape."""
    check_spec(name, sharding.spec)
    parts = [math.prod(sharding.mesh.shape[axis] for axis in entry_names(entry)) for entry in sharding.spec]
    if len(parts) > len(shape) or any(length % n for length, n in zip(shape, parts)):
        raise ValueError(
            f"`{name}` must divide an array of shape {shape}; got {sharding.spec} on {dict(sharding.mesh.shape)}."
        )


def names_in(spec: PartitionSpec) -> set[str]:
    """The mesh axes in a spec."""
    return {name for entry in spec for name in entry_names(entry)}


def without_axis(spec: PartitionSpec, axis: str) -> PartitionSpec:
    """A spec without one mesh axis, in its shortest form, so that equal divisions are equal."""
    entries = [spec_entry(name for name in entry_names(entry) if name != axis) for entry in spec]
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)


def _described(mesh: Mesh) -> str:
    axes = ", ".join(f"{name}={size}" for name, size in mesh.shape.items())
    return f"Mesh({axes}; devices {[device.id for device in mesh.devices.flat]})"
