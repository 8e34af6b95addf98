"""`Convolution`: the convolution with a kernel in open space, where the field is zero outside of the box."""

import functools
import math
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Inexact, Shaped

from .._basis.fourier import Fourier
from .._common.blocks import flat_names
from .._common.check import check_axes, check_dtype
from .._common.host import device_array
from .._common.placement import batch_of, place
from .._common.remember import in_new_program
from .._common.sharding import manual_axes, map_blocks
from .._common.typed import batch_in_type
from .._core.decomposition import Decomposition
from .._core.layout import check_global
from .._core.structure import Structure
from .._core.types import GridAxes
from .._operator.base import AbstractOperator
from .._operator.derived import UNCHANGED, AbstractDerivable, Form
from .._operator.placed import Placed
from .._operator.transform import AbstractTransform
from .._plan.pieces import even_lengths
from .._plan.plan import Plan
from . import _vector
from ._check import check_fft
from ._kernel_lines import mirrored
from ._kernels import AbstractKernel, KernelSymbol, KernelValues, as_kernel
from ._modes import Components, check_components, component_axes
from ._open_grid import OpenGrid
from ._operator import multiplied


# The last part of the transform runs for pieces of a block, one after the other. Each piece holds its part of the
# doubled grid: about this many bytes, which fit into caches. More pieces start more transforms and exchanges.
_BYTES = 3 * 2**20
_MOST_PIECES = 64
# The block, and the modes of a piece before and after their multiplication, take at most this many fields.
_FIELDS = 4.0


class Convolution(AbstractDerivable):
    """The convolution of a field with a kernel in open space: `∫ kernel(x - y) field(y) dy`, an integral over the box.

    The field is zero outside of the box along the open axes, and periodic along the others. The integral is the sum
    over the points of the grid times the volume of a cell. `.T` is the correlation with the kernel.

    The grid is doubled along the open axes, but never stored whole: each axis is zero-padded directly before its
    transform, and cropped directly after its inverse transform. A convolution with three open axes computes 4.7 times
    as much, and sends 3 times as much, as a periodic one. See docs/open_boundaries.md.

    !!! example

        ```python
        fft = dops.FFT3D(mesh, shape=(64, 64, 64), real=True, box=dops.Box((1.0, 1.0, 1.0)))
        potential = spectral.Convolution(fft, spectral.PoissonKernel())(u)  # ∇² potential = u, zero at infinity
        ```
    """

    fft: AbstractTransform
    open: tuple[int, ...] = eqx.field(static=True)
    odd_axes: tuple[int | None, ...] = eqx.field(static=True)  # of the components of the kernel
    symbol: KernelSymbol | None
    spectrum: Inexact[Array, "*doubled"] | None

    def __init__(self, fft: AbstractTransform, kernel: Any, open: GridAxes | None = None):
        """**Arguments:**

        - `fft`: the transform, built with a `shape`, and with the `box` that the grid fills; with `real=True` for real
            fields. It must transform all axes, and keep all modes. Its `norm` does not matter.
        - `kernel`: a kernel such as `PoissonKernel()`, or the values of a Green's function: a function of the distances
            `(x, y, z)`, or an array: see `KernelValues`. The spectrum of the kernel is computed here, once, and stored
            in the array `spectrum`. To differentiate with respect to a parameter of the kernel, build the `Convolution`
            inside the differentiated function.
        - `open`: the open axes, by names or numbers, such as `("x", "y")`; by default all axes.

        **Raises:** `TypeError` if `fft` is not a transform, if `kernel` is neither a kernel nor a function nor an
        array, or if it is complex and `fft` is real. `ValueError` if `fft` has no `shape`, has walls, or leaves out an
        axis or modes; if `open` names no axis; or if an array `kernel` does not have the shape of the doubled grid.

        An instance `convolution` is called as `convolution(u)`.

        **Arguments of the call:** a field of shape `(*batch, *shape)`; for `BiotSavartKernel`, `(*batch, 3, *shape)`.

        **Returns:** the result on the grid of the box, of the shape and dtype of the field.
        """
        ndim = len(check_fft(fft))
        if fft.modes is not None or not all(isinstance(basis, Fourier) for basis in fft.bases):
            raise ValueError(f"`fft` must have the basis `Fourier` along all axes, and all modes; got {fft!r}.")
        self.fft = fft
        self.open = tuple(sorted(check_axes("open", range(ndim) if open is None else open, ndim)))
        if not self.open:
            raise ValueError(
                "`open` must name at least one axis; got none. For periodic fields, use `SpectralOperator`."
            )
        kernel = as_kernel(kernel)
        kernel = kernel.placed(_grid(fft, self.open)) if isinstance(kernel, KernelValues) else kernel
        if kernel.is_complex and not fft.takes_complex:
            raise TypeError("`fft` must be complex for a complex kernel; got a real one. Build it with `real=False`.")
        self.odd_axes = kernel.odd_axes(ndim)
        self.symbol = kernel if isinstance(kernel, KernelSymbol) else None
        # JAX learns the devices of a program from its arguments.
        one = place(jnp.ones(()), NamedSharding(fft.decomposition.mesh, PartitionSpec()))
        if isinstance(kernel, KernelValues) and callable(kernel.values):  # It may read variables that change.
            self.spectrum = in_new_program(lambda values: _spectrum(fft, self.open, kernel, *values), (one,))
        else:
            self.spectrum = _spectrum_in_program(fft, self.open, kernel, one)

    @property
    def decomposition(self) -> Decomposition:
        return self.fft.decomposition

    @property
    def is_invertible(self) -> bool:
        return False

    def structures(self, form: Form, given: Structure | None) -> tuple[Structure, Structure]:
        field, _ = self.fft.structures(UNCHANGED, given)
        field = replace(field, components=component_axes(self._components, self.decomposition.ndim))
        return field, field

    def apply(self, x: Shaped[Array | np.ndarray, "*field"], form: Form, *, local: bool) -> Shaped[Array, "*result"]:
        check_components(self._components, x, self.decomposition.ndim)
        x, grid = device_array(x), _grid(self.fft, self.open)
        x = x.astype(grid.plans.input_dtype(check_dtype("x", x.dtype)))
        x = jnp.conj(x) if form.conjugated else x
        if not local:
            check_global("x", self.decomposition.mesh_axes, "Call `.local(block)` instead")
            result = _convolved(self, Placed(self.decomposition)(x), transposed=form.transposed)
        elif self.spectrum is None:
            result = _on_block(self, grid, x, transposed=form.transposed)
        else:
            raise TypeError(
                "`.local(block)` needs a kernel that is given by its symbol, a `KernelSymbol`, because the spectrum of "
                "other kernels is a global array. Call the operator itself, outside of the `shard_map`."
            )
        return jnp.conj(result) if form.conjugated else result

    @property
    def _components(self) -> Components:
        return "any" if len(self.odd_axes) == 1 else "vector"


