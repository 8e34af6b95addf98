"""Tests of restarts with other options: numbers keep their meaning, and a warning says what changes the physics."""

import shutil
import warnings

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import pde
from decompops.spectral import Mask, Pad, Truncate

from helpers import assert_close, make_mesh, random_field


SHAPE = (9, 8)


def make(
    *, sizes=(2,), shape=SHAPE, rule=None, box=2.0, order=1, method=pde.ETDRK, equation=pde.NavierStokes, **options
):
    """Return an integrator. The options are those of the transform, except `viscosity`, `drag` and `forcing`."""
    physics = {name: options.pop(name) for name in ("viscosity", "drag", "forcing") if name in options}
    options = {"shape": shape, "box": dops.Box(box), "axes": "x", "pad": True, "real": True} | options
    fft = dops.FFT(make_mesh(sizes), **options)
    physics = {"viscosity": 0.1, "dealiasing": rule} | physics
    return method(equation(fft, **physics), 0.1, *(() if method is pde.IMEXRK else (order,)))


def run(solver, folder, args=None, dtype=None):
    """Return the result of a run of one step, or of its restart, which takes no step."""
    dec = solver.equation.fft.decomposition
    start = field(dtype) if dec.shape == SHAPE else np.zeros((2, *dec.shape))
    u = solver.equation.state(dec.shard(start))
    return pde.simulate(solver, u, 0.1, args=args, checkpoint=folder, progress=False)


def field(dtype=None):
    """Return a velocity of modes that no option drops, so that all options give the same fields."""
    coarse = dops.FFT(make_mesh((1,)), shape=SHAPE, real=True, modes=5)
    return np.asarray(coarse.inverse(coarse(random_field((2, *SHAPE))))).astype(dtype or float)


