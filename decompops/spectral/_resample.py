"""`Resample`: Fourier interpolation between grids."""

from typing import Any

import equinox as eqx

from .._blocks import Triple
from .._check import check_shape
from .._decomposition import Decomposition
from .._operator.fft import FFT3D, fourier_stages
from .._operator.planned import AbstractPlanned
from .._stage import Plan
from ._operator import internal_transform


class Resample(AbstractPlanned):
    """Interpolate periodic fields to another grid in the same box: the trigonometric polynomial through the old points.

    Along each axis this is `scipy.signal.resample`. An axis that becomes shorter loses the modes that the new grid does
    not have. Every axis is cut as early and extended as late as possible, so little is communicated. `.inverse`
    resamples the other way, and undoes it if no axis became shorter.
    """

    fft: FFT3D
    target: Triple = eqx.field(static=True)

    def __init__(self, fft: FFT3D, shape: Any):
        """**Arguments:**

        - `fft`: the transform on the old grid, built with a `shape`; with `real=True` for real fields.
        - `shape`: the new grid `(nx, ny, nz)`, on the same mesh.

        **Raises:** `ValueError` for an `fft` without `shape`, or with `modes`, and for a `shape` that is not three
        positive integers.
        """
        self.fft = internal_transform(fft)
        self.target = check_shape("shape", shape)
        if self.fft.modes is not None:
            raise ValueError(f"`fft` must keep all modes; got `modes={self.fft.modes}`.")

    @property
    def decomposition(self) -> Decomposition:
        return self.fft.decomposition

    @property
    def resampled(self) -> Decomposition:
        """The decomposition of results."""
        return Decomposition(self.decomposition, shape=self.target)

    def plan(self, shape: Triple) -> Plan:
        dec, real = self.decomposition, self.fft.real
        mx, my, mz = map(min, shape, self.target)
        stored = (mx, my, mz // 2 + 1 if real else mz)
        spectrum = dec.layout("x", stored, axis_contiguous=True)

        def transform(grid: Triple) -> Plan:
            source = dec.layout("z", grid)
            stages = fourier_stages(dec, source, spectrum, (mx, my, mz), real=real, nyquist=True)
            return Plan(dec.mesh, dec.axes, stages, source, spectrum, dec.backend)

        # The new grid takes the amplitudes of the old one: the spectrum divided by the old number of points.
        forward, inverse = transform(shape), transform(self.target).inverse()
        scale = 1 / (shape[0] * shape[1] * shape[2])
        stages = forward.stages + inverse.stages
        return Plan(dec.mesh, dec.axes, stages, forward.source, inverse.target, dec.backend, scale)
