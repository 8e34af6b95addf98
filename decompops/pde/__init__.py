"""Partial differential equations on periodic grids, and exponential integrators for them."""

from ._burgers import Burgers as Burgers
from ._equation import (
    AbstractEquation as AbstractEquation,
    AbstractSplitEquation as AbstractSplitEquation,
    RealSpace as RealSpace,
)
from ._etdrk import ETDRK as ETDRK
from ._kuramoto_sivashinsky import KuramotoSivashinsky as KuramotoSivashinsky
from ._navier_stokes import NavierStokes as NavierStokes
from ._transport import Advection as Advection, Diffusion as Diffusion
