"""Tests of what ParaView sees: vectors and scalars on grids of two and three axes, and a warning for complex fields."""

import re

import decompops as dops
import numpy as np
import pytest
from decompops import io
from vtkmodules.util.numpy_support import vtk_to_numpy
from vtkmodules.vtkIOXdmf2 import vtkXdmfReader

from helpers import make_mesh, random_field


@pytest.mark.parametrize("shape", [(4, 6), (3, 4, 5)])
def test_vectors_and_scalars(tmp_path, shape):
    """An array with a component for each axis is a vector, and other arrays are scalars."""
    ndim = len(shape)
    dec = dops.Decomposition(make_mesh((2,)), shape=shape, axes="x", box=dops.Box(2.0), pad=True)
    leads = {"velocity": (ndim,), "pressure": (), "pair": (5 - ndim,), "batch": (2, ndim)}
    arrays = {name: random_field((*lead, *shape), seed=i) for i, (name, lead) in enumerate(leads.items())}
    io.write(tmp_path / "u.h5", {name: dec.shard(array) for name, array in arrays.items()}, dec)
    reader = vtkXdmfReader()
    reader.SetFileName(str(tmp_path / "u.xdmf"))
    reader.Update()
    grid = reader.GetOutputDataObject(0)
    points, size = grid.GetPointData(), int(np.prod(shape))
    found = {points.GetArrayName(i): vtk_to_numpy(points.GetArray(i)) for i in range(points.GetNumberOfArrays())}
    assert grid.GetDimensions() == (*shape, 1)[:3]
    np.testing.assert_allclose(vtk_to_numpy(grid.GetYCoordinates()), 2.0 * np.arange(shape[1]) / shape[1])
    velocity = found.pop("velocity").reshape(*shape[::-1], 3).T
    np.testing.assert_array_equal(velocity[:ndim], arrays["velocity"])
    np.testing.assert_array_equal(velocity[ndim:], 0)
    for name, array in arrays.items():
        for index in np.ndindex(*leads[name]) if name != "velocity" else ():
            value = found.pop("_".join(map(str, (name, *index))))
            assert value.shape == (size,)
            np.testing.assert_array_equal(value.reshape(shape[::-1]).T, array[index])
    assert not found


def test_a_series_in_a_folder_behind_a_link(tmp_path):
    """The system resolves ".." from the folder that the link leads to."""
    for name in ("data", "scratch/deep/run"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "scratch/deep/run")
    dec = dops.Decomposition(make_mesh((1,)), shape=(4, 6))
    io.write(tmp_path / "data/0.h5", {"u": np.ones((4, 6))}, dec, time=0)
    io.write_series(tmp_path / "link/s.xdmf", [tmp_path / "data/0.h5"])
    (name,) = set(re.findall(r"[^>\s]*0\.h5", (tmp_path / "link/s.xdmf").read_text()))
    assert (tmp_path / "link" / name).is_file()


def test_a_series_of_what_is_there(tmp_path):
    """A series takes one path or several. Missing files and files of other formats are not called damaged."""
    dec = dops.Decomposition(make_mesh((1,)), shape=(4, 6))
    for suffix in (".h5", ".zarr"):
        io.write(tmp_path / f"u{suffix}", {"u": np.ones((4, 6))}, dec, time=0)
    texts = []
    for number, snapshots in enumerate((str(tmp_path / "u.h5"), tmp_path / "u.h5", [tmp_path / "u.h5"])):
        series = tmp_path / f"new{number}" / "folder" / "s.xdmf"
        io.write_series(series, snapshots)
        texts.append(series.read_text())
    assert "../../u.h5:/u" in texts[0]
    assert len(set(texts)) == 1
    last = tmp_path / "last" / "s.xdmf"
    with pytest.raises(FileNotFoundError, match=r"none\.h5, which does not exist"):
        io.write_series(last, [tmp_path / "u.h5", tmp_path / "none.h5"])
    for name in ("u.zarr", "u.xdmf", "none.zarr"):
        with pytest.raises(ValueError, match=r"^`snapshots` must be HDF5 files of fields"):
            io.write_series(last, tmp_path / name)
    (tmp_path / "cut.h5").write_bytes((tmp_path / "u.h5").read_bytes()[:-9])
    with pytest.raises(ValueError, match="is damaged"):
        io.write_series(last, tmp_path / "cut.h5")
    assert not last.parent.exists()


def test_complex_fields_are_not_left_out_in_silence(tmp_path):
    dec = dops.Decomposition(make_mesh((1,)), shape=(4, 6))
    arrays = {"psi": np.ones((4, 6), complex), "density": np.ones((4, 6))}
    message = "will not show the complex arrays psi, because XDMF has no complex numbers"
    with pytest.warns(UserWarning, match=message):
        io.write(tmp_path / "u.h5", arrays, dec)
    with pytest.warns(UserWarning, match=message):
        io.write_series(tmp_path / "series.xdmf", [tmp_path / "u.h5"])
    with io.Writer() as writer, pytest.warns(UserWarning, match=message):
        writer.write(tmp_path / "v.h5", arrays, dec)
    for name in ("u", "v", "series"):
        text = (tmp_path / f"{name}.xdmf").read_text()
        assert ('Name="density"' in text, 'Name="psi"' in text) == (True, False)
    np.testing.assert_array_equal(io.read(tmp_path / "u.h5").arrays["psi"], arrays["psi"])
    io.write(tmp_path / "u.zarr", arrays, dec)  # Zarr has no XDMF file, and a line of one axis has none.
    io.write(
        tmp_path / "line.h5", {"psi": np.ones(4, complex)}, dops.Decomposition(make_mesh((1,)), shape=(4,), axes=())
    )
