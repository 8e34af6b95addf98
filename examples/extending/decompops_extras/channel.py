"""An operator without a plan: Poisson's equation in a channel with walls at both ends of z."""

import decompops as dops
from decompops.extend import UNCHANGED, AbstractDerivable, vector


class ChannelPoisson(AbstractDerivable):
    """The zero-mean solution u of `∇²u = f` with `∂u/∂z = 0` at both walls.

    The mean of f is ignored.

    The operator takes real fields `(*batch, nx, ny, nz)` in z-pencils. Along z the points lie at
    `(j + 1/2) / nz` of the height.

    **Arguments:**

    - `decomposition`: the grid, built with a `shape` and a `box`. The length of the box along z
        is the height.
    """

    decomposition: dops.Decomposition

    def __check_init__(self):
        dec = self.decomposition
        if dec.shape is None or dec.box is None:
            raise ValueError(
                "`decomposition` must be built with a `shape` and a `box`; got "
                f"{dec.shape} and {dec.box}."
            )

    @property
    def transform(self):
        bases = (dops.Fourier(), dops.Fourier(half=True), dops.Cosine(2))
        return dops.Transform(self.decomposition, bases=bases)

    def apply(self, x, form, *, local):
        # The matrix is real and symmetric: transposes and conjugates are the operator itself.
        forward, inverse = self.transform, self.transform.inverse
        spectrum = forward.apply(x, UNCHANGED, local=local)
        k = forward.wavenumbers(dtype=spectrum.real.dtype)
        return inverse.apply(vector.inverse_laplacian(k, spectrum), UNCHANGED, local=local)

    @property
    def is_invertible(self):
        return False

    def structures(self, form, given):
        field = self.transform.in_structure
        return field, field
