"""`Decomposition`: a grid in a box, on a device mesh."""

import math
from collections.abc import Callable
from typing import Any, cast

import equinox as eqx
import numpy as np
from jax import Array
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Shaped

from .._backend.base import AbstractBackend
from .._common.blocks import (
    Blocks,
    MeshAxis,
    Pencil,
    axis_names,
    contiguous_order,
    entry_names,
    flat_names,
    pencil_blocks,
)
from .._common.box import Box, Number, check_box
from .._common.check import check_axis, check_flag, check_order, check_shape, check_untraced
from .._common.host import agreed_array
from .._common.placement import is_placed
from .._common.sharding import array_spec, manual_axes
from .config import working_backend
from .layout import Field, Layout
from .mesh_axes import check_mesh, check_mesh_axes, meshes_that_divide
from .types import GridAxes, Lengths, MeshAxes


class Decomposition(eqx.Module):
    """A grid in a box: its points, how they are sharded over a device mesh, and which backend moves the fields.

    `shape` has one length for each axis of the grid. In a *pencil*, one grid axis is whole on every device,
    and the mesh axes `axes` shard the other grid axes in order. A pencil is named after its whole axis. With
    `axes = (a, b)` and three grid axes, a *z-pencil* is `P(a, b, None)`, a *y-pencil* `P(a, None, b)`, and an
    *x-pencil* `P(None, a, b)`. Fields in real space lie in the pencils of the last axis. With one mesh axis and three
    grid axes, the blocks are *slabs*. The axes of the mesh that are not in `axes` are batch axes.

    If the mesh does not divide a length of the grid, the constructor raises an error. With `pad=True`, fields are
    instead zero-padded at the end of that axis, to the next length that the mesh divides. Spectra are padded where
    necessary even without `pad=True`, because few meshes divide the lengths of a half spectrum.

    !!! example

        ```python
        mesh = jax.make_mesh((2, 4), ("x", "y"))
        dec = dops.Decomposition(mesh, shape=(64, 64, 64), box=dops.Box(100.0))
        u = dec.shard(numpy_array)     # sharded P("x", "y", None)
        dec.gather(u)                  # the NumPy array again

        dops.Decomposition(mesh, shape=(64, 64), axes=("y",))           # P("y", None); "x" is a batch axis
        dops.Decomposition(mesh, shape=(64, 64), axes=(("x", "y"),))    # P(("x", "y"), None)
        ```
    """

    mesh: Mesh | AbstractMesh = eqx.field(static=True)
    shape: tuple[int, ...] = eqx.field(static=True)
    axes: tuple[MeshAxis | None, ...] = eqx.field(static=True)
    box: Box | None  # With one length for each axis. `None`: no box was given.
    pad: bool = eqx.field(static=True)
    backend: AbstractBackend = eqx.field(static=True)

    def __init__(
        self,
        mesh: "Mesh | AbstractMesh | Decomposition | None" = None,
        shape: Lengths | None = None,
        *,
        axes: MeshAxes | None = None,
        box: Box | None = None,
        pad: bool | None = None,
        backend: AbstractBackend | str | None = None,
    ):
        """**Arguments:**

        - `mesh`: the device mesh, or `None` for the ambient mesh of `jax.set_mesh`. `mesh` may also be another
            decomposition, whose options are then used for all arguments that are not given.
        - `shape`: the lengths of the grid in cells, without padding, such as `(nx, ny, nz)`.
        - `axes`: the mesh axes that shard the grid: `("x", "y")` for pencils, `("x",)` for slabs, `()` for none. There
            must be fewer entries than grid axes. An entry may also be `None` for a whole grid axis, or a tuple of mesh
            axes that shard one grid axis together: `(("x", "y"),)`. By default, as many of the last mesh axes as
            possible shard the grid.
        - `box`: the box that the grid fills. Without a box, periodic axes have the length 2π, and what needs the
            distance of walls raises an error.
        - `pad`: whether fields in real space are zero-padded where the mesh does not divide the grid. By default False,
            or as in the decomposition that is passed as `mesh`.
        - `backend`: the backend that moves the data, such as `dops.XLA()`; `None` for the default of `dops.config`.

        **Raises:** `ValueError` or `TypeError` if there is no mesh, or a mesh without axes; if there is no `shape`, or
        one that is not made of positive integers, or that the mesh does not divide if `pad` is False; for axis names
        that are unknown, repeated or too many; and for a `box` that is not a `Box`, or whose number of lengths does not
        fit. `ImportError` for a backend that is not available.
        """
        if isinstance(mesh, Decomposition):
            shape = mesh.shape if shape is None else shape
            axes = mesh.axes if axes is None else axes
            box = mesh.box if box is None else box
            pad = mesh.pad if pad is None else pad
            backend = mesh.backend if backend is None else backend
            mesh = mesh.mesh
        self.mesh = check_mesh(mesh)
        if self.mesh.empty:
            raise ValueError(
                "`mesh` must be given, or set by `jax.set_mesh(mesh)`; got None and no ambient mesh. Pass "
                '`jax.make_mesh((2, 4), ("x", "y"))`, for example.'
            )
        if shape is None:
            raise ValueError("`shape` must be given to a decomposition, such as `shape=(64, 64, 64)`; got None.")
        self.shape = check_shape("shape", shape)
        self.axes = check_mesh_axes(axes, self.mesh, self.ndim)
        self.box = None if box is None else check_box(box, self.ndim)
        self.pad = False if pad is None else check_flag("pad", pad)
        self.backend = working_backend(backend, self.mesh)
        self.check_divided(-1)

    def __repr__(self) -> str:
        options = {"shape": self.shape, "axes": self.axes, "box": self.box, "pad": self.pad, "backend": self.backend}
        given = ", ".join(f"{name}={value!r}" for name, value in options.items())
        return f"Decomposition({dict(self.mesh.shape)}, {given})"

    @property
    def ndim(self) -> int:
        """The number of axes of the grid."""
        return len(self.shape)

    @property
    def box_lengths(self) -> tuple[Number, ...]:
        """The length of the box along each axis: 2π if no box was given."""
        return (2 * math.pi,) * self.ndim if self.box is None else cast(tuple, self.box.lengths)

    @property
    def spacing(self) -> tuple[Number, ...]:
        """The distance of neighbouring points along each axis, if the points are equally spaced and periodic."""
        return tuple(length / n for length, n in zip(self.box_lengths, self.shape))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of devices along each of `axes`."""
        return tuple(math.prod(self.mesh.shape[name] for name in entry_names(entry)) for entry in self.axes)

    @property
    def mesh_axes(self) -> tuple[str, ...]:
        """The mesh axes that shard the grid, in one flat tuple."""
        return tuple(flat_names(self.axes))

    def blocks(self, pencil: Pencil = -1, order: tuple[int, ...] = ()) -> Blocks:
        """Return how a field in real space is cut into blocks in `pencil`.

        Raises `ValueError` if the field would have to be padded, but `pad` is False.
        """
        self.check_divided(pencil)
        return self.pencil(check_axis("pencil", pencil, self.ndim), self.shape, order)

    def pencil(self, axis: int, shape: tuple[int, ...], order: tuple[int, ...] = ()) -> Blocks:
        """Return how a grid of `shape` is cut into blocks if grid axis number `axis` is whole on every device.

        The blocks are padded where the mesh does not divide `shape`, even if `pad` is False.
        """
        return pencil_blocks(axis, shape, self.axes, self.sizes, order)

    def check_divided(self, *pencils: Pencil) -> None:
        """Raise `ValueError` if a field in one of `pencils` would have to be padded, but `pad` is False."""
        if self.pad:
            return
        names, shape = axis_names(self.ndim), self.shape
        for pencil in pencils:
            whole = check_axis("pencil", pencil, self.ndim)
            blocks = self.pencil(whole, shape)
            for axis in blocks.padded_axes:
                raise ValueError(
                    f"`shape` must be divisible by the mesh, unless `pad=True`; got {shape}: "
                    f"{blocks.parts[axis]} devices do not divide {shape[axis]} cells along {names[axis]} in "
                    f"{names[whole]}-pencils. {self._meshes_that_divide(*pencils)} Or pass "
                    f"`shape={shape}, pad=True` to pad fields in real space with zeros."
                )

    def _meshes_that_divide(self, *pencils: Pencil) -> str:
        whole = {check_axis("pencil", pencil, self.ndim) for pencil in (-1, *pencils)}
        axes = max(len(self.axes), min(2, self.ndim - 1))
        return meshes_that_divide(self.shape, whole, math.prod(self.sizes), axes)

    def layout(self, pencil: Pencil = -1, *, axis_contiguous: bool = False, order: GridAxes | None = None) -> Layout:
        """Return the layout of fields in `pencil`.

        **Arguments:**

        - `pencil`: the name or number of the grid axis that is whole on every device; by default the last axis.
        - `axis_contiguous`: whether fields are stored with the whole axis last, after the other axes in cyclic order.
        - `order`: the grid axes in the order in which they are stored, such as `("z", "x", "y")` or `(2, 0, 1)`.

        **Raises:** `ValueError` for fields that need padding if `pad` is False.
        """
        stored = storage_order(self.ndim, pencil, axis_contiguous=axis_contiguous, order=order)
        return Layout(self.mesh, self.blocks(pencil, stored), self.box, self.backend)

    def spec(self, pencil: Pencil = -1) -> PartitionSpec:
        """Return the partition spec of the grid axes in `pencil`."""
        return self.pencil(check_axis("pencil", pencil, self.ndim), (1,) * self.ndim).spec

    def sharding(self, pencil: Pencil = -1) -> NamedSharding:
        """Return the sharding of a field without batch axes in `pencil`."""
        return NamedSharding(self.mesh, array_spec(self.mesh, self.spec(pencil)))

    def local_shape(self, pencil: Pencil = -1) -> tuple[int, ...]:
        """Return the shape of one block in `pencil`, padding included."""
        return self.layout(pencil).local_shape

    def padded_shape(self, pencil: Pencil = -1) -> tuple[int, ...]:
        """Return the global shape of the array that holds a field in `pencil`, padding included."""
        return self.layout(pencil).shape

    def shard(self, array: Field, pencil: Pencil = -1) -> Shaped[Array, "*stored"]:
        """Shard a host array as a field in `pencil`. Every process passes the same whole array.

        **Arguments:**

        - `array`: an array of any dtype and of shape `(*batch, *shape)`. A batch axis of the array is sharded over
            batch axes of the mesh that divide its length.
        - `pencil`: the name or number of the grid axis that is whole on every device; by default the last axis.

        **Returns:** a `jax.Array` of shape `(*batch, *padded_shape(pencil))`.

        **Raises:** `ValueError` for an array of another shape, for a field that needs padding if `pad` is False, and
        for integers of 64 bits that do not fit 32 bits if JAX is not in 64-bit mode; `TypeError` for a traced array. If
        the processes pass different shapes, dtypes or pencils or have different boxes, all raise `ValueError`.
        """
        check_untraced("array", array, "shard", "`jax.device_put`")
        array = agreed_array(self.mesh, array, (pencil, self.box), "`pencil` and the box")
        check_grid("array", array.shape, self.ndim)
        return self.layout(pencil).distribute(array)

    def crop(
        self, field: Shaped[Array, "*field"], pencil: Pencil | None = None, *, axis_contiguous: bool = False
    ) -> Shaped[Array, "*cropped"]:
        """Cut the padding off a field. The result is not sharded along an axis that had padding.

        **Arguments:**

        - `field`: a field of shape `(*batch, *padded_shape(pencil))`, or one whose padding has already been cut off.
        - `pencil`: the name or number of the grid axis that is whole on every device. With `None`, the
            pencil is found from the shape of the field, which then must not be axis-contiguous.
        - `axis_contiguous`: whether the field is stored with the whole axis of `pencil` last, as operators with
            `axis_contiguous=True` store it. The result is stored in the same order.

        **Returns:** a `jax.Array` of shape `(*batch, *shape)`, with its axes in the storage order of the field.

        **Raises:** `ValueError` for a field of another shape.
        """
        return self._layout_of(field, pencil, axis_contiguous).crop(field)

    def gather(
        self, field: Field, pencil: Pencil | None = None, *, axis_contiguous: bool = False
    ) -> Shaped[np.ndarray, "*gathered"]:
        """Gather a field, without its padding, on every process. **Arguments** and **Raises** are those of `crop`.

        **Returns:** a NumPy array of shape `(*batch, *shape)`, with its axes in the order of the grid.
        """
        return self._layout_of(field, pencil, axis_contiguous).gather(field)

    def ravel(
        self, field: Field, pencil: Pencil | None = None, *, axis_contiguous: bool = False
    ) -> tuple[Shaped[Array, " cells"], Callable[[Shaped[Array, " cells"]], Array]]:
        """Return a field as a flat, sharded vector, and the inverse function: see `Layout.ravel`.

        **Arguments** are those of `crop`.
        """
        return self._layout_of(field, pencil, axis_contiguous).ravel(field)

    def sum(
        self, field: Field, pencil: Pencil | None = None, *, axis_contiguous: bool = False
    ) -> Shaped[Array, "*batch"]:
        """Return the sum over the grid, without padding: see `Layout.sum`. **Arguments** are those of `crop`."""
        return self._layout_of(field, pencil, axis_contiguous).sum(field)

    def mean(
        self, field: Field, pencil: Pencil | None = None, *, axis_contiguous: bool = False
    ) -> Shaped[Array, "*batch"]:
        """Return the mean over the grid, without padding: see `Layout.mean`. **Arguments** are those of `crop`."""
        return self._layout_of(field, pencil, axis_contiguous).mean(field)

    def norm(
        self, field: Field, pencil: Pencil | None = None, *, axis_contiguous: bool = False
    ) -> Shaped[Array, "*batch"]:
        """Return the norm over the grid, without padding: see `Layout.norm`. **Arguments** are those of `crop`."""
        return self._layout_of(field, pencil, axis_contiguous).norm(field)

    def max(
        self, field: Field, pencil: Pencil | None = None, *, axis_contiguous: bool = False
    ) -> Shaped[Array, "*batch"]:
        """Return the largest value of a real field: see `Layout.max`. **Arguments** are those of `crop`."""
        return self._layout_of(field, pencil, axis_contiguous).max(field)

    def min(
        self, field: Field, pencil: Pencil | None = None, *, axis_contiguous: bool = False
    ) -> Shaped[Array, "*batch"]:
        """Return the smallest value of a real field: see `Layout.min`. **Arguments** are those of `crop`."""
        return self._layout_of(field, pencil, axis_contiguous).min(field)

    def vdot(
        self, u: Field, v: Field, pencil: Pencil | None = None, *, axis_contiguous: bool = False
    ) -> Shaped[Array, "*batch"]:
        """Return the sum of `conj(u) * v` over the grid, without padding: see `Layout.vdot`.

        **Arguments** are those of `crop`. Both fields must be stored in the same way.
        """
        return self._layout_of(u, pencil, axis_contiguous, "u").vdot(u, v)

    def _layout_of(self, field: Any, pencil: Pencil | None, axis_contiguous: bool, name: str = "field") -> Layout:
        """Return the layout of `field`. If `pencil` is `None`, it is found from the field's shape."""
        check_grid(name, np.shape(field), self.ndim)
        if check_flag("axis_contiguous", axis_contiguous) and pencil is None:
            raise ValueError("`pencil` must be given for an axis-contiguous field; got None.")
        candidates = []
        # If several pencils fit, the field is taken to be in real space, unless its sharding says otherwise.
        for own in reversed(range(self.ndim)) if pencil is None else (pencil,):
            order = storage_order(self.ndim, own, axis_contiguous=axis_contiguous)
            blocks = self.pencil(check_axis("pencil", own, self.ndim), self.shape, order)
            candidates.append(Layout(self.mesh, blocks, self.box, self.backend))
        found = [layout for layout in candidates if layout.holds(field)]
        if found or manual_axes():
            found = found or candidates
            return next((layout for layout in found if is_placed(field, self.mesh, layout.blocks)), found[0])
        shapes = {shape for layout in candidates for shape in (layout.shape, layout.blocks.true_shape)}
        raise ValueError(
            f"`{name}` must end with the shape of the grid, with or without padding: "
            f"{' or '.join(map(str, sorted(shapes)))}; got {np.shape(field)}. Pass `pencil` and `axis_contiguous` for "
            "a field that is stored in another order. For the result of an operator, such as the spectrum of a real "
            "transform, use its layout: `fft.out_layout`."
        )


