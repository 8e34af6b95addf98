"""The order in which XLA stores the axes of a block in the memory of a device."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from jax import Array, lax
from jax.experimental.layout import Layout, with_layout_constraint


_exported = ContextVar("exported", default=False)


def row_major(block: Array) -> Array:
    """Store the block in row-major layout. XLA then computes the block once, in a separate pass."""
    if _exported.get():
        # An array of one axis has only one layout. The barrier keeps XLA from dropping both reshapes.
        return lax.optimization_barrier(block.reshape(-1)).reshape(block.shape)
    return with_layout_constraint(block, Layout(tuple(range(block.ndim))))


def stored_as(block: Array, order: tuple[int, ...]) -> Array:
    """Store the block with its axes in this order, the slowest axis first. Exported programs are left to XLA."""
    return block if _exported.get() else with_layout_constraint(block, Layout(order))


@contextmanager
def exported() -> Iterator[None]:
    """Trace without layout constraints. JAX does not promise that later versions can run a program with constraints."""
    token = _exported.set(True)
    try:
        yield
    finally:
        _exported.reset(token)
