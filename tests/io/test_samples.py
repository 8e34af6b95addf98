"""Tests of batches of samples on disk: h5py and NumPy read the same files, in the order of the batches."""

import shutil
import sys
import threading
import time
from contextlib import closing

import decompops as dops
import grain
import h5py
import jax
import numpy as np
import pytest
from decompops import io

from files import files_left
from helpers import make_mesh


SHAPE = (8, 6, 5)  # A mesh of 2×4 devices does not divide the second length.
COUNT = 5


def make_dec(sizes, kind="auto") -> dops.Decomposition:
    return dops.Decomposition(make_mesh(sizes, kind), shape=SHAPE, pad=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder of samples in HDF5 and Zarr, and of the same samples in two stacked snapshots of each format."""
    folder = tmp_path_factory.mktemp("samples")
    rng, dec = np.random.default_rng(0), make_dec((1, 1))
    inputs = rng.standard_normal((COUNT, 2, *SHAPE)).astype(np.float32)
    targets = np.arange(COUNT, dtype=np.int32).reshape(-1, 1, 1, 1) + np.zeros(SHAPE, np.int32)
    for suffix in ("h5", "zarr"):
        for i in range(COUNT):
            io.write(folder / f"{i}.{suffix}", {"input": inputs[i], "target": targets[i]}, dec)
        for part in (slice(0, 3), slice(3, None)):
            path = folder / f"stack{part.start}.{suffix}"
            io.write(path, {"input": inputs[part], "target": targets[part]}, dec)
    return folder


def paths(folder, suffix="h5") -> list:
    return [folder / f"{i}.{suffix}" for i in range(COUNT)]


def on_disk(folder, number: int, name: str) -> np.ndarray:
    """Return an array of a sample. Files have the order z, y, x."""
    with h5py.File(folder / f"{number}.h5") as file:
        return np.swapaxes(file[name][()], -1, -3)


def numbers(batch) -> list[int]:
    """Return which samples are in a batch."""
    return np.asarray(batch["target"])[..., 0, 0, 0].tolist()


@pytest.mark.parametrize("suffix", ["h5", "zarr"])
@pytest.mark.parametrize("kind", ["auto", "explicit"])
@pytest.mark.parametrize("sizes", [(1, 1), (2, 4), (2, 2, 2)])
def test_batches_are_what_is_on_disk(folder, sizes, kind, suffix):
    dec = make_dec(sizes, kind)
    samples = io.Samples(paths(folder, suffix), dec)
    stacked = io.Samples([folder / f"stack{i}.{suffix}" for i in (0, 3)], dec, stacked=True)
    assert len(samples) == len(stacked) == COUNT
    assert sorted(samples.names) == sorted(stacked.names) == ["input", "target"]
    for chosen in (np.array([4, 0, 2, 3]), np.array([[1, 3], [2, 2]]), np.array(2)):
        for batch in (samples[chosen], stacked[chosen]):
            assert numbers(batch) == chosen.tolist()
            for name, array in batch.items():
                expected = np.array([on_disk(folder, i, name) for i in chosen.ravel()])
                lead = () if name == "target" else (2,)
                np.testing.assert_array_equal(dec.gather(array), expected.reshape(*chosen.shape, *lead, *SHAPE))
                assert array.dtype == expected.dtype
                if chosen.ndim:  # The mesh axis "c" shards the first axis of the batch.
                    assert array.sharding.shard_shape(array.shape)[0] == len(chosen) // (2 if len(sizes) == 3 else 1)
            if kind == "explicit":
                assert jax.typeof(batch["target"]).sharding.spec == batch["target"].sharding.spec
    assert numbers(samples[-2:]) == [3, 4]


def test_a_batch_is_an_argument_of_a_compiled_step(folder):
    dec = make_dec((2, 2, 2), "explicit")
    samples = io.Samples(paths(folder), dec, "input")
    with jax.set_mesh(dec.mesh):
        found = jax.jit(lambda batch: dec.mean(batch["input"] ** 2))(samples[[1, 4]])
    expected = [[np.mean(one**2) for one in on_disk(folder, i, "input")] for i in (1, 4)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_batch_of_more_snapshots_than_open_files(folder):
    samples = io.Samples(6 * paths(folder), make_dec((1, 1)))
    with files_left(20):
        batch = samples[:]
    assert numbers(batch) == 6 * list(range(COUNT))


def test_the_order_is_a_function_of_seed_and_epoch(folder):
    samples = io.Samples(paths(folder), make_dec((1, 1)), "target")

    def order(size, **options):
        with closing(samples.batches(size, **options)) as batches:
            return [numbers(batch) for batch in batches]

    assert order(2, epochs=2) == [[0, 1], [2, 3]] * 2
    found = order(2, seed=3, epochs=4)
    epochs = [found[i] + found[i + 1] for i in range(0, 8, 2)]
    assert len(found) == 8
    assert all(len(set(epoch)) == 4 for epoch in epochs)
    assert len(set(map(tuple, epochs))) > 1
    assert order(2, seed=3, epochs=4) == found != order(2, seed=4, epochs=4)
    assert sorted(order(5, seed=0, epochs=1)[0]) == list(range(5))


def test_a_training_resumes_at_its_position(folder, tmp_path):
    samples = io.Samples(paths(folder), make_dec((2, 4)), "target")
    with closing(samples.batches(2, seed=0)) as batches, io.Checkpoints(tmp_path) as checkpoints:
        for _ in range(3):
            next(batches)
        checkpoints.save(3, {"data": batches.get_state()})
        expected = [numbers(next(batches)) for _ in range(4)]
    with closing(samples.batches(2, seed=0)) as batches, io.Checkpoints(tmp_path) as checkpoints:
        batches.set_state(checkpoints.restore({"data": batches.get_state()})["data"])
        assert [numbers(next(batches)) for _ in range(4)] == expected


def wait_for_threads() -> None:
    """Wait until the threads that read ahead have ended."""
    end = time.monotonic() + 30
    while any("grain" in thread.name for thread in threading.enumerate()):
        assert time.monotonic() < end, threading.enumerate()
        time.sleep(0.01)


def test_threads_end(folder, tmp_path):
    copied = [shutil.copy(path, tmp_path) for path in paths(folder)]
    samples = io.Samples(copied, make_dec((1, 1)))
    with closing(samples.batches(1)) as batches:
        next(batches)
        assert any("grain" in thread.name for thread in threading.enumerate())
    wait_for_threads()
    (tmp_path / "3.h5").write_bytes(b"damaged")
    with closing(samples.batches(1)) as batches:
        assert [numbers(next(batches)) for _ in range(3)] == [[0], [1], [2]]
        with pytest.raises(ValueError, match=r"3\.h5"):
            next(batches)
    wait_for_threads()


def test_samples_are_a_source_of_grain(folder):
    samples = io.Samples(paths(folder), make_dec((1, 1)), "target")
    assert isinstance(samples, grain.sources.RandomAccessDataSource)
    pairs = grain.MapDataset.range(len(samples) - 1).shuffle(seed=0).map(lambda i: (samples[i], samples[i + 1]))
    found = [tuple(map(numbers, pairs[i])) for i in range(4)]
    assert sorted(found) == [(i, i + 1) for i in range(4)]


def test_errors(folder, tmp_path):
    dec = make_dec((1, 1))
    samples = io.Samples(paths(folder), dec)
    field = np.zeros(SHAPE, np.float32)
    io.write(tmp_path / "double.h5", {"input": np.zeros((2, *SHAPE))}, dec)
    io.write(tmp_path / "field.h5", {"input": field, "target": field}, dec)
    io.write(tmp_path / "uneven.h5", {"input": field[None], "target": np.zeros((2, *SHAPE))}, dec)
    rfft = dops.FFT3D(dec, real=True)
    io.write(tmp_path / "spectrum.h5", {"input": rfft(field)}, rfft, space="spectrum")
    one = [folder / "0.h5"]
    for error, match, call in (
        (ValueError, "`paths` must have at least one", lambda: io.Samples([], dec)),
        (FileNotFoundError, "missing.h5", lambda: io.Samples([*one, tmp_path / "missing.h5"], dec)),
        (ValueError, "`names` must be some of input, target; got 'u'", lambda: io.Samples(one, dec, "u")),
        (ValueError, "`names` must have at least one", lambda: io.Samples(one, dec, [])),
        (ValueError, "`grid` must have the lengths", lambda: io.Samples(one, dops.Decomposition(dec.mesh, (4, 4, 4)))),
        (ValueError, "snapshots of fields; got spectra", lambda: io.Samples(tmp_path / "spectrum.h5", rfft)),
        (
            ValueError,
            "snapshots of fields; got spectra in .*spectrum.h5",
            lambda: io.Samples([tmp_path / "field.h5", tmp_path / "spectrum.h5"], rfft, "input")[1],
        ),
        (ValueError, "`stacked` must be False", lambda: io.Samples(tmp_path / "field.h5", dec, stacked=True)),
        (ValueError, "same number of samples", lambda: io.Samples(tmp_path / "uneven.h5", dec, stacked=True)),
        (ValueError, r"float32\[8, 6, 5\] for 'input'", lambda: io.Samples([*one, tmp_path / "field.h5"], dec)[1]),
        (ValueError, r"float64\[2", lambda: io.Samples([*one, tmp_path / "double.h5"], dec, "input")[[0, 1]]),
        (ValueError, "got no 'target'", lambda: io.Samples([*one, tmp_path / "double.h5"], dec, "target")[1]),
        (
            ValueError,
            "`grid` must have a mesh with devices",
            lambda: io.Samples(one, dops.Decomposition(dec.mesh.abstract_mesh, SHAPE)),
        ),
        (IndexError, "5", lambda: samples[5]),
        (IndexError, "integer", lambda: samples[np.array([0.5])]),
        (ValueError, "`size` must be between 1 and the number of samples, 5; got 6", lambda: samples.batches(6)),
        (ValueError, r"`seed` must be below 2\*\*32; got 4294967296", lambda: samples.batches(1, seed=2**32)),
    ):
        with pytest.raises(error, match=match):
            call()


@pytest.mark.parametrize("value", [-1, 1.5, 2.0, True, "1"])
@pytest.mark.parametrize("name", ["size", "epochs", "prefetch", "seed"])
def test_what_is_no_count_is_refused(folder, plain, name, value):
    samples = plain.io.Samples(paths(folder), plain.Decomposition(make_mesh((1, 1)), shape=SHAPE))
    with pytest.raises(ValueError, match=f"`{name}` must be an integer of at least (one|0); got {value!r}"):
        samples.batches(**{"size": 1, name: value})


def test_without_grain_samples_can_be_read(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "grain", None)
    samples = io.Samples(paths(folder), make_dec((1, 1)), "target")
    assert numbers(samples[[1]]) == [1]
    with pytest.raises(ImportError, match="pip install grain"):
        samples.batches(1)
