"""`Layout`: where an array that holds a field lies."""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Shaped

from . import _reductions as reductions
from ._blocks import Blocks, axis_names, batch_spec
from ._sharding import manual_axes, whole_along


Field = Shaped[Array | np.ndarray, "*field"]


@dataclass(frozen=True)
class Layout:
    """How an array holds a field: on which devices, cut into which blocks, stored in which order, with which padding.

    Operators say what they take and return: `fft.in_layout`, `fft.out_layout`. A decomposition says how its fields lie
    in each pencil: `dec.layout("z")`.

    - `mesh`: the devices.
    - `blocks`: how the grid is cut into blocks, which knows nothing of devices.

    !!! example

        ```python
        fft = dops.FFT3D(mesh, shape=(64, 64, 64), real=True)
        k = fft(u)
        fft.out_layout.gather(k)       # NumPy array (64, 64, 33)
        fft.out_layout.shape           # (64, 64, 36): 4 devices do not divide 33 modes
        ```
    """

    mesh: Mesh | AbstractMesh
    blocks: Blocks

    @property
    def shape(self) -> tuple[int, ...]:
        """The global shape of the array, in its storage order, padding and halo layers included."""
        return self.blocks.shape

    @property
    def true_shape(self) -> tuple[int, ...]:
        """The shape of the grid without padding or halo layers, in the order of its axes whatever the storage order."""
        return self.blocks.lengths

    @property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of the block that one device holds, in its storage order, padding and halo layers included."""
        return self.blocks.block_shape

    @property
    def spec(self) -> PartitionSpec:
        """The partition spec of the stored grid axes."""
        return self.blocks.spec

    @property
    def sharding(self) -> NamedSharding:
        """The sharding of a field without batch axes."""
        return NamedSharding(self.mesh, self.spec)

    def sharding_of(self, shape: tuple[int, ...]) -> NamedSharding:
        """The sharding of an array of `shape`.

        Leading axes are divided over the other mesh axes where these divide them.
        """
        free = {name: size for name, size in self.mesh.shape.items() if name not in self.blocks.mesh_axes}
        batch = batch_spec(shape[: -self.blocks.ndim], free)
        return NamedSharding(self.mesh, PartitionSpec(*batch, *self.spec))

    def shard(self, array: Field) -> Shaped[Array, "*stored"]:
        """Distribute a host array `(*batch, *true_shape)`: store its axes in the order of this layout, and pad it.

        Every process passes the same whole array and keeps its own blocks of it. Leading axes are sharded over the
        other mesh axes where these divide them.

        **Raises:** `ValueError` for an array of another shape; on every process, where they do not all pass the same
        shape and dtype.
        """
        array = np.asarray(array)
        check_agreement(self.mesh, array, self.blocks, "the layout")
        return self.distribute(array)

    def distribute(self, array: np.ndarray) -> Array:
        """`shard`, without the check that all processes pass the same."""
        blocks = self.blocks
        self._refuse_halo("array")
        if array.shape[-blocks.ndim :] != self.true_shape:
            axes = ", ".join(map(str, self.true_shape))
            raise ValueError(
                f"`array` must have shape (*batch, {axes}), whatever the storage order; got {array.shape}."
            )
        if not isinstance(self.mesh, Mesh):
            raise ValueError(f"`mesh` must have devices to hold a field; got {self.mesh}.")
        lead = array.shape[: -blocks.ndim]
        stored = array.transpose(*range(len(lead)), *(len(lead) + axis for axis in blocks.order))
        shape = (*lead, *blocks.shape)

        def block(index):
            part = stored[index]  # A slice past the end of an axis is cut there: what is missing is padding.
            sizes = [len(range(*i.indices(n))) for i, n in zip(index, shape)]
            return np.pad(part, [(0, size - n) for size, n in zip(sizes, part.shape)])

        return jax.make_array_from_callback(shape, self.sharding_of(shape), block)

    def gather(self, field: Field) -> Shaped[np.ndarray, "*gathered"]:
        """The field as a NumPy array `(*batch, *true_shape)` on every process, in the order of the axes.

        **Raises:** `ValueError` for a field of another shape, and where the layout has halo layers.
        """
        self.check(field)
        if isinstance(field, Array) and not field.is_fully_addressable:
            field = jax.device_put(field, NamedSharding(self.mesh, PartitionSpec()))
        array = np.asarray(field)
        natural = (*range(array.ndim - self.blocks.ndim), *map(self.blocks.position, range(self.blocks.ndim)))
        return array[..., *map(slice, self.blocks.true_shape)].transpose(natural)

    def crop(self, field: Shaped[Array, "*field"]) -> Shaped[Array, "*cropped"]:
        """Cut the padding off a field, which keeps its storage order. A padded axis is gathered.

        **Raises:** as `gather`.
        """
        self.check(field)
        lengths = self.blocks.true_shape
        cuts = [axis for axis in range(-len(lengths), 0) if lengths[axis] != field.shape[axis]]
        return whole_along(field, *cuts)[..., *map(slice, lengths)] if cuts else field

    def sum(self, field: Field) -> Shaped[Array, "*batch"]:
        """The sum over the grid. Padding does not count, whatever stands there. Communicates by an all-reduce only.

        Of a spectrum, each stored mode counts once.

        **Returns:** one number for each leading index, an array of shape `(*batch,)`, of the dtype that `jnp.sum` has.
        Half precision is accumulated in single precision.

        **Raises:** `ValueError` for a field of another shape, where the layout has halo layers, and inside a
        `shard_map` over a mesh axis of the grid.
        """
        self._check_reduced("field", field)
        return reductions.total(jnp.asarray(field), self.blocks.true_shape)

    def mean(self, field: Field) -> Shaped[Array, "*batch"]:
        """The mean over the grid. Takes and raises what `sum` does; the dtype is that of `jnp.mean`."""
        self._check_reduced("field", field)
        return reductions.mean(jnp.asarray(field), self.blocks.true_shape)

    def norm(self, field: Field) -> Shaped[Array, "*batch"]:
        """The root of the sum of `|field|²` over the grid. Takes and raises what `sum` does; the result is real.

        The derivative at a field of zeros is zero.
        """
        self._check_reduced("field", field)
        return reductions.norm(jnp.asarray(field), self.blocks.true_shape)

    def vdot(self, u: Shaped[Array | np.ndarray, "*u"], v: Shaped[Array | np.ndarray, "*v"]) -> Shaped[Array, "*batch"]:
        """The sum of `conj(u) * v` over the grid. Takes and raises what `sum` does. Leading axes broadcast."""
        self._check_reduced("u", u)
        self._check_reduced("v", v)
        ndim = self.blocks.ndim
        if np.shape(u)[-ndim:] != np.shape(v)[-ndim:]:
            raise ValueError(f"`u` and `v` must both be padded, or both cropped; got {np.shape(u)} and {np.shape(v)}.")
        return reductions.vdot(jnp.asarray(u), jnp.asarray(v), self.blocks.true_shape)

    def holds(self, field: Any) -> bool:
        """Whether the last axes of `field` have the lengths of this layout, with or without its padding."""
        return np.shape(field)[-self.blocks.ndim :] in (self.blocks.shape, self.blocks.true_shape)

    def check(self, field: Any, name: str = "field") -> None:
        """Raise `ValueError` unless `field` is one of this layout, with or without its padding."""
        self._refuse_halo(name)
        if not self.holds(field):
            expected = sorted({self.blocks.shape, self.blocks.true_shape})
            shapes = " or ".join(f"(*batch, {', '.join(map(str, shape))})" for shape in expected)
            raise ValueError(f"`{name}` must have shape {shapes} in {self}; got {np.shape(field)}.")

    def _check_reduced(self, name: str, field: Any) -> None:
        """Raise `ValueError` unless `field` is a global field of this layout."""
        check_global(name, self.blocks.mesh_axes)
        self.check(field, name)

    def _refuse_halo(self, name: str) -> None:
        if self.blocks.has_halo:
            raise ValueError(
                f"`{name}` must have no halo layers, but this layout is {self}; drop them by `halo.crop(field)` and "
                "use `halo.in_layout`."
            )

    def __str__(self) -> str:
        """Such as "x-pencils 2x4": which axes are whole on a device, and how many blocks there are along the others."""
        names = axis_names(self.blocks.ndim)
        whole = "".join(name for name, own in zip(names, self.blocks.names) if own is None)
        counts = [str(n) for n, own in zip(self.blocks.parts, self.blocks.names) if own is not None]
        stored = "".join(names[axis] for axis in self.blocks.order)
        order = "" if stored == "".join(names) else f" stored as {stored}"
        halo = f" with halo {self.blocks.halo}" if self.blocks.has_halo else ""
        return f"{whole}-pencils {'x'.join(counts)}{order}{halo}"


def check_global(
    name: str, mesh_axes: Iterable[str | None], hint: str = "call this outside, or sum the blocks with `jax.lax.psum`"
) -> None:
    """Raise `ValueError` inside a `shard_map` over one of the mesh axes that divide the grid."""
    for axis in filter(manual_axes().__contains__, mesh_axes):
        raise ValueError(
            f"`{name}` must be a global field, but this call is inside a `shard_map` over mesh axis {axis!r}; {hint}."
        )


def check_agreement(mesh: Mesh | AbstractMesh, array: np.ndarray, where: Any, name: str) -> None:
    """Raise on every process of the mesh if they differ in what they are about to shard, and `where`.

    Programs that then differ between processes would hang, abort, or go on with too few data.
    """
    if isinstance(mesh, AbstractMesh):
        return
    mine = zlib.crc32(repr((array.shape, str(array.dtype), where)).encode())
    others = sorted(process for process, (value,) in exchange_numbers(mesh, mine).items() if value != mine)
    if others:
        raise ValueError(
            f"`array` must have the same shape and dtype on every process, and {name} be the same; got "
            f"{array.shape}, {array.dtype}, {where!r} on process {jax.process_index()}, something else on {others}."
        )


def exchange_numbers(mesh: Mesh, *numbers: int) -> dict[int, tuple[int, ...]]:
    """The 32-bit `numbers` of every process of a mesh, by process. All of them call this at the same time.

    A mesh that belongs to this process as a whole, or not at all, needs no communication.
    """
    everywhere = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    if len(everywhere.addressable_devices) in (0, mesh.size):
        return {jax.process_index(): numbers}
    shape = (mesh.size, len(numbers))
    mine = np.array([numbers], np.uint32)
    gathered = jax.make_array_from_callback(shape, everywhere, lambda _: mine)
    gathered = np.asarray(jax.device_put(gathered, NamedSharding(mesh, PartitionSpec()))).tolist()
    return {device.process_index: tuple(values) for device, values in zip(mesh.devices.flat, gathered)}
