"""Tests of checkpoints: a run stops and continues, on the same mesh and on other meshes."""

import errno
import itertools
import json
import os
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint
import pytest
from decompops import io, pde
from decompops.io import _checkpoint_folder
from decompops.io._checksums import checksum

from helpers import assert_close, make_mesh, random_field


SHAPE = (10, 9, 7)


def make_solver(sizes, *, axis_contiguous=False, order=3):
    fft = dops.FFT3D(
        make_mesh(sizes), shape=SHAPE, pad=True, real=True, norm="forward", axis_contiguous=axis_contiguous
    )
    return pde.SBDF(pde.NavierStokes(fft, 0.05), 0.01, order)


def start(solver):
    dec = solver.equation.fft.decomposition
    return solver.start(solver.equation.state(dec.shard(random_field((3, *SHAPE)))))


def gathered(solver, history):
    return solver.equation.transform.out_layout.gather(history.state)


@pytest.fixture(scope="module")
def run():
    """Return a multi-step solver, its history after 4 steps, and its history after 8 steps."""
    solver = make_solver((2, 4))
    middle, _ = solver.rollout(start(solver), 4)
    last, _ = solver.rollout(middle, 4, t=0.04)
    return solver, middle, last


@pytest.mark.parametrize("sizes", [(2, 4), (1, 5), (1, 1)])
def test_a_run_continues_from_its_checkpoint(tmp_path, run, sizes):
    """A continued run equals a run without interruption: bitwise on the same mesh, up to rounding on other meshes."""
    solver, middle, last = run
    with io.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(4, {"u": middle, "t": 0.04}, {"u": solver.in_structure})
    other = make_solver(sizes)
    like = {"u": start(other), "t": 0.0}
    with io.Checkpoints(tmp_path) as checkpoints:
        found = checkpoints.restore(like, {"u": other.in_structure})
    assert found["t"] == 0.04
    assert jax.tree.map(lambda a: a.sharding, found["u"]) == jax.tree.map(lambda a: a.sharding, like["u"])
    again, _ = other.rollout(found["u"], 4, t=found["t"])
    if sizes == (2, 4):
        np.testing.assert_array_equal(gathered(other, again), gathered(solver, last))
    else:
        assert found["u"].state.shape != middle.state.shape
        assert_close(gathered(other, again), gathered(solver, last), 1e-13)


def test_spectra_may_be_stored_in_another_order(tmp_path):
    natural, contiguous = (
        dops.FFT3D(make_mesh(sizes), shape=SHAPE, pad=True, real=True, axis_contiguous=flag)
        for sizes, flag in (((2, 4), False), ((4, 2), True))
    )
    u = random_field((3, *SHAPE))
    with io.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(0, {"k": natural(natural.decomposition.shard(u))}, {"k": natural.out_structure})
        like = contiguous(contiguous.decomposition.shard(np.zeros_like(u)))
        found = checkpoints.restore({"k": like}, {"k": contiguous.out_structure})["k"]
    assert found.sharding == like.sharding
    assert_close(contiguous.out_layout.gather(found), np.fft.rfftn(u, axes=(1, 2, 3)))


def test_all_kinds_of_leaves(tmp_path):
    model = eqx.nn.MLP(3, 3, 4, 1, key=jax.random.key(1))
    optimizer = optax.adam(1e-2)
    memory = optimizer.init(eqx.filter(model, eqx.is_array))
    tree = {
        "model": model,
        "memory": memory,
        "key": jax.random.key(5, impl="rbg"),
        "keys": jax.random.split(jax.random.key(2), 3),
        "t": 1 / 3,
        "step": 7,
        "done": False,
        "host": np.arange(3, dtype=np.float64),
        "half": jnp.ones(3, jnp.bfloat16),
        "narrow": jnp.arange(-2, 3, dtype=jnp.int4),
        "mask": jnp.arange(3) > 0,
        "z": 1 / 3 + 2j,
        "name": "not saved",
    }
    other = jax.tree.map(lambda leaf: leaf * 0 if eqx.is_inexact_array(leaf) else leaf, tree)
    other |= {
        "key": jax.random.key(0, impl="rbg"),
        "keys": jax.random.split(jax.random.key(9), 3),
        "t": 0.0,
        "step": 0,
        "z": 0j,
    }
    other |= {"done": True, "host": np.zeros(3), "name": "kept"}
    with io.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(7, tree)
        found = checkpoints.restore(other)
    assert found.pop("name") == "kept"
    expected = {name: value for name, value in tree.items() if name != "name"}
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for got, want in zip(jax.tree.leaves(found), jax.tree.leaves(expected)):
        assert type(got) is type(want)
        if eqx.is_array(got) and jnp.issubdtype(got.dtype, jax.dtypes.prng_key):
            got, want = jax.random.key_data(got), jax.random.key_data(want)
        if eqx.is_array_like(want):
            np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(jax.random.normal(found["key"], 3), jax.random.normal(tree["key"], 3))


