"""Tests of equations and their terms against exact solutions and NumPy."""

import math

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
from decompops import pde
from decompops.spectral import Mask, Pad, Truncate

from helpers import assert_close, make_mesh, random_field


def transform(shape, sizes=(1,), kind="auto", **options) -> dops.FFT:
    return dops.FFT(make_mesh(sizes, kind), shape=shape, pad=True, **({"real": True} | options))


def grid(shape, lengths=None) -> list[np.ndarray]:
    lengths = lengths or (2 * np.pi,) * len(shape)
    return np.meshgrid(*(length * np.arange(n) / n for n, length in zip(shape, lengths)), indexing="ij")


def after(equation, field: np.ndarray, time: float, steps: int, order: int = 4) -> np.ndarray:
    """Return the field after `steps` time steps, which end at `time`."""
    fft = equation.transform
    start = fft(fft.decomposition.shard(field))
    u, _ = pde.ETDRK(equation, time / steps, order).rollout(start, steps)
    return fft.decomposition.gather(fft.inverse(u))


def test_a_soliton_keeps_its_shape():
    """The soliton `c/2 sech²(√c/2 (x - c t))` solves `∂u/∂t = -6 u ∂u/∂x - ∂³u/∂x³`."""
    (x,) = grid((96,), (30.0,))
    soliton = lambda time: 0.75 / np.cosh(np.sqrt(1.5) / 2 * (x - 12 - 1.5 * time)) ** 2
    equation = pde.KortewegDeVries(transform((96,), box=dops.Box(30.0)), scale=6.0)
    assert_close(after(equation, soliton(0), 2.0, 100), soliton(2.0), 1e-5)


@pytest.mark.parametrize("order", [1, 4])
def test_waves_are_exact_in_one_step(order):
    """One step of the wave equation is exact.

    The state has a standing wave, a travelling wave, and a mean height that grows at a constant rate.
    """
    x, y = grid((8, 6), (2.0, 3.0))
    frequency = 1.7 * 2 * np.pi * math.hypot(1 / 2, 1 / 3)

    def state(t):
        phase = np.pi * x + 2 * np.pi * y / 3 - frequency * t
        standing = np.cos(2 * np.pi * x)
        height = 0.2 + 0.5 * t + np.cos(phase) + standing * np.cos(1.7 * 2 * np.pi * t)
        rate = 0.5 + frequency * np.sin(phase) - 1.7 * 2 * np.pi * standing * np.sin(1.7 * 2 * np.pi * t)
        return np.stack([height, rate])

    equation = pde.Wave(transform((8, 6), (2,), box=dops.Box((2.0, 3.0))), 1.7)
    batch = np.stack([state(0.0), state(1.0)])
    assert_close(after(equation, batch, 0.9, 1, order), np.stack([state(0.9), state(1.9)]), 1e-12)


def test_rate_and_resolvent_of_the_wave_equation():
    """The rate and the resolvent agree with the wave equation `∂h/∂t = v`, `∂v/∂t = c² ∇²h`."""
    equation = pde.Wave(transform((6, 6, 5)), 2.0)
    u = equation.transform(random_field((2, 6, 6, 5)))
    rate, v = jax.jit(lambda u: (equation(0.0, u), equation.resolvent(u, 0.3)))(u)
    square = sum(k**2 for k in equation.wavenumbers(u))
    assert_close(rate, jnp.stack([u[1], (-4 * square).astype(u.dtype) * u[0]]), 1e-12)
    linear = jax.jit(lambda v: equation(0.0, v) - equation.nonlinear(0.0, v))(v)
    assert_close(v - 0.3 * linear, u, 1e-12)


def test_patterns_grow_at_their_rate():
    (x, y), rate = grid((12, 12)), 0.3
    equation = pde.SwiftHohenberg(transform((12, 12)), rate, critical=2.0, polynomial=(0.0,))
    u = np.cos(x + y) + np.cos(2 * x)
    expected = np.exp(rate) * np.cos(x + y) + np.exp(rate - 4.0) * np.cos(2 * x)
    assert_close(after(equation, u, 1.0, 1, 1), expected, 1e-12)


