"""Tests of snapshots: NumPy, xarray, VTK and other meshes read what `decompops.io` writes."""

import contextlib
import json
import math
import shutil

import decompops as dops
import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray
from decompops import io
from hypothesis import given, settings, strategies as st
from vtkmodules.util.numpy_support import vtk_to_numpy
from vtkmodules.vtkIOXdmf2 import vtkXdmfReader

from helpers import make_mesh, random_field


SHAPE = (13, 10, 9)  # The meshes do not divide these lengths.
BOX = dops.Box((1.0, 2.0, 3.0))
SUFFIXES = (".zarr", ".h5")


def make_fft(sizes=(2, 4), shape=SHAPE, **options) -> dops.FFT:
    return dops.FFT3D(make_mesh(sizes), shape=shape, box=BOX, pad=True, real=True, **options)


@pytest.fixture(scope="module")
def fft():
    return make_fft()


@pytest.fixture(scope="module")
def velocity():
    return random_field((3, *SHAPE))


@pytest.fixture(scope="module")
def pressure():
    return random_field(SHAPE, seed=1).astype(np.float32)


@pytest.fixture(scope="module", params=SUFFIXES)
def saved(request, tmp_path_factory, fft, velocity, pressure):
    """Return a snapshot of a vector and a scalar."""
    path = tmp_path_factory.mktemp("saved") / f"000100{request.param}"
    shard = fft.decomposition.shard
    options = {
        "units": {"velocity": "m/s", "x": "m", "time": "s"},
        "attributes": {"note": "decaying", "rates": [1, 2.5]},
    }
    io.write(path, {"velocity": shard(velocity), "pressure": shard(pressure)}, fft, time=0.5, **options)
    return path


@pytest.mark.filterwarnings("error")
def test_xarray_opens_it_with_coordinates(saved, velocity, pressure):
    with xarray.open_dataset(saved, engine="zarr" if saved.suffix == ".zarr" else "h5netcdf") as data:
        np.testing.assert_array_equal(data.velocity.transpose("velocity_0", "x", "y", "z"), velocity)
        np.testing.assert_array_equal(data.pressure.transpose("x", "y", "z"), pressure)
        assert (data.velocity.dtype, data.pressure.dtype) == (np.float64, np.float32)
        for name, n, length in zip("xyz", SHAPE, BOX.lengths):
            np.testing.assert_allclose(data[name], length * np.arange(n) / n)
        assert data.velocity.time == 0.5
        assert (data.velocity.units, data.x.units, data.time.units) == ("m/s", "m", "s")
        assert data.note == "decaying"
        np.testing.assert_array_equal(data.rates, [1, 2.5])
        np.testing.assert_array_equal(data.box, BOX.lengths)


def test_empty_units_are_units(tmp_path, saved, fft):
    """Of numbers without a dimension, for example. They are part of the checksum."""
    path, units = tmp_path / f"u{saved.suffix}", {"u": "", "x": "", "time": ""}
    for _ in range(2):  # The second snapshot replaces the first one.
        io.write(path, {"u": np.ones(SHAPE)}, fft, time=0.0, units=units)
        assert io.read(path).units == units


@pytest.mark.parametrize("grid", ["fft", "decomposition", "layout", "numpy", "one device"])
def test_any_mesh_reads_it(saved, velocity, pressure, grid):
    other = make_fft((1, 1) if grid == "one device" else (3, 2))
    dec = other.decomposition
    target = {
        "decomposition": dops.Decomposition(dec.mesh, shape=SHAPE, pad=True),
        "layout": dec.layout("y"),
        "numpy": None,
    }
    read = io.read(saved, target.get(grid, other))
    assert (read.time, read.box) == (0.5, BOX)
    assert read.units == {"velocity": "m/s", "x": "m", "time": "s"}
    assert read.attributes == {"note": "decaying", "rates": [1, 2.5]}
    for name, expected in (("velocity", velocity), ("pressure", pressure)):
        got = read.arrays[name]
        if grid != "numpy":
            layout = dec.layout("y") if grid == "layout" else dec.layout()
            assert got.sharding.is_equivalent_to(layout.sharding_of(got.shape), got.ndim)
            assert got.shape[-3:] == layout.shape
            assert not np.any(np.delete(np.asarray(got), np.s_[: SHAPE[0]], axis=-3))  # padding
            got = layout.gather(got)
        np.testing.assert_array_equal(got, expected)
    assert list(io.read(saved, target.get(grid, other), "pressure").arrays) == ["pressure"]


