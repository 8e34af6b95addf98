"""`Layout`: how an array holds a field."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Shaped

from .._backend.base import AbstractBackend
from .._common.blocks import Blocks, axis_names, batch_spec
from .._common.box import Box
from .._common.check import check_dtype, check_untraced
from .._common.host import agreed_array, device_array, host_array
from .._common.placement import on_mesh
from .._common.sharding import array_spec, manual_axes, mesh_with_devices, no_ambient_mesh
from .._common.typed import whole_along
from . import reductions as reductions
from .block_reduction import BlockReduction, block_reduction
from .flat import ravel


Field = Shaped[Array | np.ndarray, "*field"]


@dataclass(frozen=True)
class Layout:
    """How an array holds a field: its devices, blocks, storage order and padding.

    `fft.in_layout` and `fft.out_layout` are the layouts of an operator's input and result. `dec.layout("z")` is the
    layout of a decomposition's fields in z-pencils.

    - `mesh`: the mesh of the devices.
    - `blocks`: how the grid is cut into blocks.
    - `box`: the box that the grid fills; `None` if no box was given.
    - `backend`: the backend that reduces fields, in `sum` and the methods after it; `None` for XLA.

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
    box: Box | None = field(default=None, compare=False)  # Boxes with traced lengths cannot be compared.
    backend: AbstractBackend | None = field(default=None, compare=False, repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """The global shape of the array, in its storage order, padding and halo layers included."""
        return self.blocks.shape

    @property
    def true_shape(self) -> tuple[int, ...]:
        """The shape of the grid without padding or halo layers, always in the order of the grid axes."""
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
        return NamedSharding(self.mesh, array_spec(self.mesh, self.spec))

    def sharding_of(self, shape: tuple[int, ...]) -> NamedSharding:
        """Return the sharding of an array of `shape`. Batch axes are sharded over mesh axes that divide them."""
        free = {name: size for name, size in self.mesh.shape.items() if name not in self.blocks.mesh_axes}
        batch = batch_spec(shape[: -self.blocks.ndim], free)
        return NamedSharding(self.mesh, array_spec(self.mesh, (*batch, *self.spec)))

    def shard(self, array: Field) -> Shaped[Array, "*stored"]:
        """Shard a host array: store its axes in the order of this layout, and pad them.

        Every process passes the same whole array, and keeps only its own blocks.

        **Arguments:**

        - `array`: an array of any dtype and of shape `(*batch, *true_shape)`. A batch axis of the array is sharded over
            batch axes of the mesh that divide its length.

        **Returns:** a `jax.Array` of shape `(*batch, *shape)`.

        **Raises:** `ValueError` for an array of another shape, and for integers of 64 bits that do not fit 32 bits if
        JAX is not in 64-bit mode; `TypeError` for a traced array. If the processes pass different shapes or dtypes
        or have different boxes, every process raises `ValueError`.
        """
        check_untraced("array", array, "shard", "`jax.device_put`")
        return self.distribute(agreed_array(self.mesh, array, (self.blocks, self.box), "the layout and its box"))

    def distribute(self, array: np.ndarray) -> Array:
        """Shard a host array as `shard` does, without checking that all processes pass the same shape and dtype."""
        blocks = self.blocks
        self._refuse_halo("array")
        if array.shape[-blocks.ndim :] != self.true_shape:
            axes = ", ".join(map(str, self.true_shape))
            raise ValueError(
                f"`array` must have shape (*batch, {axes}), with its axes in the order of the grid; got {array.shape}."
            )
        if not isinstance(self.mesh, Mesh):
            raise ValueError(f"`mesh` must be a `jax.sharding.Mesh`, which has devices; got {self.mesh}.")
        if not self.mesh.local_devices:
            raise ValueError(
                f"`mesh` must have a device of this process, {jax.process_index()}; got {self.mesh}. Let only the "
                "processes with devices of the mesh shard arrays and call operators on it."
            )
        lead = array.shape[: -blocks.ndim]
        stored = array.transpose(*range(len(lead)), *(len(lead) + axis for axis in blocks.order))
        shape = (*lead, *blocks.shape)

        def block(index):
            part = stored[index]  # NumPy cuts a slice at the end of an axis. The missing cells are padding.
            sizes = [len(range(*i.indices(n))) for i, n in zip(index, shape)]
            return np.pad(part, [(0, size - n) for size, n in zip(sizes, part.shape)])

        return jax.make_array_from_callback(shape, self.sharding_of(shape), block)

    def gather(self, field: Field) -> Shaped[np.ndarray, "*gathered"]:
        """Gather a field, without its padding, on every process.

        **Arguments:**

        - `field`: a field of shape `(*batch, *shape)`, or one whose padding has already been cut off.

        **Returns:** a NumPy array of shape `(*batch, *true_shape)`, with its axes in the order of the grid.

        **Raises:** `ValueError` for a field of another shape, and for a layout with halo layers; `TypeError` for a
        traced field.
        """
        self.check(field)
        check_untraced("field", field, "gather", "`crop`")
        if isinstance(field, Array) and not field.is_fully_addressable:
            mesh = mesh_with_devices(self.mesh, field)
            with no_ambient_mesh(unless=mesh):
                field = jax.device_put(field, NamedSharding(mesh, PartitionSpec()))
        # JAX cannot read an empty array that a compiled program returned with Explicit axes.
        array = host_array(field, "field") if np.size(field) else np.zeros(np.shape(field), field.dtype)
        natural = (*range(array.ndim - self.blocks.ndim), *map(self.blocks.position, range(self.blocks.ndim)))
        return array[..., *map(slice, self.blocks.true_shape)].transpose(natural)

    def crop(self, field: Shaped[Array, "*field"]) -> Shaped[Array, "*cropped"]:
        """Cut the padding off a field. The result keeps the storage order, and is not sharded along padded axes.

        **Arguments** and **Raises** are those of `gather`.
        """
        self.check(field)
        lengths = self.blocks.true_shape
        cuts = [axis for axis in range(-len(lengths), 0) if lengths[axis] != field.shape[axis]]
        return whole_along(field, *cuts)[..., *map(slice, lengths)] if cuts else field

    def ravel(self, field: Field) -> tuple[Shaped[Array, " cells"], Callable[[Shaped[Array, " cells"]], Array]]:
        """Return a field as one flat vector that is sharded over the devices of the field, and the inverse function.

        Solvers, optimizers and samplers of other libraries take dot products of flat vectors. JAX gathers a field on
        pencils for `jnp.ravel`, `jnp.vdot` and `jax.flatten_util.ravel_pytree`, but not this vector: it holds the block
        of one device after the block of another, so no device sends anything. On Explicit meshes, JAX asks for the
        sharding of a dot product: call the other library inside `jax.sharding.auto_axes`.

        !!! example

            ```python
            vector, unravel = dec.ravel(u)
            jnp.sum(vector**2)       # an all-reduce of one number
            unravel(2 * vector)      # 2 * u
            ```

        **Arguments:**

        - `field`: a field of shape `(*batch, *shape)`, or one whose padding has already been cut off.

        **Returns:** `(vector, unravel)`. `vector` has one axis, the dtype of the field, and zeros in place of padding.
        `unravel` returns the field of shape `(*batch, *shape)` of such a vector, of any dtype. Its padding is zero,
        whatever the vector holds there. Both are linear, and can be differentiated.

        **Raises:** `ValueError` as `sum` does; and `unravel`, for a vector of another length.
        """
        return ravel(self._reduced("field", field), self.mesh, self.blocks)

    def sum(self, field: Field) -> Shaped[Array, "*batch"]:
        """Return the sum over the grid. Values in the padding are ignored. The only communication is an all-reduce.

        The sum of a spectrum counts each stored mode once.

        **Arguments:**

        - `field`: a field of shape `(*batch, *shape)`, or one whose padding has already been cut off.

        **Returns:** an array of shape `(*batch,)` and of the dtype that `jnp.sum` returns. Half precision is
        accumulated in single precision.

        **Raises:** `ValueError` for a field of another shape, for a layout with halo layers, and inside a `shard_map`
        over a mesh axis of the grid.
        """
        return reductions.total(self._reduced("field", field), self.blocks.true_shape, self._over("sum"))

    def mean(self, field: Field) -> Shaped[Array, "*batch"]:
        """Return the mean over the grid, of the dtype of `jnp.mean`. Arguments and errors are those of `sum`."""
        return reductions.mean(self._reduced("field", field), self.blocks.true_shape, self._over("mean"))

    def norm(self, field: Field) -> Shaped[Array, "*batch"]:
        """Return the square root of the sum of `|field|²` over the grid, a real number.

        Arguments and errors are those of `sum`. The derivative at a field of zeros is zero.
        """
        return reductions.norm(self._reduced("field", field), self.blocks.true_shape, self._over("norm"))

    def vdot(self, u: Shaped[Array | np.ndarray, "*u"], v: Shaped[Array | np.ndarray, "*v"]) -> Shaped[Array, "*batch"]:
        """Return the sum of `conj(u) * v` over the grid. Batch axes broadcast.

        `u` and `v` are fields as in `sum`. Raises `ValueError` as `sum` does, and if only one of the two has padding.
        """
        u, v, ndim = self._reduced("u", u), self._reduced("v", v), self.blocks.ndim
        if np.shape(u)[-ndim:] != np.shape(v)[-ndim:]:
            raise ValueError(f"`u` and `v` must both have padding, or neither; got {np.shape(u)} and {np.shape(v)}.")
        return reductions.vdot(u, v, self.blocks.true_shape, self._over("vdot"))

    def _over(self, method: str) -> BlockReduction | None:
        return block_reduction(self.mesh, self.blocks, self.backend, f"Layout.{method}")

    def max(self, field: Field) -> Shaped[Array, "*batch"]:
        """Return the largest value of a real field, of its dtype. Arguments and errors are those of `sum`.

        If a cell is NaN, so is the result, while `jnp.max` ignores NaN in fields that are sharded over CPUs.
        """
        return self._extreme(field, largest=True)

    def min(self, field: Field) -> Shaped[Array, "*batch"]:
        """Return the smallest value of a real field, of its dtype, as `max` does."""
        return self._extreme(field, largest=False)

    def _extreme(self, field: Field, *, largest: bool) -> Array:
        field = self._reduced("field", field)
        if np.dtype(field.dtype).kind == "c":
            raise TypeError(f"`field` must hold real numbers, which have an order; got {field.dtype}.")
        over = self._over("max" if largest else "min")
        return reductions.extreme(field, self.blocks.true_shape, over, largest=largest)

    def holds(self, field: Any) -> bool:
        """Return whether the last axes of `field` have the lengths of this layout, with or without padding."""
        return np.shape(field)[-self.blocks.ndim :] in (self.blocks.shape, self.blocks.true_shape)

    def check(self, field: Any, name: str = "field") -> None:
        """Raise `ValueError` unless the shape of `field` fits this layout, with or without padding."""
        self._refuse_halo(name)
        if not self.holds(field):
            expected = sorted({self.blocks.shape, self.blocks.true_shape})
            shapes = " or ".join(f"(*batch, {', '.join(map(str, shape))})" for shape in expected)
            raise ValueError(f"`{name}` must have shape {shapes} in {self}; got {np.shape(field)}.")

    def _reduced(self, name: str, field: Any) -> Array:
        """Return a field on the devices of this layout, to be reduced.

        Raises `ValueError` unless it is global, not one block, and fits this layout; `TypeError` for numbers of less
        than one byte, which `jnp.sum` refuses, too.
        """
        check_global(name, self.blocks.mesh_axes)
        self.check(field, name)
        field = device_array(field, name)
        check_dtype(name, field.dtype)
        return on_mesh(field, self.mesh, self.blocks, name)

    def _refuse_halo(self, name: str) -> None:
        if self.blocks.has_halo:
            raise ValueError(
                f"`{name}` must have no halo layers; got the layout {self}. Drop them with `halo.crop(field)`, and use "
                "`halo.in_layout`."
            )

    def __str__(self) -> str:
        """Return the axes that are whole on each device and the numbers of blocks along the other axes.

        For example "x-pencils 2x4". A storage order or halo that is not the default follows: "stored as yzx".
        """
        names = axis_names(self.blocks.ndim)
        whole = "".join(name for name, own in zip(names, self.blocks.names) if own is None)
        counts = [str(n) for n, own in zip(self.blocks.parts, self.blocks.names) if own is not None]
        stored = "".join(names[axis] for axis in self.blocks.order)
        order = "" if stored == "".join(names) else f" stored as {stored}"
        halo = f" with halo {self.blocks.halo}" if self.blocks.has_halo else ""
        return f"{whole}-pencils {'x'.join(counts)}{order}{halo}"


def check_global(
    name: str,
    mesh_axes: Iterable[str | None],
    hint: str = "Call this method outside of the `shard_map`, or sum over blocks with `jax.lax.psum`",
) -> None:
    """Raise `ValueError` inside a `shard_map` over one of the mesh axes that shard the grid."""
    for axis in filter(manual_axes().__contains__, mesh_axes):
        raise ValueError(
            f"`{name}` must be a global field; got a block inside a `shard_map` over mesh axis {axis!r}. {hint}."
        )