def test_abstract_arrays_give_the_sharding(tmp_path):
    mesh = make_mesh((2, 4))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    with io.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(0, {"w": jnp.arange(4.0)})
        found = checkpoints.restore({"w": jax.ShapeDtypeStruct((4,), float, sharding=sharding)})
    assert found["w"].sharding == sharding
    np.testing.assert_array_equal(found["w"], np.arange(4))


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_abstract_keys_give_the_sharding(tmp_path, kind):
    keys = jax.random.split(jax.random.key(1), (2, 4))
    specs = [jax.P(), jax.P("x"), jax.P("x", "y"), jax.P(None, ("x", "y"))]
    places = [jax.NamedSharding(make_mesh(sizes, kind), spec) for sizes, spec in zip(((2, 4),) * 3 + ((2, 2),), specs)]
    places += [jax.sharding.SingleDeviceSharding(jax.devices()[1]), None]
    with io.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(0, {"keys": jax.device_put(keys, places[1])})
        for place in places:
            found = checkpoints.restore({"keys": jax.ShapeDtypeStruct(keys.shape, keys.dtype, sharding=place)})["keys"]
            assert place is None or found.sharding.is_equivalent_to(place, keys.ndim)
            np.testing.assert_array_equal(jax.random.key_data(found), jax.random.key_data(keys))


def test_the_newest_are_kept(tmp_path):
    with io.Checkpoints(tmp_path, keep=2) as checkpoints:
        assert checkpoints.latest is None
        with pytest.raises(FileNotFoundError, match=r"`step` must be the number of a checkpoint in .*; got None"):
            checkpoints.restore({"i": 0})
        for i in range(4):
            checkpoints.save(i, {"i": i})
        checkpoints.wait()
        assert checkpoints.latest == 3
        assert checkpoints.steps == [2, 3]
        assert checkpoints.contents(2) == {"i": {"type": "int", "value": 2}}
        assert checkpoints.restore({"i": 0}) == {"i": 3}
        assert checkpoints.restore({"i": 0}, step=2) == {"i": 2}
        with pytest.raises(FileNotFoundError, match="got 1"):
            checkpoints.restore({"i": 0}, step=1)
        with pytest.raises(ValueError, match="`step` must be larger than the newest checkpoint, 3; got 3"):
            checkpoints.save(3, {"i": 3})


@pytest.mark.parametrize("step", [-1, 1.0, "a", None])
def test_a_step_under_which_no_checkpoint_would_be_found(tmp_path, plain, step):
    with plain.io.Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(ValueError, match="`step` must be an integer of at least 0; got"):
            checkpoints.save(step, {"i": 0})
        checkpoints.save(np.int64(0), {"i": 0})
        assert checkpoints.steps == [0]


def test_a_closed_folder_can_be_read_but_not_written(tmp_path):
    with io.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(0, {"i": 0})
    for task in (checkpoints.claim, lambda: checkpoints.save(1, {"i": 1})):
        with pytest.raises(RuntimeError, match=r"^`Checkpoints` must not save after `close`; got "):
            task()
    checkpoints.wait()
    checkpoints.close()
    with io.Checkpoints(tmp_path) as other:
        other.save(2, {"i": 2})
    assert checkpoints.steps == [0, 2]
    assert checkpoints.restore({"i": 0}) == {"i": 2}