def test_without_gradients_a_reaction_is_an_ordinary_differential_equation():
    feed, kill, start = 0.4, 0.6, (0.9, 0.7)
    rate = lambda t, y: [feed * (1 - y[0]) - y[0] * y[1] ** 2, y[0] * y[1] ** 2 - (feed + kill) * y[1]]
    expected = scipy.integrate.solve_ivp(rate, (0, 1), start, rtol=1e-11, atol=1e-11).y[:, -1]
    equation = pde.GrayScott(transform((6, 5), norm="ortho"), (0.1, 0.2), feed, kill)
    last = after(equation, np.broadcast_to(np.reshape(start, (2, 1, 1)), (2, 6, 5)).copy(), 1.0, 20)
    assert_close(last, np.broadcast_to(expected[:, None, None], last.shape), 1e-7)


def test_a_condensate_conserves_particles_and_energy():
    """A condensate in a trap conserves its number of particles and its energy.

    The test also checks that the phase of a plane wave changes at a rate equal to its energy.
    """
    x, y = grid((12, 10))
    fft = transform((12, 10), (2,), "explicit", real=False)
    with jax.set_mesh(fft.decomposition.mesh):
        wave = 0.8 * np.exp(1j * (x - 2 * y))
        expected = np.exp(-1j * (5 / 2 + 1.5 * 0.64) * 0.5) * wave
        assert_close(after(pde.GrossPitaevskii(fft, 1.5), wave, 0.5, 100, 2), expected, 1e-4)

        plain = pde.GrossPitaevskii(fft, 1.5)
        trap = plain.products.decomposition.shard(1 - np.cos(x) - np.cos(y))
        equation = pde.GrossPitaevskii(fft, 1.5, potential=trap)
        moving = pde.GrossPitaevskii(fft, 1.5, potential=lambda t, args: trap)

        def conserved(u):
            inverse = equation.transform.inverse
            fields = jax.jit(lambda u: [inverse(u), *(inverse(k.astype(u.dtype) * u) for k in equation.wavenumbers(u))])
            potential, field, *slope = map(fft.decomposition.gather, (trap, *fields(u)))
            square = abs(field) ** 2
            energy = sum(abs(s) ** 2 for s in slope) / 2 + potential * square + 1.5 * square**2 / 2
            return square.mean(), energy.mean()

        start = np.exp(np.cos(x) + 0.5j * np.sin(y))
        u = equation.transform(fft.decomposition.shard(start))
        last, _ = pde.ETDRK(equation, 0.005).rollout(u, 60)
        for found, expected in zip(conserved(last), conserved(u)):
            assert_close(found, expected, 1e-6)
        assert_close(*jax.jit(lambda u: (moving(0.0, u), equation(0.0, u)))(u), 1e-14)


