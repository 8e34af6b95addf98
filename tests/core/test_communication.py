"""Tests of compiled programs: their communication, read from the HLO, and their memory, as XLA reports it."""

import itertools

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops.tools.hlo import collectives
from jax.sharding import NamedSharding, PartitionSpec as P

from helpers import make_mesh, thinned


def compiled(operator, shape, dtype=np.complex64):
    dec = operator.decomposition
    x = jax.ShapeDtypeStruct(shape, dtype, sharding=dec.sharding("z"))
    return jax.jit(operator).lower(x).compile()


def kinds(operator, shape, dtype=np.complex64):
    return [c.kind for c in collectives(compiled(operator, shape, dtype).as_text())]


COUNTS = {(2, 4): 2, (8, 1): 1, (1, 8): 1, (8,): 1, (1, 1): 0, (3, 2): 2}
OPTIONS = list(itertools.product([False, True], [False, True]))
# On 2 x 4 devices, CI tests all options of a transform. On the other meshes, it tests one or two of them.
FEW = {(2, 4): OPTIONS, (8, 1): OPTIONS[2:3], (1, 8): OPTIONS[1:2], (8,): OPTIONS[3:], (1, 1): OPTIONS[:1]}
FEW |= {(3, 2): OPTIONS[1:3]}


@pytest.mark.parametrize(
    ("sizes", "count", "real", "axis_contiguous"),
    thinned(
        [(*one, *options) for one in COUNTS.items() for options in OPTIONS],
        lambda sizes, _, *options: tuple(options) in FEW[sizes],
    ),
)
def test_slabs_communicate_once_and_pencils_twice(sizes, count, real, axis_contiguous):
    for shape in ((24, 24, 24), (23, 25, 26)):
        fft = dops.FFT3D(make_mesh(sizes), shape=shape, pad=True, real=real, axis_contiguous=axis_contiguous)
        padded = fft.decomposition.padded_shape("z")
        assert kinds(fft, padded, np.float32 if real else np.complex64) == ["all-to-all"] * count


def test_the_all_to_alls_move_the_fewest_bytes():
    """In each exchange, every device keeps 1/p of its block and sends the rest once."""
    fft = dops.FFT3D(make_mesh((2, 4)), shape=(16, 32, 8))
    block = 16 * 32 * 8 * 8 // 8
    sent = sorted(c.bytes for c in collectives(compiled(fft, (16, 32, 8)).as_text()))
    assert sent == [block // 2, block * 3 // 4]


@pytest.mark.parametrize(("sizes", "ffts"), [((2, 4), 3), ((8, 1), 2), ((1, 8), 2), ((1, 1), 1)])
def test_adjacent_local_axes_are_one_transform(sizes, ffts):
    text = compiled(dops.FFT3D(make_mesh(sizes), shape=(16, 16, 16)), (16, 16, 16)).as_text()
    assert text.count(" fft(") == ffts


def test_no_padding_and_no_scaling_where_there_is_none():
    text = compiled(dops.FFT3D(make_mesh((2, 4)), shape=(16, 16, 16)), (16, 16, 16)).as_text()
    assert " pad(" not in text
    assert " multiply(" not in text
    inverse = dops.FFT3D(make_mesh((2, 4)), shape=(16, 16, 16)).inverse
    x = jax.ShapeDtypeStruct((16, 16, 16), np.complex64, sharding=inverse.decomposition.sharding("x"))
    assert " multiply(" not in jax.jit(inverse).lower(x).compile().as_text()


@pytest.mark.parametrize("real", [False, True])
def test_a_gradient_costs_one_more_transform(real):
    shape = (16, 16, 16)
    fft = dops.FFT3D(make_mesh((2, 4)), shape=shape, real=real)
    loss = lambda v: jnp.sum(jnp.abs(fft(v)) ** 2)
    x = jax.ShapeDtypeStruct(shape, np.float32, sharding=fft.decomposition.sharding("z"))
    text = jax.jit(jax.grad(loss)).lower(x).compile().as_text()
    assert [c.kind for c in collectives(text)] == ["all-to-all"] * 4
    assert text.count(" fft(") == 6


def test_forward_needs_two_blocks_of_scratch():
    """A forward transform needs scratch memory for two blocks.

    All-to-alls need one block for the pieces that they send, and one for the pieces that they receive.
    """
    memory = compiled(dops.FFT3D(make_mesh((2, 4)), shape=(64, 64, 64)), (64, 64, 64)).memory_analysis()
    block = 64**3 * 8 // 8
    assert memory.argument_size_in_bytes == memory.output_size_in_bytes == block
    assert memory.temp_size_in_bytes <= 2 * block + 4096


def test_overlapping_exchanges_are_parts_of_one():
    shape, mesh = (16, 32, 8), make_mesh((2, 4))
    whole = [c.bytes for c in collectives(compiled(dops.FFT3D(mesh, shape=shape), shape).as_text())]
    fft = dops.FFT3D(mesh, shape=shape, backend=dops.XLA(overlap=2))
    halves = collectives(compiled(fft, shape).as_text())
    assert [c.kind for c in halves] == ["all-to-all"] * 4
    assert sorted(c.bytes for c in halves) == sorted(sent // 2 for sent in whole * 2)
    # The batch is split along its batch axis: five fields become pieces of three and two fields.
    batch = jax.ShapeDtypeStruct((5, *shape), np.complex64, sharding=NamedSharding(mesh, P(None, "x", "y", None)))
    parts = collectives(jax.jit(jax.vmap(fft)).lower(batch).compile().as_text())
    assert sorted(c.bytes for c in parts) == sorted(fields * sent for sent in whole for fields in (2, 3))


def test_scratch_falls_with_overlap():
    ffts = [dops.FFT3D(make_mesh((2, 4)), shape=(64,) * 3, backend=dops.XLA(overlap=n)) for n in (1, 2, 4)]
    memory = [compiled(fft, (64,) * 3).memory_analysis() for fft in ffts]
    blocks = [m.temp_size_in_bytes / m.argument_size_in_bytes for m in memory]
    assert blocks[2] < blocks[0]
    assert blocks[1] < blocks[0]
