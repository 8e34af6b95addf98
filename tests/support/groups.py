"""Checks of `decompops.mpmd` for one or several processes. Each process checks its own blocks."""

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import mpmd
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from helpers import TYPES, assert_close, random_field


def make_groups(sizes: tuple[int, ...], kind: str = "auto", axis: str = "g") -> mpmd.MpmdMesh:
    """Make groups along the first axis of a mesh with the axes g, x and y."""
    names = ("g", "x", "y")[: len(sizes)]
    devices = np.array(jax.devices()[: np.prod(sizes)]).reshape(sizes)
    return mpmd.MpmdMesh(Mesh(devices, names, axis_types=(TYPES[kind],) * len(sizes)), axis)


def placed(array: np.ndarray, sharding: NamedSharding) -> jax.Array:
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def assert_bits(array: jax.Array, expected: np.ndarray) -> None:
    """Assert that this process's blocks of `array` equal `expected` to the last bit."""
    assert (array.shape, array.dtype) == (expected.shape, expected.dtype)
    for shard in array.addressable_shards:
        assert np.asarray(shard.data).tobytes() == expected[shard.index].tobytes()


def local_arrays(array: mpmd.MpmdArray) -> list[jax.Array]:
    local = array.to_mpmd_local_array
    return local if isinstance(local, list) else [] if local is None else [local]


def mixed_tree(groups: mpmd.MpmdMesh) -> tuple[dict, dict, dict]:
    """Return arrays of many dtypes and shapes, their shardings on all devices, and their shardings on groups."""
    last = groups.mpmd_dim - 1
    x, everyone = groups.mesh.axis_names[-1], range(groups.mpmd_dim)
    rng = np.random.default_rng(0)
    # A move must keep the bits of this NaN. Any arithmetic could change these bits.
    nan = np.full((16, 8), 0x7FC12345, np.uint32).view(np.float32)
    cases = {
        "field": (random_field((16, 8, 3), np.float32), P(("g", x)), [0], P(None, x)),
        "nan": (nan, P(x, "g"), [last], P(x)),
        "complex": (random_field((8, 8), np.complex64), P(None, "g"), everyone, P(("g", x))),
        "integers": (rng.integers(-9, 9, (8,), np.int8), P(x), [], P(x)),
        "truths": (rng.random((8, 16)) < 0.5, P("g", x), everyone, P(None, x)),
        "half": (random_field((8, 8), np.float32).astype(jnp.bfloat16), P(), [0, last], P(x)),
        "scalar": (np.array(7, np.int32), P(), [last], P()),
        "empty": (np.zeros((0, 8), np.float32), P(None, x), [0], P(None, x)),
    }
    values = {name: case[0] for name, case in cases.items()}
    specs = {name: NamedSharding(groups.mesh, case[1]) for name, case in cases.items()}
    places = {name: mpmd.MpmdSharding(groups, case[2], case[3]) for name, case in cases.items()}
    return values, specs, places


def check_round_trip(groups: mpmd.MpmdMesh, threshold: int | None) -> None:
    values, specs, places = mixed_tree(groups)
    tree = {name: placed(values[name], specs[name]) for name in values}
    parts = mpmd.spmd_to_mpmd_reshard(groups, tree, places, threshold)
    assert all(array.is_deleted() for array in tree.values())
    for name, part in parts.items():
        assert part.mpmd_idxs == places[name].mesh_ids
        mine = [idx for idx in part.mpmd_idxs if idx in groups.local_mpmd_idxs]
        local = local_arrays(part)
        assert [array.sharding for array in local] == [places[name].group_sharding(idx) for idx in mine]
        assert part.is_partially_addressable == bool(mine)
        for array in local:
            assert_bits(array, values[name])
    back = mpmd.mpmd_to_spmd_reshard(groups, parts, specs, threshold)
    assert all(part.is_deleted() for part in parts.values() if part.is_partially_addressable)
    for name, array in back.items():
        assert array.sharding == specs[name]
        assert_bits(array, values[name])


