"""A spectral operator: the scalar potential of a vector field."""

from typing import ClassVar

import decompops as dops
from decompops.extend import AbstractSpectralOperator, vector


class Potential(AbstractSpectralOperator):
    """The zero-mean potential p of a periodic vector field v: `∇²p = ∇·v`.

    v has the shape `(*batch, 3, nx, ny, nz)`. `∇p` is the curl-free part of v, in modes without
    Nyquist wavenumbers.
    """

    fft: dops.FFT
    components: ClassVar = ("vector", "scalar")  # of its fields, and of its results

    def multiply(self, spectrum):
        return vector.inverse_laplacian(
            self.wavenumbers(spectrum), self.nabla(spectrum).divergence(spectrum)
        )
