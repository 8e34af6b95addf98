"""Tests of the leaves of checkpoints: arrays and numbers of NumPy that are unlike those of JAX, and their paths."""

import decompops as dops
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from decompops import io

from helpers import random_field


def saved_and_restored(folder, tree: dict, like: dict | None = None) -> dict:
    with io.Checkpoints(folder) as checkpoints:
        checkpoints.save(1, tree)
    with io.Checkpoints(folder) as checkpoints:
        return checkpoints.restore(tree if like is None else like)


@pytest.mark.parametrize("dtype", [">i2", ">f8", ">c16", "bool", "int4", "float8_e4m3fn", "bfloat16"])
def test_arrays_of_any_dtype_come_back(tmp_path, dtype):
    wanted = getattr(ml_dtypes, dtype, dtype)
    array = np.array([0, 1, 1, 0]).astype(wanted)
    for number, given in enumerate((array, array[1], np.ma.array(array, mask=False))):
        found = saved_and_restored(tmp_path / str(number), {"a": given, "x": jnp.ones(3)})
        assert found["a"].dtype.isnative
        np.testing.assert_array_equal(found["a"], given)


def test_the_byte_order_is_not_part_of_the_type(tmp_path):
    found = saved_and_restored(tmp_path, {"a": np.arange(3).astype(">f8")}, {"a": np.zeros(3)})
    np.testing.assert_array_equal(found["a"], [0, 1, 2])


@pytest.mark.parametrize(
    "leaf", [np.str_("a"), np.datetime64(1, "s"), np.longdouble(1)], ids=lambda leaf: leaf.dtype.name
)
def test_scalars_that_are_no_numbers_of_64_bits_are_refused_before_anything_is_written(tmp_path, leaf):
    with io.Checkpoints(tmp_path / "c") as checkpoints:
        with pytest.raises(
            TypeError, match=r"^`tree` must have dtypes that a checkpoint stores, .*; got .* for m/x\. "
        ):
            checkpoints.save(1, {"m": {"x": leaf}})
        assert checkpoints.steps == []
        checkpoints.save(1, {"m": {"x": 1}})


def test_hidden_values_are_refused(tmp_path):
    with io.Checkpoints(tmp_path) as checkpoints, pytest.raises(ValueError, match=r"^`m/x` must hide no values, "):
        checkpoints.save(1, {"m": {"x": np.ma.array([1.0, 2.0], mask=[False, True])}})


@pytest.mark.parametrize("other", [1.0, np.ones(2), len], ids=["number", "array", "function"])
def test_two_leaves_with_the_same_path_are_refused(tmp_path, other):
    """Only one of them would be saved, and restored as both."""
    tree = {"a": {"b": jnp.arange(3.0)}, "a/b": other}
    with io.Checkpoints(tmp_path) as checkpoints, pytest.raises(ValueError, match="got two with the path a/b"):
        checkpoints.save(1, tree)


def test_a_run_with_numbers_of_numpy_continues_again_and_again(tmp_path):
    """NumPy's `float64` and `complex128` are Python numbers, too."""
    like = {"t": np.float64(0), "z": np.complex128(1j), "x": jnp.zeros(3)}
    for start in range(4):
        with io.Checkpoints(tmp_path) as checkpoints:
            state = like if checkpoints.latest is None else checkpoints.restore(like)
            assert (type(state["t"]), type(state["z"])) == (np.float64, np.complex128)
            checkpoints.save(start, jax.tree.map(lambda leaf: leaf + 1, state))
    with io.Checkpoints(tmp_path) as checkpoints:
        assert (checkpoints.restore(like)["t"], checkpoints.restore(like)["z"]) == (4, 4 + 1j)


def test_a_reader_finds_what_another_program_has_saved_meanwhile(tmp_path):
    reader = io.Checkpoints(tmp_path / "c")
    assert (reader.latest, reader.steps) == (None, [])
    for step in (3, 8):
        with io.Checkpoints(tmp_path / "c") as other:
            other.save(step, {"x": step})
        assert reader.latest == step
        assert reader.restore({"x": 0}) == {"x": step}
        assert reader.path(step).is_dir()
    assert reader.steps == [3, 8]
    reader.close()


@pytest.mark.parametrize("kind", ["array", "keys", "abstract", "abstract keys"])
def test_one_device_is_a_place_like_others(tmp_path, kind):
    """`restore` puts an array on the device of `like`. An array that JAX may move stays so."""
    make = (
        (lambda seed: jax.random.split(jax.random.key(seed), 3)) if "keys" in kind else lambda seed: jnp.ones(3) * seed
    )
    device = jax.devices()[3]
    like = jax.device_put(make(0), device)
    if "abstract" in kind:
        like = jax.ShapeDtypeStruct(like.shape, like.dtype, sharding=like.sharding)
    found = saved_and_restored(tmp_path, {"there": make(1), "free": make(2)}, {"there": like, "free": make(0)})
    assert (found["there"].devices(), found["there"].committed) == ({device}, True)
    assert not found["free"].committed
    for name, seed in (("there", 1), ("free", 2)):
        numbers = (found[name], make(seed))
        if "keys" in kind:
            numbers = map(jax.random.key_data, numbers)
        np.testing.assert_array_equal(*numbers)


def test_descriptions_come_back_as_json_has_them(tmp_path):
    with io.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"x": 1.0}, description={"a": {2: "b", 10: (1, 2), "c": None}})
        checkpoints.wait()
        assert checkpoints.description(1) == {"a": {"2": "b", "10": [1, 2], "c": None}}


def test_descriptions_of_what_json_has_not(tmp_path):
    with (
        io.Checkpoints(tmp_path) as checkpoints,
        pytest.raises(TypeError, match="`description` must have strings, Pyt"),
    ):
        checkpoints.save(1, {"x": 1.0}, description={"rate": np.float32(1)})


def test_a_mesh_that_is_not_ambient(tmp_path):
    """A program has two meshes, and saves and restores on one of them while the other one is ambient."""
    here, there = (jax.make_mesh((2,), ("x",), devices=jax.devices()[i : i + 2]) for i in (0, 2))
    u = random_field((8, 6))
    saved, restored = (dops.FFT2D(there, shape=u.shape, norm=norm) for norm in ("backward", "forward"))
    k = saved(saved.decomposition.shard(u))
    with jax.set_mesh(here), io.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"k": k}, {"k": saved.out_structure})
        checkpoints.wait()
        found = checkpoints.restore({"k": k}, {"k": restored.out_structure})["k"]
    np.testing.assert_allclose(restored.out_structure.layout.gather(found), np.fft.fft2(u, norm="forward"), atol=1e-12)
