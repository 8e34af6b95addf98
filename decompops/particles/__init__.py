"""Particles that move over the devices of a grid: deposit, read, exchange, gravity and non-uniform FFTs."""

from .._core.window import Window as Window
from ._cosmology import Cosmology as Cosmology
from ._gravity import Gravity as Gravity
from ._kick_drift_kick import KickDriftKick as KickDriftKick
from ._load import Load as Load
from ._mesh import ParticleMesh as ParticleMesh
from ._modes import Deconvolution as Deconvolution
from ._nufft import NUFFT as NUFFT
from ._nufft_type3 import NUFFTType3 as NUFFTType3
from ._particles import Particles as Particles
