"""Tests that each function that reads numbers on the host refuses traced arrays, with a line that says what to do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers import assert_close, make_mesh, random_field


SHAPE = (8, 8, 8)


@pytest.fixture
def functions(plain, tmp_path) -> dict:
    """Return functions of one array, or of particles, by the argument that their errors name."""
    io, particles, pde, plot = plain.io, plain.particles, plain.pde, plain.plot
    fft = plain.FFT3D(make_mesh((2, 4)), shape=SHAPE, real=True)
    dec, pm = fft.decomposition, particles.ParticleMesh(fft.decomposition)
    solver = pde.ETDRK(pde.Burgers(fft, 0.1, components="scalar"), 0.01)
    burgers = lambda viscosity: pde.ETDRK(pde.Burgers(fft, viscosity, components="scalar"), 0.01)
    still = solver.equation.state(np.zeros(SHAPE))
    run = lambda solver=solver, **options: pde.simulate(solver, still, 0.1, **options)
    points, path = np.random.default_rng(0).random((20, 3)), tmp_path / "0.zarr"
    p = pm.place(points)
    fields = {
        "gather": ("field", dec.gather),
        "gather of a layout": ("field", lambda u: fft.out_layout.gather(fft(u))),
        "shard": ("array", dec.shard),
        "shard of a layout": ("array", dec.layout().shard),
        "write": ("arrays", lambda u: io.write(path, {"u": u}, fft)),
        "Writer": ("arrays", lambda u: io.Writer().write(path, {"u": u}, fft)),
        "Checkpoints": ("tree", lambda u: io.Checkpoints(tmp_path / "saved").save(0, {"u": u})),
        "simulate": ("u", lambda u: pde.simulate(solver, solver.equation.state(u), 0.1)),
        "slice": ("field", lambda u: plot.slice(fft, u)),
        "spectrum": ("field", lambda u: plot.spectrum(fft, u)),
        "curves": (r"values\['u'\]", lambda u: plot.curves(np.arange(8.0), {"u": u[0, 0]})),
    }
    others = {
        "parameters of simulate": ("solver", lambda viscosity: run(burgers(viscosity)), 0.1),
        "args of simulate": ("args", lambda args: run(args=args), 0.1),
        "control of simulate": ("control", lambda number: run(control=pde.CFL(number)), 0.1),
        "simulate of known values": ("u", lambda _: run(), 0.1),
        "gather of particles": ("p", pm.gather, p),
        "check": ("p", lambda p: p.check(), p),
        "loads of particles": ("p", pm.loads, p),
        "loads": ("positions", pm.loads, points),
        "place": ("positions", pm.place, points),
        "attributes": ("attributes", lambda m: pm.place(points, mass=m), points[:, 0]),
    }
    return {name: (*entry, random_field(SHAPE)) for name, entry in fields.items()} | others


def test_traced_arrays(functions):
    for name, (argument, function, x) in functions.items():
        with pytest.raises(TypeError, match=rf"^`{argument}` must not be traced, because .* got a tracer. Call"):
            jax.jit(lambda x, function=function, name=name: (function(x), pytest.fail(name)))(x)


def test_known_numbers_inside_of_jit(plain):
    """Inside of `jax.jit`, JAX traces comparisons even of arrays that it knows. Functions that read numbers do not."""
    particles, pde, spectral = plain.particles, plain.pde, plain.spectral
    half, times = jnp.asarray(0.5), jnp.asarray([0.1, 0.5, 1.0])
    fft = plain.FFT2D(make_mesh((2,)), shape=(8, 8), real=True)
    dec, pm = fft.decomposition, particles.ParticleMesh(fft.decomposition)
    density, zero = dec.shard(random_field((8, 8)) ** 2), jnp.asarray(0.0)
    walls = plain.Transform(
        fft.decomposition, bases=(plain.Cosine(2), plain.Fourier(half=True)), box=plain.Box((2.0, 6.3))
    )
    functions = (
        lambda: particles.Cosmology(half).matter,
        lambda: particles.KickDriftKick(pm, particles.Gravity(pm), times, particles.Cosmology()).times,
        lambda: pm.lattice(offset=half).positions,
        lambda: pde.ErrorControl(half, atol=half).rtol,
        lambda: pde.Buoyancy(walls, (zero, half)).acceleration[1],
        lambda: plain.fft.fftfreq(8, half),
        lambda: plain.Cells.clustered(4, half).faces,
        lambda: spectral.Helmholtz(walls, half)(density),
    )
    with jax.set_mesh(dec.mesh):
        for function in functions:
            assert_close(jax.jit(function)(), function(), 1e-5)
        jax.eval_shape(lambda: pm.sample(density, jax.random.key(0), capacity=99))


def test_traced_observations(plain):
    """Outside of `jax.jit`, only the observations of a run are traced if its state is known."""
    fft = plain.FFT(make_mesh((2,)), shape=(8, 8), real=True)
    solver = plain.pde.ETDRK(plain.pde.Diffusion(fft, 0.1), 0.1)
    u = solver.equation.state(np.zeros((8, 8)))
    observe = lambda scale: plain.pde.simulate(solver, u, 0.1, observe=lambda t, u: scale * t)
    with pytest.raises(TypeError, match=r"^`observe` must not be traced, .* use `solver\.rollout` inside"):
        jax.jvp(observe, (0.1,), (1.0,))
