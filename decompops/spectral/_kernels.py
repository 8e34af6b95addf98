"""Kernels of convolutions in open space, given by their values or by their symbol."""

import abc
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Shaped

from .._common.box import Number
from .._common.host import fitting, host_array
from .._core.layout import Layout
from .._plan.plan import Plan
from . import _vector
from ._open_grid import OpenGrid


class AbstractKernel(eqx.Module):
    """The kernel of a `Convolution`."""

    is_complex: ClassVar[bool] = False  # Whether the kernel needs complex fields.

    @abc.abstractmethod
    def odd_axes(self, ndim: int) -> tuple[int | None, ...]:
        """Return, for each component of the kernel, the axis along which it is odd; `None` for no axis.

        A kernel has one component, or three. Three components are the gradient of a function. Then the convolution is
        the curl of the convolution with this function.
        """

    @abc.abstractmethod
    def spectrum(self, grid: OpenGrid, lengths: Sequence[Number], dtype: np.dtype) -> Array | None:
        """Return the spectrum of the kernel on the doubled grid; `None` if each convolution computes it anew.

        An axis along which the kernel is even or odd may hold the modes from 0 to the Nyquist mode only, if it is the
        last one that is transformed.
        """


class KernelSymbol(AbstractKernel):
    """A kernel that is given by its symbol, which is the Fourier transform of the kernel.

    The symbol multiplies the modes of the zero-padded field on the doubled grid. So the kernel is the periodic one on
    the doubled grid: it should be negligible, or known, beyond the length of the box. An example is the propagation of
    light by its angular spectrum.

    **Arguments:**

    - `function`: a function of the angular wavenumbers `(kx, ky, kz)`, in radians per unit of length. It gets one real
        array for each axis of the grid; the arrays broadcast against each other. It returns real or complex factors.
        It may be an `equinox.Module` with parameters. It is compiled once, so it must not read variables that change:
        make these parameters.
    - `nyquist`: with `False`, the function gets zero in place of Nyquist wavenumbers. Use `False` if it is not an even
        function of each wavenumber.
    """

    function: Callable
    nyquist: bool = eqx.field(static=True, default=True, kw_only=True)

    def __check_init__(self):
        if not callable(self.function):
            raise TypeError(f"`function` must be a function of the wavenumbers; got {self.function!r}.")

    def odd_axes(self, ndim: int) -> tuple[int | None, ...]:
        return (None,)

    def spectrum(self, grid: OpenGrid, lengths: Sequence[Number], dtype: np.dtype) -> None:
        return None


class KernelValues(AbstractKernel):
    """A kernel that is given by its values at the distances of the points of the grid.

    **Arguments:**

    - `values`: a function of the distances `(x, y, z)`, or an array of its values. The function gets one real array for
        each axis; the arrays broadcast against each other. It must return a finite value at zero. Along a periodic
        axis, distances are from -L/2 to L/2. The array has twice the points of the grid along each open axis; its
        element 0 is the value at the distance 0, element 1 at one spacing, element -1 at minus one spacing.
    """

    values: Callable | Shaped[Array | np.ndarray, "*doubled"]

    def odd_axes(self, ndim: int) -> tuple[int | None, ...]:
        return (None,)

    def placed(self, grid: OpenGrid) -> "KernelValues":
        """Return this kernel with its array sharded over the devices of the grid."""
        if callable(self.values):
            return self
        if self.values.shape != grid.shape:
            raise ValueError(
                f"`kernel` must be an array of shape {grid.shape}, with twice the points of the grid along each open "
                f"axis; got {self.values.shape}."
            )
        source = grid.values_plan.source
        if isinstance(self.values, np.ndarray):
            return KernelValues(Layout(grid.decomposition.mesh, source).distribute(fitting(host_array(self.values))))
        return KernelValues(grid.planned(Plan("Convolution", source, ()))(self.values))

    def spectrum(self, grid: OpenGrid, lengths: Sequence[Number], dtype: np.dtype) -> Array:
        plan, values = grid.values_plan, self.values
        if callable(values):
            values = jnp.asarray(values(*grid.offsets(lengths, dtype)))
            values = jnp.broadcast_to(values, plan.source.shape)
        values = jnp.asarray(values)
        if grid.real and jnp.iscomplexobj(values):
            raise TypeError("`kernel` must be real for real fields; got complex values. Build `fft` with `real=False`.")
        values = values if jnp.issubdtype(values.dtype, jnp.inexact) else values.astype(dtype)
        spacing = [length / n for length, n in zip(lengths, grid.decomposition.shape)]
        return grid.planned(plan)(_vector.times_each(spacing, values))


def as_kernel(kernel: Any) -> AbstractKernel:
    """Return `kernel`; if it is a function or an array, the kernel with these values."""
    if isinstance(kernel, AbstractKernel):
        return kernel
    if isinstance(kernel, type):  # such as `PoissonKernel`, whose call makes a kernel
        raise TypeError(f"`kernel` must be an object; got a class. Write `{kernel.__name__}(...)`.")
    if callable(kernel) or isinstance(kernel, Array | np.ndarray):
        return KernelValues(kernel)
    raise TypeError(f"`kernel` must be a kernel, a function of distances or an array; got {kernel!r}.")
