"""`Decomposition`: a grid on a device mesh."""

import zlib
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Shaped

from . import _reductions as reductions
from ._backend.base import AbstractBackend
from ._blocks import AXES, Blocks, Pencil, Triple, pencil_blocks
from ._check import check_flag, check_pencil, check_shape
from ._config import resolve_backend
from ._sharding import ambient_mesh, batch_spec, manual_axes, whole_along


Field = Shaped[Array | np.ndarray, "..."]


class Decomposition(eqx.Module):
    """How 3-D fields are divided over a device mesh, and which backend moves them.

    `axes = (a, b)` are the mesh axes that divide the grid, `(a, None)` for a slab; by default the last two axes of the
    mesh, or the only one. All other mesh axes are batch axes. A *z-pencil* `P(a, b, None)` has z whole on every device,
    a *y-pencil* is `P(a, None, b)`, an *x-pencil* `P(None, a, b)`.

    Axes that the mesh does not divide are zero-padded at their end to the next multiple; then `shape` is needed,
    because an array's own shape no longer tells the true one.

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
    backend: AbstractBackend = eqx.field(static=True)

    def __init__(
        self,
        mesh: "Mesh | AbstractMesh | Decomposition | None" = None,
        *,
        shape: Any = None,
        axes: Any = None,
        backend: AbstractBackend | str | None = None,
    ):
        """**Arguments:**

        - `mesh`: the device mesh; another decomposition, to change some of its options; or `None` for the ambient mesh
            of `jax.set_mesh`.
        - `shape`: the true lengths `(nx, ny, nz)` of the grid in cells. May be left out where the mesh divides them.
        - `axes`: the mesh axes that divide the grid: `("x", "y")`, or `("x",)` for a slab.
        - `backend`: what moves the data, such as `dops.XLA()`; `None` for the default of `dops.config`.

        **Raises:** `ValueError` or `TypeError` for a mesh without axes, unknown or repeated axis names, a shape that is
        not three positive integers; `ImportError` for a backend that is not available.
        """
        if isinstance(mesh, Decomposition):
            shape = mesh.shape if shape is None else shape
            axes = mesh.axes if axes is None else axes
            backend = mesh.backend if backend is None else backend
            mesh = mesh.mesh
        self.mesh = _mesh(mesh)
        self.shape = None if shape is None else check_shape("shape", shape)
        self.axes = _axes(axes, self.mesh)
        self.backend = resolve_backend(backend)
        self.backend.check(self.mesh)

    @property
    def sizes(self) -> tuple[int, int]:
        """How many devices divide the grid along mesh axes `a` and `b`."""
        a, b = self.axes
        return self.mesh.shape[a], 1 if b is None else self.mesh.shape[b]

    @property
    def batch_axes(self) -> dict[str, int]:
        """The mesh axes that do not divide the grid, with their sizes."""
        return {name: size for name, size in self.mesh.shape.items() if name not in self.axes}

    def blocks(self, pencil: Pencil, shape: tuple[int, ...] | None = None, *, axis_contiguous: bool = False) -> Blocks:
        """How `pencil` is cut into blocks, for the decomposition's shape or another."""
        check_pencil("pencil", pencil)
        shape = shape or self.shape
        if shape is None:
            raise ValueError("`shape` must be given to the decomposition for this; got None.")
        return self.pencil(AXES.index(pencil), shape, axis_contiguous=axis_contiguous)

    def pencil(self, axis: int, shape: tuple[int, ...], *, axis_contiguous: bool = False) -> Blocks:
        """How a grid of `shape` is cut into blocks if grid axis number `axis` is whole on every device."""
        return pencil_blocks(axis, shape, self.axes, self.sizes, axis_contiguous=axis_contiguous)

    def spec(self, pencil: Pencil = "z") -> PartitionSpec:
        """The partition spec of the three grid axes in `pencil`."""
        return self.blocks(pencil, (1, 1, 1)).spec

    def sharding(self, pencil: Pencil = "z") -> NamedSharding:
        """The sharding of a field without batch axes in `pencil`."""
        return NamedSharding(self.mesh, self.spec(pencil))

    def local_shape(self, pencil: Pencil = "z") -> tuple[int, ...]:
        """The shape of one block in `pencil`, padding included."""
        return self.blocks(pencil).block_shape

    def padded_shape(self, pencil: Pencil = "z") -> tuple[int, ...]:
        """The global shape of a field's array in `pencil`: the true shape, padded where the mesh does not divide it."""
        return self.blocks(pencil).shape

    def shard(self, array: Shaped[Array | np.ndarray, "..."], pencil: Pencil = "z") -> Shaped[Array, "..."]:
        """Distribute a host array `(*batch, nx, ny, nz)` as a field in `pencil`, padded where it must be.

        Every process passes the same whole array and keeps its own blocks of it. Leading axes are divided over the
        batch axes of the mesh where these divide them.

        **Raises:** `ValueError` for an array of another shape than the decomposition's; on every process, where they do
        not all pass the same shape, dtype and pencil.
        """
        array = np.asarray(array)
        _check_agreement(self.mesh, array, pencil)
        shape = self.shape or array.shape[-3:]
        if array.ndim < 3 or array.shape[-3:] != shape or 0 in shape:
            raise ValueError(
                f"`array` must have shape (*batch, nx, ny, nz) with (nx, ny, nz) = {shape}; got {array.shape}."
            )
        blocks = self.blocks(pencil, shape)
        if self.shape is None and blocks.padded_axes:
            raise ValueError(f"`shape` must be given where the mesh does not divide it; got {shape}.")
        if not isinstance(self.mesh, Mesh):
            raise ValueError(f"`mesh` must have devices to hold a field; got {self.mesh}.")
        lead = array.shape[:-3]
        spec = PartitionSpec(*batch_spec(lead, self.batch_axes), *blocks.spec)

        def block(index):
            part = array[index]  # a slice past the end of an axis is cut there: what is missing is padding
            sizes = [len(range(*i.indices(n))) for i, n in zip(index, (*lead, *blocks.shape))]
            return np.pad(part, [(0, size - n) for size, n in zip(sizes, part.shape)])

        sharding = NamedSharding(self.mesh, spec)
        return jax.make_array_from_callback((*lead, *blocks.shape), sharding, block)

    def crop(
        self, field: Shaped[Array, "..."], pencil: Pencil | None = None, *, axis_contiguous: bool = False
    ) -> Shaped[Array, "..."]:
        """Cut the padding off a field. An axis whose true length the mesh does not divide is gathered.

        **Arguments:**

        - `field`: of shape `(*batch, ...)`, in the blocks of `pencil` or already without its padding.
        - `pencil`: may be left out for a field in natural order, whose padding is that of one of the pencils.
        - `axis_contiguous`: whether it is stored with the local axis of `pencil` last, as operators built with
            `axis_contiguous=True` leave it. It stays so.

        **Raises:** `ValueError` for a field of another shape.
        """
        blocks = self._blocks_of(field, pencil, axis_contiguous)
        lengths = blocks.true_shape
        cuts = [axis for axis in (-3, -2, -1) if lengths[axis] != field.shape[axis]]
        return whole_along(field, *cuts)[..., *map(slice, lengths)] if cuts else field

    def gather(
        self, field: Shaped[Array | np.ndarray, "..."], pencil: Pencil | None = None, *, axis_contiguous: bool = False
    ) -> Shaped[np.ndarray, "..."]:
        """The field as a NumPy array `(*batch, nx, ny, nz)` of the true shape, on every process.

        **Arguments:** and **Raises:** as of `crop`. The result is in natural order, however the field was stored.
        """
        blocks = self._blocks_of(field, pencil, axis_contiguous)
        if isinstance(field, Array) and not field.is_fully_addressable:
            field = jax.device_put(field, NamedSharding(self.mesh, PartitionSpec()))
        array = np.asarray(field)
        lead = array.ndim - 3
        natural = (*range(lead), *(lead + blocks.order.index(axis) for axis in range(3)))
        return array[..., *map(slice, blocks.true_shape)].transpose(natural)

    def sum(self, field: Field, pencil: Pencil | None = None, *, axis_contiguous: bool = False) -> Shaped[Array, "..."]:
        """The sum over the grid. Padding does not count, whatever stands there. Communicates by an all-reduce only.

        **Arguments:** as for `crop`. For a spectrum call `fft.spectral.sum`; it counts each stored mode once.

        **Returns:** one number for each leading index, an array of shape `(*batch,)`, of the dtype that `jnp.sum` has.
        Half precision is accumulated in single precision.

        **Raises:** `ValueError` for a field of another shape, and inside a `shard_map` over a mesh axis of the grid.
        """
        return reductions.total(jnp.asarray(field), self._lengths_of(field, pencil, axis_contiguous))

    def mean(
        self, field: Field, pencil: Pencil | None = None, *, axis_contiguous: bool = False
    ) -> Shaped[Array, "..."]:
        """The mean over the grid. Takes and raises what `sum` does; the dtype is that of `jnp.mean`."""
        return reductions.mean(jnp.asarray(field), self._lengths_of(field, pencil, axis_contiguous))

    def norm(
        self, field: Field, pencil: Pencil | None = None, *, axis_contiguous: bool = False
    ) -> Shaped[Array, "..."]:
        """The root of the sum of `|field|²` over the grid. Takes and raises what `sum` does; the result is real.

        The derivative at a field of zeros is zero.
        """
        return reductions.norm(jnp.asarray(field), self._lengths_of(field, pencil, axis_contiguous))

    def vdot(
        self, u: Field, v: Field, pencil: Pencil | None = None, *, axis_contiguous: bool = False
    ) -> Shaped[Array, "..."]:
        """The sum of `conj(u) * v` over the grid. Takes and raises what `sum` does.

        Both fields must be stored in the same way. Their leading axes broadcast.
        """
        lengths = self._lengths_of(u, pencil, axis_contiguous, "u")
        self._lengths_of(v, pencil, axis_contiguous, "v")
        if np.shape(u)[-3:] != np.shape(v)[-3:]:
            raise ValueError(
                f"`u` and `v` must both be padded for the same pencil, or both cropped; got {np.shape(u)} and "
                f"{np.shape(v)}."
            )
        return reductions.vdot(jnp.asarray(u), jnp.asarray(v), lengths)

    def _lengths_of(
        self, field: Any, pencil: Pencil | None, axis_contiguous: bool, name: str = "field"
    ) -> tuple[int, ...]:
        """The true lengths of the last three axes of a field that is to be summed."""
        for axis in filter(manual_axes().__contains__, self.axes):
            raise ValueError(
                f"`{name}` must be a global field, but this call is inside a `shard_map` over mesh axis {axis!r}; "
                "call this outside, or sum the blocks with `jax.lax.psum`."
            )
        return self._blocks_of(field, pencil, axis_contiguous, name).true_shape

    def _blocks_of(self, field: Any, pencil: Pencil | None, axis_contiguous: bool, name: str = "field") -> Blocks:
        """The blocks that `field` has, by its shape."""
        if np.ndim(field) < 3:
            raise ValueError(f"`{name}` must have shape (*batch, nx, ny, nz); got {np.shape(field)}.")
        if check_flag("axis_contiguous", axis_contiguous) and pencil is None:
            raise ValueError("`pencil` must be given for an axis-contiguous field; got None.")
        grid = np.shape(field)[-3:]
        pencils = AXES if pencil is None else (pencil,)
        candidates = [self.blocks(p, self.shape or (1, 1, 1), axis_contiguous=axis_contiguous) for p in pencils]
        if self.shape is None:  # nothing is padded then
            candidates = [replace(blocks, lengths=blocks.lengths_of(grid)) for blocks in candidates]
        for blocks in candidates:
            if grid in (blocks.shape, blocks.true_shape):
                return blocks
        expected = " or ".join(str(shape) for shape in sorted({s for q in candidates for s in (q.shape, q.true_shape)}))
        raise ValueError(
            f"`{name}` must have shape (*batch, ...) with the true shape of the grid or that padded for its pencil, "
            f"{expected}; got {np.shape(field)}. (Say `pencil` and `axis_contiguous` for a field that is stored in "
            "another order. The spectrum of a real transform belongs to the decomposition `fft.spectral`.)"
        )


def _check_agreement(mesh: Mesh | AbstractMesh, array: np.ndarray, pencil: Pencil) -> None:
    """Raise on every process of the mesh if they differ in what they are about to shard.

    Programs that then differ between processes would hang, abort, or go on with too few data.
    """
    everywhere = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    if isinstance(mesh, AbstractMesh) or len(everywhere.addressable_devices) in (0, mesh.size):
        return  # all of the mesh, or nothing of it, belongs to this process
    mine = np.full(1, zlib.crc32(repr((array.shape, str(array.dtype), pencil)).encode()), np.uint32)
    all_of_them = jax.make_array_from_callback((mesh.size,), everywhere, lambda _: mine)
    all_of_them = np.asarray(jax.device_put(all_of_them, NamedSharding(mesh, PartitionSpec())))
    owners = [device.process_index for device in mesh.devices.flat]
    others = sorted({owner for owner, value in zip(owners, all_of_them) if value != mine[0]})
    if others:
        raise ValueError(
            "`array` must have the same shape and dtype on every process, and `pencil` be the same; got "
            f"{array.shape}, {array.dtype}, {pencil!r} on process {jax.process_index()}, something else on {others}."
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
