"""Tests of the function that finds the collectives in the HLO text of a compiled program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops.tools.hlo import Collective, collectives
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P

from helpers import make_mesh


FOUR_BY_TWO = ((0, 1, 2, 3), (4, 5, 6, 7))
STRIDED = ((0, 4), (1, 5), (2, 6), (3, 7))


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ("{{0,1,2,3},{4,5,6,7}}", FOUR_BY_TWO),
        ("{{0,4},{1,5},{2,6},{3,7}}", STRIDED),
        ("{}", (tuple(range(8)),)),
        ("[2,4]<=[8]", FOUR_BY_TWO),
        ("[4,2]<=[2,4]T(1,0)", STRIDED),
        ("[1,8]<=[8]", (tuple(range(8)),)),
        ("mesh['x'=2,'y'=4] {'y'}", FOUR_BY_TWO),
        ("mesh['x'=2,'y'=4] {'x'}", STRIDED),
        ("mesh[x=2,y=4] {x}", STRIDED),
        ("mesh['x'=2,'y'=4] {'x','y'}", (tuple(range(8)),)),
        ("mesh['x'=2,'y'=4] {'y','x'}", ((0, 4, 1, 5, 2, 6, 3, 7),)),
        ("mesh['x'=2,'y'=4] {'y':(1)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("mesh['x'=2,'y'=4] {'y':(2)2}", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("mesh['x'=2,'y'=4] {'x','y':(2)2}", ((0, 1, 4, 5), (2, 3, 6, 7))),
        ("mesh['x'=2,'y'=4,'one'=1] {'one'}", tuple((i,) for i in range(8))),
        ("mesh['x'=2,'y'=4], device_ids=([4,2]T(1,0)) {'y'}", ((0, 2, 4, 6), (1, 3, 5, 7))),
        ("mesh['x'=2,'y'=2], device_ids=(0,2,1,3) {'y'}", ((0, 2), (1, 3))),
    ],
)
def test_replica_groups(groups, expected):
    header = "HloModule jit_f, is_scheduled=true, num_partitions=8\n"
    line = f"  ROOT %a = f32[8,8]{{1,0}} all-reduce(%p), channel_id=1, replica_groups={groups}, to_apply=%add\n"
    (found,) = collectives(header + line)
    size = len(expected[0])
    assert found == Collective("all-reduce", 2 * 256 * (size - 1) // size, expected)
    assert found.group_size == size


@pytest.mark.parametrize(
    ("instruction", "kind", "sent"),
    [
        ("%a.1 = f32[8,4]{1,0} all-to-all(%p), replica_groups={{0,1,2,3}}, dimensions={0}", "all-to-all", 96),
        ("%a = (c64[8]{0}, c64[8]{0}) all-to-all(%p, %q), replica_groups={{0,1}}", "all-to-all", 64),
        ("%a = (f32[2], f32[2], /*index=2*/f32[2]) all-to-all(%p, %q, %r), replica_groups={{0,1,2}}", "all-to-all", 16),
        ("%g = bf16[4,8]{1,0:T(8,128)(2,1)S(1)} all-gather(%p), replica_groups=[2,4]<=[8]", "all-gather", 48),
        ("%r = f32[2]{0} reduce-scatter(%p), replica_groups={{0,1,2,3}}, to_apply=%add", "reduce-scatter", 24),
        ("%r = (f32[8], pred[8]) all-reduce(%p, %q), replica_groups={{0,1}}, to_apply=%f", "all-reduce", 40),
        ("%p = f64[8]{0} collective-permute(%x), source_target_pairs={{0,1},{1,0}}", "collective-permute", 64),
        ("%p = f64[8]{0} collective-permute(%x), source_target_pairs={{0,0},{1,1}}", "collective-permute", 0),
        ("%p = f64[8]{0} collective-permute(%x), source_target_pairs={}", "collective-permute", 0),
        ("%b = s4[9]{0} collective-broadcast(%x), replica_groups={{0,1}}", "collective-broadcast", 5),
        ("%g = f32[] all-gather(%p), replica_groups={{0},{1}}", "all-gather", 0),
        # XLA uses these asynchronous forms on GPUs.
        ("%s = (f32[8]{0}, f32[32]{0}) all-gather-start(%p), replica_groups={{0,1,2,3}}", "all-gather", 96),
        (
            "%s = ((f32[4], f32[2]), (f32[8], f32[4])) all-gather-start(%p), replica_groups={{0,1}}",
            "all-gather",
            24,
        ),
        ("%s = (f32[4], f32[4], u32[], u32[]) collective-permute-start(%p), source_target_pairs={{0,1}}", None, 16),
        ("%s = (f32[8], f32[8]) all-reduce-start(%p, %q), replica_groups={{0,1}}, to_apply=%f", "all-reduce", 64),
        ("%s = ((f32[8]{0}), f32[8]{0}) all-to-all-start(%p), replica_groups={{0,1}}", "all-to-all", 16),
    ],
)
def test_bytes(instruction, kind, sent):
    (found,) = collectives(f'HloModule f\n  {instruction}, metadata={{op_name="jit(f)/x"}}')
    assert found.kind == kind or kind is None
    assert found.bytes == sent


@pytest.mark.parametrize(
    "line",
    [
        "%d = f32[32]{0} all-gather-done(%s)",
        "%g = f32[8]{0} get-tuple-element(%all-to-all), index=0",
        "%f = f32[8]{0} fusion(%all-to-all.1, %p), kind=kLoop, calls=%fused_all-gather",
        '%m = f32[8]{0} negate(%p), metadata={op_name="f32[8] all-to-all(%p), replica_groups={{0,1}}"}',
        "%u = f32[8]{0} async-start(%p), calls=%wrapped",
    ],
)
def test_other_instructions_are_no_collectives(line):
    assert collectives(line) == []


def test_an_unknown_format_of_groups_is_refused():
    with pytest.raises(ValueError, match="unknown format"):
        collectives("%a = f32[8] all-to-all(%p), replica_groups=<new>")


BLOCK_BYTES = 8 * 4 * 16 * 4  # One block of (16, 16, 16) float32 on 2x4 devices.


@pytest.mark.parametrize(
    ("function", "kind", "size", "sent"),
    [
        (lambda b: lax.psum(b, "y"), "all-reduce", 4, 2 * BLOCK_BYTES * 3 // 4),
        (lambda b: lax.psum(b, ("x", "y")), "all-reduce", 8, 2 * BLOCK_BYTES * 7 // 8),
        (lambda b: lax.all_gather(b, "y"), "all-gather", 4, 3 * BLOCK_BYTES),
        (lambda b: lax.all_gather(b, "x", tiled=True), "all-gather", 2, BLOCK_BYTES),
        (lambda b: lax.ppermute(b, "y", [(0, 1), (1, 2)]), "collective-permute", 2, BLOCK_BYTES),
        (lambda b: lax.all_to_all(b, "y", 2, 1, tiled=True), "all-to-all", 4, BLOCK_BYTES * 3 // 4),
        (lambda b: lax.psum_scatter(b, "y", tiled=True), "reduce-scatter", 4, BLOCK_BYTES * 3 // 4),
    ],
)
def test_compiled_programs(function, kind, size, sent):
    mesh = make_mesh((2, 4))
    spec = P("x", "y", None)
    mapped = jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    argument = jax.ShapeDtypeStruct((16, 16, 16), jnp.float32, sharding=NamedSharding(mesh, spec))
    (found,) = collectives(jax.jit(mapped).lower(argument).compile().as_text())
    assert (found.kind, found.group_size, found.bytes) == (kind, size, sent)
    if kind != "collective-permute":
        devices = np.arange(8).reshape(2, 4)
        groups = {2: devices.T, 4: devices, 8: devices.reshape(1, 8)}[size]
        assert found.groups == tuple(map(tuple, groups.tolist()))


def test_loops():
    mesh, spec = make_mesh((2,)), P("x")

    def inner(_, block):
        return 1 + lax.all_to_all(block, "x", 0, 1, tiled=True).T

    def outer(_, block):
        return lax.fori_loop(0, 3, inner, block) + lax.psum(block, "x")

    def function(block, rounds):
        block = lax.ppermute(lax.fori_loop(0, 5, outer, block), "x", [(0, 1)])
        return lax.while_loop(lambda b: jnp.all(b < rounds), lambda b: b + lax.pmax(b, "x"), block)

    mapped = jax.shard_map(function, mesh=mesh, in_specs=(spec, P()), out_specs=spec, check_vma=False)
    argument = jax.ShapeDtypeStruct((8, 2), jnp.float32, sharding=NamedSharding(mesh, spec))
    found = collectives(jax.jit(mapped).lower(argument, 1.0).compile().as_text())
    assert {(one.kind, one.times) for one in found} == {
        ("all-to-all", 15),
        ("all-reduce", 5),
        ("all-reduce", 1),
        ("collective-permute", 1),
    }