def test_trees_that_do_not_fit_are_refused(tmp_path, run, plain):
    solver, middle, _ = run
    structures = {"u": solver.in_structure}
    with io.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(0, {"u": middle, "w": jnp.ones(3)}, structures)
        checkpoints.wait()
        with pytest.raises(
            ValueError, match=r"`like` must have the same leaves as .*; got \['v'\], which .*, and lacks \['w'\]"
        ):
            checkpoints.restore({"u": middle, "v": jnp.ones(3)}, structures)
        with pytest.raises(ValueError, match=r"got {'type': 'float64', 'shape': \[4\]} for w, but .* has"):
            checkpoints.restore({"u": middle, "w": jnp.ones(4)}, structures)
        with pytest.raises(ValueError, match="'float32'"):
            checkpoints.restore({"u": middle, "w": jnp.ones(3, "float32")}, structures)
        with pytest.raises(ValueError, match=r"`structures` must have the structure of u/state, .* the order yzx"):
            checkpoints.restore({"u": start(make_solver((1, 5))), "w": jnp.ones(3)})
        with pytest.raises(ValueError, match=r"`structures` must map some of the names .* to a `Structure`"):
            checkpoints.restore({"u": middle}, {"v": solver.in_structure})
    with plain.io.Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(TypeError, match="`tree` must be a dictionary"):
            checkpoints.save(1, [middle])
        with pytest.raises(TypeError, match="`like` must be a dictionary"):
            checkpoints.restore([middle])
        endless = []
        endless.append(endless)
        with pytest.raises(TypeError, match="`description` must have strings, Python numbers and lists"):
            checkpoints.save(1, {"w": 1}, description={"a": endless})
        for empty in (np.zeros((2, 0)), jnp.zeros(0)):
            with pytest.raises(ValueError, match=r"`tree` must have arrays with elements; got shape .* for w"):
                checkpoints.save(1, {"w": empty})


@pytest.mark.parametrize("how", ["cut", "newer", "older", "lost"])
def test_a_damaged_checkpoint_is_refused(tmp_path, how):
    with io.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(0, {"w": jnp.arange(1000.0)})
        checkpoints.wait()
        if how in ("newer", "older"):
            file = next(tmp_path.glob("0-*/facts/metadata"))
            file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 3 if how == "newer" else 1}))
        elif how == "lost":
            next(tmp_path.glob("0-*/facts/metadata")).unlink()
        else:
            file = max(tmp_path.glob("0-*/arrays/**/d/*"), key=lambda file: file.stat().st_size)
            file.write_bytes(file.read_bytes()[:-50])
        messages = {"newer": "which a newer decompops wrote", "older": "An older decompops wrote it"}
        with pytest.raises(ValueError, match=messages.get(how, "is damaged")):
            checkpoints.restore({"w": jnp.zeros(1000)})


def test_flipped_bits_are_found(tmp_path):
    """`restore` raises `ValueError` if a bit has flipped in a file of the blocks or of the description.

    A flip in unused bytes or in padding is harmless.
    """
    dec = dops.Decomposition(make_mesh((2, 4)), shape=SHAPE, pad=True)
    u = random_field((3, *SHAPE))
    like, structures = {"u": dec.shard(0 * u), "t": 0.0}, {"u": dops.FFT3D(dec).in_structure}
    with io.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(0, {"u": dec.shard(u), "t": 0.04}, structures)
        checkpoints.wait()
        files = sorted(tmp_path.glob("0-*/arrays/**/d/*"), key=lambda file: file.stat().st_size)[-2:]
        messages = []
        for file in (*files, *tmp_path.glob("0-*/facts/metadata")):
            data = file.read_bytes()
            for at in np.random.default_rng(0).integers(len(data), size=6):
                file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
                try:
                    found = checkpoints.restore(like, structures)
                except ValueError as error:
                    messages.append(str(error))
                else:
                    np.testing.assert_array_equal(dec.gather(found["u"]), u)
                    assert found["t"] == 0.04
            file.write_bytes(data)
        assert any(f"{checkpoints.path(0)} is damaged: the checksum of u" in message for message in messages)
        assert any("the checksum of its description is wrong" in message for message in messages)
        assert checkpoints.restore(like, structures)["t"] == 0.04


