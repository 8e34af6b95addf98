"""`Decomposition`: a grid on a device mesh."""

import math
from dataclasses import replace
from typing import Any

import equinox as eqx
import numpy as np
from jax import Array
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Shaped

from ._backend.base import AbstractBackend
from ._blocks import (
    Blocks,
    MeshAxis,
    Pencil,
    axis_names,
    contiguous_order,
    entry_names,
    flat_names,
    mesh_sizes,
    pencil_blocks,
    spec_entry,
)
from ._check import check_axis, check_count, check_flag, check_order, check_shape
from ._config import resolve_backend
from ._layout import Field, Layout, check_agreement
from ._sharding import ambient_mesh, manual_axes
from ._types import GridAxes, Lengths, MeshAxes


class Decomposition(eqx.Module):
    """How a grid is divided over a device mesh, and which backend moves its fields.

    A grid has any number of axes, three unless `shape` or `ndim` says otherwise. In the pencil of one of them, that
    axis is whole on every device, and the mesh axes `axes` divide the others in their order. With `axes = (a, b)`,
    fields on a grid of three lie in *z-pencils* `P(a, b, None)`; a *y-pencil* is `P(a, None, b)`, an *x-pencil*
    `P(None, a, b)`. One mesh axis on a grid of three makes *slabs*. The other axes of the mesh are batch axes.

    A grid that the mesh does not divide is refused, unless `pad=True`. Then fields are zero-padded at the end of an
    axis to the next multiple of its devices, and `shape` is needed, because an array's own shape no longer tells the
    true one. Spectra are padded without asking: most half spectra have to be.

    !!! example

        ```python
        mesh = jax.make_mesh((2, 4), ("x", "y"))
        dec = dops.Decomposition(mesh, shape=(64, 64, 64))
        u = dec.shard(numpy_array)     # sharded P("x", "y", None)
        dec.gather(u)                  # the NumPy array again

        dops.Decomposition(mesh, shape=(64, 64), axes=("y",))           # P("y", None), and "x" for batches
        dops.Decomposition(mesh, shape=(64, 64), axes=(("x", "y"),))    # P(("x", "y"), None)
        ```
    """

    mesh: Mesh | AbstractMesh = eqx.field(static=True)
    shape: tuple[int, ...] | None = eqx.field(static=True)
    ndim: int = eqx.field(static=True)
    axes: tuple[MeshAxis | None, ...] = eqx.field(static=True)
    pad: bool = eqx.field(static=True)
    backend: AbstractBackend = eqx.field(static=True)
    _is_open: bool = eqx.field(static=True)  # whether the backend is chosen when the mesh is known

    def __init__(
        self,
        mesh: "Mesh | AbstractMesh | Decomposition | None" = None,
        *,
        shape: Lengths | None = None,
        ndim: int | None = None,
        axes: MeshAxes | None = None,
        pad: bool | None = None,
        backend: AbstractBackend | str | None = None,
    ):
        """**Arguments:**

        - `mesh`: the device mesh; another decomposition, to change some of its options; or `None` for the ambient mesh
            of `jax.set_mesh`. Without an ambient mesh, an operator then takes its mesh from each array.
        - `shape`: the true lengths of the grid in cells, such as `(nx, ny, nz)`. May be left out where the mesh divides
            them.
        - `ndim`: how many axes the grid has. Follows from `shape`, and is else 3.
        - `axes`: the mesh axes that divide the grid, at most one fewer than it has axes: `("x", "y")`, or `("x",)` for
            a slab, `()` for none. An entry may be several mesh axes, `("x", "y")`, which divide one grid axis together,
            or `None`. The default are the last axes of the mesh, as many as possible.
        - `pad`: whether fields in real space are zero-padded where the mesh does not divide the grid. `None` is as in
            the decomposition that is changed, else False.
        - `backend`: what moves the data, such as `dops.XLA()`; `None` for the default of `dops.config`.

        **Raises:** `ValueError` or `TypeError` for a mesh without axes, unknown, repeated or too many axis names, a
        shape that is not positive integers, another number of axes than in the decomposition that is changed, or a
        shape that the mesh does not divide without `pad=True`; `ImportError` for a backend that is not available.
        """
        if isinstance(mesh, Decomposition):
            shape = mesh.shape if shape is None else shape
            ndim = mesh.ndim if ndim is None else ndim
            if ndim != mesh.ndim:
                raise ValueError(f"`ndim` must be that of the decomposition, {mesh.ndim}; got {ndim}.")
            axes = mesh.axes if axes is None and mesh.has_mesh else axes
            pad = mesh.pad if pad is None else pad
            backend = mesh.backend if backend is None and not mesh._is_open else backend
            mesh = mesh.mesh
        ndim = None if ndim is None else check_count("ndim", ndim)
        self.shape = None if shape is None else check_shape("shape", shape, ndim)
        self.ndim = ndim or (3 if self.shape is None else len(self.shape))
        self.mesh = _mesh(mesh)
        self.axes = _axes(axes, self.mesh, self.ndim)
        self.pad = False if pad is None else check_flag("pad", pad)
        self.backend = resolve_backend(backend, self.mesh)
        self._is_open = backend is None and not self.has_mesh
        if self.has_mesh:
            self.backend.check(self.mesh)
            if self.shape is not None:
                self.check_divided(self.shape, -1)

    @property
    def has_mesh(self) -> bool:
        """Whether the mesh is known. If not, an operator takes it from each array that it is called on."""
        return not self.mesh.empty

    def on(self, mesh: Mesh | AbstractMesh) -> "Decomposition":
        """The same decomposition, built without a mesh, on `mesh`."""
        axes, backend = self.axes or None, None if self._is_open else self.backend
        return Decomposition(mesh, shape=self.shape, ndim=self.ndim, axes=axes, pad=self.pad, backend=backend)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many devices divide the grid along each of `axes`."""
        if not self.has_mesh:
            raise ValueError(
                "`mesh` must be given for this, or be the ambient mesh (`jax.set_mesh`); got None, so that it is "
                "known only when an operator is called."
            )
        return tuple(math.prod(self.mesh.shape[name] for name in entry_names(entry)) for entry in self.axes)

    @property
    def mesh_axes(self) -> tuple[str, ...]:
        """The single mesh axes that divide the grid."""
        return tuple(flat_names(self.axes))

    def blocks(self, pencil: Pencil = -1, shape: tuple[int, ...] | None = None, order: tuple[int, ...] = ()) -> Blocks:
        """How a field in real space is cut into blocks in `pencil`, for the decomposition's shape or another.

        Raises `ValueError` where the field would be padded without `pad=True`.
        """
        shape = shape or self._known_shape()
        self.check_divided(shape, pencil)
        return self.pencil(check_axis("pencil", pencil, self.ndim), shape, order)

    def pencil(self, axis: int, shape: tuple[int, ...], order: tuple[int, ...] = ()) -> Blocks:
        """How a grid of `shape` is cut into blocks if grid axis number `axis` is whole on every device.

        For spectra, which are padded wherever the mesh does not divide them.
        """
        return pencil_blocks(axis, shape, self.axes, self.sizes, order)

    def check_divided(self, shape: tuple[int, ...], *pencils: Pencil) -> None:
        """Raise `ValueError` if a field in one of `pencils` would have to be padded, unless `pad` is set."""
        if self.pad:
            return
        names = axis_names(self.ndim)
        for pencil in pencils:
            whole = check_axis("pencil", pencil, self.ndim)
            blocks = self.pencil(whole, shape)
            for axis in blocks.padded_axes:
                raise ValueError(
                    f"`shape` must be divided by the mesh, unless `pad=True`: {blocks.parts[axis]} devices do not "
                    f"divide {shape[axis]} cells along {names[axis]} in {names[whole]}-pencils; got {shape}. "
                    f"{self._meshes_that_divide(shape, pencils)} Or pass `shape={shape}, pad=True` to pad fields in "
                    "real space with zeros."
                )

    def _meshes_that_divide(self, shape: tuple[int, ...], pencils: tuple[Pencil, ...]) -> str:
        """A sentence: which meshes of as many devices divide a grid in the pencils of its last axis and `pencils`."""
        devices, whole = math.prod(self.sizes), {check_axis("pencil", pencil, self.ndim) for pencil in (-1, *pencils)}
        axes = max(len(self.axes), min(2, self.ndim - 1))
        found = [
            sizes
            for sizes in mesh_sizes(devices, axes)
            if not any(pencil_blocks(axis, shape, _MESH[:axes], sizes).padded_axes for axis in whole)
        ]
        names = f" ({', '.join(_MESH[:axes])})" if axes > 1 else ""
        if not found:
            return f"No mesh{names} of {devices} devices divides it: choose another shape."
        return f"Meshes{names} of {devices} devices that divide it: {', '.join(map(str, found))}."

    def layout(self, pencil: Pencil = -1, *, axis_contiguous: bool = False, order: GridAxes | None = None) -> Layout:
        """How fields lie in `pencil`, the one of the last axis by default.

        **Arguments:**

        - `pencil`: the grid axis that is whole on every device, by its name or number.
        - `axis_contiguous`: whether they are stored with that axis last, the others before it in cyclic order.
        - `order`: the grid axes in the order in which they are stored, such as `("z", "x", "y")` or `(2, 0, 1)`.

        **Raises:** `ValueError` for a decomposition without `shape`, and where a field would be padded without
        `pad=True`.
        """
        stored = self.storage_order(pencil, axis_contiguous=axis_contiguous, order=order)
        return Layout(self.mesh, self.blocks(pencil, order=stored))

    def storage_order(
        self, pencil: Pencil, *, axis_contiguous: bool = False, order: GridAxes | None = None, name: str = "order"
    ) -> tuple[int, ...]:
        """The order in which the axes of a field in `pencil` are stored; `name` is what an error calls `order`."""
        axis = check_axis("pencil", pencil, self.ndim)
        contiguous = check_flag("axis_contiguous", axis_contiguous)
        if order is None:
            return contiguous_order(self.ndim, axis) if contiguous else tuple(range(self.ndim))
        if contiguous:
            raise ValueError(f"`{name}` must be None with `axis_contiguous=True`; got {order!r}.")
        return check_order(name, order, self.ndim)

    def spec(self, pencil: Pencil = -1) -> PartitionSpec:
        """The partition spec of the grid axes in `pencil`."""
        return self.pencil(check_axis("pencil", pencil, self.ndim), (1,) * self.ndim).spec

    def sharding(self, pencil: Pencil = -1) -> NamedSharding:
        """The sharding of a field without batch axes in `pencil`."""
        return NamedSharding(self.mesh, self.spec(pencil))

    def local_shape(self, pencil: Pencil = -1) -> tuple[int, ...]:
        """The shape of one block in `pencil`, padding included."""
        return self.layout(pencil).local_shape

    def padded_shape(self, pencil: Pencil = -1) -> tuple[int, ...]:
        """The global shape of a field's array in `pencil`: the true shape, padded where the mesh does not divide it."""
        return self.layout(pencil).shape

    def shard(self, array: Field, pencil: Pencil = -1) -> Shaped[Array, "*stored"]:
        """Distribute a host array `(*batch, *shape)` as a field in `pencil`, as `Layout.shard` does.

        **Raises:** `ValueError` for an array of another shape than the decomposition's, and where the field would be
        padded without `pad=True`; on every process, where they do not all pass the same shape, dtype and pencil.
        """
        array = np.asarray(array)
        check_agreement(self.mesh, array, pencil, "`pencil`")
        check_grid("array", array.shape, self.ndim)
        blocks = self.blocks(pencil, self.shape or array.shape[-self.ndim :])
        if self.shape is None and blocks.padded_axes:
            raise ValueError(f"`shape` must be given where the mesh does not divide it; got {array.shape}.")
        return Layout(self.mesh, blocks).distribute(array)

    def crop(
        self, field: Shaped[Array, "*field"], pencil: Pencil | None = None, *, axis_contiguous: bool = False
    ) -> Shaped[Array, "*cropped"]:
        """Cut the padding off a field. An axis whose true length the mesh does not divide is gathered.

        **Arguments:**

        - `field`: of shape `(*batch, ...)`, in the blocks of `pencil` or already without its padding.
        - `pencil`: may be left out for a field in natural order, whose padding is that of one of the pencils.
        - `axis_contiguous`: whether it is stored with the local axis of `pencil` last, as operators built with
            `axis_contiguous=True` leave it. It stays so.

        **Raises:** `ValueError` for a field of another shape.
        """
        return self._layout_of(field, pencil, axis_contiguous).crop(field)

    def gather(
        self, field: Field, pencil: Pencil | None = None, *, axis_contiguous: bool = False
    ) -> Shaped[np.ndarray, "*gathered"]:
        """The field as a NumPy array `(*batch, *shape)` of the true shape, on every process.

        **Arguments** and **Raises** as for `crop`. The result is in natural order, however the field was stored.
        """
        return self._layout_of(field, pencil, axis_contiguous).gather(field)

    def sum(
        self, field: Field, pencil: Pencil | None = None, *, axis_contiguous: bool = False
    ) -> Shaped[Array, "*batch"]:
        """The sum over the grid, without padding: see `Layout.sum`. **Arguments** as for `crop`."""
        return self._layout_of(field, pencil, axis_contiguous).sum(field)

    def mean(
        self, field: Field, pencil: Pencil | None = None, *, axis_contiguous: bool = False
    ) -> Shaped[Array, "*batch"]:
        """The mean over the grid, without padding: see `Layout.mean`. **Arguments** as for `crop`."""
        return self._layout_of(field, pencil, axis_contiguous).mean(field)

    def norm(
        self, field: Field, pencil: Pencil | None = None, *, axis_contiguous: bool = False
    ) -> Shaped[Array, "*batch"]:
        """The norm over the grid, without padding: see `Layout.norm`. **Arguments** as for `crop`."""
        return self._layout_of(field, pencil, axis_contiguous).norm(field)

    def vdot(
        self, u: Field, v: Field, pencil: Pencil | None = None, *, axis_contiguous: bool = False
    ) -> Shaped[Array, "*batch"]:
        """The sum of `conj(u) * v` over the grid, without padding: see `Layout.vdot`. **Arguments** as for `crop`.

        Both fields must be stored in the same way.
        """
        return self._layout_of(u, pencil, axis_contiguous, "u").vdot(u, v)

    def _known_shape(self) -> tuple[int, ...]:
        if self.shape is None:
            raise ValueError("`shape` must be given to the decomposition for this; got None.")
        return self.shape

    def _layout_of(self, field: Any, pencil: Pencil | None, axis_contiguous: bool, name: str = "field") -> Layout:
        """The layout that `field` has, by its shape, where `pencil` does not say it."""
        check_grid(name, np.shape(field), self.ndim)
        if check_flag("axis_contiguous", axis_contiguous) and pencil is None:
            raise ValueError("`pencil` must be given for an axis-contiguous field; got None.")
        candidates = []
        for own in range(self.ndim) if pencil is None else (pencil,):
            order = self.storage_order(own, axis_contiguous=axis_contiguous)
            blocks = self.pencil(check_axis("pencil", own, self.ndim), self.shape or (1,) * self.ndim, order)
            if self.shape is None:  # Nothing is padded then.
                blocks = replace(blocks, lengths=blocks.lengths_of(np.shape(field)[-self.ndim :]))
            candidates.append(Layout(self.mesh, blocks))
        found = [layout for layout in candidates if layout.holds(field)]
        if found or manual_axes():
            return (found or candidates)[0]
        shapes = {shape for layout in candidates for shape in (layout.shape, layout.blocks.true_shape)}
        raise ValueError(
            f"`{name}` must have shape (*batch, ...) with the true shape of the grid or that padded for its pencil, "
            f"{' or '.join(map(str, sorted(shapes)))}; got {np.shape(field)}. (Say `pencil` and `axis_contiguous` for "
            "a field that is stored in another order. For the result of an operator, such as the spectrum of a real "
            "transform, use its layout: `fft.out_layout`.)"
        )


