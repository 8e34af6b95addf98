"""`FFT3D`: the distributed fast Fourier transform."""

from typing import Any

import equinox as eqx
from jax.sharding import AbstractMesh, Mesh

from .._backend.base import AbstractBackend
from .._basis.fourier import Fourier
from .._check import check_flag
from .._decomposition import Decomposition
from .._plan.transform import Norm
from .transform import AbstractTransform, check_modes, check_norm


class FFT3D(AbstractTransform):
    """The 3-D discrete Fourier transform of fields in z-pencils; the spectrum lies in x-pencils.

    Equal to `jnp.fft.fftn(u, axes=(-3, -2, -1))`, or to `rfftn` with `real=True`, in value, axis order and dtype. A
    slab communicates once, a pencil twice, always by all-to-all: the algorithm of P3DFFT (Pekurovsky, SIAM J. Sci.
    Comput. 34, 2012).

    !!! example

        ```python
        fft = dops.FFT3D(mesh)
        k = fft(u)              # sharded P(None, "x", "y")
        u = fft.inverse(k)      # sharded P("x", "y", None)
        ```
    """

    decomposition: Decomposition
    real: bool = eqx.field(static=True)
    norm: Norm = eqx.field(static=True)
    axis_contiguous: bool = eqx.field(static=True)
    modes: tuple[int, ...] | None = eqx.field(static=True)

    def __init__(
        self,
        mesh: Mesh | AbstractMesh | Decomposition | None = None,
        *,
        shape: Any = None,
        axes: Any = None,
        pad: bool | None = None,
        real: bool = False,
        norm: Norm | None = "backward",
        axis_contiguous: bool = False,
        modes: Any = None,
        backend: AbstractBackend | str | None = None,
    ):
        """**Arguments:**

        - `mesh`, `shape`, `axes`, `pad`, `backend`: a `Decomposition`, or the arguments to build one.
        - `real`: transform real fields to the half spectrum, `nz // 2 + 1` modes along z. The inverse needs `shape`.
        - `norm`: which direction is scaled by `1 / (nx ny nz)`, as in `jnp.fft`; "ortho" scales both by its root.
            `None` is "backward".
        - `axis_contiguous`: leave the spectrum stored as (y, z, x), sharded `P("x", "y", None)`. Faster where it is
            only multiplied pointwise and transformed back.
        - `modes`: keep only the modes that a grid of this shape `(mx, my, mz)` has, those below `m / 2` along each
            axis: the spectrum is that of the field with all others removed, scaled as that of the whole grid. They are
            dropped as soon as an axis is transformed, so less is computed and communicated. `.inverse` puts zeros in
            their place. Where `m` is even and less than the grid's length, the Nyquist mode `m / 2` is zero.

        **Raises:** `ValueError` or `TypeError` as `decompops.Decomposition`, for an unknown `norm`, and for `modes`
        without `shape` or beyond it.
        """
        self.decomposition = Decomposition(mesh, shape=shape, axes=axes, pad=pad, backend=backend)
        self.real = check_flag("real", real)
        self.norm = check_norm(norm)
        self.axis_contiguous = check_flag("axis_contiguous", axis_contiguous)
        self.modes = check_modes(modes, self.decomposition.shape)

    @property
    def bases(self) -> tuple[Fourier, Fourier, Fourier]:
        """The basis of each axis of the grid."""
        return Fourier(), Fourier(), Fourier(half=self.real)

    def replace(self, **options: Any) -> "FFT3D":
        """The same transform with other options, by the names that they have when it is built."""
        own: dict[str, Any] = {name: getattr(self, name) for name in ("real", "norm", "axis_contiguous", "modes")}
        return FFT3D(self.decomposition, **(own | options))