def fields(solver, u):
    return solver.equation.fft.decomposition.gather(solver.equation.fields(u))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return a function that makes a copy of a saved run, and the fields of its last state."""
    runs = {}

    def copy(folder, **options):
        key = repr(options)
        if key not in runs:
            solver, own = make(**options), tmp_path_factory.mktemp("run") / "checkpoints"
            runs[key] = own, fields(solver, run(solver, own).u)
        shutil.copytree(runs[key][0], folder)
        return runs[key][1]

    return copy


SAME = [
    {},
    {"norm": "forward"},
    {"norm": "ortho"},
    {"sizes": (4,), "axis_contiguous": True, "norm": "forward"},
    {"sizes": (1,), "norm": "ortho"},
]


@pytest.mark.parametrize("now", SAME, ids=str)
@pytest.mark.parametrize("before", [{}, {"norm": "forward"}], ids=str)
def test_the_state_keeps_its_meaning(tmp_path, saved, before, now):
    """The scale, the mesh and the storage order of spectra may change without a word. The fields stay the same."""
    expected = saved(tmp_path / "run", **before)
    result = run(make(**now), tmp_path / "run")
    assert result.steps == 1
    assert_close(fields(make(**now), result.u), expected, 1e-12)
    if before == now:
        np.testing.assert_array_equal(fields(make(**now), result.u), expected)


def test_another_grid_with_the_same_modes(tmp_path, saved):
    """With `norm="backward"`, the coefficients of a spectrum grow with the number of points of its grid."""
    before, now = make(rule=Truncate(), shape=(10, 10)), make(rule=Truncate(), shape=(11, 11))
    assert before.equation.transform.modes == now.equation.transform.modes
    u, v = (run(before, tmp_path / "run").u, run(now, tmp_path / "run").u)
    assert_close(v, u * (121 / 100), 1e-12)


def friction(t, u, args):
    return -u


CHANGES = {
    "box": ({"box": 4.0}, r"solver.equation.fft.box was \[2.0, 2.0\], and is \[4.0, 4.0\]"),
    "viscosity": ({"viscosity": 0.2}, "solver.equation.viscosity was 0.1, and is 0.2"),
    "array": ({"viscosity": jnp.float32(0.25)}, "solver.equation.viscosity was 0.1, and is 0.25"),
    "drag": ({"drag": 1}, "solver.equation.drag was 0.0, and is 1"),
    "mask": ({"rule": Mask()}, "solver.equation.dealiasing was None, and is Mask"),
    "padding": ({"rule": Pad()}, "solver.equation.dealiasing was None, and is Pad"),
    "forcing": ({"forcing": friction}, "solver.equation.forcing was None, and is friction"),
    "method": ({"method": pde.IMEXRK}, "solver was ETDRK, and is IMEXRK"),
    "order": ({"order": 2}, "solver.order was 1, and is 2"),
    "equation": ({"equation": pde.Burgers}, "solver.equation was NavierStokes, and is Burgers"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_warning_says_what_changes_the_physics(tmp_path, saved, name):
    options, message = CHANGES[name]
    expected, solver = saved(tmp_path / "run"), make(**options)
    with pytest.warns(UserWarning, match=rf"The run saved in .*run continues differently: .*{message}"):
        result = run(solver, tmp_path / "run")
    assert_close(fields(solver, result.u), expected, 1e-12)


def test_a_warning_names_all_changes_once(tmp_path):
    """A run warns of changes at its first restart only, because the next checkpoint has the new options."""
    forces = [pde.KolmogorovForcing(make().equation.fft, 1, a, dealiasing=None) for a in (1.0, 2.0)]
    run(make(forcing=forces[0]), tmp_path, args={"rate": 1.0, "weights": np.arange(3)})
    solver = make(forcing=(forces[1], friction), viscosity=0.3)
    u = solver.equation.state(solver.equation.fft.decomposition.shard(field()))
    options = {"interval": 0.1, "args": {"rate": 2.0, "weights": np.ones(3)}, "checkpoint": tmp_path}
    with pytest.warns(UserWarning, match="continues differently") as caught:
        pde.simulate(solver, u, 0.2, **options, progress=False)
    assert len(caught) == 1
    for part in (
        "viscosity was 0.1, and is 0.3",
        r"args['rate'] was 1.0, and is 2.0",
        "args['weights'] was an array of",
    ):
        assert part in str(caught[0].message)
    assert "forcing[0].amplitude was None, and is 2.0" in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pde.simulate(solver, u, 0.3, **options, progress=False)


REFUSED = {
    "modes": ({"shape": (9, 9)}, r"`modes` of the run saved in .*, \[9, 8\]; got \[9, 9\]"),
    "rule": ({"rule": Truncate()}, r"`modes` of the run saved in .*, \[9, 8\]; got \[5, 5\]"),
    "nyquist": ({"shape": (9, 12), "modes": (9, 8)}, r"`shape` of the run saved in .*, \[9, 8\]; got \[9, 12\]"),
    "method": ({"method": pde.SBDF, "order": 2}, "in .*, `ETDRK` of order 1; got `SBDF` of order 2"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_states_that_cannot_be_converted_are_refused(tmp_path, saved, name):
    options, message = REFUSED[name]
    saved(tmp_path / "run")
    with pytest.raises(ValueError, match=message):
        run(make(**options), tmp_path / "run")


def test_other_bases_and_dtypes_are_refused(tmp_path):
    def start(fft, dtype=float):
        solver = pde.ETDRK(pde.Diffusion(fft, 0.1), 0.1)
        u = solver.equation.state(fft.decomposition.shard(np.ones((8, 8), dtype)))
        return pde.simulate(solver, u, 0.1, checkpoint=tmp_path, progress=False)

    options = {"shape": (8, 8), "box": dops.Box(), "axes": "x"}
    walls = dops.Transform(make_mesh((2,)), bases=(dops.Cosine(2), dops.Fourier()), **options)
    start(walls, complex)
    for bases, message in (
        ((dops.Sine(2), dops.Fourier()), r"`bases` of .*'Cosine\(type=2.*; got \['Sine\(type=2"),
        ((dops.Fourier(), dops.Fourier()), r"`bases` of .*'Cosine\(type=2.*; got \['Fourier\(half=False"),
    ):
        with pytest.raises(ValueError, match=message):
            start(dops.Transform(make_mesh((2,)), bases=bases, **options), complex)
    with pytest.raises(ValueError, match=r"`u` must have the dtype .*'complex128'.*; got .*'complex64'"):
        start(walls, np.complex64)


@pytest.mark.parametrize("method", [pde.ETDRK, pde.SBDF])
@pytest.mark.parametrize("interval", [None, 0.3])
def test_a_run_of_no_time_continues(tmp_path, method, interval):
    """Such a run saves its state at the beginning, with or without an interval."""
    solver = make(method=method, order=2)
    u = solver.equation.state(solver.equation.fft.decomposition.shard(field()))
    options = {"interval": interval, "checkpoint": tmp_path / "run", "progress": False}
    assert pde.simulate(solver, u, 0.0, **options).steps == 0
    result = pde.simulate(solver, u, 0.3, **options)
    assert result.steps == 3
    assert_close(result.u, pde.simulate(solver, u, 0.3, progress=False).u, 1e-12)


def test_observations_of_other_names(tmp_path):
    """A run does not continue with other names, because the values of old and new names would be mixed."""
    solver = make()
    u = solver.equation.state(solver.equation.fft.decomposition.shard(field()))

    def simulate(t_end, *names):
        observe = lambda t, u: {name: t + i for i, name in enumerate(names)}
        folder = tmp_path / "run"
        return pde.simulate(solver, u, t_end, interval=0.1, observe=observe, checkpoint=folder, progress=False)

    simulate(0.1, "a", "b")
    np.testing.assert_allclose(simulate(0.2, "a", "b").observed["b"], [1, 1.1, 1.2])
    with pytest.raises(
        ValueError, match=r"`observe` must return results with the names of .*\['a'\].*'b'.*; got .*'c'"
    ):
        simulate(0.3, "b", "c")


@pytest.mark.parametrize(
    ("result", "error", "message"),
    [
        (lambda t, u: {"key": jax.random.key(0)}, TypeError, "must return numbers or arrays of numbers; got .*key"),
        (lambda t, u: (t, "energy"), TypeError, "must return numbers or arrays of numbers; got 'energy'"),
        (lambda t, u: jnp.zeros((3, 0)), ValueError, r"must return arrays with elements .* float64\[3, 0\]\. Leave it"),
        (lambda t, u: jnp.zeros(3, jnp.int2), TypeError, "must have dtypes that a checkpoint stores, .*; got int2"),
    ],
)
def test_observations_that_cannot_be_saved_are_refused_before_the_first_step(tmp_path, result, error, message):
    solver = make()
    u = solver.equation.state(solver.equation.fft.decomposition.shard(field()))
    called = []
    options = {"observe": result, "progress": lambda t, t_end: called.append(t)}
    with pytest.raises(error, match=f"`observe` {message}"):
        pde.simulate(solver, u, 1.0, checkpoint=tmp_path, **options)
    assert not called


@pytest.mark.parametrize(("method", "order"), [(pde.ETDRK, 1), (pde.SBDF, 2)])
def test_an_interval_with_other_rounding_errors(tmp_path, method, order):
    """A program may compute `interval` and `dt` from `t_end`, which is later at the next start."""
    solver = make(method=method, order=order)
    u = solver.equation.state(solver.equation.fft.decomposition.shard(field()))
    options = {"observe": lambda t, u: jnp.abs(u).sum(), "progress": False}
    assert 0.2 / 2 != 0.3 / 3
    for steps, t_end in ((2, 0.2), (3, 0.3)):
        own = method(solver.equation, t_end / steps, order)
        flow = pde.simulate(own, u, t_end, interval=t_end / steps, checkpoint=tmp_path, **options)
    whole = pde.simulate(solver, u, 0.3, interval=0.1, **options)
    for name in ("times", "observed", "u"):
        np.testing.assert_array_equal(getattr(flow, name), getattr(whole, name))


def test_solvers_that_are_none(plain):
    """An equation, a class and the integrator of particles take no steps of a state."""
    fft = plain.FFT2D(make_mesh((4,)), shape=(8, 8), real=True)
    mesh = plain.particles.ParticleMesh(fft.decomposition)
    leapfrog = plain.particles.KickDriftKick(mesh, plain.particles.Gravity(mesh), np.arange(3.0))
    for wrong in (plain.pde.Burgers(fft, 0.02), plain.pde.ETDRK, leapfrog, lambda u: u, None):
        with pytest.raises(TypeError, match="`solver` must be an integrator, such as `ETDRK"):
            plain.pde.simulate(wrong, np.zeros(3), 1.0)