@pytest.mark.parametrize(("shape", "sizes"), [((9, 10), (2,)), ((8, 9, 10), (2, 2))])
def test_smagorinsky_is_equal_to_numpy(shape, sizes):
    ndim, lengths = len(shape), (2 * np.pi, np.pi, 3.0)[: len(shape)]
    fft = transform(shape, sizes, box=dops.Box(lengths))
    model = pde.Smagorinsky(fft, 0.17)
    k = np.meshgrid(*(2 * np.pi * np.fft.fftfreq(n, w / n) for n, w in zip(shape, lengths)), indexing="ij")
    kept = np.prod([3 * abs(q) * w / (2 * np.pi) < n for q, n, w in zip(k, shape, lengths)], axis=0)
    d = lambda f, axis: np.fft.ifftn(1j * k[axis] * kept * np.fft.fftn(f)).real
    u = random_field((2, ndim, *shape))
    width = np.prod([w / n for n, w in zip(shape, lengths)]) ** (1 / ndim)

    def divergence(v):
        strain = [[(d(v[i], j) + d(v[j], i)) / 2 for j in range(ndim)] for i in range(ndim)]
        size = np.sqrt(2 * sum(strain[i][j] ** 2 for i in range(ndim) for j in range(ndim)))
        stress = lambda i, j: 2 * (0.17 * width) ** 2 * size * strain[i][j]
        return [sum(d(stress(i, j), j) for j in range(ndim)) for i in range(ndim)]

    expected = np.array([divergence(v) for v in u])
    spectrum = model.transform(fft.decomposition.shard(u))
    force = jax.jit(model)(0.0, spectrum)
    assert_close(fft.decomposition.gather(model.transform.inverse(force)), expected, 1e-10)
    if ndim == 2:
        still = jax.jit(jax.grad(lambda u: jnp.sum(abs(model(0.0, u)) ** 2)))(jnp.zeros_like(spectrum[0]))
        assert np.isfinite(still).all()
        equation = pde.NavierStokes(fft, 0.1, forcing=(model, lambda t, u, args: args))
        rates = jax.jit(equation)(0.0, spectrum, force), jax.jit(pde.NavierStokes(fft, 0.1))(0.0, spectrum)
        projected = dops.spectral.LerayProjection(fft)(fft.decomposition.shard(expected))
        assert_close(equation.transform.inverse(rates[0] - rates[1]), 2 * projected, 1e-10)


def test_scalars_are_transported_by_the_flow():
    """A uniform flow transports two scalars. Both scalars also decay, and one of them has a mean gradient."""
    x, y = grid((12, 12))
    flow = pde.NavierStokes(transform((12, 12), (4,)), 0.1)
    one = pde.PassiveScalar(flow, 0.3)
    two = pde.PassiveScalar(one, 0.05, mean_gradient=(0.7, -0.2))
    ones = np.ones_like(x)
    last = after(two, np.stack([2 * ones, -ones, ones + np.cos(x + y), np.cos(x)]), 0.5, 20)
    moved = 1 + np.exp(-0.3 * 2 * 0.5) * np.cos(x + y - 0.5)
    other = np.exp(-0.05 * 0.5) * np.cos(x - 1.0) - (0.7 * 2 + 0.2) * 0.5
    assert_close(last, np.stack([2 * ones, -ones, moved, other]), 1e-7)
    # A constant scalar stays constant in any flow, and does not change the flow.
    u = np.stack([np.sin(y), np.sin(2 * x), ones])
    assert_close(after(one, u, 0.3, 3, 1), np.stack([*after(flow, u[:2], 0.3, 3, 1), ones]), 1e-12)


@pytest.mark.parametrize(("shape", "sizes"), [((12, 9), (3,)), ((6, 9, 5), (2, 2))])
def test_kolmogorov_forcing_is_a_sine(shape, sizes):
    y, ndim = grid(shape)[1], len(shape)
    fft = transform(shape, sizes, norm="ortho", box=dops.Box((1.0, 2.0, 3.0)[:ndim]))
    force = pde.KolmogorovForcing(fft, 2, 1.5)
    u = jnp.zeros(force.transform(random_field((2, ndim, *shape))).shape, complex)
    expected = np.zeros((2, ndim, *shape))
    expected[:, 0] = 1.5 * np.sin(2 * y)
    assert_close(fft.decomposition.gather(force.transform.inverse(jax.jit(force)(0.0, u))), expected, 1e-12)
    if ndim == 2:
        curl = pde.KolmogorovForcing(fft, 2, 1.5, of="vorticity")
        expected = -1.5 * 2 * np.pi * np.cos(2 * y)
        assert_close(fft.decomposition.gather(force.transform.inverse(jax.jit(curl)(0.0, u[0, 0]))), expected, 1e-12)


