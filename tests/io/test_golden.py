"""Tests of files that earlier versions wrote: they are read right, or refused because of their format.

`golden/make.py` wrote the files. The numbers here come from NumPy, not from the library.
"""

import tarfile
from pathlib import Path

import decompops as dops
import h5py
import jax
import numpy as np
import pytest
import zarr
from decompops import io

from helpers import make_mesh


GOLDEN = Path(__file__).with_name("golden")
SHAPE = (5, 4, 3)
CELLS = np.arange(120).reshape(2, *SHAPE)
VELOCITY = CELLS * 37 % 101 / 64 - 0.5
DENSITY = (CELLS[0] * 29 % 67 / 32).astype(np.float32)
SPECTRUM = np.fft.rfftn(VELOCITY, axes=(1, 2, 3), norm="forward")
MODEL = {"weight": np.arange(6.0).reshape(2, 3), "steps": np.arange(4, dtype=np.int32)}
SNAPSHOTS = ("format2_first", "format2")  # The archives whose snapshots have the format of today.


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    folder = tmp_path_factory.mktemp("golden")
    for archive in sorted(GOLDEN.glob("*.tar.xz")):
        with tarfile.open(archive) as packed:
            packed.extractall(folder / archive.name.removesuffix(".tar.xz"), filter="data")
    return folder


def make_fft(sizes):
    return dops.FFT3D(make_mesh(sizes), shape=SHAPE, box=dops.Box((1.0, 2.0, 3.0)), pad=True, real=True, norm="forward")


def test_every_archive_is_tested(golden):
    assert {path.name for path in golden.iterdir()} == {"format1", *SNAPSHOTS}


@pytest.mark.parametrize("suffix", [".h5", ".zarr"])
@pytest.mark.parametrize("version", SNAPSHOTS)
def test_snapshots(golden, version, suffix):
    fft = make_fft((4, 2))
    for grid, gather in ((None, np.asarray), (fft, fft.decomposition.gather)):
        field = io.read(golden / version / f"field{suffix}", grid)
        assert sorted(field.arrays) == ["density", "velocity"]
        for name, expected in (("velocity", VELOCITY), ("density", DENSITY)):
            assert field.arrays[name].dtype == expected.dtype
            np.testing.assert_array_equal(gather(field.arrays[name]), expected)
    assert (field.time, field.box, field.norm) == (0.25, dops.Box((1.0, 2.0, 3.0)), None)
    assert field.units == {"velocity": "m/s", "x": "m", "time": "s"}
    assert field.attributes == {"note": "golden", "rates": [1, 2.5]}

    spectrum = io.read(golden / version / f"spectrum{suffix}")
    assert (spectrum.time, spectrum.norm) == (None, "forward" if version == "format2" else None)
    np.testing.assert_allclose(spectrum.arrays["spectrum"], SPECTRUM, rtol=0, atol=1e-15)
    on_mesh = io.read(golden / version / f"spectrum{suffix}", fft).arrays["spectrum"]
    np.testing.assert_allclose(fft.out_layout.gather(on_mesh), SPECTRUM, rtol=0, atol=1e-15)


def test_snapshots_of_format_2_say_how_their_spectra_are_scaled(golden):
    plain = dops.FFT3D(make_mesh((2, 2)), shape=SHAPE, pad=True, real=True)
    for suffix in (".h5", ".zarr"):
        found = io.read(golden / "format2" / f"spectrum{suffix}", plain).arrays["spectrum"]
        np.testing.assert_allclose(plain.out_layout.gather(found), SPECTRUM * 60, rtol=0, atol=1e-13)


def test_snapshots_of_format_1_hold_these_numbers_and_are_refused(golden):
    """Without the check of the format, the library might read them."""
    field, spectrum = (golden / "format1" / name for name in ("field", "spectrum"))
    with h5py.File(field.with_suffix(".h5")) as file:
        np.testing.assert_array_equal(file["velocity"][()].transpose(0, 3, 2, 1), VELOCITY)
    np.testing.assert_array_equal(zarr.open_array(field.with_suffix(".zarr") / "velocity", mode="r")[()], VELOCITY)
    for path in (field, spectrum):
        for suffix in (".h5", ".zarr"):
            with pytest.raises(ValueError, match=r"of format 2; got .* of format 1, which .* Write it again"):
                io.read(path.with_suffix(suffix))


def like(fft):
    dec, model = fft.decomposition, {name: np.zeros_like(array) for name, array in MODEL.items()}
    state = {"u": dec.shard(np.zeros_like(VELOCITY)), "t": 0.0, "step": 0, "model": model}
    return {**state, "k": fft.out_layout.shard(np.zeros_like(SPECTRUM)), "key": jax.random.key(0)}


def with_name_of_today(golden, version):
    """Return the folder of checkpoints, named as those of today. The first versions named them by numbers alone."""
    folder, new = (golden / name / "checkpoints" for name in (version, "format2"))
    mark = (new / ".decompops").read_text()
    (folder / ".decompops").write_text(mark)
    (folder / "3").rename(folder / f"3-{mark.split()[-1]}")
    return folder


def check_checkpoint(folder, sizes):
    fft = make_fft(sizes)
    with io.Checkpoints(folder) as checkpoints:
        assert checkpoints.steps == [3]
        found = checkpoints.restore(like(fft), {"u": fft.in_structure, "k": fft.out_structure})
    np.testing.assert_array_equal(fft.decomposition.gather(found["u"]), VELOCITY)
    np.testing.assert_allclose(fft.out_layout.gather(found["k"]), SPECTRUM, rtol=0, atol=1e-15)
    assert (found["t"], found["step"]) == (0.25, 3)
    assert jax.random.key_data(found["key"]).tolist() == [0, 7]
    for name, expected in MODEL.items():
        assert found["model"][name].dtype == expected.dtype
        np.testing.assert_array_equal(found["model"][name], expected)


@pytest.mark.parametrize("sizes", [(2, 4), (1, 1)])
def test_checkpoints(golden, sizes):
    check_checkpoint(golden / "format2/checkpoints", sizes)


def test_first_checkpoints_of_format_2(golden):
    """A checkpoint without the identity of its folder is left alone. With it, it is read."""
    with io.Checkpoints(golden / "format2_first/checkpoints") as checkpoints:
        assert checkpoints.latest is None
        for call in (lambda: checkpoints.restore({}, step=3), lambda: checkpoints.contents(3)):
            with pytest.raises(FileNotFoundError, match="`step` must be the number of a checkpoint in"):
                call()
    check_checkpoint(with_name_of_today(golden, "format2_first"), (2, 4))


def test_checkpoints_of_format_1_are_refused(golden):
    with io.Checkpoints(with_name_of_today(golden, "format1")) as checkpoints:
        for call in (lambda: checkpoints.restore({}), lambda: checkpoints.contents(3)):
            with pytest.raises(ValueError, match=r"of format 2; got .* of format 1, which .* Write it again"):
                call()
