"""`Placed`: a field on its devices, with zeros in its padding."""

import equinox as eqx

from .._core.decomposition import Decomposition
from .._plan.plan import Plan
from .._plan.stage import Clear
from .planned import AbstractPlanned


class Placed(AbstractPlanned):
    """The field itself, padded and sharded over the devices of `decomposition`, with zeros in the padding."""

    decomposition: Decomposition
    pencil: int = eqx.field(static=True, default=-1)

    def plan(self) -> Plan:
        blocks = self.decomposition.blocks(self.pencil)
        return Plan("Placed", blocks, (Clear(blocks),) if blocks.padded_axes else ())
