"""`Resample`: Fourier interpolation from one grid to another."""

import math
from dataclasses import replace
from typing import Any, ClassVar

import equinox as eqx

from .._common.blocks import axis_names, contiguous_order
from .._common.check import check_shape
from .._core.decomposition import Decomposition
from .._operator.fft import FFT
from .._operator.planned import AbstractPlanned
from .._plan.plan import Plan
from .._plan.transform import transform_plan
from ._check import check_periodic, of_transformed


class Resample(AbstractPlanned):
    """Interpolate periodic fields to another grid in the same box, by the trigonometric polynomial through the points.

    Along each axis, the result equals the result of `scipy.signal.resample`. An axis that becomes shorter loses the
    modes that the new grid does not have. To communicate little, the operator cuts axes as early as possible and
    extends axes as late as possible. `.inverse` resamples from the new grid to the old grid. If no axis became shorter,
    `.inverse` restores the original field.
    """

    fft: FFT
    target: tuple[int, ...] = eqx.field(static=True)
    spaces: ClassVar = ("field", "field")

    def __init__(self, fft: FFT, shape: Any):
        """**Arguments:**

        - `fft`: the transform on the old grid, built with a `shape`; with `real=True` for real fields.
        - `shape`: the new grid, such as `(nx, ny, nz)`, on the same mesh. An axis that `fft` does not transform keeps
            its length.

        **Returns** (when called): the field on the new grid, in its old dtype.

        **Raises:** `ValueError` if `fft` has no `shape`, if it has walls, or if it has `modes`. `ValueError` if `shape`
        does not have one positive integer for each axis, if it changes an axis that `fft` does not transform, or if the
        mesh does not divide it and `fft` was built without `pad=True`.
        """
        grid = check_periodic(fft)
        self.fft = fft
        self.target = check_shape("shape", shape, len(grid))
        for axis, (old, new) in enumerate(zip(grid, self.target)):
            if old != new and axis not in fft.transformed:
                raise ValueError(
                    f"`shape` must have {old} cells along {axis_names(len(grid))[axis]}, which `fft` does not "
                    f"transform; got {shape}."
                )
        if self.fft.modes is not None:
            raise ValueError(
                f"`fft` must keep all modes; got `modes={self.fft.modes}`. Build it without `modes`: `Resample` drops "
                "the modes that the new grid does not have."
            )
        _ = self.resampled  # Raises an error if the mesh does not divide the new grid.

    @property
    def decomposition(self) -> Decomposition:
        return self.fft.decomposition

    @property
    def resampled(self) -> Decomposition:
        """The decomposition of the results, which lie on the new grid."""
        return Decomposition(self.decomposition, shape=self.target)

    def plan(self) -> Plan:
        dec, bases, shape = self.decomposition, self.fft.bases, self.decomposition.shape
        kept = tuple(map(min, shape, self.target))
        stored = tuple(basis.stored(n) for basis, n in zip(bases, kept))
        spectrum = dec.pencil(0, stored, contiguous_order(dec.ndim, 0))

        def transform(decomposition: Decomposition) -> Plan:
            return transform_plan("Resample", decomposition.blocks(), spectrum, bases, kept, nyquist=True)

        # The amplitude of a mode is its value in the spectrum divided by the number of points. Amplitudes on both grids
        # are equal.
        forward, inverse = transform(dec), transform(self.resampled).inverse()
        return replace(forward.then(inverse, "Resample"), scale=1 / math.prod(of_transformed(self.fft, shape)))
