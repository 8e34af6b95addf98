"""`Home`: which device owns which particle, and how the devices compute with their own."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from .._backend.base import Caller, Group
from .._common.blocks import Blocks, spec_entry
from .._common.box import Number
from .._common.host import device_array
from .._common.placement import place
from .._common.sharding import manual_axes, map_blocks
from .._core.decomposition import Decomposition
from .._core.points import Frame
from .._core.reductions import wide
from ._particles import Particles


class Home(eqx.Module):
    """The devices of a grid, each the home of the particles in the cells of its block.

    - `decomposition`: the grid. Its blocks are those of the pencils of the last axis.
    - `periodic`: whether the box is periodic along each axis.
    """

    decomposition: Decomposition
    periodic: tuple[bool, ...] = eqx.field(static=True)

    @property
    def devices(self) -> int:
        """The number of devices among which the grid is divided."""
        return math.prod(self.decomposition.sizes)

    @property
    def blocks(self) -> Blocks:
        return self.decomposition.blocks(-1)

    @property
    def spec(self) -> PartitionSpec:
        """The partition spec of the slots."""
        return PartitionSpec(spec_entry(self.blocks.mesh_axes))

    @property
    def sharding(self) -> NamedSharding:
        """The sharding of arrays with one row for each slot."""
        return NamedSharding(self.decomposition.mesh, self.spec)

    def placed(self, *arrays: Array) -> tuple[Array, ...]:
        """Return arrays with one row for each slot, on their devices."""
        return tuple(place(device_array(x), self.sharding) for x in arrays)

    def mapped(self, function: Callable, in_specs: Any, out_specs: Any) -> Callable:
        """Return a function that applies `function` on each device."""
        mesh = self.decomposition.mesh
        names = frozenset(mesh.axis_names) - manual_axes()
        return map_blocks(function, mesh, names, in_specs, out_specs, check_types=False)

    def me(self) -> Array:
        """Return the number of this device. This method, like those below, runs inside a function that is `mapped`."""
        names = self.blocks.mesh_axes
        return jax.lax.axis_index(names).astype(np.int32) if names else jnp.zeros((), np.int32)

    def group(self, name: str, caller: Caller) -> Group:
        """Return the devices that exchange rows. `name` is the operator's name in error messages."""
        dec = self.decomposition
        return Group(name, dec.mesh, self.blocks.mesh_axes, dec.backend, caller)

    def first_cell(self, axis: int) -> Array | int:
        """Return the number of the first cell of the block of this device along a grid axis."""
        name = self.blocks.names[axis]
        return 0 if name is None else self.blocks.core(axis) * jax.lax.axis_index(name).astype(np.int32)

    def owners(self, positions: Any, lengths: tuple[Number, ...], parts: tuple[int, ...] | None = None) -> Any:
        """Return the number of the device that owns the cell of each particle.

        `positions` is an array of JAX or NumPy, and `lengths` are those of the box. `parts` are the numbers of blocks
        along the first axes; `None` for those of the grid.
        """
        xp, positions = np if isinstance(positions, np.ndarray) else jnp, _precise(positions)
        owner = xp.zeros(positions.shape[0], np.int32)
        every = zip(self.blocks.lengths, lengths, self.periodic, self.blocks.parts if parts is None else parts)
        for axis, (n, length, periodic, count) in enumerate(every):
            if count == 1:
                continue
            s = positions[:, axis] * _scale(xp, n, length, positions.dtype)
            s = s - xp.floor(s / n) * n if periodic else s
            s = xp.where(s >= n, s - n, s) if periodic else s  # Rounding may give n, which is the coordinate 0.
            cell = xp.clip(xp.floor(s), 0, n - 1).astype(np.int32)
            owner = owner * np.int32(count) + cell // np.int32(-(-n // count))
        return owner

    def frame(self, positions: Array, counts: Array, lengths: tuple[Number, ...], shifts: Sequence[float]) -> Frame:
        """Return how the positions of this device's particles become coordinates in cells of its block.

        `shifts` are added to the coordinates.
        """
        blocks, lines, eps = self.blocks, [], jnp.finfo(positions.dtype).eps
        positions = _precise(positions)
        dtype = positions.dtype
        for axis, (n, periodic, shift) in enumerate(zip(blocks.lengths, self.periodic, shifts)):
            number, core = self.first_cell(axis), blocks.core(axis)
            first = jnp.asarray(number, dtype)
            size = jnp.clip(n - jnp.asarray(number, np.int32), 0, core).astype(dtype)  # Without padding.
            low, high = jnp.zeros((), dtype), size
            if blocks.parts[axis] == 1 or not periodic:  # The outermost blocks own what is outside of the box.
                low = jnp.where(first > 0, low, -np.inf)
                high = jnp.where(first + core < n, high, np.inf)
            # Periodic coordinates come to less than half a box from the middle of the block.
            period, start = (n, (size - n) / 2) if periodic else (0, 0)
            line = (first, period, start, low, high, 16 * eps * n, shift)
            lines.append(jnp.stack([jnp.asarray(number, dtype) for number in line]))
        scale = jnp.stack([_scale(jnp, n, length, dtype) for n, length in zip(blocks.lengths, lengths)])
        return Frame(positions, scale, jnp.stack(lines), counts[self.me()])


def home_of(p: Any, home: Home) -> Home:
    """Return `home`. Raises an error unless `p` are particles on so many devices and axes.

    This is no method of `Home`, because Equinox takes longer to make one than this check takes.
    """
    if not isinstance(p, Particles):
        raise TypeError(f"`p` must be `Particles`, as `ParticleMesh.place` returns; got {type(p).__name__}.")
    found, expected = (len(p.counts), p.positions.shape[1]), (home.devices, len(home.periodic))
    if found != expected:
        told = "{} devices and {} axes"
        raise ValueError(
            f"`p` must be particles of this mesh, on {told.format(*expected)}; got particles on "
            f"{told.format(*found)}. Bring them to another mesh by `gather` of the one and `place` of the other."
        )
    return home


def _precise(positions: Any) -> Any:
    """Return positions in single or double precision: in half precision, cells and shares would have wrong digits."""
    return positions.astype(wide(positions.dtype))


def _scale(xp: Any, n: int, length: Number, dtype: Any) -> Any:
    """Return the number of cells in one unit of length."""
    return xp.asarray(n, dtype) / xp.asarray(length, dtype)
