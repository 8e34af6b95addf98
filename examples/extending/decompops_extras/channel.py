"""An operator without a plan: Poisson's equation in a channel, periodic along x and y, with walls at both ends of z."""

import dataclasses

import decompops as dops
from decompops.extend import UNCHANGED, AbstractDerivable, check_box, vector


class ChannelPoisson(AbstractDerivable):
    """The zero-mean solution u of `∇²u = f` with `∂u/∂z = 0` at both walls. The mean of f is ignored.

    The operator takes real fields `(*batch, nx, ny, nz)` in z-pencils. Along z the points lie at `(j + 1/2) / nz` of
    the height.

    **Arguments:**

    - `decomposition`: how the mesh shards the grid. It needs a `shape`.
    - `box`: the lengths of the channel; along z it is the height.
    """

    decomposition: dops.Decomposition
    box: dops.Box = dops.Box()

    def __check_init__(self):
        check_box(self.box, 3)
        if self.decomposition.shape is None:
            raise ValueError("`decomposition` must be built with a `shape`; got one without.")

    @property
    def transform(self):
        bases = (dops.Fourier(), dops.Fourier(half=True), dops.Cosine(2))
        return dops.Transform(self.decomposition, bases=bases)

    def apply(self, x, form, *, local):
        # The matrix is real and symmetric: transposes and conjugates are the operator itself.
        forward, inverse = self.transform, self.transform.inverse
        spectrum = forward.apply(x, UNCHANGED, local=local)
        k = forward.wavenumbers(box=self.box, dtype=spectrum.real.dtype)
        return inverse.apply(vector.inverse_laplacian(k, spectrum), UNCHANGED, local=local)

    @property
    def is_invertible(self):
        return False

    def structures(self, form, given):
        field = dataclasses.replace(self.transform.in_structure, box=self.box)
        return field, field