def check_reshard(groups: mpmd.MpmdMesh) -> None:
    """Check moves of an array to another group, to another sharding, and to a mesh of another shape or size."""
    first, last = groups.groups[0], groups.groups[-1]
    u = random_field((8, 16, 4), np.complex64)
    x = first.axis_names[-1]
    line = Mesh(last.devices.reshape(-1), ("s",))
    half = Mesh(last.devices.reshape(-1)[: max(1, last.size // 2)], ("s",))
    array = mpmd.MpmdArray(
        [placed(u, NamedSharding(first, P(None, x)))] if 0 in groups.local_mpmd_idxs else [],
        mpmd.MpmdSharding(groups, [0], P(None, x)),
        u.shape,
        u.dtype,
    )
    moved = mpmd.reshard(array, mpmd.MpmdSharding(groups, [groups.mpmd_dim - 1], P(x)))
    assert moved.mpmd_idxs == (groups.mpmd_dim - 1,)
    for local in local_arrays(moved):
        assert_bits(local, u)
    for mesh, spec in ((line, P("s")), (line, P(None, "s")), (half, P("s")), (groups.mesh, P(None, (x, "g")))):
        sharding = NamedSharding(mesh, spec)
        there = mpmd.reshard(moved, sharding)
        assert there.sharding == sharding
        assert_bits(there, u)
        back = mpmd.reshard({"u": there}, mpmd.MpmdSharding(groups, [0], P(x)), donate=True)["u"]
        assert there.is_deleted() or not there.addressable_shards
        for local in local_arrays(back):
            assert_bits(local, u)
    # Arrays that were moved without donation are still valid.
    for local in local_arrays(array) + local_arrays(moved):
        assert_bits(local, u)


def check_operators(groups: mpmd.MpmdMesh) -> None:
    """Check that groups run different programs at the same time. Each group transforms its own field."""
    for idx in groups.local_mpmd_idxs:
        u = random_field((5, 6, 7), seed=idx)
        dec = dops.Decomposition(groups.groups[idx], shape=u.shape, pad=True)
        if idx % 2:
            fft = dops.FFT3D(dec)
            assert_close(dec.gather(fft(dec.shard(u.astype(complex))), "x"), np.fft.fftn(u))
        else:
            fft = dops.FFT3D(dec, real=True)
            assert_close(fft.out_layout.gather(fft(dec.shard(u))), np.fft.rfftn(u))


def check_stacked(groups: mpmd.MpmdMesh) -> None:
    u = random_field((groups.mpmd_dim, 8, 4))
    x = groups.groups[0].axis_names[-1]
    arrays = [placed(u[idx], NamedSharding(groups.groups[idx], P(x))) for idx in groups.local_mpmd_idxs]
    for axis in (0, 1, -1):
        stacked = mpmd.logically_stacked(arrays, groups.mesh, "g", axis)
        assert_bits(stacked, np.ascontiguousarray(np.moveaxis(u, 0, axis)))


def check_other_stacks_on_one_process(groups: mpmd.MpmdMesh) -> None:
    """Each process raises an error at once, because a global array must have one shape, dtype and sharding."""
    if jax.process_count() == 1:
        return
    x, rank = groups.groups[0].axis_names[-1], min(jax.process_index(), 1)
    for shape, dtype, axis in (((4, 4 + rank), float, 0), ((4, 4), (float, int)[rank], 0), ((4, 4), float, rank)):
        u = [placed(np.ones(shape, dtype), NamedSharding(groups.groups[i], P(x))) for i in groups.local_mpmd_idxs]
        with pytest.raises(
            ValueError, match=r"`array` must have the same shape, .* on every process.* another one on \["
        ):
            mpmd.logically_stacked(u, groups.mesh, "g", axis)
    with pytest.raises(ValueError, match="`array_axis` must be from -3 to 2"):
        mpmd.logically_stacked(u, groups.mesh, "g", 3 * rank)


def check_a_wrong_argument_of_one_process(groups: mpmd.MpmdMesh) -> None:
    """The last process passes a wrong argument. The others must not wait for it, and no array is consumed."""
    is_wrong, everywhere = jax.process_index() == jax.process_count() - 1, NamedSharding(groups.mesh, P())
    place, u = mpmd.MpmdSharding(groups, [0], P()), placed(random_field((8, 8), np.float32), everywhere)
    part = mpmd.spmd_to_mpmd_reshard(groups, np.ones(8, np.float32), place)
    with pytest.raises(ValueError, match="`threshold` must be a positive number"):
        mpmd.spmd_to_mpmd_reshard(groups, u, place, 0 if is_wrong else None)
    with pytest.raises(TypeError, match="`tree` must hold MpmdArrays"):
        mpmd.mpmd_to_spmd_reshard(groups, u if is_wrong else part, everywhere)
    assert not u.is_deleted()
    np.testing.assert_array_equal(mpmd.mpmd_to_spmd_reshard(groups, part, everywhere), np.ones(8))


def check_ambient_group(groups: mpmd.MpmdMesh) -> None:
    """Fields on all devices are sharded and gathered while the mesh of one group is ambient."""
    dec = dops.Decomposition(Mesh(groups.mesh.devices.reshape(-1), "x"), shape=(9, 3), pad=True)
    with jax.set_mesh(groups.groups[groups.local_mpmd_idxs[0]]):
        np.testing.assert_array_equal(dec.gather(dec.shard(random_field((9, 3)))), random_field((9, 3)))


CHECKS = (
    check_reshard,
    check_operators,
    check_stacked,
    check_other_stacks_on_one_process,
    check_a_wrong_argument_of_one_process,
    check_ambient_group,
)