def assert_vtk_reads(file, time, velocity, pressure):
    """Assert that VTK's reader of XDMF, which ParaView uses, finds these values at the right points."""
    reader = vtkXdmfReader()
    reader.SetFileName(str(file))
    reader.UpdateTimeStep(time)
    grid = reader.GetOutputDataObject(0)
    assert grid.GetDimensions() == SHAPE
    for axis, coordinates in enumerate((grid.GetXCoordinates(), grid.GetYCoordinates(), grid.GetZCoordinates())):
        n, length = SHAPE[axis], BOX.lengths[axis]
        np.testing.assert_allclose(vtk_to_numpy(coordinates), length * np.arange(n) / n)
    points = grid.GetPointData()
    vectors = vtk_to_numpy(points.GetArray("velocity")).reshape(*SHAPE[::-1], 3)
    np.testing.assert_array_equal(vectors.transpose(3, 2, 1, 0), velocity)
    scalars = vtk_to_numpy(points.GetArray("pressure")).reshape(SHAPE[::-1])
    np.testing.assert_array_equal(scalars.transpose(2, 1, 0), pressure)


def test_paraview_shows_axes_where_they_belong(tmp_path, fft, velocity, pressure):
    shard = fft.decomposition.shard
    for i in range(3):
        arrays = {"velocity": shard((i + 1) * velocity), "pressure": shard(pressure)}
        io.write(tmp_path / f"{i}.h5", arrays, fft, time=0.25 * i)
    io.write_series(tmp_path / "series.xdmf", [tmp_path / f"{i}.h5" for i in range(3)])
    assert_vtk_reads(tmp_path / "1.xdmf", 0.25, 2 * velocity, pressure)
    for i in (2, 0):
        assert_vtk_reads(tmp_path / "series.xdmf", 0.25 * i, (i + 1) * velocity, pressure)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_with_an_ambient_mesh(tmp_path, suffix, kind, velocity):
    mesh = make_mesh((2, 4), kind)
    fft = dops.FFT3D(mesh, shape=SHAPE, pad=True, real=True, axis_contiguous=True)
    with jax.set_mesh(mesh):
        k = fft(fft.decomposition.shard(velocity))
        io.write(tmp_path / f"k{suffix}", {"k": k}, fft, space="spectrum")
        got = io.read(tmp_path / f"k{suffix}", fft).arrays["k"]
        assert jax.typeof(got) == jax.typeof(k)
        np.testing.assert_array_equal(got, k)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_spectra_keep_their_modes_and_wavenumbers(tmp_path, fft, velocity, suffix):
    """A spectrum keeps its modes and wavenumbers when it is read on another mesh in another storage order."""
    path = tmp_path / f"spectrum{suffix}"
    k = fft(fft.decomposition.shard(velocity))
    io.write(path, {"velocity": k}, fft, space="spectrum")
    other = make_fft((4, 2), axis_contiguous=True)
    expected = np.fft.rfftn(velocity, axes=(1, 2, 3))
    read = io.read(path, other).arrays["velocity"]
    np.testing.assert_allclose(other.out_layout.gather(read), expected, atol=1e-12)
    with xarray.open_dataset(path, engine="zarr" if suffix == ".zarr" else "h5netcdf") as data:
        np.testing.assert_allclose(data.velocity.transpose("velocity_0", "kx", "ky", "kz"), expected, atol=1e-12)
        np.testing.assert_allclose(data.ky, 2 * np.pi * np.fft.fftfreq(SHAPE[1], BOX.lengths[1] / SHAPE[1]))
        np.testing.assert_allclose(data.kz, 2 * np.pi * np.fft.rfftfreq(SHAPE[2], BOX.lengths[2] / SHAPE[2]))
    assert not path.with_suffix(".xdmf").exists()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_another_box_is_said(tmp_path, suffix):
    path, fft = tmp_path / f"u{suffix}", make_fft((1, 1))
    io.write(path, {"u": random_field(SHAPE)}, fft)
    for box, wrong in ((dops.Box((1.0, 2.0, 3.0)), False), (dops.Box(1.0), True), (dops.Box((3.0, 2.0, 1.0)), True)):
        moved = fft.replace(box=box)
        for grid in (moved, moved.decomposition, moved.in_layout):
            said = contextlib.nullcontext()
            if wrong:
                said = pytest.warns(UserWarning, match=r"another box: the box was \[1.0, 2.0, 3.0\], and is \[")
            with said:
                io.read(path, grid)
    io.read(path, dops.FFT3D(make_mesh((1, 1)), shape=SHAPE))