# What an error calls the axes of a mesh.
_MESH = ("rows", "columns", *(f"axis {axis}" for axis in range(2, 64)))


def check_grid(name: str, shape: tuple[int, ...], ndim: int) -> None:
    """Raise `ValueError` unless `shape` is that of an array with at least one cell along each axis of the grid."""
    if len(shape) < ndim:
        lengths = ", ".join(f"n{axis}" for axis in axis_names(ndim))
        raise ValueError(f"`{name}` must have shape (*batch, {lengths}); got {shape}.")
    if 0 in shape[-ndim:]:
        raise ValueError(f"`{name}` must have at least one cell along every axis of the grid; got {shape}.")


def _mesh(mesh: object) -> Mesh | AbstractMesh:
    if mesh is None:
        return ambient_mesh()
    if not isinstance(mesh, Mesh | AbstractMesh):
        raise TypeError(f"`mesh` must be a `jax.sharding.Mesh` or a `Decomposition`; got {mesh!r}.")
    if not (mesh.axis_names or mesh.empty):
        raise ValueError(f"`mesh` must have at least one axis; got {mesh}.")
    return mesh


def _axes(axes: Any, mesh: Mesh | AbstractMesh, ndim: int) -> tuple[MeshAxis | None, ...]:
    if axes is None:
        return mesh.axis_names[max(0, len(mesh.axis_names) - ndim + 1) :]  # None of an unknown mesh.
    entries = tuple(axes) if isinstance(axes, tuple | list) else (axes,)
    entries = tuple(spec_entry(entry) if isinstance(entry, tuple | list) else entry for entry in entries)
    while not mesh.empty and entries and entries[-1] is None:
        entries = entries[:-1]
    names = list(flat_names(entry for entry in entries if isinstance(entry, str | tuple)))
    if not all(isinstance(entry, str | tuple | None) for entry in entries) or not all(
        isinstance(n, str) for n in names
    ):
        raise TypeError(f"`axes` must be mesh axes, one for each divided axis of the grid; got {axes!r}.")
    if len(set(names)) < len(names) or not (mesh.empty or set(names) <= set(mesh.axis_names)):
        raise ValueError(f"`axes` must be different axes of the mesh, {mesh.axis_names}; got {axes!r}.")
    if len(entries) >= ndim:
        several = (
            f" To divide one axis over several mesh axes, pass `axes=({tuple(names)},)`." if len(names) > 1 else ""
        )
        raise ValueError(
            f"`axes` must be at most {ndim - 1} for a grid of {ndim} axes, of which one is whole on every device; got "
            f"{axes!r}.{several}"
        )
    return entries
