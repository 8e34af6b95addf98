"""`Layout`: where an array that holds a field lies."""

from dataclasses import dataclass

from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from ._blocks import AXES, Blocks


@dataclass(frozen=True)
class Layout:
    """How an array holds a field: on which devices, cut into which blocks, stored in which order, with which padding.

    - `mesh`: the devices.
    - `blocks`: how the grid is cut into blocks, which knows nothing of devices.
    """

    mesh: Mesh | AbstractMesh
    blocks: Blocks

    @property
    def spec(self) -> PartitionSpec:
        """The partition spec of the stored grid axes."""
        return self.blocks.spec

    @property
    def sharding(self) -> NamedSharding:
        """The sharding of a field without batch axes."""
        return NamedSharding(self.mesh, self.spec)

    def __str__(self) -> str:
        """Such as "x-pencils 2x4": which axes are whole on a device, and how many blocks there are along the others."""
        names = AXES if self.blocks.ndim == len(AXES) else tuple(map(str, range(self.blocks.ndim)))
        whole = "".join(name for name, own in zip(names, self.blocks.names) if own is None)
        counts = [str(n) for n, own in zip(self.blocks.parts, self.blocks.names) if own is not None]
        stored = "".join(names[axis] for axis in self.blocks.order)
        order = "" if stored == "".join(names) else f" stored as {stored}"
        halo = f" with halo {self.blocks.halo}" if self.blocks.has_halo else ""
        return f"{whole}-pencils {'x'.join(counts)}{order}{halo}"
