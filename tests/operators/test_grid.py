"""Tests of the argument `grid` of functions that write, read or draw fields: layout, coordinates and errors."""

import decompops as dops
import h5py
import jax
import numpy as np
import pytest
from decompops import io, plot
from decompops._operator.grid import structure_of

import example
from helpers import make_mesh, random_field


extras = example.load("decompops_extras", "extending")
SHAPE = (9, 10, 11)
BOX = dops.Box((1.0, 2.0, 3.0))
DEC = dops.Decomposition(make_mesh((2, 4)), shape=SHAPE, box=BOX, pad=True)
FFT = dops.FFT3D(DEC, real=True)
EVEN = np.arange(6) / 5
MIDDLE = np.arange(1, 5) / 5


@pytest.mark.parametrize(
    ("basis", "expected"),
    [
        (dops.Points(), EVEN - 0.1),
        (dops.Fourier(), EVEN - 0.1),
        (extras.Hartley(), EVEN - 0.1),  # This periodic basis comes from another package.
        (dops.Cosine(1), np.array([0, 0.125, 0.375, 0.625, 0.875, 1])),
        (dops.Cosine(2), EVEN),
        (dops.Cosine(3), np.array([0, *(MIDDLE - 0.1), 0.9])),
        (dops.Cosine(4), EVEN),
        (dops.Sine(1), np.arange(0.5, 6) / 6),
        (dops.Sine(2), EVEN),
        (dops.Sine(3), np.array([0.1, *(MIDDLE + 0.1), 1])),
        (dops.Sine(4), EVEN),
        # The points of `Chebyshev(1)` are 0, (1 - √½) / 2, 1/2, (1 + √½) / 2 and 1.
        (dops.Chebyshev(1), np.array([0, (2 - 2**0.5) / 8, (4 - 2**0.5) / 8, (4 + 2**0.5) / 8, (6 + 2**0.5) / 8, 1])),
        (dops.Cells([0, 0.1, 0.3, 0.6, 0.7, 1]), np.array([0, 0.1, 0.3, 0.6, 0.7, 1])),
    ],
    ids=str,
)
def test_edges_of_five_cells(basis, expected):
    np.testing.assert_allclose(basis.edges(5), expected, atol=1e-15)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_edges_between_points_that_touch_no_wall(n):
    edges, points = dops.Chebyshev(2).edges(n), (1 - np.cos(np.pi * (np.arange(n) + 0.5) / n)) / 2
    np.testing.assert_allclose(edges, [0, *(points[1:] + points[:-1]) / 2, 1], atol=1e-15)


def assert_points(known):
    assert list(known.coordinates()) == ["x", "y", "z"]
    for axis, (n, length) in enumerate(zip(SHAPE, BOX.lengths)):
        np.testing.assert_allclose(known.coordinates()["xyz"[axis]], length * np.arange(n) / n)
        np.testing.assert_allclose(known.edges(axis), length * (np.arange(n + 1) - 0.5) / n)


@pytest.mark.parametrize("grid", [FFT, DEC, DEC.layout()], ids=["transform", "decomposition", "layout"])
def test_points_of_a_field(grid):
    known = structure_of(grid)
    assert known.layout == DEC.layout()
    assert_points(known)


def test_modes_of_a_spectrum():
    known = structure_of(FFT, "spectrum")
    assert known.layout == FFT.out_layout
    found = known.coordinates()
    assert list(found) == ["kx", "ky", "kz"]
    for axis, k in enumerate(found.values()):
        n, length = SHAPE[axis], BOX.lengths[axis]
        np.testing.assert_allclose(k, 2 * np.pi * (np.fft.rfftfreq if axis == 2 else np.fft.fftfreq)(n, length / n))
    kept = dops.FFT3D(make_mesh((2, 4)), shape=(16, 16, 16), box=BOX, modes=(8, 8, 8))
    kx = structure_of(kept, "spectrum").coordinates()["kx"]
    np.testing.assert_allclose(abs(kx), abs(2 * np.pi * np.fft.fftfreq(8, 1 / 8)))


def test_a_layout_does_not_know_wavenumbers():
    known = structure_of(FFT.out_layout, "spectrum")
    assert known.layout == FFT.out_layout
    assert known.coordinates() == {}


@pytest.mark.parametrize("use", ["write", "read", "draw"])
@pytest.mark.parametrize("grid", ["mesh", "halo"])
def test_one_error_for_all(tmp_path, plain, use, grid):
    fft = plain.FFT3D(make_mesh((2, 4)), shape=(8, 8, 8))
    wrong = fft.decomposition.mesh if grid == "mesh" else plain.HaloExchange(fft.decomposition, 1)
    u, path = random_field((8, 8, 8)), tmp_path / "u.zarr"
    plain.io.write(path, {"u": u}, fft)
    call = {
        "write": lambda: plain.io.write(tmp_path / "v.zarr", {"u": u}, wrong),
        "read": lambda: plain.io.read(path, wrong),
        "draw": lambda: plain.plot.slice(wrong, u),
    }[use]
    with pytest.raises(
        TypeError, match=r"^`grid` must be a transform such as `FFT3D`, a `Decomposition` or a `Layout`; got"
    ):
        call()


def test_other_errors(plain):
    find, fft = plain._operator.grid.structure_of, plain.FFT3D(make_mesh((2, 4)), shape=(8, 8, 8))
    for error, message, call in (
        (TypeError, "`grid` must be a transform with", lambda: find(fft.decomposition, "spectrum")),
        (ValueError, r"`space` must be one of \('field', 'spectrum'\)", lambda: find(fft, "k")),
        (
            ValueError,
            "`shape` must be given",
            lambda: find(plain.FFT3D(fft.decomposition.mesh), "spectrum"),
        ),
        (
            TypeError,
            "`grid` must have a `box` of lengths that are known, not traced",
            lambda: jax.jit(lambda length: find(fft.replace(box=plain.Box(length))) and None)(1.0),
        ),
    ):
        with pytest.raises(error, match=message):
            call()


def test_files_and_figures_have_the_same_points(tmp_path):
    """The points in a snapshot are the centres of the drawn cells.

    The grid has the basis `Hartley`, which is not part of decompops.
    """
    bases, box, u = (extras.Hartley(), dops.Cosine(2)), dops.Box((4.0, 3.0)), random_field((8, 6))
    transform = dops.Transform(make_mesh((2,)), shape=(8, 6), bases=bases, box=box, pad=True)
    io.write(tmp_path / "u.h5", {"u": u}, transform)
    (drawn,) = plot.slice(transform, u).images
    np.testing.assert_allclose(drawn.get_extent(), (-0.25, 3.75, 0, 3), atol=1e-12)
    with h5py.File(tmp_path / "u.h5") as file:
        np.testing.assert_allclose(file["x"], np.arange(8) / 2)
        np.testing.assert_allclose(file["y"], np.arange(0.25, 3, 0.5))
