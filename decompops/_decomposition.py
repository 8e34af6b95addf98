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
from ._blocks import AXES, Blocks, Pencil, Triple, mesh_sizes, pencil_blocks
from ._check import check_flag, check_pencil, check_shape
from ._config import resolve_backend
from ._layout import Field, Layout, check_agreement
from ._sharding import ambient_mesh, manual_axes


class Decomposition(eqx.Module):
    """How 3-D fields are divided over a device mesh, and which backend moves them.

    `axes = (a, b)` are the mesh axes that divide the grid, `(a, None)` for a slab; by default the last two axes of the
    mesh, or the only one. All other mesh axes are batch axes. A *z-pencil* `P(a, b, None)` has z whole on every device,
    a *y-pencil* is `P(a, None, b)`, an *x-pencil* `P(None, a, b)`.

    A grid that the mesh does not divide is refused, unless `pad=True`. Then fields are zero-padded at the end of an
    axis to the next multiple of its devices, and `shape` is needed, because an array's own shape no longer tells the
    true one. Spectra are padded without asking: most half spectra have to be.

    !!! example

        ```python
        mesh = jax.make_mesh((2, 4), ("x", "y"))
        dec = dops.Decomposition(mesh, shape=(64, 64, 64))
        u = dec.shard(numpy_array)     # sharded P("x", "y", None)
        dec.gather(u)                  # the NumPy array again
        ```
    """

    mesh: Mesh | AbstractMesh = eqx.field(static=True)
    shape: Triple | None = eqx.field(static=True)
    axes: tuple[str, str | None] = eqx.field(static=True)
    pad: bool = eqx.field(static=True)
    backend: AbstractBackend = eqx.field(static=True)

    def __init__(
        self,
        mesh: "Mesh | AbstractMesh | Decomposition | None" = None,
        *,
        shape: Any = None,
        axes: Any = None,
        pad: bool | None = None,
        backend: AbstractBackend | str | None = None,
    ):
        """**Arguments:**

        - `mesh`: the device mesh; another decomposition, to change some of its options; or `None` for the ambient mesh
            of `jax.set_mesh`.
        - `shape`: the true lengths `(nx, ny, nz)` of the grid in cells. May be left out where the mesh divides them.
        - `axes`: the mesh axes that divide the grid: `("x", "y")`, or `("x",)` for a slab.
        - `pad`: whether fields in real space are zero-padded where the mesh does not divide the grid. `None` is as in
            the decomposition that is changed, else False.
        - `backend`: what moves the data, such as `dops.XLA()`; `None` for the default of `dops.config`.

        **Raises:** `ValueError` or `TypeError` for a mesh without axes, unknown or repeated axis names, a shape that is
        not three positive integers, or that the mesh does not divide without `pad=True`; `ImportError` for a backend
        that is not available.
        """
        if isinstance(mesh, Decomposition):
            shape = mesh.shape if shape is None else shape
            axes = mesh.axes if axes is None else axes
            pad = mesh.pad if pad is None else pad
            backend = mesh.backend if backend is None else backend
            mesh = mesh.mesh
        self.mesh = _mesh(mesh)
        self.shape = None if shape is None else check_shape("shape", shape)
        self.axes = _axes(axes, self.mesh)
        self.pad = False if pad is None else check_flag("pad", pad)
        self.backend = resolve_backend(backend)
        self.backend.check(self.mesh)
        if self.shape is not None:
            self.check_divided(self.shape, "z")

    @property
    def sizes(self) -> tuple[int, int]:
        """How many devices divide the grid along mesh axes `a` and `b`."""
        a, b = self.axes
        return self.mesh.shape[a], 1 if b is None else self.mesh.shape[b]

    def blocks(self, pencil: Pencil, shape: tuple[int, ...] | None = None, *, axis_contiguous: bool = False) -> Blocks:
        """How a field in real space is cut into blocks in `pencil`, for the decomposition's shape or another.

        Raises `ValueError` where the field would be padded without `pad=True`.
        """
        check_pencil("pencil", pencil)
        shape = shape or self._known_shape()
        self.check_divided(shape, pencil)
        return self.pencil(AXES.index(pencil), shape, axis_contiguous=axis_contiguous)

    def pencil(self, axis: int, shape: tuple[int, ...], *, axis_contiguous: bool = False) -> Blocks:
        """How a grid of `shape` is cut into blocks if grid axis number `axis` is whole on every device.

        For spectra, which are padded wherever the mesh does not divide them.
        """
        return pencil_blocks(axis, shape, self.axes, self.sizes, axis_contiguous=axis_contiguous)

    def check_divided(self, shape: tuple[int, ...], *pencils: Pencil) -> None:
        """Raise `ValueError` if a field in one of `pencils` would have to be padded, unless `pad` is set."""
        if self.pad:
            return
        for pencil in pencils:
            blocks = self.pencil(AXES.index(pencil), shape)
            for axis in blocks.padded_axes:
                raise ValueError(
                    f"`shape` must be divided by the mesh, unless `pad=True`: {blocks.parts[axis]} devices do not "
                    f"divide {shape[axis]} cells along {AXES[axis]} in {pencil}-pencils; got {shape}. "
                    f"{self._meshes_that_divide(shape, *pencils)} Or pass `shape={shape}, pad=True` to pad fields in "
                    "real space with zeros."
                )

    def _meshes_that_divide(self, shape: tuple[int, ...], *pencils: Pencil) -> str:
        """A sentence: which meshes of as many devices divide z-pencils and `pencils` of a grid."""
        devices, whole = math.prod(self.sizes), {AXES.index(pencil) for pencil in ("z", *pencils)}
        found = [
            sizes
            for sizes in mesh_sizes(devices)
            if not any(pencil_blocks(axis, shape, ("rows", "columns"), sizes).padded_axes for axis in whole)
        ]
        if not found:
            return f"No mesh (rows, columns) of {devices} devices divides it: choose another shape."
        return f"Meshes (rows, columns) of {devices} devices that divide it: {', '.join(map(str, found))}."

    def layout(self, pencil: Pencil = "z", *, axis_contiguous: bool = False) -> Layout:
        """How fields lie in `pencil`; with `axis_contiguous`, stored with the local axis of `pencil` last.

        **Raises:** `ValueError` for a decomposition without `shape`, and where a field would be padded without
        `pad=True`.
        """
        contiguous = check_flag("axis_contiguous", axis_contiguous)
        return Layout(self.mesh, self.blocks(pencil, axis_contiguous=contiguous))

    def spec(self, pencil: Pencil = "z") -> PartitionSpec:
        """The partition spec of the three grid axes in `pencil`."""
        check_pencil("pencil", pencil)
        return self.pencil(AXES.index(pencil), (1, 1, 1)).spec

    def sharding(self, pencil: Pencil = "z") -> NamedSharding:
        """The sharding of a field without batch axes in `pencil`."""
        return NamedSharding(self.mesh, self.spec(pencil))

    def local_shape(self, pencil: Pencil = "z") -> tuple[int, ...]:
        """The shape of one block in `pencil`, padding included."""
        return self.layout(pencil).local_shape

    def padded_shape(self, pencil: Pencil = "z") -> tuple[int, ...]:
        """The global shape of a field's array in `pencil`: the true shape, padded where the mesh does not divide it."""
        return self.layout(pencil).shape

    def shard(self, array: Field, pencil: Pencil = "z") -> Shaped[Array, "*stored"]:
        """Distribute a host array `(*batch, nx, ny, nz)` as a field in `pencil`, as `Layout.shard` does.

        **Raises:** `ValueError` for an array of another shape than the decomposition's, and where the field would be
        padded without `pad=True`; on every process, where they do not all pass the same shape, dtype and pencil.
        """
        array = np.asarray(array)
        check_agreement(self.mesh, array, pencil, "`pencil`")
        if array.ndim < 3 or 0 in array.shape[-3:]:
            raise ValueError(f"`array` must have shape (*batch, nx, ny, nz); got {array.shape}.")
        blocks = self.blocks(pencil, self.shape or array.shape[-3:])
        if self.shape is None and blocks.padded_axes:
            raise ValueError(f"`shape` must be given where the mesh does not divide it; got {array.shape}.")
        return Layout(self.mesh, blocks).distribute(array)

    def crop(
        self, field: Shaped[Array, "*batch x y z"], pencil: Pencil | None = None, *, axis_contiguous: bool = False
    ) -> Shaped[Array, "*batch nx ny nz"]:
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
    ) -> Shaped[np.ndarray, "*batch nx ny nz"]:
        """The field as a NumPy array `(*batch, nx, ny, nz)` of the true shape, on every process.

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

    def _known_shape(self) -> Triple:
        if self.shape is None:
            raise ValueError("`shape` must be given to the decomposition for this; got None.")
        return self.shape

    def _layout_of(self, field: Any, pencil: Pencil | None, axis_contiguous: bool, name: str = "field") -> Layout:
        """The layout that `field` has, by its shape, where `pencil` does not say it."""
        if np.ndim(field) < 3:
            raise ValueError(f"`{name}` must have shape (*batch, nx, ny, nz); got {np.shape(field)}.")
        if check_flag("axis_contiguous", axis_contiguous) and pencil is None:
            raise ValueError("`pencil` must be given for an axis-contiguous field; got None.")
        candidates = []
        for own in AXES if pencil is None else (pencil,):
            check_pencil("pencil", own)
            blocks = self.pencil(AXES.index(own), self.shape or (1, 1, 1), axis_contiguous=axis_contiguous)
            if self.shape is None:  # Nothing is padded then.
                blocks = replace(blocks, lengths=blocks.lengths_of(np.shape(field)[-3:]))
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


def _mesh(mesh: object) -> Mesh | AbstractMesh:
    if mesh is None:
        mesh = ambient_mesh()
        if mesh.empty:
            raise ValueError("`mesh` must be given where there is no ambient mesh (`jax.set_mesh`); got None.")
    if not isinstance(mesh, Mesh | AbstractMesh):
        raise TypeError(f"`mesh` must be a `jax.sharding.Mesh` or a `Decomposition`; got {mesh!r}.")
    if not mesh.axis_names:
        raise ValueError(f"`mesh` must have at least one axis; got {mesh}.")
    return mesh


def _axes(axes: Any, mesh: Mesh | AbstractMesh) -> tuple[str, str | None]:
    if not (axes is None or isinstance(axes, str | tuple | list)):
        raise TypeError(f"`axes` must be one mesh axis or a tuple of two; got {axes!r}.")
    names = mesh.axis_names[-2:] if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)
    names = names[:1] if len(names) == 2 and names[1] is None else names
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"`axes` must be one mesh axis or a tuple of two; got {axes!r}.")
    if not 1 <= len(names) <= 2 or len(set(names)) != len(names):
        raise ValueError(f"`axes` must name one or two different mesh axes; got {axes!r}.")
    for name in names:
        if name not in mesh.axis_names:
            raise ValueError(f"`axes` must name axes of the mesh, {mesh.axis_names}; got {axes!r}.")
    return names[0], names[1] if len(names) == 2 else None