def check_grid(name: str, shape: tuple[int, ...], ndim: int) -> None:
    """Raise `ValueError` unless an array of `shape` has at least one cell along each axis of the grid."""
    if len(shape) < ndim:
        lengths = ", ".join(f"n{axis}" for axis in axis_names(ndim))
        raise ValueError(f"`{name}` must have shape (*batch, {lengths}); got {shape}.")
    if 0 in shape[-ndim:]:
        raise ValueError(f"`{name}` must have at least one cell along every axis of the grid; got {shape}.")


def check_decomposition(value: Any, name: str = "decomposition") -> Decomposition:
    """Return `value`. Raises `TypeError` if it is not a `Decomposition`."""
    if isinstance(value, Decomposition):
        return value
    inside = isinstance(getattr(value, "decomposition", None), Decomposition)
    advice = "Pass its attribute `decomposition`" if inside else "Pass `Decomposition(mesh, shape=shape)`"
    raise TypeError(f"`{name}` must be a `Decomposition`; got {value!r}. {advice}.")


def check_field(name: str, field: Any, decomposition: Decomposition) -> None:
    """Raise `ValueError` unless the last axes of `field` are those of the grid, with or without padding."""
    if np.shape(field)[-len(decomposition.shape) :] != decomposition.shape:  # Making a layout is slow.
        decomposition.layout().check(field, name)


def storage_order(
    ndim: int, pencil: Pencil, *, axis_contiguous: bool = False, order: GridAxes | None = None, name: str = "order"
) -> tuple[int, ...]:
    """Return the order in which the `ndim` axes of a field in `pencil` are stored. Errors call the argument `name`."""
    axis = check_axis("pencil", pencil, ndim)
    contiguous = check_flag("axis_contiguous", axis_contiguous)
    if order is None:
        return contiguous_order(ndim, axis) if contiguous else tuple(range(ndim))
    if contiguous:
        raise ValueError(f"`{name}` must be None with `axis_contiguous=True`; got {order!r}.")
    return check_order(name, order, ndim)
