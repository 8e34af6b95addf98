"""Finite-volume operators with variable coefficients on the cells and faces of sharded grids."""

from ._body import Body as Body
from ._diffusion import Diffusion as Diffusion
from ._geometry import Robin as Robin
from ._staggered import Divergence as Divergence, Gradient as Gradient
