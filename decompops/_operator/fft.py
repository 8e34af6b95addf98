"""`FFT`: the distributed fast Fourier transform; `FFT2D` and `FFT3D` are its types for grids of two and three axes."""

from typing import Any, TypedDict, TypeVar, Unpack

import equinox as eqx

from .._backend.base import AbstractBackend
from .._basis.base import AbstractBasis
from .._basis.fourier import Fourier
from .._basis.points import Points
from .._common.box import Box
from .._common.check import check_axes, check_flag
from .._core.types import GridAxes, Lengths, MeshAxes, Modes
from .._plan.transform import Norm
from .transform import AbstractTransform, check_modes, check_norm
from .unbound import MeshOrDecomposition, OperatorDecomposition, decomposition_of


_F = TypeVar("_F", bound="FFT")


class FFT(AbstractTransform):
    """The discrete Fourier transform of fields on a grid of any number of axes.

    The result has the values, the axis order and the dtype of `jnp.fft.fftn` over the grid axes, or of `jnp.fft.rfftn`
    with `real=True`. Fields lie in the pencils of the last axis: every device holds this axis whole. Spectra lie in the
    pencils of the first axis. On a grid of three axes, these are z-pencils and x-pencils. A transform needs one
    all-to-all for each sharded axis of the grid. The algorithm is P3DFFT's (Pekurovsky, SIAM J. Sci. Comput. 34, 2012).

    !!! example

        ```python
        fft = dops.FFT3D(mesh)
        k = fft(u)              # sharded P(None, "x", "y")
        u = fft.inverse(k)      # sharded P("x", "y", None)

        dops.FFT2D(mesh, axes="x")                              # fields P("x", None), spectra P(None, "x")
        dops.FFT(mesh, shape=(8, 64, 64, 64), transformed=(1, 2, 3))
        ```
    """

    decomposition: OperatorDecomposition
    real: bool = eqx.field(static=True)
    transformed: tuple[int, ...] = eqx.field(static=True)
    norm: Norm = eqx.field(static=True)
    axis_contiguous: bool = eqx.field(static=True)
    modes: tuple[int, ...] | None = eqx.field(static=True)
    nyquist: bool = eqx.field(static=True)

    def __init__(
        self,
        mesh: MeshOrDecomposition | None = None,
        shape: Lengths | None = None,
        *,
        ndim: int | None = None,
        axes: MeshAxes | None = None,
        box: Box | None = None,
        transformed: GridAxes | None = None,
        pad: bool | None = None,
        real: bool = False,
        norm: Norm | None = "backward",
        axis_contiguous: bool = False,
        modes: Modes | None = None,
        nyquist: bool = False,
        backend: AbstractBackend | str | None = None,
    ):
        """**Arguments:**

        - `mesh`, `shape`, `ndim`, `axes`, `box`, `pad`, `backend`: a `Decomposition`, or the arguments to build one.
        - `transformed`: the grid axes to transform, by names or numbers, such as `("x", "z")` or `(0, 2)`; by default
            all axes. Spectra always lie in the pencils of the first axis. The functions of `dops.fft` differ: they
            choose the sharding of the result that needs the least communication.
        - `real`: transform real fields to the half spectrum, which has `n // 2 + 1` modes along the last transformed
            axis. The inverse needs `shape`.
        - `norm`: the direction that is scaled by one over the number of points, as in `jnp.fft`: "backward" or
            "forward". "ortho" scales each direction by the square root of this factor. `None` means "backward".
        - `axis_contiguous`: store the spectrum with the first axis last. On a grid of three axes, the order is then
            (y, z, x), and the spectrum is sharded `P("x", "y", None)`. This order is faster if the spectrum is only
            multiplied pointwise and transformed back.
        - `modes`: keep only the modes of a coarser grid of this shape `(mx, my, mz)`: the modes whose integer
            wavenumber along each axis is below `m / 2` in magnitude. These modes have the same values and the same
            scale as without `modes`. Directly after an axis is transformed, its other modes are dropped. So the later
            steps compute and communicate less. `.inverse` replaces the dropped modes by zeros.
        - `nyquist`: the value of the Nyquist mode `m / 2` along an axis on which the coarser grid of `modes` has an
            even number `m` of points, fewer than the full grid. If True, this mode becomes the sum of the modes `m / 2`
            and `-m / 2` of the whole spectrum; if False, it becomes zero.

        **Raises:** `ValueError` or `TypeError` if `decompops.Decomposition` refuses an argument, if `norm` is unknown,
        if `transformed` names an unknown axis, if `modes` is given without `shape`, or if `modes` are more than the
        grid has.

        An instance `fft` is called as `fft(u)`.

        **Arguments of the call:** a field of shape `(*batch, *shape)` and of any real or complex dtype (with
        `real=True`, of a real dtype). Integers are converted as in `jnp.fft`.

        **Returns:** the spectrum, a complex array of shape `(*batch, *fft.out_layout.shape)`.
        """
        self.decomposition = decomposition_of(
            mesh, shape=shape, ndim=ndim, axes=axes, box=box, pad=pad, backend=backend
        )
        self.real = check_flag("real", real)
        every = range(self.decomposition.ndim) if transformed is None else transformed
        self.transformed = tuple(sorted(check_axes("transformed", tuple(every), self.decomposition.ndim)))
        if not self.transformed:
            raise ValueError(f"`transformed` must be at least one axis of the grid; got {transformed!r}.")
        self.norm = check_norm(norm)
        self.axis_contiguous = check_flag("axis_contiguous", axis_contiguous)
        self.modes = check_modes(modes, self.decomposition.shape if self.is_bound else None)
        self.nyquist = check_flag("nyquist", nyquist)

    @property
    def bases(self) -> tuple[AbstractBasis, ...]:
        """The basis of each grid axis."""
        bases: list[AbstractBasis] = [Points()] * self.decomposition.ndim
        for axis in self.transformed:
            bases[axis] = Fourier(half=self.real and axis == self.transformed[-1])
        return tuple(bases)

    def replace(self: _F, **options: Any) -> _F:
        names = ("real", "transformed", "norm", "axis_contiguous", "modes", "nyquist")
        return type(self)(self.decomposition, **({name: getattr(self, name) for name in names} | options))


class FFTOptions(TypedDict, total=False):
    """The options of `FFT2D` and `FFT3D`, for type checkers: the options of `FFT` except `shape` and `ndim`."""

    axes: MeshAxes | None
    box: Box | None
    transformed: GridAxes | None
    pad: bool | None
    real: bool
    norm: Norm | None
    axis_contiguous: bool
    modes: Modes | None
    nyquist: bool
    backend: AbstractBackend | str | None


class FFT2D(FFT):
    """The Fourier transform on grids of two axes: `FFT` with `ndim=2`, and with the same other options."""

    def __init__(
        self, mesh: MeshOrDecomposition | None = None, shape: Lengths | None = None, **options: Unpack[FFTOptions]
    ):
        FFT.__init__(self, mesh, shape, ndim=2, **options)


class FFT3D(FFT):
    """The Fourier transform on grids of three axes: `FFT` with `ndim=3`, and with the same other options."""

    def __init__(
        self, mesh: MeshOrDecomposition | None = None, shape: Lengths | None = None, **options: Unpack[FFTOptions]
    ):
        FFT.__init__(self, mesh, shape, ndim=3, **options)
