"""The closed parts of a grid, which a body or faces without conductance separate from each other."""

import math

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool

from .._common.sharding import while_any
from .._operator.placed import Placed
from ._cut import Cut
from ._network import Network


# The label of parts with a wall or a reaction, where the matrix does not map constants to zero.
_NOT_CLOSED = np.int32(2**31 - 1)


def closed_parts(network: Network, most: int) -> tuple[Bool[Array, "parts *grid"], Bool[Array, ""]]:
    """Return the cells of each closed part, for at most `most` parts, and whether there are more.

    Every cell starts with its own number as its label, and takes the largest label of the cells that it is connected
    to, until no label changes. A round carries labels through whole blocks along each axis, and exchanges them once, so
    there are about as many rounds as turns in the longest path through the cells.
    """
    dec, cut = network.decomposition, network.cut(local=False)
    if math.prod(dec.shape) >= _NOT_CLOSED:
        raise ValueError(f"`parts` must be None for a grid of {_NOT_CLOSED} cells or more; got shape {dec.shape}.")
    number, stride = jnp.ones((), np.int32), 1
    for axis, n in enumerate(dec.shape):  # Padding is cleared below.
        number = number + cut.line((np.minimum(cut.numbers(axis), n - 1) * stride).astype(np.int32), axis)
        stride *= n
    ones = Placed(dec)(jnp.ones(dec.shape, jnp.finfo(network.faces[0].dtype).dtype))
    leaks, is_open = cut.split(network(ones)) != 0, cut.clear(network.diagonal(cut)) != 0
    labels = jnp.where(is_open, jnp.where(leaks, _NOT_CLOSED, number), 0).astype(np.int32)

    def spread(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        labels = carry[0]
        extended = network.extended(labels, cut)
        for axis in range(cut.blocks.ndim):
            extended = _swept(network, cut, extended, axis)
        found = cut.merge(cut.clear(cut.window(extended, {})))
        return found, dec.max(found != labels)

    start = cut.merge(labels), jnp.ones((), bool)
    labels = while_any(lambda carry: carry[1], spread, start)[0]

    def pick(last: Array, _: None) -> tuple[Array, Array]:
        found = dec.max(jnp.where(labels < last, labels, 0))
        return found, (labels == found) & (found > 0)

    last, parts = lax.scan(pick, jnp.full((), _NOT_CLOSED), length=most)
    return parts, dec.max(jnp.where(labels < last, labels, 0)) > 0


def _swept(network: Network, cut: Cut, extended: Array, axis: int) -> Array:
    """Return extended blocks of labels after a sweep up and a sweep down along an axis."""
    cells, position = cut.core[axis], extended.ndim + cut.position(axis)
    joined = cut.split(network.faces[axis], {axis: cells + 1}) != 0
    core = extended
    for other, n in enumerate(cut.core):
        core = core if other == axis else cut.slice(core, other, 1, n + 1)

    def step(label: Array, line: tuple[Array, Array]) -> tuple[Array, Array]:
        own, is_joined = line
        label = jnp.maximum(own, jnp.where(is_joined, label, 0))
        return label, label

    lines, joined = jnp.moveaxis(core, position, 0), jnp.moveaxis(joined, position, 0)
    _, up = lax.scan(step, lines[0], (lines[1:-1], joined[:-1]))
    _, down = lax.scan(step, lines[-1], (up, joined[1:]), reverse=True)
    at = [slice(None)] * extended.ndim
    for other, n in enumerate(cut.core):
        at[extended.ndim + cut.position(other)] = slice(1, n + 1)
    return extended.at[tuple(at)].set(jnp.moveaxis(down, 0, position))