def _grid(fft: AbstractTransform, open: tuple[int, ...]) -> OpenGrid:
    given = fft.decomposition
    decomposition = Decomposition(given.mesh, shape=given.shape, axes=given.axes, pad=True, backend=given.backend)
    return OpenGrid(decomposition, open, real=not fft.takes_complex)


def _spectrum(fft: AbstractTransform, open: tuple[int, ...], kernel: AbstractKernel, one: Array) -> Array | None:
    found = kernel.spectrum(_grid(fft, open), fft.box_lengths, np.dtype(one.dtype))
    return None if found is None else _vector.times(one, found)


_spectrum_in_program = eqx.filter_jit(_spectrum)


@eqx.filter_jit
def _convolved(operator: Convolution, x: Array, *, transposed: bool) -> Array:
    """Convolve a field that is on its devices."""
    grid = _grid(operator.fft, operator.open)
    mesh, source, target = grid.decomposition.mesh, grid.plans.outer.source, grid.plans.inner.target
    # Other mesh axes may shard a batch, also one of `jax.vmap`. The transforms know it when they are compiled.
    field = PartitionSpec(*batch_in_type(x, source.ndim), *source.spec)
    names = set(flat_names(field)) - manual_axes()
    arrays, rest = eqx.partition(operator, eqx.is_array)
    specs = jax.tree.map(lambda _: PartitionSpec(), arrays)
    if operator.spectrum is not None:
        spec = PartitionSpec(*[None] * (operator.spectrum.ndim - source.ndim), *target.spec)
        specs = eqx.tree_at(lambda operator: operator.spectrum, specs, spec)

    def run(arrays: Convolution, block: Array) -> Array:
        return _on_block(eqx.combine(arrays, rest), grid, block, transposed=transposed)

    # A `shard_map` over no mesh axis would be one over all of them.
    mapped = map_blocks(run, mesh, names, (specs, field), field, check_types=False) if names else run
    return mapped(arrays, x)