@pytest.mark.parametrize("kind", ["auto", "explicit"])
@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32", "bfloat16", "int8", "bool"])
def test_a_checksum_sees_each_bit_of_the_cells_and_nothing_else(dtype, kind):
    u = 100 * random_field((2, *SHAPE))
    u = u > 0 if dtype == "bool" else u.astype(dtype)
    layouts = [
        dops.Decomposition(make_mesh(sizes, kind), shape=SHAPE, pad=True).layout("z") for sizes in ((2, 4), (1, 5))
    ]
    layouts.append(
        dops.FFT3D(make_mesh((4, 2), kind), shape=SHAPE, real=False, pad=True, axis_contiguous=True).out_layout
    )
    expected = checksum(u)
    for layout in layouts:
        stored = layout.shard(u)
        assert stored.shape[1:] != SHAPE
        assert int(checksum(stored, layout)) == expected
        assert checksum(np.asarray(stored), layout) == expected
        noise = jnp.where(layout.shard(np.ones_like(u, bool)), stored, jnp.ones((), dtype))
        assert int(checksum(noise, layout)) == expected
    for place, bit in itertools.product(((0, 0, 0, 0), (1, 9, 8, 6)), range(u.itemsize if dtype == "bool" else 8)):
        other = u.copy()
        cell = other[place].reshape(1).view(np.uint8)
        cell[bit % len(cell)] ^= 1 << (0 if dtype == "bool" else bit)
        other[place] = cell.view(u.dtype)[0]
        assert checksum(other) != expected
    assert checksum(u[:, ::-1]) != expected


def test_types_that_jax_would_narrow_are_refused(tmp_path):
    with io.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(0, {"w": np.arange(3.0)})
        like = {"w": jax.ShapeDtypeStruct((3,), np.dtype("float64"))}
        with jax.enable_x64(False), pytest.raises(ValueError, match="without 64-bit mode; got float64 for w"):
            checkpoints.restore(like)
        assert checkpoints.restore(like)["w"].dtype == np.float64


def test_what_a_killed_program_left_is_removed_by_the_next_save_only(tmp_path):
    with io.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(2, {"i": 2})
        unfinished = tmp_path / f"{checkpoints.path(3).name}.orbax-checkpoint-tmp"
    unfinished.mkdir()
    assert orbax.checkpoint.utils.is_tmp_checkpoint(unfinished)
    (unfinished / "data").write_bytes(bytes(9))
    with io.Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.latest == 2
        assert unfinished.exists()
        checkpoints.save(5, {"i": 5})
        assert not unfinished.exists()
        assert checkpoints.restore({"i": 0}) == {"i": 5}


def test_without_locks_a_warning_names_what_is_left(tmp_path, monkeypatch):
    with io.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(2, {"i": 2})
        unfinished = tmp_path / f"{checkpoints.path(3).name}.orbax-checkpoint-tmp"

    def refuse(folder, *, alone):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(_checkpoint_folder, "locked", refuse)
    with io.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(4, {"i": 4})  # No warning, because nothing is left.
    unfinished.mkdir()
    with io.Checkpoints(tmp_path) as checkpoints:
        with pytest.warns(UserWarning, match=f"without locks, .* stay there: {unfinished.name}. Remove them"):
            checkpoints.save(5, {"i": 5})
        checkpoints.save(6, {"i": 6})  # The warning comes once.
    assert unfinished.exists()


def test_a_state_with_many_arrays(tmp_path):
    """A checkpoint of 100 arrays does not deadlock, although each array needs a checksum.

    XLA deadlocks if more than 32 programs with communication run at the same time.
    """
    sharding = jax.NamedSharding(make_mesh((2, 4)), jax.P("x", "y"))
    state = {"weights": [jax.device_put(np.full((4, 4), i, np.float32), sharding) for i in range(100)]}
    with io.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state)
        found = checkpoints.restore(state)
    assert [float(weight[0, 0]) for weight in found["weights"]] == list(range(100))


def test_threads_save_to_their_own_folders(tmp_path):
    """The threads of a program do not disturb each other: orbax numbers the checkpoints of all threads together."""

    def run(thread):
        like = {"a": jnp.full(3, thread)}
        with io.Checkpoints(tmp_path / str(thread), keep=5) as checkpoints:
            for step in range(5):
                checkpoints.save(step, like)
            return [checkpoints.restore(like, step=step)["a"].tolist() for step in checkpoints.steps]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(run, range(4))) == [[[thread] * 3] * 5 for thread in range(4)]


def test_a_checkpoint_that_does_not_fit_into_the_memory_is_not_damaged(tmp_path, monkeypatch):
    error = Exception("cannot read an array")
    error.__cause__ = MemoryError("Unable to allocate 32 MiB")
    with io.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(0, {"a": jnp.ones(3)})
        checkpoints.wait()
        monkeypatch.setattr(orbax.checkpoint.PyTreeCheckpointHandler, "restore", Mock(side_effect=error))
        with pytest.raises(MemoryError, match="Unable to allocate 32 MiB"):
            checkpoints.restore({"a": jnp.ones(3)})
