"""Particles that move over the devices of a grid: deposit, read and exchange."""

from ._mesh import ParticleMesh as ParticleMesh
from ._particles import Particles as Particles
