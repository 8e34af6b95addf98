"""Operators that act on each mode of a spectrum by itself."""

import abc
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from equinox import AbstractVar
from jax import Array
from jax.core import Tracer
from jax.sharding import PartitionSpec
from jaxtyping import Complex, Shaped

from .._blocks import Triple
from .._check import check_flag
from .._decomposition import Decomposition
from .._operator.derived import UNCHANGED, AbstractDerivable, Form
from .._operator.fft import FFT3D
from .._operator.transform import Lengths, Number, Wavenumbers, box
from . import _vector


# What stands in the axis before the grid: nothing of ours, or the three components of a vector.
Components = Literal["scalar", "vector"]


def internal_transform(fft: FFT3D) -> FFT3D:
    """The transform that operators use inside, with the faster storage order of spectra (docs/performance.md)."""
    grid_of(fft)
    return fft.replace(axis_contiguous=max(fft.decomposition.sizes) > 1)


def grid_of(fft: FFT3D) -> Triple:
    """The true shape of the grid in real space."""
    if not isinstance(fft, FFT3D):
        raise TypeError(f"`fft` must be an `FFT3D`; got {fft!r}.")
    if fft.decomposition.shape is None:
        raise ValueError("`fft` must be built with a `shape`; got one without.")
    return fft.decomposition.shape


def wavenumbers_of(fft: FFT3D, lengths: Lengths, spectrum: Array, *, nyquist: bool = True) -> Wavenumbers:
    return fft.wavenumbers(lengths=lengths, dtype=jnp.finfo(spectrum.dtype).dtype, nyquist=nyquist)


class AbstractSpectralOperator(AbstractDerivable):
    """Transform, do something linear to each mode by itself, transform back.

    With a real `fft`, from real fields to real fields; with a complex one, from complex to complex. The spectrum stays
    in x-pencils in between. Vector fields carry their components in the axis before the grid,
    `(*batch, 3, nx, ny, nz)`, and are transformed in one batched call.

    **Arguments** of all of them, the second last:

    - `fft`: the transform, built with a `shape`; with `real=True` for real fields. Its `norm` does not matter.
    - `lengths`: the lengths of the periodic box along x, y, z, or one for all; 2π by default.

    **Raises:** `TypeError` for an `fft` that is none; `ValueError` for one without shape and for lengths that are not
    positive; calls, for a vector field without its three components.
    """

    if TYPE_CHECKING:  # as in `AbstractOperator`
        fft: ClassVar[FFT3D]
        lengths: ClassVar[Lengths]
    else:
        fft: AbstractVar[FFT3D]
        lengths: AbstractVar[Lengths]
    components: ClassVar[tuple[Components, Components]] = ("scalar", "scalar")  # of fields and of results

    @abc.abstractmethod
    def multiply(self, spectrum: Complex[Array, "..."]) -> Complex[Array, "..."]:
        """What happens to a spectrum as `self.fft` returns it, or to one block of it inside a `shard_map`."""

    def wavenumbers(self, spectrum: Complex[Array, "..."], *, nyquist: bool = True) -> Wavenumbers:
        """The wavenumbers of `spectrum`, in its precision; `nyquist` as of `FFT3D.wavenumbers`."""
        return wavenumbers_of(self.fft, self.lengths, spectrum, nyquist=nyquist)

    def apply(self, x: Shaped[Array | np.ndarray, "..."], form: Form, *, local: bool) -> Shaped[Array, "..."]:
        check_components(self.components[1 if form.transposed else 0], x)
        # The adjoint of a transform is its inverse, up to a scale that cancels. So the adjoint multiplies the spectrum
        # by the adjoint factors, and the transpose is the complex conjugate of the adjoint.
        forward, inverse = self.fft, self.fft.inverse
        conjugated = form.transposed != form.conjugated
        spectrum = forward.apply(jnp.conj(x) if conjugated else x, UNCHANGED, local=local)
        spectrum = self._adjoint_multiply(spectrum) if form.transposed else self.multiply(spectrum)
        result = inverse.apply(spectrum, UNCHANGED, local=local)
        return jnp.conj(result) if conjugated else result

    @property
    def decomposition(self) -> Decomposition:
        return self.fft.decomposition

    @property
    def is_invertible(self) -> bool:
        return False

    @property
    def in_spec(self) -> PartitionSpec:
        return self.fft.in_spec

    @property
    def out_spec(self) -> PartitionSpec:
        return self.fft.in_spec

    def _adjoint_multiply(self, spectrum: Array) -> Array:
        source, target = self.components
        # `linear_transpose` needs the shape, dtype and sharding of a spectrum before `multiply`, and no values.
        primal = _vector.components(spectrum)[0] if target == "vector" else spectrum
        primal = _vector.stack(primal, primal, primal) if source == "vector" else primal
        (result,) = jax.linear_transpose(self.multiply, primal)(jnp.conj(spectrum))
        return jnp.conj(result)


