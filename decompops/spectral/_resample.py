"""`Resample`: Fourier interpolation between grids."""

import math
from dataclasses import replace
from typing import Any, ClassVar

import equinox as eqx

from .._blocks import axis_names
from .._check import check_shape
from .._decomposition import Decomposition
from .._operator.fft import FFT
from .._operator.planned import AbstractPlanned
from .._plan.plan import Plan
from .._plan.transform import transform_plan
from ._check import check_fft, of_transformed


class Resample(AbstractPlanned):
    """Interpolate periodic fields to another grid in the same box: the trigonometric polynomial through the old points.

    Along each axis this is `scipy.signal.resample`. An axis that becomes shorter loses the modes that the new grid does
    not have. Every axis is cut as early and extended as late as possible, so little is communicated. `.inverse`
    resamples the other way, and undoes it if no axis became shorter.
    """

    fft: FFT
    target: tuple[int, ...] = eqx.field(static=True)
    spaces: ClassVar = ("field", "field")

    def __init__(self, fft: FFT, shape: Any):
        """**Arguments:**

        - `fft`: the transform on the old grid, built with a `shape`; with `real=True` for real fields.
        - `shape`: the new grid, such as `(nx, ny, nz)`, on the same mesh. An axis that `fft` does not transform keeps
            its length.

        **Raises:** `ValueError` for an `fft` without `shape`, or with `modes`, and for a `shape` that is not a positive
        integer for each axis, that changes an axis which is not transformed, or that the mesh does not divide where
        `fft` was built without `pad=True`.
        """
        grid = check_fft(fft)
        self.fft = fft
        self.target = check_shape("shape", shape, len(grid))
        for axis, (old, new) in enumerate(zip(grid, self.target)):
            if old != new and axis not in fft.transformed:
                raise ValueError(
                    f"`shape` must have {old} cells along {axis_names(len(grid))[axis]}, which `fft` does not "
                    f"transform; got {shape}."
                )
        if self.fft.modes is not None:
            raise ValueError(f"`fft` must keep all modes; got `modes={self.fft.modes}`.")
        self.decomposition.check_divided(self.target, -1)

    @property
    def decomposition(self) -> Decomposition:
        return self.fft.decomposition

    @property
    def resampled(self) -> Decomposition:
        """The decomposition of results."""
        return Decomposition(self.decomposition, shape=self.target)

    def plan(self, shape: tuple[int, ...]) -> Plan:
        dec, bases = self.decomposition, self.fft.bases
        kept = tuple(map(min, shape, self.target))
        stored = tuple(basis.stored(n) for basis, n in zip(bases, kept))
        spectrum = dec.pencil(0, stored, dec.storage_order(0, axis_contiguous=True))

        def transform(grid: tuple[int, ...]) -> Plan:
            source = dec.blocks(-1, grid)
            return transform_plan("Resample", source, spectrum, bases, kept, nyquist=True)

        # The new grid takes the amplitudes of the old one: the spectrum divided by the old number of points.
        forward, inverse = transform(shape), transform(self.target).inverse()
        return replace(forward.then(inverse, "Resample"), scale=1 / math.prod(of_transformed(self.fft, shape)))