@pytest.mark.parametrize("grid", ["transform", "decomposition", "layout"])
def test_all_processes_compare_what_they_have_read(tmp_path, monkeypatch, grid):
    """Whatever the type of `grid`, `read` asks the processes of its mesh for the checksums that they have found."""
    path, fft, asked = tmp_path / "u.zarr", make_fft((2, 4)), []
    io.write(path, {"u": random_field(SHAPE)}, fft)
    exchange = io._read.exchange_numbers
    monkeypatch.setattr(io._read, "exchange_numbers", lambda mesh, *n: asked.append(mesh) or exchange(mesh, *n))
    io.read(path, {"transform": fft, "decomposition": fft.decomposition, "layout": fft.in_layout}[grid])
    assert asked == [fft.decomposition.mesh]


def test_points_between_walls_are_coordinates(tmp_path):
    shape = (9, 8, 8)
    bases = (dops.Chebyshev(), dops.Fourier(), dops.Fourier(half=True))
    transform = dops.Transform(make_mesh((2, 2)), shape=shape, bases=bases, box=dops.Box((2.0, 1.0, 1.0)), pad=True)
    u = random_field(shape)
    io.write(tmp_path / "u.zarr", {"u": transform.decomposition.shard(u)}, transform)
    with xarray.open_zarr(tmp_path / "u.zarr") as data:
        np.testing.assert_allclose(data.x, 1 - np.cos(np.pi * np.arange(9) / 8), atol=1e-15)
        np.testing.assert_array_equal(data.u, u)


@pytest.mark.filterwarnings("ignore:.*XDMF has no complex numbers")
@settings(max_examples=25, deadline=None)
@given(
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple),
    lead=st.lists(st.integers(1, 3), max_size=2).map(tuple),
    suffix=st.sampled_from(SUFFIXES),
    dtype=st.sampled_from(["float16", "float32", "complex64", "int32"]),
    sizes=st.sampled_from([(2, 2), (1, 4), (4,), (8, 1)]),
)
def test_any_shape_and_dtype(tmp_path_factory, shape, lead, suffix, dtype, sizes):
    path = tmp_path_factory.mktemp("any") / f"u{suffix}"
    u = random_field((*lead, *shape), np.complex64) if dtype == "complex64" else random_field((*lead, *shape))
    u = (100 * u).astype(dtype)

    def decomposition(sizes):
        axes = () if len(shape) == 1 else ("x", "y")[: min(len(sizes), len(shape) - 1)]
        return dops.Decomposition(make_mesh(sizes), shape=shape, axes=axes, pad=True)

    io.write(path, {"u": decomposition(sizes).shard(u)}, decomposition(sizes))
    layout = decomposition(sizes[::-1]).layout(0)
    got = io.read(path, layout).arrays["u"]
    assert got.dtype == dtype
    np.testing.assert_array_equal(layout.gather(got), u)