def quadratic_and_cubic(shape, quadratic, cubic) -> dict:
    """Return equations with all kinds of quadratic and cubic products, and the number of components of each state."""
    real, waves, ndim = transform(shape, box=dops.Box()), transform(shape, real=False), len(shape)
    return {
        "burgers": (pde.Burgers(real, 0.1, dealiasing=quadratic), ndim),
        "conservative": (pde.KuramotoSivashinskyConservative(real, dealiasing=quadratic), ndim),
        "ks": (pde.KuramotoSivashinsky(real, dealiasing=quadratic), None),
        "flow": (pde.PassiveScalar(pde.NavierStokes(real, 0.1, dealiasing=quadratic), 0.1), ndim + 1),
        "vorticity": (pde.VorticityNavierStokes(real, 0.1, dealiasing=quadratic), None),
        "swift": (pde.SwiftHohenberg(real, 0.1, dealiasing=cubic), None),
        "gray": (pde.GrayScott(real, (0.1, 0.2), 0.4, 0.6, dealiasing=cubic), 2),
        "gross": (pde.GrossPitaevskii(waves, 1.0, dealiasing=cubic), None),
    }


def test_a_finer_grid_gives_the_same_products():
    """Truncation and padding give equal products of fields with modes so low that both rules keep every product."""
    shape, rates = (16, 16), []
    for quadratic, cubic in ((Truncate(2 / 3), Truncate(1 / 2)), (Pad(3 / 2), Pad(2))):
        found = quadratic_and_cubic(shape, quadratic, cubic)
        fields = {}
        for seed, (name, (equation, lead)) in enumerate(found.items()):
            coarse = dops.FFT(equation.fft.decomposition, real=not equation.fft.takes_complex, modes=3)
            field = random_field(shape if lead is None else (lead, *shape), seed=seed)
            fields[name] = coarse.inverse(coarse(field.astype(complex) if name == "gross" else field))
        run = lambda fields: {name: pde.RealSpace(found[name][0])(0.0, u) for name, u in fields.items()}  # noqa: B023
        rates.append(jax.jit(run)(fields))
    for name, expected in rates[0].items():
        assert_close(rates[1][name], expected, 1e-11)


@pytest.mark.parametrize("name", ["scalar", "shallow", "drift", "layer", "rotating"])
def test_all_modes_have_the_terms_without_products(name):
    """In a weak field, products vanish. The rates with and without `Mask` are then equal, in masked modes as well."""
    ndim = 3 if name == "rotating" else 2
    fft = transform((9, 10, 8)[:ndim], (2,), box=dops.Box())

    def equation(rule):
        if name in ("scalar", "rotating"):
            terms = {} if ndim == 2 else {"forcing": pde.Coriolis(fft, (1.0, 0.5, 2.0), dealiasing=rule)}
            flow = pde.NavierStokes(fft, 0.1, drag=0.3, dealiasing=rule, **terms)
            lift = pde.Buoyancy(fft, (0.3, 1.0, 0.2)[:ndim], dealiasing=rule)
            return pde.PassiveScalar(flow, 0.2, mean_gradient=(1.0, 2.0, 0.5)[:ndim], forcing=lift)
        if name == "shallow":
            return pde.ShallowWater(fft, 1.5, 2.0, 0.5, viscosity=0.1, dealiasing=rule)
        if name == "drift":
            return pde.HasegawaWakatani(fft, 1.2, 0.7, 0.1, dealiasing=rule)
        return pde.QuasiGeostrophic(fft, 0.1, 1.3, 0.8, drag=0.2, dealiasing=rule)

    plain, masked = equation(None), equation(Mask())
    components = plain.in_structure.components or ()
    u = plain.state(fft.decomposition.shard(random_field((*components, *fft.decomposition.shape))))
    rates = [each(0.0, 1e-12 * u) / 1e-12 for each in (plain, masked)]
    assert_close(rates[1], rates[0], 1e-9)


