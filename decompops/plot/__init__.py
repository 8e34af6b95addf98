"""Figures of sharded fields, drawn with matplotlib: slices, projections, spectra and curves.

The devices first reduce a field to the plane or the numbers that are drawn. Only this plane or these numbers are
gathered.
"""

from ._curves import curves as curves
from ._panels import panels as panels
from ._projection import projection as projection
from ._slice import slice as slice
from ._spectrum import spectrum as spectrum
