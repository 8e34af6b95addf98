"""`Stencil`: apply a function to every block and its halo."""

import functools
from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Shaped

from .._backend.base import AbstractBackend
from .._common.blocks import Blocks, Pencil
from .._common.check import check_inexact
from .._common.host import device_array
from .._common.placement import place
from .._common.sharding import manual_axes
from .._common.typed import reshape_behind
from .._core.layout import Layout
from .._core.structure import Structure
from .._core.types import Lengths, MeshAxes, Periodic, Width
from .derived import UNCHANGED, AbstractDerivable, Form
from .halo import HaloExchange
from .placed import Placed
from .unbound import MeshOrDecomposition, OperatorDecomposition


class Stencil(AbstractDerivable):
    """Apply `fn` to every block extended by its halo, as in finite differences, convolutions and limiters.

    `fn` takes one extended block of shape `(*batch, before + cells + after, ...)`, and returns one block of shape
    `(*batch, cells, ...)`. `fn` may combine, add or remove batch axes. If `fn` is an `equinox.Module`, its parameters
    can be trained. `fn` may be nonlinear, except for `.T` and `.H`. For an affine `fn` such as `a * h + b`, `.T` and
    `.H` transpose only its linear part, `a * h`.

    !!! example

        ```python
        def second_difference(h):  # along x, on a grid of unit spacing
            return h[..., 2:, :, :] - 2 * h[..., 1:-1, :, :] + h[..., :-2, :, :]

        dxx = dops.Stencil(mesh, second_difference, halo=(1, 0, 0))
        ```
    """

    exchange: HaloExchange
    fn: Callable

    def __init__(
        self,
        mesh: MeshOrDecomposition | None,
        fn: Callable,
        halo: Width = 1,
        *,
        periodic: Periodic = True,
        pencil: Pencil = -1,
        shape: Lengths | None = None,
        ndim: int | None = None,
        axes: MeshAxes | None = None,
        pad: bool | None = None,
        backend: AbstractBackend | str | None = None,
    ):
        """**Arguments:**

        - `fn`: the function of one extended block.
        - `mesh`, `halo`, `periodic`, `pencil`, `shape`, `ndim`, `axes`, `pad`, `backend`: the arguments of the
            `decompops.HaloExchange` that extends the blocks.

        **Raises:** `ValueError` or `TypeError` if `decompops.HaloExchange` refuses an argument; `TypeError` if `fn` is
        not callable. A call raises `TypeError` if `fn` does not return an array, and `ValueError` if this array does
        not have the shape of a block.
        """
        if not callable(fn):
            raise TypeError(f"`fn` must be a function of one extended block; got {fn!r}.")
        self.exchange = HaloExchange(
            mesh, halo, periodic=periodic, pencil=pencil, shape=shape, ndim=ndim, axes=axes, pad=pad, backend=backend
        )
        self.fn = fn

    @property
    def decomposition(self) -> OperatorDecomposition:
        return self.exchange.decomposition

    def structures(self, form: Form, given: Structure | None) -> tuple[Structure, Structure]:
        del form  # Inputs and results have the same layout in every form. `fn` may change dtypes and components.
        source, _ = self.exchange.structures(UNCHANGED, given)
        return source, replace(source, passes_on=False)

    @property
    def in_layout(self) -> Layout:
        return self.exchange.in_layout

    @property
    def out_layout(self) -> Layout:
        return self.exchange.in_layout

    @property
    def is_invertible(self) -> bool:
        return False

    def apply(self, x: Shaped[Array | np.ndarray, "*field"], form: Form, *, local: bool) -> Shaped[Array, "*result"]:
        function: Callable = self._of_block if local else self._of_field
        if form == UNCHANGED:
            return function(x)
        if not local:
            x = Placed(self.decomposition, self.exchange.pencil)(x)
        x = jnp.conj(device_array(x)) if form.conjugated else device_array(x)
        y = self._transposed(function, x) if form.transposed else function(x)
        return jnp.conj(y) if form.conjugated else y

    def _of_field(self, x: Array | np.ndarray) -> Array:
        windows = self._windows()
        extended, layout = windows(x), windows.plan().target
        mesh, names = self.decomposition.mesh, layout.names
        # Each sharded axis is split into two axes: an axis of blocks, one for each device, and an axis of cells. `vmap`
        # maps `fn` over the blocks. Unlike a `shard_map`, `vmap` leaves the sharding of batch axes to XLA, and allows
        # `fn` to use arrays from its closure.
        pairs = [
            axis
            for length, parts, name in zip(layout.block_shape, layout.parts, names)
            for axis in ([(parts, name), (length, None)] if name else [(length, None)])
        ]
        shape, entries = zip(*pairs)
        blocks = reshape_behind(extended, extended.ndim - layout.ndim, shape, entries)
        divided = [axis for axis, name in enumerate(names) if name]
        shifts = [
            place(jnp.asarray(_shifts(layout, axis)), NamedSharding(mesh, PartitionSpec(names[axis])))
            if layout.is_padded(axis)
            else None
            for axis in divided
        ]
        mapped = functools.partial(self._on_block, layout)
        for number, axis in reversed(list(enumerate(divided))):
            # After this axis of blocks come its own axis of cells, the later grid axes, and their axes of blocks.
            position = axis - layout.ndim - len(divided) + number
            mapped = jax.vmap(
                mapped,
                in_axes=(position, *(0 if other == number else None for other in range(len(divided)))),
                out_axes=position,
                # Inside a partly manual `shard_map`, JAX does not accept `spmd_axis_name`.
                spmd_axis_name=None if manual_axes() else names[axis],
            )
        result = mapped(blocks, *shifts)
        shape = tuple(layout.core(axis) * layout.parts[axis] for axis in range(layout.ndim))
        return reshape_behind(result, result.ndim - layout.ndim - len(divided), shape, names)

    def _of_block(self, block: Array) -> Array:
        windows = self._windows()
        layout = windows.plan().target
        shifts = (
            jnp.asarray(_shifts(layout, axis))[jax.lax.axis_index(name)] if layout.is_padded(axis) else None
            for axis, name in enumerate(layout.names)
            if name
        )
        return self._on_block(layout, windows.local(block), *shifts)

    def _windows(self) -> HaloExchange:
        """Return the halo exchange for `_on_block`.

        Along a padded axis, the halo before a block is wider than the halo of `fn`: the difference is the number of
        cells of padding.
        """
        exchange = self.exchange
        layout = exchange.decomposition.blocks(exchange.pencil)
        halo = tuple((before + layout.padding(axis), after) for axis, (before, after) in enumerate(exchange.halo))
        return HaloExchange(exchange.decomposition, halo, periodic=exchange.periodic, pencil=exchange.pencil)

    def _on_block(self, layout: Blocks, extended: Array, *shifts: Array | None) -> Array:
        """Apply `fn` to one extended block of `layout`.

        `fn` never gets padding. A result in the padding, such as 0 / 0, could be masked, but its gradient could not.
        If a block reaches past the end of the field, `fn` gets a window that ends where the field ends.
        `shifts` has, for each sharded axis, the number of cells by which the window starts before the block, or
        `None` if the axis has no padding.
        """
        ndim, cells = layout.ndim, tuple(map(layout.core, range(layout.ndim)))
        divided = [axis for axis, name in enumerate(layout.names) if name]
        for axis, shift in zip(divided, shifts):
            if shift is not None:
                width = cells[axis] + sum(self.exchange.halo[axis])
                starts = {s: layout.padding(axis) - s for s in _shifts(layout, axis).tolist()}
                extended = _window(extended, axis - ndim, width, shift, starts)
        result = self.fn(extended)
        if not isinstance(result, Array):
            raise TypeError(f"`fn` must return one array; got {type(result).__name__}.")
        if jnp.shape(result)[-ndim:] != cells:
            raise ValueError(
                f"`fn` must return a block of shape (*batch, {', '.join(map(str, cells))}) for an extended one of "
                f"shape {extended.shape}; got {jnp.shape(result)}."
            )
        for axis, shift in zip(divided, shifts):
            if shift is not None:
                widths = [(0, layout.padding(axis) if i == axis else 0) for i in range(ndim)]
                result = jnp.pad(result, [(0, 0)] * (result.ndim - ndim) + widths)
                starts = {s: s for s in _shifts(layout, axis).tolist()}
                result = _window(result, axis - ndim, cells[axis], shift, starts)
        return result

    def _transposed(self, function: Callable, x: Array) -> Array:
        check_inexact("x", x, " for the transpose of a stencil")
        result = jax.eval_shape(function, x)  # Outside of the `try`, errors of `fn` itself are raised unchanged.
        if (result.shape, result.dtype) != (x.shape, x.dtype):
            raise ValueError(
                "`fn` must keep the batch axes and the dtype for the transpose of the stencil; got "
                f"{result.shape}, {result.dtype} for {x.shape}, {x.dtype}."
            )
        try:
            (y,) = jax.linear_transpose(function, x)(x)
        except Exception as error:  # JAX raises errors of different types for different nonlinear functions.
            raise ValueError(f"`fn` must be linear for the transpose of the stencil; got {self.fn!r}.") from error
        return y


def _shifts(layout: Blocks, axis: int) -> np.ndarray:
    """Return the number of cells by which each block along `axis` reaches past the end of the field."""
    ends = np.arange(1, layout.parts[axis] + 1) * layout.core(axis)
    return np.maximum(ends - layout.lengths[axis], 0)


def _window(block: Array, axis: int, width: int, shift: Array, starts: dict[int, int]) -> Array:
    """Return `width` cells of `block` along array axis `axis`, from cell `starts[shift]` on.

    The window is selected from static slices, because a dynamic slice that is mapped over blocks would communicate.
    """
    slices = {s: jax.lax.slice_in_dim(block, start, start + width, axis=axis) for s, start in starts.items()}
    window = slices.pop(0)
    for s, candidate in slices.items():
        window = jnp.where(shift == s, candidate, window)
    return window
