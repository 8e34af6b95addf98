"""Solvers of linear systems on sharded fields: Krylov methods as operators, with derivatives and null spaces."""

from ._bicgstab import BiCGStab as BiCGStab
from ._cg import CG as CG
from ._gmres import GMRES as GMRES
from ._minres import MINRES as MINRES
from ._multigrid import Multigrid as Multigrid
from ._solution import NotConverged as NotConverged, Reason as Reason, Solution as Solution
from ._solver import AbstractSolver as AbstractSolver
from ._system import State as State, System as System
