"""Halos with XLA: copies layers of cells from neighbours, with collective permutes or a function of the caller."""

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ..._plan.stage import Clear, Crop, Extend


Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Message:
    """The layers of cells that each device of a line sends to one other device in one exchange.

    - `pairs`: pairs of sender and receiver; empty if each device keeps its own layers.
    - `parcels`: tuples `(hop, first, last)`. Cells `first` to `last - 1` go to the device `hop` places ahead. A message
        is the concatenation of its parcels.
    """

    pairs: Pairs
    parcels: tuple[tuple[int, int, int], ...]

    @property
    def hop(self) -> int:
        return self.parcels[0][0]

    @property
    def width(self) -> int:
        return sum(last - first for _, first, last in self.parcels)


# A function that sends the messages of a stage and returns, for each message, the layers that a device receives.
Exchange = Callable[[Extend, list[Message], list[Array]], list[Array]]


def permute(stage: Extend, messages: list[Message], sent: list[Array]) -> list[Array]:
    """Send each message with one collective permute. A device to which nothing is sent receives zeros."""
    name = stage.before.names[stage.axis]
    return [lax.ppermute(x, name, m.pairs) if m.pairs else x for m, x in zip(messages, sent)]


def messages_of(stage: Extend) -> list[Message]:
    """Return the messages that `stage` sends."""
    distance, offset, valid = _sources(stage)
    # There is one parcel for each distance between owner and receiver. Parcels between the same pairs of devices share
    # one message. An example is a ring of two devices, where both neighbours are the same device. From two separate
    # messages, XLA would make one message that contains the whole block.
    parcels: dict[Pairs, tuple[tuple[int, int, int], ...]] = {}
    for hop in sorted({int(h) for h in distance[valid]}, key=lambda h: (abs(h), h)):
        wanted = valid & (distance == hop)
        pairs = _pairs(stage, hop, np.flatnonzero(wanted.any(axis=1)))
        parcel = hop, int(offset[wanted].min()), int(offset[wanted].max()) + 1
        parcels[pairs] = (*parcels.get(pairs, ()), parcel)
    return [Message(pairs, several) for pairs, several in parcels.items()]


def extend(stage: Extend, block: Array, exchange: Exchange = permute) -> Array:
    """Extend one block along one grid axis by the layers that `exchange` delivers."""
    axis = block.ndim + stage.before.position(stage.axis)
    distance, offset, valid = _sources(stage)
    messages, sent, filled, base = messages_of(stage), [], 0, {}
    for message in messages:
        parts = [lax.slice_in_dim(block, first, last, axis=axis) for _, first, last in message.parcels]
        sent.append(jnp.concatenate(parts, axis=axis))
        for hop, first, last in message.parcels:
            base[hop] = filled - first
            filled += last - first
    pool = exchange(stage, messages, sent)

    places = np.zeros_like(offset)
    for hop, start in base.items():
        places = np.where(valid & (distance == hop), start + offset, places)
    if (shared := _shared(places, valid, stage)) is not None:
        return jnp.concatenate([part for run in _runs(shared) for part in _cells(pool, run, axis)], axis=axis)
    received = jnp.concatenate(pool, axis=axis)
    name = stage.before.names[stage.axis]
    device = 0 if name is None else lax.axis_index(name)
    extended = jnp.take(received, jnp.asarray(places)[device], axis=axis)
    shape = [-1 if i == axis else 1 for i in range(block.ndim)]
    inside = jnp.asarray(valid)[device].reshape(shape)
    return jnp.where(inside, extended, jnp.zeros_like(extended))


def crop(stage: Crop, block: Array) -> Array:
    """Drop the halo of one block."""
    before, lead = stage.before, block.ndim - stage.before.ndim
    for axis in range(before.ndim):
        start = before.halo[axis][0]
        dim = lead + before.order.index(axis)
        block = lax.slice_in_dim(block, start, start + before.core(axis), axis=dim)
    return block