PARAMETERS = {
    "wave": lambda fft, c: pde.Wave(fft, c),
    "swift": lambda fft, c: pde.SwiftHohenberg(fft, 0.3, critical=c, polynomial=(0.0, 0.1, c)),
    "gray": lambda fft, c: pde.GrayScott(fft, (c / 10, 0.1), c, 0.3),
    "kdv": lambda fft, c: pde.KortewegDeVries(fft, scale=c, dispersivity=c),
    "diffusion": lambda fft, c: pde.Diffusion(fft, ((c, c / 3), (c / 3, 1.0))),
    "flow": lambda fft, c: pde.PassiveScalar(
        pde.NavierStokes(
            fft, 0.1, drag=c, forcing=(pde.KolmogorovForcing(fft, 1, c), pde.Smagorinsky(fft, c)),
        ),
        c,
        mean_gradient=(c, 0.0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PARAMETERS)
def test_derivatives_by_parameters_are_those_of_finite_differences(name):
    fft = transform((8, 8), norm="forward", box=dops.Box(5.0) if name == "kdv" else dops.Box())
    lead = {"wave": (2,), "gray": (2,), "flow": (3,)}.get(name, ())
    start = fft.decomposition.shard(0.5 + 0.3 * random_field((*lead, 8, 8)))

    @jax.jit
    @jax.value_and_grad
    def loss(c):
        equation = PARAMETERS[name](fft, c)
        u = equation.transform(start)
        weights = jnp.arange(1.0, u.size + 1).reshape(u.shape) / u.size
        return jnp.sum(weights * jnp.abs(pde.ETDRK(equation, 0.05, 1).step(0.0, u)) ** 2)

    (above, _), (below, _), (_, derivative) = map(loss, (0.6 + 1e-5, 0.6 - 1e-5, 0.6))
    assert_close(derivative, (above - below) / 2e-5, 1e-7)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param("ks", "auto", marks=pytest.mark.sweep),
        pytest.param("ks", "explicit", marks=pytest.mark.sweep),
        ("wave", "auto"),
        pytest.param("kdv", "explicit", marks=pytest.mark.sweep),
        ("flow", "explicit"),
    ],
)
def test_derivatives_by_lengths_of_the_box_are_those_of_finite_differences(name, kind):
    fft = transform((8, 8), (2,), kind, norm="forward")
    lead = {"wave": (2,), "flow": (3,)}.get(name, ())
    start = fft.decomposition.shard(0.5 + 0.3 * random_field((*lead, 8, 8)))
    make = {"ks": lambda fft, c: pde.KuramotoSivashinsky(fft, scale=c)} | PARAMETERS

    def loss(length):
        """Return a number that depends on two steps in a box whose second length is a constant."""
        equation = make[name](fft.replace(box=dops.Box((length, 3.0))), 0.6)
        u, _ = pde.ETDRK(equation, 0.05, 1 if name == "flow" else 2).rollout(equation.transform(start), 2)
        weights = jnp.arange(1.0, u.size + 1).reshape(u.shape) / u.size
        return jnp.sum(weights * jnp.abs(u) ** 2)

    with jax.set_mesh(fft.decomposition.mesh):
        derivatives = jax.jit(jax.value_and_grad(loss))
        (above, _), (below, _), (value, derivative) = map(derivatives, (4.0 + 1e-5, 4.0 - 1e-5, 4.0))
        assert_close(value, jax.jit(lambda: loss(4.0))(), 1e-12)  # This length is a constant.
    assert_close(derivative, (above - below) / 2e-5, 1e-6)


