"""Solvers of linear systems on sharded grids."""

from ._multigrid import Multigrid as Multigrid