class SpectralOperator(AbstractSpectralOperator):
    """Multiply each mode of a field by `symbol(kx, ky, kz)`: any linear operator that commutes with translations.

    !!! example

        ```python
        bilaplacian = SpectralOperator(fft, lambda kx, ky, kz: (kx**2 + ky**2 + kz**2) ** 2)
        wave = lambda phase: jax.lax.complex(jnp.cos(phase), jnp.sin(phase))
        shift = SpectralOperator(fft, lambda kx, ky, kz: wave(-0.1 * kx), nyquist=False)
        ```
    """

    fft: FFT3D
    symbol: Callable
    lengths: Lengths
    nyquist: bool = eqx.field(static=True)

    def __init__(self, fft: FFT3D, symbol: Callable, lengths: Lengths = 2 * math.pi, *, nyquist: bool = True):
        """**Arguments:**

        - `fft`: the transform, built with a `shape`.
        - `symbol`: a function of the angular wavenumbers, broadcastable real arrays; returns the real or complex
            factors, made from these arrays alone (in which order the spectrum is stored is not said). It may hold
            parameters (an `equinox.Module`). With a real `fft` it must turn into its complex conjugate under k → -k.
        - `lengths`: the lengths of the periodic box along x, y, z, or one for all.
        - `nyquist`: `False` gives `symbol` zero for the Nyquist wavenumbers of even numbers of modes. Right for
            symbols that are not even along each axis, because such a mode stands for both signs at once.

        **Raises:** `TypeError` for an `fft` that is none and a `symbol` that cannot be called; `ValueError` for an
        `fft` without shape, lengths that are not positive, and factors that do not broadcast against the spectrum.
        """
        if not callable(symbol):
            raise TypeError(f"`symbol` must be a function of (kx, ky, kz); got {symbol!r}.")
        self.fft = internal_transform(fft)
        self.symbol = symbol
        self.lengths = box(lengths)
        self.nyquist = check_flag("nyquist", nyquist)

    def multiply(self, spectrum: Complex[Array, "..."]) -> Complex[Array, "..."]:
        factors = self.symbol(*self.wavenumbers(spectrum, nyquist=self.nyquist))
        return multiplied(spectrum, factors, "symbol")


def multiplied(spectrum: Array, factors: Any, name: str) -> Array:
    """`spectrum` times what the user's function `name` returned."""
    try:
        factors = jnp.asarray(factors)
    except (TypeError, ValueError) as error:
        raise TypeError(f"`{name}` must return an array of factors; got {factors!r}.") from error
    try:
        fits = jnp.broadcast_shapes(factors.shape, spectrum.shape) == spectrum.shape
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"`{name}` must return factors that broadcast against the spectrum {spectrum.shape}; got {factors.shape}."
        )
    return _vector.times(factors, spectrum)


def check_number(name: str, value: Any, *, least: Number = -math.inf) -> Any:
    """`value`, after a check that it is one finite real number of at least `least`, as far as that is known."""
    try:
        number = jnp.asarray(value)
        valid = number.ndim == 0 and not (jnp.iscomplexobj(number) or isinstance(value, bool))
    except (TypeError, ValueError):
        valid = False
    if not valid:
        raise TypeError(f"`{name}` must be one real number; got {value!r}.")
    if not isinstance(value, Tracer) and not (math.isfinite(value) and value >= least):
        rule = "finite" if least == -math.inf else f"a finite number of at least {least:g}"
        raise ValueError(f"`{name}` must be {rule}; got {value!r}.")
    return value


def check_components(components: Components, x: Any) -> None:
    shape = jnp.shape(x)
    if components == "vector" and (len(shape) < 4 or shape[-4] != 3):
        raise ValueError(f"`x` must be a vector field of shape (*batch, 3, nx, ny, nz); got {shape}.")
