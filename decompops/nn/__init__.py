"""Neural-network layers for fields on distributed grids."""

from ._fno import FNO as FNO, FNO2D as FNO2D, FNO3D as FNO3D, UFNO as UFNO
from ._group_norm import GroupNorm as GroupNorm, LayerNorm as LayerNorm
from ._halo_conv import HaloConv as HaloConv, HaloConv2D as HaloConv2D, HaloConv3D as HaloConv3D
from ._halo_conv_transpose import (
    HaloConvTranspose as HaloConvTranspose,
    HaloConvTranspose2D as HaloConvTranspose2D,
    HaloConvTranspose3D as HaloConvTranspose3D,
)
from ._resize import AvgPool as AvgPool, MaxPool as MaxPool, Upsample as Upsample
from ._spectral_conv import (
    SpectralConv as SpectralConv,
    SpectralConv2D as SpectralConv2D,
    SpectralConv3D as SpectralConv3D,
)
from ._unet import UNet as UNet
