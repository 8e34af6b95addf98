"""`Stencil`: any function of a block and its halo."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Shaped

from .._backend.base import AbstractBackend
from .._decomposition import Decomposition, explicit_spec
from .._pencil import Layout
from .base import AbstractOperator
from .halo import HaloExchange
from .planned import pad


class Stencil(AbstractOperator):
    """Apply `fn` to every extended block: finite differences, convolutions, limiters.

    `fn` sees one block `(*batch, before + cells + after, ...)` and returns one block `(*batch, cells, ...)`; it may
    combine leading axes, or return others. It may be nonlinear, and hold parameters if it is an `equinox.Module`; only
    `.T` and `.H` need it to be linear (of `a * h + b` they transpose `a`).

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
        mesh: Mesh | AbstractMesh | Decomposition | None,
        fn: Callable,
        halo: Any = 1,
        *,
        periodic: Any = True,
        shape: Any = None,
        axes: Any = None,
        backend: AbstractBackend | str | None = None,
    ):
        """**Arguments:**

        - `fn`: the function of one extended block.
        - `mesh`, `halo`, `periodic`, `shape`, `axes`, `backend`: as of `decompops.HaloExchange`.

        **Raises:** as `decompops.HaloExchange`, and `TypeError` for an `fn` that cannot be called. Calls raise
        `TypeError` or `ValueError` where `fn` does not return a block.
        """
        if not callable(fn):
            raise TypeError(f"`fn` must be a function of one extended block; got {fn!r}.")
        self.exchange = HaloExchange(mesh, halo, periodic=periodic, shape=shape, axes=axes, backend=backend)
        self.fn = fn

    @property
    def decomposition(self) -> Decomposition:
        return self.exchange.decomposition

    @property
    def in_spec(self) -> PartitionSpec:
        return self.exchange.in_spec

    @property
    def out_spec(self) -> PartitionSpec:
        return self.exchange.in_spec

    def __call__(self, x: Shaped[Array | np.ndarray, "..."], *, key: Any = None) -> Shaped[Array, "..."]:
        extended = self.exchange(x)
        layout = self.exchange.plan_for(jnp.shape(x)).target
        (a, b), parts = self.decomposition.axes, layout.parts
        # The blocks become axes of their own that the mesh divides one to one, and `fn` is mapped over them. Unlike a
        # `shard_map` this leaves batch axes to XLA, which need not gather them, and lets `fn` close over arrays.
        cells = tuple(layout.core(axis) for axis in range(3))
        blocks = _reshape(extended, extended.ndim - 3, _with_blocks(layout), (a, None, b, None, None))
        mapped = jax.vmap(lambda block: self._on_block(block, cells), in_axes=-3, out_axes=-3, spmd_axis_name=b)
        mapped = jax.vmap(mapped, in_axes=-5, out_axes=-5, spmd_axis_name=a)
        result = mapped(blocks)
        shape = tuple(n * p for n, p in zip(cells, parts))
        return self._clear_padding(_reshape(result, result.ndim - 5, shape, (a, b, None)))

    def local(self, block: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
        result = self._on_block(self.exchange.local(block), jnp.shape(block)[-3:])
        return self._clear_padding(result, blocks=True)

    @property
    def T(self) -> AbstractOperator:
        return _derive(self, True, False)

    @property
    def H(self) -> AbstractOperator:
        return _derive(self, True, True)

    def _on_block(self, extended: Array, cells: tuple[int, ...]) -> Array:
        result = self.fn(extended)
        if not isinstance(result, Array):
            raise TypeError(f"`fn` must return one array; got {type(result).__name__}.")
        if jnp.shape(result)[-3:] != cells:
            raise ValueError(
                f"`fn` must return a block of shape (*batch, {', '.join(map(str, cells))}) for an extended one of "
                f"shape {extended.shape}; got {jnp.shape(result)}."
            )
        return result

    def _clear_padding(self, field: Array, *, blocks: bool = False) -> Array:
        if self.decomposition.shape is None:
            return field
        if not any(map(self.decomposition.layout("z").is_padded, range(3))):
            return field
        clear = HaloExchange(self.decomposition, 0).crop
        return clear.local(field) if blocks else clear(field)


class DerivedStencil(AbstractOperator):
    """The transpose or conjugate of a stencil whose `fn` is linear and keeps the leading axes."""

    stencil: Stencil
    transposed: bool = eqx.field(static=True)
    conjugated: bool = eqx.field(static=True)

    @property
    def decomposition(self) -> Decomposition:
        return self.stencil.decomposition

    @property
    def in_spec(self) -> PartitionSpec:
        return self.stencil.out_spec

    @property
    def out_spec(self) -> PartitionSpec:
        return self.stencil.in_spec

    def __call__(self, x: Shaped[Array | np.ndarray, "..."], *, key: Any = None) -> Shaped[Array, "..."]:
        x = jnp.asarray(x)
        return self._apply(self.stencil, pad(x, self.stencil.exchange.plan_for(x.shape).source))

    def local(self, block: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
        return self._apply(self.stencil.local, block)

    @property
    def T(self) -> AbstractOperator:
        return _derive(self.stencil, not self.transposed, self.conjugated)

    @property
    def H(self) -> AbstractOperator:
        return _derive(self.stencil, not self.transposed, not self.conjugated)

    def _apply(self, fn: Callable, x: Array) -> Array:
        x = jnp.conj(x) if self.conjugated else x
        y = self._transpose(fn, x) if self.transposed else fn(x)
        return jnp.conj(y) if self.conjugated else y

    def _transpose(self, fn: Callable, x: Array) -> Array:
        if not jnp.issubdtype(x.dtype, jnp.inexact):
            raise TypeError(f"`x` must be real or complex for a transpose of a stencil; got {x.dtype}.")
        result = jax.eval_shape(fn, x)  # outside of the `try`: errors of `fn` itself are the user's own
        if (result.shape, result.dtype) != (x.shape, x.dtype):
            raise ValueError(
                "`fn` must keep the leading axes and the dtype for a transpose of the stencil; it turns "
                f"{x.shape}, {x.dtype} into {result.shape}, {result.dtype}."
            )
        try:
            (y,) = jax.linear_transpose(fn, x)(x)
        except Exception as error:  # which one depends on what is not linear
            raise ValueError(f"`fn` must be linear for a transpose of the stencil; got {self.stencil.fn!r}.") from error
        return y


def _derive(stencil: Stencil, transposed: bool, conjugated: bool) -> AbstractOperator:
    if not (transposed or conjugated):
        return stencil
    return DerivedStencil(stencil, transposed, conjugated)  # pyright: ignore


def _with_blocks(layout: Layout) -> tuple[int, ...]:
    """The global shape of a z-pencil with the blocks along x and y as axes of their own."""
    x, y, z = layout.block_shape
    return (layout.parts[0], x, layout.parts[1], y, z)


def _reshape(x: Array, lead: int, shape: tuple[int, ...], names: tuple[str | None, ...]) -> Array:
    """Reshape all but the first `lead` axes to `shape`, divided over mesh axes `names`."""
    sharding = jax.typeof(x).sharding
    new = (*x.shape[:lead], *shape)
    if AxisType.Explicit not in sharding.mesh.axis_types:
        return jnp.reshape(x, new)
    spec = explicit_spec(sharding.mesh, (*sharding.spec[:lead], *names))
    return jax.lax.reshape(x, new, out_sharding=NamedSharding(sharding.mesh, spec))
