"""Partial differential equations on periodic grids, and integrators for stiff ones."""

from ._burgers import Burgers as Burgers
from ._equation import (
    AbstractEquation as AbstractEquation,
    AbstractSplitEquation as AbstractSplitEquation,
    RealSpace as RealSpace,
)
from ._etdrk import ETDRK as ETDRK
from ._imexrk import IMEXRK as IMEXRK
from ._integrator import AbstractIntegrator as AbstractIntegrator, History as History
from ._kuramoto_sivashinsky import KuramotoSivashinsky as KuramotoSivashinsky
from ._navier_stokes import NavierStokes as NavierStokes
from ._sbdf import SBDF as SBDF
from ._transport import Advection as Advection, Diffusion as Diffusion