def test_bad_input_is_refused(plain):
    pde, spectral = plain.pde, plain.spectral
    fft = plain.FFT2D(make_mesh((1,)), shape=(8, 8), real=True)
    cube = plain.FFT3D(make_mesh((1, 1)), shape=(4, 4, 4), real=True)
    waves = plain.FFT2D(fft.decomposition)
    for make, message in (
        (lambda: pde.AllenCahn(fft, -1.0), r"`diffusivity` must be a finite number of at least 0; got -1.0"),
        (lambda: pde.AllenCahn(waves, 1.0), r"`fft` must be built with `real=True`"),
        (lambda: pde.AllenCahn(fft, 1.0, dealiasing="3/2"), r"`dealiasing` must be .*got '3/2'"),
        (lambda: pde.CahnHilliard(fft, 1.0, "thin"), r"`gamma` must be one real number; got 'thin'"),
        (lambda: pde.SwiftHohenberg(fft, 1.0, polynomial=()), r"`polynomial` must be one or more numbers; got \(\)"),
        (lambda: pde.SwiftHohenberg(fft, 1.0, polynomial=3.0), r"`polynomial` must be one or more numbers; got 3.0"),
        (lambda: pde.GrayScott(fft, (1.0,), 0.1, 0.1), r"`diffusivities` must be a tuple of two numbers; got \(1.0,\)"),
        (lambda: pde.FisherKPP(fft, 1.0, -2), r"`rate` must be a finite number of at least 0; got -2"),
        (lambda: pde.Wave(fft, -2.0), r"`speed` must be a finite number of at least 0; got -2.0"),
        (
            lambda: pde.Dispersion(fft, (1.0,)),
            r"`dispersivity` must be a tuple of one number for each of x, y; got \(1.0,\)",
        ),
        (lambda: pde.Dispersion(fft, 1.0), r"`dispersivity` must be a tuple of one number for each axis; got 1.0"),
        (lambda: pde.HyperDiffusion(fft, 1.0, isotropic=1), r"`isotropic` must be True or False; got 1"),
        (lambda: pde.Diffusion(fft, (1.0, 2.0, 3.0)), r"`diffusivity` must be one number, 2 numbers, or a matrix"),
        (lambda: pde.Diffusion(fft, ((1.0, 0.0), 1.0)), r"`diffusivity` must be one number, 2 numbers, or a matrix"),
        (lambda: pde.Burgers(fft, 1.0, components="tensor"), r"`components` must be one of .*got 'tensor'"),
        (lambda: pde.VorticityNavierStokes(cube, 1.0), r"`fft` must transform a grid of two axes; got FFT"),
        (lambda: pde.NavierStokes(fft, 1.0, drag=-0.1), r"`drag` must be a finite number of at least 0; got -0.1"),
        (lambda: pde.NavierStokes(fft, 1.0, forcing=(abs, 3)), r"`forcing` must be a function .*a tuple of.*3\)"),
        (lambda: pde.KolmogorovForcing(fft, 3), r"`mode` must be less than half of the 5 modes along y; got 3"),
        (lambda: pde.KolmogorovForcing(cube, 1, of="vorticity"), r"`of` must be .*got 'vorticity' on a grid of shape"),
        (lambda: pde.Smagorinsky(fft, -0.1), r"`constant` must be a finite number of at least 0; got -0.1"),
        (lambda: pde.GrossPitaevskii(fft, 1.0), r"`fft` must be built with `real=False`"),
        (
            lambda: pde.GrossPitaevskii(waves, 1.0, potential=np.zeros((8, 8)), dealiasing=spectral.Pad(2)),
            r"`potential` must be a real field of shape \(16, 16\); got float64 of \(8, 8\)",
        ),
        (
            lambda: pde.PassiveScalar(pde.AllenCahn(fft, 1.0), 1.0),
            r"`equation` must have a velocity as its state, .*; got AllenCahn",
        ),
        (lambda: pde.PassiveScalar(fft, 1.0), r"`equation` must be an `AbstractEquation`, such as .*; got FFT"),
        (
            lambda: pde.PassiveScalar(pde.NavierStokes(fft, 1.0), 1.0, mean_gradient=(1.0,)),
            r"`mean_gradient` must be a tuple of one number for each of x, y; got \(1.0,\)",
        ),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            make()