def test_narrow_types_that_hdf5_lacks(tmp_path, fft, pressure):
    u = fft.decomposition.shard(pressure).astype(jnp.bfloat16)
    io.write(tmp_path / "u.zarr", {"u": u}, fft)
    got = io.read(tmp_path / "u.zarr", fft).arrays["u"]
    assert got.dtype == jnp.bfloat16
    np.testing.assert_array_equal(got, u)
    with pytest.raises(TypeError, match=r"got bfloat16 for 'u'. Convert it .*, or choose a `path` that ends in .zarr."):
        io.write(tmp_path / "u.h5", {"u": u}, fft)
    assert not list(tmp_path.glob("*u.h5*"))


def test_equal_blocks_are_written_once(tmp_path, pressure):
    """A field is written correctly if several devices hold the same block.

    The test also writes a field on one device, and a NumPy array.
    """
    dec = dops.Decomposition(make_mesh((2, 2, 2)), shape=SHAPE, pad=True)
    for i, u in enumerate((dec.shard(pressure), jnp.asarray(pressure), pressure)):
        io.write(tmp_path / f"{i}.zarr", {"u": u}, dec)
        np.testing.assert_array_equal(io.read(tmp_path / f"{i}.zarr").arrays["u"], pressure)


def broken(path, how):
    """Copy a snapshot, damage the copy as `how` says, and return the path of the copy."""
    copy = path.with_name(f"{how.replace(' ', '-')}{path.suffix}")
    if path.is_dir():
        shutil.copytree(path, copy)
        chunk = max((copy / "velocity" / "c").rglob("*"), key=lambda file: file.is_file() and file.stat().st_size)
        metadata = copy / "zarr.json"
    else:
        shutil.copy(path, copy)
        chunk = metadata = copy
    match how:
        case "flipped bit":
            data = bytearray(chunk.read_bytes())
            at = data.find(random_field((3, *SHAPE))[0, 0, 0, :1].tobytes())
            data[max(at, 0) + 4] ^= 1
            chunk.write_bytes(data)
        case "cut":
            chunk.write_bytes(chunk.read_bytes()[:-200])
        case "lost":
            chunk.unlink()
        case "metadata":
            metadata.write_bytes(metadata.read_bytes()[: 100 if path.is_dir() else 500])
        case "other":
            if path.is_dir():
                metadata.write_text(json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}}))
            else:
                with h5py.File(copy, "w") as file:
                    file["u"] = np.ones(3)
        case "newer":
            if path.is_dir():
                metadata.write_text(metadata.read_text().replace('"decompops_format": 2', '"decompops_format": 3'))
            else:
                with h5py.File(copy, "a") as file:
                    file.attrs["decompops_format"] = 3
    return copy


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("flipped bit", "is damaged"),
        ("cut", "is damaged"),
        ("lost", "is damaged|does not exist"),
        ("metadata", "is damaged"),
        ("other", "is damaged|must be a snapshot written by decompops"),
        ("newer", "of format 3, which a newer decompops wrote. To read it, type .*, or in a clone `git pull"),
    ],
)
def test_a_damaged_file_is_refused(saved, fft, how, message):
    path = broken(saved, how)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        io.read(path, fft)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"path": "u.npy"}, ValueError, r"`path` must end in .zarr or .h5 or .hdf5; got '.*u.npy'"),
        ({"arrays": {}}, TypeError, "`arrays` must be a dictionary of arrays by name"),
        ({"arrays": np.ones(SHAPE)}, TypeError, r"`arrays` must be a dictionary of .*; got an array float64\["),
        (
            {"arrays": {"a b": np.ones(SHAPE)}},
            ValueError,
            "`arrays` must have names of letters, digits and underscores",
        ),
        ({"arrays": {"x": np.ones(SHAPE)}}, ValueError, r"must not use the names of coordinates and dim.*got \['x'\]"),
        (
            {"arrays": {"u": np.ones((3, *SHAPE)), "u_0": np.ones(SHAPE)}},
            ValueError,
            r"must not use the names of coordinates and dimensions; got \['u_0'\]. Choose other names",
        ),
        (
            {"path": "u.h5", "arrays": {"u": np.ones((3, *SHAPE)), "u_0": np.ones(SHAPE)}},
            ValueError,
            r"must not use the names of coordinates and dimensions; got \['u_0'\]. Choose other names",
        ),
        ({"path": "12:30.h5"}, ValueError, "`path` must have no colon in the name of an HDF5 file"),
        ({"arrays": {"u": [1.0]}}, TypeError, "`arrays` must be arrays of JAX or NumPy; got list for 'u'"),
        ({"arrays": {"u": np.ones((3, 4, 5))}}, ValueError, r"`arrays\['u'\]` must have shape"),
        *(
            (
                {"path": path, "arrays": {"u": np.ones((*lead, *SHAPE))}},
                ValueError,
                "`arrays` must not be empty batches",
            )
            for path in ("u.zarr", "u.h5")
            for lead in ((0,), (2, 0))
        ),
        ({"grid": "fft"}, TypeError, "`grid` must be a transform such as `FFT3D`"),
        ({"space": "k"}, ValueError, r"`space` must be one of \('field', 'spectrum'\); got 'k'"),
        *(
            ({"time": wrong}, ValueError, f"`time` must be one finite number; got {wrong!r}")
            for wrong in ("now", "1", b"1", True, math.inf, 1j)
        ),
        *(
            ({name: wrong}, TypeError, f"`{name}` must be a dictionary; got ")
            for name in ("units", "attributes")
            for wrong in ("m", ["m"], [], 0)
        ),
        *(
            ({"path": path, "arrays": {"u": np.ma.masked_array(np.ones(SHAPE), True)}}, ValueError, message)
            for path in ("u.zarr", "u.h5")
            for message in [r"`arrays\['u'\]` must hide no values"]
        ),
        ({"units": {"v": "m"}}, ValueError, "`units` must map some of u to strings; got 'm' for 'v'"),
        ({"attributes": {"f": print}}, TypeError, "`attributes` must map names to strings, numbers or lists of either"),
        ({"attributes": {"box": 1}}, ValueError, "`attributes` must not use the name 'box'"),
    ],
)
def test_bad_arguments_write_nothing(tmp_path, plain, change, error, message):
    fft = plain.FFT3D(make_mesh((2, 4)), shape=SHAPE, pad=True)
    given = {"path": "u.zarr", "arrays": {"u": np.ones(SHAPE)}, "grid": fft, **change}
    given["path"] = tmp_path / given["path"]
    with pytest.raises(error, match=message):
        plain.io.write(**given)
    assert not list(tmp_path.iterdir())


def test_bad_arguments_of_read(saved, fft):
    with pytest.raises(FileNotFoundError, match=r"`path` must be a snapshot; got .*none.zarr, which does not exist\."):
        io.read(saved.with_name("none.zarr"), fft)
    for names, wrong in (
        (["velocity", "w"], "'w'"),
        (5, "5"),
        ([["velocity"]], r"\['velocity'\]"),
        (b"velocity", "118"),
    ):
        with pytest.raises(ValueError, match=f"`names` must be some of .*; got {wrong}"):
            io.read(saved, fft, names)
    with pytest.raises(
        ValueError, match=r"`grid` must have the lengths of the fields in .*, \(13, 10, 9\); got \(8, 8, 8\)"
    ):
        io.read(saved, make_fft(shape=(8, 8, 8)))
    with pytest.raises(ValueError, match=r"`path` must end in \.xdmf"):
        io.write_series(saved, [saved])
    with pytest.raises(ValueError, match="`snapshots` must be HDF5 files of fields"):
        io.write_series(saved.with_name("series.xdmf"), [])
