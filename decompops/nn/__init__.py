"""Layers of neural networks on distributed grids."""

from ._fno import FNO3D as FNO3D
from ._halo_conv import HaloConv3D as HaloConv3D
from ._spectral_conv import SpectralConv3D as SpectralConv3D
