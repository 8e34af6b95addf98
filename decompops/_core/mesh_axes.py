"""Checks of the mesh and the mesh axes of a decomposition, and the meshes that errors suggest."""

from collections.abc import Iterable
from typing import Any

from jax.sharding import AbstractMesh, Mesh

from .._common.blocks import MeshAxis, flat_names, mesh_sizes, pencil_blocks, spec_entry
from .._common.sharding import ambient_mesh


# The names of mesh axes in errors.
_MESH = ("rows", "columns", *(f"axis {axis}" for axis in range(2, 64)))


def meshes_that_divide(shape: tuple[int, ...], pencils: Iterable[int], devices: int, axes: int) -> str:
    """Return a sentence for errors, which lists meshes of `devices` devices, with `axes` axes.

    Each listed mesh divides `shape` in all of `pencils`, which are numbers of grid axes.
    """
    found = [
        sizes
        for sizes in mesh_sizes(devices, axes)
        if not any(pencil_blocks(axis, shape, _MESH[:axes], sizes).padded_axes for axis in pencils)
    ]
    names = f" ({', '.join(_MESH[:axes])})" if axes > 1 else ""
    if not found:
        return f"No mesh{names} of {devices} devices divides this shape: choose another shape."
    return f"Meshes{names} of {devices} devices that divide this shape: {', '.join(map(str, found))}."


def check_mesh(mesh: object) -> Mesh | AbstractMesh:
    """Return `mesh`, or the ambient mesh for `None`. Raises an error for other objects, and for a mesh without axes."""
    if mesh is None:
        return ambient_mesh()
    if not isinstance(mesh, Mesh | AbstractMesh):
        advice = " Pass its attribute `decomposition`." if hasattr(mesh, "decomposition") else ""
        raise TypeError(f"`mesh` must be a `jax.sharding.Mesh` or a `Decomposition`; got {mesh!r}.{advice}")
    if not (mesh.axis_names or mesh.empty):
        raise ValueError(f"`mesh` must have at least one axis; got {mesh}.")
    return mesh


def check_mesh_axes(axes: Any, mesh: Mesh | AbstractMesh, ndim: int) -> tuple[MeshAxis | None, ...]:
    """Return one entry for each sharded axis of a grid of `ndim` axes. Raises an error if `axes` do not fit `mesh`."""
    if axes is None:
        return mesh.axis_names[max(0, len(mesh.axis_names) - ndim + 1) :]  # An empty tuple, if the mesh is not known.
    entries = tuple(axes) if isinstance(axes, tuple | list) else (axes,)
    entries = tuple(spec_entry(entry) if isinstance(entry, tuple | list) else entry for entry in entries)
    while not mesh.empty and entries and entries[-1] is None:
        entries = entries[:-1]
    names = list(flat_names(entry for entry in entries if isinstance(entry, str | tuple)))
    if not all(isinstance(entry, str | tuple | None) for entry in entries) or not all(
        isinstance(n, str) for n in names
    ):
        raise TypeError(f"`axes` must be names of mesh axes, one for each sharded axis of the grid; got {axes!r}.")
    if len(set(names)) < len(names) or not (mesh.empty or set(names) <= set(mesh.axis_names)):
        raise ValueError(f"`axes` must be different axes of the mesh, {mesh.axis_names}; got {axes!r}.")
    if len(entries) >= ndim:
        several = (
            f" To shard one grid axis over several mesh axes, pass `axes=({tuple(names)},)`." if len(names) > 1 else ""
        )
        raise ValueError(
            f"`axes` must be at most {ndim - 1} mesh axes for a grid of {ndim} axes, because one grid axis is whole on "
            f"every device; got {axes!r}.{several}"
        )
    return entries