def _on_block(operator: Convolution, grid: OpenGrid, block: Array, *, transposed: bool) -> Array:
    """Convolve one block of a field, inside a `shard_map`."""
    plans = grid.plans
    forth, back = _there_and_back(grid, plans.outer, transposed=transposed)
    shards = _shards_of_batch(grid, block)
    field, block = block.nbytes // shards, forth.local(block)
    if plans.axis is None:  # A grid of one axis cannot be cut.
        return back.local(_on_piece(operator, grid, block, 0, transposed=transposed))

    # Derivatives compute the factors of a piece again. Otherwise they would store those of the whole doubled grid.
    on_piece = eqx.filter_checkpoint(functools.partial(_on_piece, transposed=transposed))
    at = plans.inner.source.position(plans.axis)
    cells, start = block.shape[at], 0
    fields = math.prod(block.shape[: block.ndim - plans.inner.source.ndim]) // shards
    doubled = fields * math.prod(plans.inner.target.block_shape) * plans.inner.result_dtype(block.dtype).itemsize
    least = math.ceil(2 * doubled / max(_FIELDS * field - block.nbytes // shards, field, 1))
    pieces = min(max(doubled // _BYTES, least, 1), _MOST_PIECES, cells)  # A batch may be empty.
    counts = even_lengths(cells, pieces)
    # The pieces have at most two lengths. If one piece has a length of its own, it comes first: after the loop over the
    # others, it would make derivatives hold three times as much memory.
    for length in sorted(set(counts), key=counts.count):

        def step(i: Array, block: Array, first: int = start, length: int = length) -> Array:
            here = first + i * length
            piece = lax.dynamic_slice_in_dim(block, here, length, at)
            return lax.dynamic_update_slice_in_dim(block, on_piece(operator, grid, piece, here), here, at)

        count = counts.count(length)
        block = lax.fori_loop(np.int32(0), np.int32(count), step, block)
        start += count * length
    return back.local(block)


def _shards_of_batch(grid: OpenGrid, block: Array) -> int:
    """Return into how many parts the mesh axes that are not manual cut the batch of a block."""
    mesh, source = grid.decomposition.mesh, grid.plans.outer.source
    free = frozenset(mesh.axis_names) - manual_axes()
    batch = batch_of(block, block.ndim - source.ndim, mesh, source.mesh_axes, (), free)
    return math.prod(mesh.shape[name] for name in flat_names(batch) if name in free)


def _on_piece(
    operator: Convolution,
    grid: OpenGrid,
    piece: Array,
    start: Array | int,
    *,
    transposed: bool,
) -> Array:
    """Transform a piece of a block, multiply its modes by the kernel's factors, and transform back."""
    plans, axis = grid.plans, grid.plans.axis
    length = None if axis is None else piece.shape[plans.inner.source.position(axis)]
    forth, back = _there_and_back(grid, plans.inner_piece(length), transposed=transposed)
    spectrum = forth.local(piece)

    def cut(values: Array) -> Array:
        """Return the part of `values` that belongs to the piece."""
        position = 0 if axis is None else plans.inner.target.position(axis)
        if length is None or values.shape[position] == 1:
            return values
        return lax.dynamic_slice_in_dim(values, start, length, position)

    if operator.symbol is not None:
        dtype, nyquist = jnp.finfo(spectrum.dtype).dtype, operator.symbol.nyquist
        k = grid.wavenumbers(operator.fft.box_lengths, dtype, nyquist=nyquist)
        factors = operator.symbol.function(*map(cut, k))
    else:
        assert operator.spectrum is not None
        factors = cut(operator.spectrum)
    return back.local(_product(operator, grid, factors, spectrum, transposed=transposed))


def _product(operator: Convolution, grid: OpenGrid, factors: Array, spectrum: Array, *, transposed: bool) -> Array:
    """Return a piece of a spectrum times the kernel's factors."""
    ndim = grid.decomposition.ndim

    def whole(part: Array, odd: int | None) -> Array:
        """Return the factors of all modes along the last axis. Kernels that are even or odd there store one half."""
        if part.shape[-1] in (1, spectrum.shape[-1]):
            return part
        return mirrored(part, -1, -1 if odd == grid.order[-1] else 1)

    if len(operator.odd_axes) == 1:
        return multiplied(spectrum, whole(factors, None), "function")
    gradient = [whole(part, odd) for part, odd in zip(_vector.components(factors, ndim), operator.odd_axes)]
    # The matrix of a cross product is antisymmetric.
    product = functools.partial(_vector.times_unit, -1j if transposed else 1j)
    return _vector.stack(_vector.cross(gradient, _vector.components(spectrum, ndim), product), ndim)


def _there_and_back(grid: OpenGrid, plan: Plan, *, transposed: bool) -> tuple[AbstractOperator, AbstractOperator]:
    """Return the transform with this plan and its inverse; if `transposed`, the transposes of the two, exchanged."""
    transform = grid.planned(plan)
    return (transform.inverse.T, transform.T) if transposed else (transform, transform.inverse)
