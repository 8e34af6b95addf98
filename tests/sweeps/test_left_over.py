"""Tests of files, plots and saved runs where a mesh axis that shards no grid axis shards components or a batch.

The tests marked `sweep` write every kind of transform and batch, and run several equations of the catalogue.
"""

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import decompops as dops
import jax
import numpy as np
import pytest
from decompops import io, pde, plot
from jax.sharding import NamedSharding, PartitionSpec as P

from catalogue import INTEGRATORS, SIZES, components_of, equations, started, transforms
from helpers import assert_close, make_mesh, random_field, spec_of


KINDS = ["explicit", "auto"]
# The lengths of the axes before the grid axes. The left-over mesh axis shards the axis that is marked.
FORMS = {(2,): (True,), (3, 2): (False, True), (4, 3): (True, False), (6,): (False,)}


def free_axis(layout: dops.Layout) -> str:
    (free,) = (name for name in layout.mesh.axis_names if name not in str(layout.spec))
    return free


class Case:
    """Random fields or spectra of a transform: the whole array `u`, and the same array on the mesh, `x`."""

    def __init__(self, transform, space: str, lead: tuple[int, ...]):
        self.transform, self.space = transform, space
        self.structure = transform.in_structure if space == "field" else transform.out_structure
        self.layout = transform.in_layout if space == "field" else transform.out_layout
        dtype = np.complex128 if self.structure.kind == "complex" else np.float64
        self.u = random_field((*lead, *self.layout.true_shape), dtype)
        spec = P(*(free_axis(self.layout) if marked else None for marked in FORMS[lead]), *self.layout.spec)
        self.x = jax.device_put(np.asarray(self.layout.shard(self.u)), NamedSharding(self.layout.mesh, spec))


def cases(kind: str, ndim: int) -> Iterator[Case]:
    made = transforms(make_mesh(SIZES[ndim], kind), ndim)
    stored = dops.FFT(made["real"].decomposition, real=True, axis_contiguous=True)
    yield from (Case(*each) for each in product([*made.values(), stored], ("field", "spectrum"), FORMS))


def check_files(case: Case, folder: Path) -> None:
    """Assert that files and checkpoints hold the array, and that they give it back on the mesh."""
    u, x, grid, space, ndim = case.u, case.x, case.transform, case.space, case.layout.blocks.ndim
    np.testing.assert_array_equal(case.layout.gather(x), u)
    np.testing.assert_array_equal(case.layout.gather(case.layout.crop(x)), u)
    for suffix in (".zarr", ".h5"):
        io.write(folder / f"u{suffix}", {"u": x}, grid, space=space)
        with io.Writer() as writer:
            writer.write(folder / f"v{suffix}", {"v": x, "host": np.asarray(x)}, grid, space=space)
        for path in folder.glob(f"*{suffix}"):
            for array in io.read(path).arrays.values():
                np.testing.assert_array_equal(array, u)
            for array in io.read(path, grid).arrays.values():
                np.testing.assert_array_equal(array, x)
                assert spec_of(array)[-ndim:] == spec_of(x)[-ndim:]
    whole = jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(case.layout.mesh, P()))
    with io.Checkpoints(folder / "checkpoints") as checkpoints:
        checkpoints.save(1, {"x": x}, {"x": case.structure})
        for like in (x, whole):
            found = checkpoints.restore({"x": like}, {"x": case.structure})["x"]
            np.testing.assert_array_equal(found, x)
            assert found.sharding == like.sharding


@pytest.mark.filterwarnings("ignore:ParaView will not show:UserWarning")
def test_files_of_vectors(tmp_path):
    fft = transforms(make_mesh(SIZES[2], "explicit"), 2)["real"]
    for space in ("field", "spectrum"):
        check_files(Case(fft, space, (2,)), tmp_path / space)


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:ParaView will not show:UserWarning")
@pytest.mark.parametrize("ndim", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_files(tmp_path, kind, ndim):
    for number, case in enumerate(cases(kind, ndim)):
        check_files(case, tmp_path / str(number))


@pytest.mark.parametrize("ndim", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_plots_of_vectors(kind, ndim):
    fft, alone = (transforms(make_mesh(sizes, kind), ndim)["real"] for sizes in (SIZES[ndim], (1, 1)))
    case = Case(fft, "field", (2,))
    u, x, z = case.u, case.x, case.u.ndim - 1
    for panel, plane in zip(plot.slice(fft, x), u if ndim == 2 else u[..., u.shape[z] // 2]):
        assert_close(panel.images[0].get_array(), plane.T)
    if ndim == 3:
        for panel, plane in zip(plot.projection(fft, x, 0, "max"), u.max(1)):
            assert_close(panel.images[0].get_array(), plane.T)
    for got, expected in zip(plot.spectrum(fft, x).lines[0].get_data(), plot.spectrum(alone, u).lines[0].get_data()):
        assert_close(got, expected)


def check_run(name: str, kind: str, ndim: int, method: str, folder: Path) -> None:
    """Assert that a run that is saved and continued equals the same run on one device."""
    results = []
    for sizes in (SIZES[ndim], (1, 1)):
        equation = equations(transforms(make_mesh(sizes, kind), ndim), ndim)[name]
        layout, lead, own = equation.transform.in_layout, components_of(equation, ndim), folder / str(sizes)
        u = np.asarray(layout.shard(0.3 * random_field((*lead, *layout.true_shape))))
        if sizes == SIZES[ndim] and lead and lead[0] % 2 == 0:
            u = jax.device_put(u, NamedSharding(layout.mesh, P(free_axis(layout), *layout.spec)))
        solver, state = INTEGRATORS[method](equation), started(equation, u)
        dt = float(solver.dt)
        options = {"write": pde.Snapshots(own / "{}.h5"), "checkpoint": own / "saved", "progress": False}
        for steps in (1, 2):
            end = pde.simulate(solver, state, steps * dt, interval=dt, **options)
        results.append((equation.transform.out_layout.gather(end.u), io.read(own / "2.h5").arrays["u"]))
    for got, expected in zip(*results):
        assert_close(got, expected, 1e-9)


def test_a_run_that_is_saved_and_continued(tmp_path):
    check_run("Burgers", "explicit", 2, "ETDRK", tmp_path)


@pytest.mark.sweep
@pytest.mark.parametrize("ndim", SIZES)
@pytest.mark.parametrize(("method", "kind"), [("SBDF", "explicit"), ("SBDF", "auto"), ("IMEXRK", "explicit")])
def test_runs_that_are_saved_and_continued(tmp_path, method, kind, ndim):
    for name in equations(transforms(make_mesh(SIZES[ndim], kind), ndim), ndim):
        if re.match("Burgers|Channel|GrayScott|PassiveScalar|RayleighBenard|Wave", name):
            check_run(name, kind, ndim, method, tmp_path / name)