def embed(stage: Crop, block: Array) -> Array:
    """Surround the block by zeros: the transpose of `crop`."""
    widths = [(0, 0)] * (block.ndim - stage.after.ndim) + [stage.after.halo[axis] for axis in stage.after.order]
    return jnp.pad(block, widths)


def clear(stage: Clear, block: Array) -> Array:
    """Set the padding of one block to zero: the cells beyond the field's true length."""
    layout = stage.before
    for axis in layout.padded_axes:
        dim = block.ndim + layout.position(axis)
        cells = lax.broadcasted_iota(np.int32, block.shape, dim)
        first = lax.axis_index(layout.names[axis]) * layout.core(axis)
        block = jnp.where(first + cells < layout.lengths[axis], block, jnp.zeros_like(block))
    return block


def _sources(stage: Extend) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return where each cell of each device's extended block comes from, as three arrays of shape `(devices, cells)`.

    The first array is the distance to the owner of the cell, counted in devices. The second is the index of the cell in
    the owner's block. The third says whether the field has this cell.
    """
    layout, axis = stage.before, stage.axis
    before, after = stage.after.halo[axis]
    cells, parts, length = layout.core(axis), layout.parts[axis], layout.lengths[axis]
    device = np.arange(parts)[:, None]
    cell = device * cells + np.arange(-before, cells + after)[None, :]
    image = np.zeros_like(cell)
    if stage.periodic:
        valid = (cell >= -before) & (cell < length + after)
        image, cell = np.divmod(cell, length)
    else:
        valid = (cell >= 0) & (cell < length)
    # The distance to a periodic image includes one or more whole turns around the ring of devices. The left and the
    # right neighbour therefore have different distances even if they are the same device, and only the layers of one
    # side are sent over each distance.
    distance = device - (cell // cells + image * parts)
    return distance, cell % cells, valid


def _pairs(stage: Extend, hop: int, receivers: np.ndarray) -> Pairs:
    """Return the pairs of sender and receiver at a distance of `hop` devices; empty if both are the same device."""
    parts = stage.before.parts[stage.axis]
    if hop % parts == 0:
        return ()
    return tuple(((int(r) - hop) % parts, int(r)) for r in receivers)


def _shared(places: np.ndarray, valid: np.ndarray, stage: Extend) -> np.ndarray | None:
    """Return the places if they are the same on all devices, with -1 for a zero cell; `None` if they differ.

    A place is the index of a cell among the received layers. At the edge of a field that is not periodic, a device may
    use the places of the other devices: it receives zeros for the cells beyond the edge, because nothing is sent to it.
    """
    device = np.argmax(valid, axis=0)
    shared = np.where(valid.any(axis=0), places[device, np.arange(places.shape[1])], -1)
    agree = np.all((places == shared) | ~valid)
    zeros_arrive = valid.all() or not stage.before.is_padded(stage.axis)
    return shared if agree and zeros_arrive else None


def _runs(places: np.ndarray) -> list[np.ndarray]:
    """Cut `places` into runs. The indices of a run are consecutive, or all negative."""
    step = np.diff(places)
    together = (step == 1) & (places[:-1] >= 0) | (places[:-1] < 0) & (places[1:] < 0)
    return np.split(places, np.flatnonzero(~together) + 1)


def _cells(pool: list[Array], run: np.ndarray, axis: int) -> list[Array]:
    """Return the cells of one run as slices. `pool` has the arrays of layers that a device has received.

    The slices are not joined here, because the caller concatenates all of them once, in the result.
    """
    if run[0] < 0:
        return [jnp.zeros_like(pool[0], shape=(*pool[0].shape[:axis], len(run), *pool[0].shape[axis + 1 :]))]
    parts, start = [], 0
    for piece in pool:
        stop = start + piece.shape[axis]
        first, last = max(int(run[0]), start), min(int(run[-1]) + 1, stop)
        if first < last:
            parts.append(lax.slice_in_dim(piece, first - start, last - start, axis=axis))
        start = stop
    return parts
