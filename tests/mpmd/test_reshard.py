"""Tests of moves of trees of arrays, in one process with eight devices. tests/multiprocess tests several processes."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import mpmd
from decompops.mpmd import _transfer
from decompops.mpmd._batches import batches
from decompops.mpmd._transfer import Route, transfer
from hypothesis import given, settings, strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from groups import CHECKS, assert_bits, check_reshard, check_round_trip, check_stacked, make_groups, mixed_tree, placed
from helpers import TYPES, make_mesh, random_field, thinned


GROUPS = [(8, 1, 1), (4, 2), (2, 2, 2), (1, 4, 2)]


@pytest.mark.parametrize(
    ("sizes", "threshold"),
    thinned(  # test_groups moves arrays between the groups (4, 2).
        itertools.product(GROUPS, [1, None]),
        lambda sizes, threshold: sizes != (4, 2) and (threshold is None) == (sizes == (1, 4, 2)),
    ),
)
def test_round_trip(sizes, threshold):
    check_round_trip(make_groups(sizes), threshold)


def test_round_trip_on_explicit_axes():
    check_round_trip(make_groups((2, 2, 2), "explicit"), None)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("sizes", GROUPS[1:3])
def test_groups(sizes, check):
    check(make_groups(sizes))


@pytest.mark.parametrize("kind", TYPES)
def test_an_ambient_mesh_does_not_matter(kind):
    groups = make_groups((2, 2, 2), kind)
    for mesh in (groups.mesh, *groups.groups):
        with jax.set_mesh(mesh):
            check_round_trip(groups, None)
            check_reshard(groups)
            check_stacked(groups)


@st.composite
def routes(draw):
    """Draw a shape, and two shardings of an array of this shape over any of the devices."""
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 6, 12, 24]), min_size=1, max_size=3)))
    shardings = []
    for _ in range(2):
        parts = draw(st.permutations(range(8)))
        sizes = [draw(st.sampled_from([p for p in (1, 2, 3) if n % p == 0])) for n in shape]
        while math.prod(sizes) > 8:
            sizes[sizes.index(max(sizes))] = 1
        copies = draw(st.integers(1, 8 // math.prod(sizes)))
        devices = np.array(jax.devices())[list(parts)[: math.prod(sizes) * copies]].reshape(*sizes, copies)
        names = [*"abc"[: len(sizes)], "copies"]
        shardings.append(NamedSharding(Mesh(devices, names), P(*names[:-1])))
    return shape, *shardings


@settings(max_examples=20, deadline=None)
@given(routes(), st.booleans())
def test_any_route(route, donate):
    shape, source, target = route
    u = random_field(shape, np.float32)
    array = placed(u, source)
    moved = mpmd.reshard(array, target, donate=donate)
    assert moved.sharding == target
    assert array.is_deleted() == donate
    assert_bits(moved, u)


def test_every_cell_is_sent_once():
    """A transfer sends each cell once to each device that lacks it, and never to a device that already has it."""
    mesh, f32 = make_mesh((2, 4)), np.dtype(np.float32)
    pencils, slabs, whole = (NamedSharding(mesh, spec) for spec in (P("x", "y"), P(("x", "y")), P()))
    line = NamedSharding(Mesh(mesh.devices[1], ("s",)), P("s"))
    assert Route((8, 8), f32, pencils, pencils).sent_bytes == 0
    assert Route((8, 8), f32, whole, pencils).sent_bytes == 0
    # Two of the four devices of `line` already have a quarter of their blocks.
    assert Route((8, 8), f32, pencils, line).sent_bytes == 4 * 64 * (1 - 1 / 8)
    assert Route((8, 8), f32, slabs, whole).sent_bytes == 4 * 8 * 56
    assert Route((8, 8), f32, pencils, slabs).sent_bytes == 4 * 8 * (8 - 2)


def test_no_device_holds_more_than_the_threshold_promises(monkeypatch):
    """During a batch of moves, no device needs more memory than `working_bytes` predicts.

    The prediction for a batch of several arrays is within the threshold. For each batch, the test counts the bytes of
    live arrays twice: after regions are cut, and after regions are joined.
    """
    groups = make_groups((2, 2, 2))
    values, specs, places = mixed_tree(groups)
    tree = {name: placed(values[name], specs[name]) for name in values}
    start = bytes_by_device()
    tree["host"], places["host"] = random_field((16, 16)), mpmd.MpmdSharding(groups, [1], P("x", "y"))
    most, allowed, held, sizes = [], [], {}, []

    def watched(function):
        def call(*arguments):
            result = function(*arguments)
            now = bytes_by_device()
            most[-1] = max(most[-1], *(now[device] - held[device] for device in now))
            return result

        return call

    def batch(sources, found, *, donate):
        held.update(bytes_by_device())
        allowed.append(sum(route.working_bytes for route in found))
        sizes.append(len(found))
        most.append(0)
        return transfer(sources, found, donate=donate)

    for name in ("_cut", "_join"):
        monkeypatch.setattr(_transfer, name, watched(getattr(_transfer, name)))
    monkeypatch.setattr("decompops.mpmd._reshard.transfer", batch)
    parts = mpmd.spmd_to_mpmd_reshard(groups, tree, places, threshold=2500)
    assert sum(sizes) == len(values)
    assert 1 < len(sizes) < len(values)
    assert all(total <= 2500 or size == 1 for total, size in zip(allowed, sizes))
    assert all(peak <= total for peak, total in zip(most, allowed))
    assert max(peak / total for peak, total in zip(most, allowed) if total) > 0.7  # The prediction is close.
    del tree
    # Now only the arrays on the groups still use memory.
    after = bytes_by_device()
    wanted = dict.fromkeys(after, 0)
    for part in parts.values():
        for shard in (shard for array in part.local_arrays.values() for shard in array.addressable_shards):
            wanted[shard.device] += shard.data.nbytes
    assert all(after[device] - start[device] <= wanted[device] for device in after)


def test_joining_takes_no_more_memory_than_its_result():
    """The program that joins regions needs no temporary memory, as `working_bytes` assumes."""
    ends = tuple(itertools.product((0, 8), repeat=3))
    boxes = (jax.ShapeDtypeStruct((8, 8, 8), np.float32),) * 8
    memory = _transfer._joined.lower((16, 16, 16), ends, boxes).compile().memory_analysis()
    assert memory.temp_size_in_bytes == 0


def bytes_by_device() -> dict[jax.Device, int]:
    """Return the bytes of live blocks on each device. A block that several arrays share counts once."""
    blocks = {
        (shard.device, shard.data.unsafe_buffer_pointer()): shard.data.nbytes
        for array in jax.live_arrays()
        if not array.is_deleted()
        for shard in array.addressable_shards
        if shard.data.nbytes and not shard.data.is_deleted()
    }
    total = dict.fromkeys(jax.devices(), 0)
    for (device, _), size in blocks.items():
        total[device] += size
    return total


def test_batches():
    # Group 0 has entries 0 (size 5), 1 (9) and 3 (1). Group 1 has entry 2 (7). Groups take turns, largest entry first.
    assert list(batches([5, 9, 7, 1], [0, 0, 1, 0], 100)) == [[1, 2, 0, 3]]
    assert list(batches([5, 9, 7, 1], [0, 0, 1, 0], 12)) == [[1], [2, 0], [3]]
    assert list(batches([5, 9, 7, 1], [0, 0, 1, 0], 1)) == [[1], [2], [0], [3]]
    assert list(batches([], [], 1)) == []


def test_uncommitted_arrays_move():
    """`reshard` moves NumPy arrays. It also moves JAX arrays that are not committed to a device."""
    groups = make_groups((2, 2, 2))
    tree = {"lr": np.float32(0.5), "w": np.arange(4.0), "b": [jnp.ones(2), None]}
    parts = mpmd.spmd_to_mpmd_reshard(groups, tree, mpmd.MpmdSharding(groups, [1], P()))
    assert float(parts["lr"]) == 0.5
    np.testing.assert_array_equal(parts["w"], np.arange(4.0))
    assert parts["b"][1] is None


def test_one_sharding_for_a_part_of_the_tree():
    groups = make_groups((2, 4))
    tree = {"params": {"w": np.ones((4, 4)), "b": np.ones(4)}, "state": (np.ones(8),)}
    places = {"params": mpmd.MpmdSharding(groups, [0, 1], P()), "state": mpmd.MpmdSharding(groups, [1], P("x"))}
    parts = mpmd.spmd_to_mpmd_reshard(groups, tree, places)
    assert parts["params"]["b"].mpmd_idxs == (0, 1)
    assert parts["state"][0].spec == P("x")
    back = mpmd.mpmd_to_spmd_reshard(groups, parts, NamedSharding(groups.mesh, P()))
    assert jax.tree.structure(back) == jax.tree.structure(tree)


@pytest.mark.parametrize("threshold", [1, None])
def test_an_array_that_comes_twice(threshold):
    groups = make_groups((2, 4))
    u = random_field((8, 4))
    array = placed(u, NamedSharding(groups.mesh, P("x")))
    places = [mpmd.MpmdSharding(groups, idxs, P("x")) for idxs in ([0, 1], [1], [0])]
    parts = mpmd.spmd_to_mpmd_reshard(groups, [array] * 3, places, threshold)
    assert array.is_deleted()
    for part in parts:
        np.testing.assert_array_equal(part, u)


@pytest.mark.parametrize("donate", [False, True])
def test_reshard_of_a_tree(donate):
    """`reshard` moves a tree in which one array keeps its sharding and another array occurs twice.

    Arrays that are not donated stay valid.
    """
    groups = make_groups((2, 4))
    u, v = random_field((8, 4)), random_field((16,), np.complex64)
    first = NamedSharding(groups.groups[0], P("x"))
    x, y = placed(u, first), placed(v, NamedSharding(groups.mesh, P("x")))
    moved = mpmd.reshard([x, {"y": y}, x, y], [mpmd.MpmdSharding(groups, [1], P()), first, first, first], donate=donate)
    for array, expected in zip((moved[0].to_mpmd_local_array, moved[1]["y"], *moved[2:]), (u, v, u, v)):
        assert_bits(array, expected)
    assert [x.is_deleted(), y.is_deleted()] == [donate] * 2
    if not donate:
        x.delete()
        assert_bits(moved[2], u)


@pytest.mark.parametrize("threshold", [1, None])
def test_one_array_in_two_mpmd_arrays(threshold):
    groups = make_groups((2, 4))
    u = random_field((8, 4))
    array = jax.jit(jnp.negative)(placed(-u, NamedSharding(groups.groups[0], P("x"))))
    place = mpmd.MpmdSharding(groups, [0], P("x"))
    everywhere = NamedSharding(groups.mesh, P("x"))
    wrapped = [mpmd.MpmdArray([array], place), mpmd.MpmdArray([array], place)]
    one, two = mpmd.mpmd_to_spmd_reshard(groups, wrapped, everywhere, threshold)
    assert_bits(one, u)
    assert_bits(two, u)
    array = mpmd.reshard(one, NamedSharding(groups.groups[0], P("x")))
    moved = mpmd.reshard([mpmd.MpmdArray([array], place), array], array.sharding, donate=True)
    assert array.is_deleted()
    for again in moved:
        assert_bits(again, u)


def test_reshard_inside_a_loss_or_without_jit():
    """A loss may call `reshard` for arrays that are not differentiated. `reshard` also works with `jax.disable_jit`."""
    groups = make_groups((2, 4))
    u = random_field((8, 4))
    array = placed(u, NamedSharding(groups.groups[0], P("x")))
    target = NamedSharding(groups.groups[1], P(None, "x"))
    weights = placed(u, target)
    slope = jax.grad(lambda w: jnp.sum(w * mpmd.reshard(array, target)))(weights)
    np.testing.assert_array_equal(slope, u)
    with jax.set_mesh(groups.groups[1]), pytest.raises(ValueError, match="not traced can be moved only without"):
        jax.grad(lambda w: jnp.sum(w * mpmd.reshard(array, target)))(weights)
    with pytest.raises(TypeError, match=r"must be called outside of `jax.jit` and other"):
        jax.jit(lambda w: w * mpmd.reshard(array, target))(weights)
    with jax.disable_jit():
        part = mpmd.spmd_to_mpmd_reshard(groups, array, mpmd.MpmdSharding(groups, [0], P("x")))
    assert_bits(part.to_mpmd_local_array, u)


def test_blocks_that_stay_are_not_copied():
    """A donated block that stays on its device keeps its memory."""
    groups = make_groups((2, 4))
    # This array is the result of a computation. JAX could not donate an array whose memory belongs to NumPy.
    array = jax.jit(jnp.negative)(placed(random_field((8, 4)), NamedSharding(groups.mesh, P("x"))))
    before = {shard.device: shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards}
    part = mpmd.spmd_to_mpmd_reshard(groups, array, mpmd.MpmdSharding(groups, [0, 1], P("x")))
    shards = [shard for local in part.local_arrays.values() for shard in local.addressable_shards]
    after = {shard.device: shard.data.unsafe_buffer_pointer() for shard in shards}
    assert after == before


def test_refused_arrays_are_not_consumed(plain):
    mpmd = plain.mpmd
    mesh = make_mesh((2, 2, 2), names=("g", "x", "y"))
    groups, others = mpmd.MpmdMesh(mesh, "g"), mpmd.MpmdMesh(mesh, "x")
    u = placed(random_field((6, 8)), NamedSharding(mesh, P("x")))
    part = mpmd.reshard(u, mpmd.MpmdSharding(groups, [0], P("x")))
    place, everywhere = mpmd.MpmdSharding(groups, [0], P("x")), NamedSharding(mesh, P())
    there, back, move = mpmd.spmd_to_mpmd_reshard, mpmd.mpmd_to_spmd_reshard, mpmd.reshard
    half = mpmd.MpmdMesh(Mesh(mesh.devices[:1], mesh.axis_names), "g")

    def at(spec, mesh=groups):
        return mpmd.MpmdSharding(mesh, [0], spec)

    cases = [
        (ValueError, r"`shardings` must be on MpmdMesh.*axis='g'\); got .*axis='x'", there, u, at(P(), others)),
        (ValueError, r"`shardings` must have the tree structure of `tree`", there, {"u": u}, [place]),
        (TypeError, r"`shardings` must hold MpmdShardings; got NamedSharding", there, u, everywhere),
        (TypeError, r"`tree` must hold arrays; got 'u'", there, "u", place),
        (TypeError, r"`tree` must hold arrays; got 2.5", back, 2.5, everywhere),
        (TypeError, r"`tree` must hold arrays of JAX and NumPy; got MpmdArray", there, part, place),
        (ValueError, r"`shardings` must divide .* \(6, 8\) evenly; got P\(\('x', 'y'\)", there, u, at(P(("x", "y")))),
        (ValueError, r"must divide the axes of an array of shape \(6, 8\)", there, u, at(P(None, None, "x"))),
        (TypeError, r"`tree` must hold numbers; got key.*pass `jax.random.key_data", there, jax.random.key(0), at(P())),
        (TypeError, r"`tree` must hold MpmdArrays; got ArrayImpl", back, u, everywhere),
        (TypeError, r"`shardings` must hold NamedShardings; got P\(\)", back, part, P()),
    ]
    for error, message, function, *arguments in cases:
        with pytest.raises(error, match=message):
            function(groups, *arguments)
    with pytest.raises(ValueError, match=r"`tree` must hold arrays on MpmdMesh.*axis='x'.*got .*axis='g'"):
        back(others, part, everywhere)
    with pytest.raises(ValueError, match=r"`tree` must be on devices of MpmdMesh.*got an array on .*4"):
        there(half, u, at(P(), half))
    for array, target, message in (
        (jnp.ones(3), everywhere, r"`tree` must hold arrays with a NamedSharding; got SingleDeviceSharding"),
        (np.ones(3), everywhere, r"got ndarray. Move the array by `jax.device_put`"),
        (u, P("x"), r"`target` must hold NamedShardings or MpmdShardings or Structures; got P\('x'"),
    ):
        with pytest.raises(TypeError, match=message):
            move(array, target)
    fft = plain.FFT3D(groups.groups[1], shape=(4, 4, 4), real=True)
    with pytest.raises(ValueError, match=r"`tree` must be a field f.*, of shape \(\*batch, 4, 4, 4\); got \(6, 8\)"):
        move(u, fft.in_structure, donate=True)
    with pytest.raises(TypeError, match=r"`tree` must be a spectrum c.* x-pencils 2x2; got float64"):
        move([u], fft.out_structure, donate=True)
    with pytest.raises(TypeError, match="`mpmd_mesh` must be an MpmdMesh; got Mesh"):
        there(mesh, u, place)
    with pytest.raises(ValueError, match="`target` must be in the devices' own memory"):
        move([u, u], [everywhere, NamedSharding(mesh, P(), memory_kind="pinned_host")], donate=True)
    with pytest.raises(TypeError, match="`target` must be on a mesh of devices"):
        move(u, NamedSharding(mesh.abstract_mesh, P()))
    with pytest.raises(TypeError, match=r"`tree` must be an array of numbers; got .*<U4"):
        there(groups, np.array("text"), place)
    for threshold in (1e9, "1GB", True):
        with pytest.raises(TypeError, match=rf"`threshold` must be a whole number of bytes; got {threshold!r}"):
            there(groups, u, place, threshold)
    for threshold in (0, -5):
        with pytest.raises(ValueError, match=rf"`threshold` must be a positive number of bytes .*; got {threshold}"):
            there(groups, u, place, threshold)
    with pytest.raises(TypeError, match="`tree` must not be traced, because `spmd_to_mpmd_reshard` reads its numbers"):
        jax.jit(lambda x: there(groups, x, place))(u)
    with pytest.raises(TypeError, match=r"`target` must be a jax.sharding.NamedSharding in `jax.grad` and `jax.jvp`"):
        jax.grad(lambda x: move(x, place))(u)
    assert not u.is_deleted()
    assert not part.is_deleted()


def test_stacks_that_are_refused(plain):
    stacked = plain.mpmd.logically_stacked
    mesh = make_mesh((2, 4), names=("g", "x"))
    groups = plain.mpmd.MpmdMesh(mesh, "g")
    arrays = [placed(random_field((8, 4)), NamedSharding(group, P("x"))) for group in groups.groups]
    cases = [
        (ValueError, r"`axis_name` must be one of the mesh axes \('g', 'x'\); got 'z'", arrays, mesh, "z"),
        (TypeError, r"`array_axis` must be a whole number; got 0.5", arrays, mesh, "g", 0.5),
        (TypeError, r"`mesh` must be a jax.sharding.Mesh; got MpmdMesh", arrays, groups, "g"),
        (TypeError, r"`array` must be a jax.Array with values, .*; got None", None, mesh, "g"),
        (ValueError, r"one array for each group; got two arrays on device 4", [*arrays, arrays[1]], mesh, "g"),
        (ValueError, r"`array_axis` must be from -3 to 2 .*; got 3", arrays, mesh, "g", 3),
        (ValueError, r"must cover all devices .* devices \[4, 5, 6, 7\]", arrays[:1], mesh, "g"),
        (ValueError, r"must be on groups of `mesh`, with the same sharding in each", arrays, mesh, "x"),
        (ValueError, r"must hold arrays of the same shape and dtype", [arrays[0], arrays[1].astype(int)], mesh, "g"),
        (ValueError, r"must have a part in this process; got none", [], mesh, "g"),
        (TypeError, r"`array` must hold numbers; got key.*pass `jax.random.key_data", [jax.random.key(0)], mesh, "g"),
    ]
    for error, message, *arguments in cases:
        with pytest.raises(error, match=message):
            stacked(*arguments)
    divided = placed(random_field((8, 4)), NamedSharding(groups.submesh([0]), P("x", "g")))
    other = placed(random_field((8, 4)), NamedSharding(groups.submesh([1]), P("x")))
    assert stacked([divided, other], mesh, "g").shape == (2, 8, 4)
    with pytest.raises(ValueError, match=r"must not be sharded over 'g' with `strict=True`; got P\('x', 'g'\)"):
        stacked([divided, other], mesh, "g", strict=True)
    part = plain.mpmd.reshard(arrays[0], plain.mpmd.MpmdSharding(groups, [0, 1], P("x")))
    np.testing.assert_array_equal(stacked(part, mesh, "g", -1), np.stack([arrays[0]] * 2, -1))
