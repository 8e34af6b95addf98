"""One of each: a basis, operators, a stage, backends, a spectral operator and an equation for decompops."""

from .cosine import Cosine as Cosine
