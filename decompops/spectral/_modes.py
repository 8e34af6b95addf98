"""What spectral operators and equations have in common: a transform, a box, and the wavenumbers of their spectra."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, get_args

import equinox as eqx
import jax.numpy as jnp
from equinox import AbstractVar
from jax import Array
from jaxtyping import Complex

from .._blocks import axis_names
from .._box import Box, check_box
from .._operator.fft import FFT
from .._operator.transform import Wavenumbers
from .._remember import remembered


# What stands in the axis before the grid: anything, where each component is treated by itself; nothing of ours; the
# components of a vector, as many as the grid has axes; or those of an axial vector, such as a curl: three in three
# dimensions, while in two dimensions it is a scalar.
Components = Literal["any", "scalar", "vector", "axial"]
Rule = Literal["2/3", "3/2"]

_T = TypeVar("_T")


class AbstractSpectral(eqx.Module):
    """Something that works on the spectra of periodic fields: a transform `fft` and a `box`, kept as they were given.

    A subclass declares both as fields. Those whose transform must keep only the modes that products of two fields leave
    free of aliasing set `dealiases = True`.
    """

    if TYPE_CHECKING:  # Type checkers treat an `AbstractVar` as an argument of every constructor.
        fft: ClassVar[FFT]
        box: ClassVar[Box]
    else:
        fft: AbstractVar[FFT]
        box: AbstractVar[Box]
    dealiases: ClassVar[bool] = False

    def __check_init__(self):
        check_box(self.box, len(check_fft(self.fft)))

    @property
    def transform(self) -> FFT:
        """The transform between fields and the spectra that are worked on.

        It is `fft` with the faster storage order of spectra (docs/performance.md), and dealiased where `dealiases`.
        """
        return inner_transform(self.fft, dealiases=self.dealiases)

    def wavenumbers(self, spectrum: Complex[Array, "*spectrum"], *, nyquist: bool = True) -> Wavenumbers:
        """The wavenumbers of `spectrum`, in its precision; `nyquist` as in `FFT.wavenumbers`."""
        dtype = jnp.finfo(spectrum.dtype).dtype
        return self.transform.wavenumbers(box=self.box, dtype=dtype, nyquist=nyquist)


@remembered
def inner_transform(fft: FFT, *, dealiases: bool = False) -> FFT:
    """The transform that operators use inside; see `AbstractSpectral.transform`."""
    fft = dealiased(fft) if dealiases else fft
    return fft.replace(axis_contiguous=max(fft.decomposition.sizes, default=1) > 1)


def check_fft(fft: Any, *, real: bool = False) -> tuple[int, ...]:
    """The true shape of the grid of `fft`, after a check that it is a transform that knows its grid.

    With `real` it must be one of real fields.
    """
    if not isinstance(fft, FFT):
        raise TypeError(f"`fft` must be an `FFT`; got {fft!r}.")
    if fft.decomposition.shape is None:
        raise ValueError("`fft` must be built with a `shape`; got one without.")
    if real and not fft.real:
        raise ValueError("`fft` must be built with `real=True`; got a complex transform.")
    return fft.decomposition.shape


def of_transformed(fft: FFT, values: Sequence[_T]) -> tuple[_T, ...]:
    """Those of `values`, one for each axis of the grid, that belong to the axes which `fft` transforms."""
    return tuple(values[axis] for axis in fft.transformed)


def component_axes(components: Any, ndim: int) -> tuple[int, ...] | None:
    """The lengths of the axes right before a grid of `ndim` axes; `None` for any.

    Raises `ValueError` for unknown `components`, and for axial vectors where there is no curl.
    """
    if components not in get_args(Components):
        raise ValueError(f"`components` must be one of {get_args(Components)}; got {components!r}.")
    if components == "axial" and ndim not in (2, 3):
        raise ValueError(f"`fft` must transform a grid of two or three axes, where there is a curl; got {ndim}.")
    return {"any": None, "scalar": (), "vector": (ndim,), "axial": (3,) if ndim == 3 else ()}[components]


def check_components(components: Components, x: Any, ndim: int) -> None:
    """Raise `ValueError` for an `x` without the components of a vector, where a field must be one."""
    shape, wanted = jnp.shape(x), component_axes(components, ndim)
    if wanted and (len(shape) <= ndim or shape[-ndim - 1] != ndim):
        lengths = ", ".join(f"n{axis}" for axis in axis_names(ndim))
        raise ValueError(f"`x` must be a vector field of shape (*batch, {ndim}, {lengths}); got {shape}.")


def dealiased(fft: FFT, rule: Rule = "2/3") -> FFT:
    """A transform between a grid and the modes for which products of two fields on that grid are free of aliasing.

    Products of modes below n/3 alias, on a grid of n points, only onto modes above n/3. So with
    `padded = dealiased(fft, "3/2")` the modes of `padded(padded.inverse(a) * padded.inverse(b))` are exact. Give `fft`
    `norm="forward"` where spectra go from one grid to another: the scale of the others depends on the grid.

    **Arguments:**

    - `fft`: the transform, built with a `shape`.
    - `rule`: "2/3" keeps the grid of `fft` and its modes below a third of it; "3/2" keeps the modes of `fft` and
        takes a grid of 3/2 times as many points, or just more. Either leaves axes alone that `fft` does not transform.

    **Returns:** an `FFT` with `modes`. A transform that keeps few enough modes already is returned as it is.

    **Raises:** `ValueError` for an `fft` without shape, another rule, and a finer grid that the mesh does not divide
    where `fft` was built without `pad=True`.
    """
    if rule not in get_args(Rule):
        raise ValueError(f"`rule` must be one of {get_args(Rule)}; got {rule!r}.")
    shape = check_fft(fft)
    modes, transformed = list(fft.modes or shape), fft.transformed
    if rule == "2/3":
        for axis in transformed:  # The highest mode below n / 3, on both sides of zero.
            modes[axis] = min(modes[axis], 2 * math.ceil(shape[axis] / 3) - 1)
        return fft.replace(modes=modes)
    finer = [max(n, 3 * m // 2 + m % 2) if axis in transformed else n for axis, (m, n) in enumerate(zip(modes, shape))]
    return fft.replace(shape=finer, modes=modes)
