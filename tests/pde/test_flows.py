"""Tests of rotating, magnetic and geophysical flows against waves in closed form, invariants and NumPy."""

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import pde, spectral

from helpers import assert_close, make_mesh, random_field, thinned


LENGTHS = (2 * np.pi, 5.0, 3.0)
# A grid of two axes that no mesh divides, on one device, and on slabs of Auto and Explicit axes.
FLAT = [((12, 9), (1,), "auto"), ((12, 9), (8,), "auto"), ((12, 9), (2,), "explicit")]
SOLID = [((9, 8, 10), (2, 4), "auto"), ((9, 8, 10), (4, 2), "explicit")]


def transform(shape, sizes=(1,), kind="auto", **options) -> dops.FFT:
    box = dops.Box(LENGTHS[: len(shape)])
    return dops.FFT(make_mesh(sizes, kind), shape=shape, pad=True, **({"real": True, "box": box} | options))


class Reference:
    """Derivatives and projections by NumPy, with the modes that `Truncate(2/3)` keeps."""

    def __init__(self, shape, lengths=LENGTHS):
        self.axes = tuple(range(-len(shape), 0))
        along = [2 * np.pi * np.fft.fftfreq(n, length / n) for n, length in zip(shape, lengths)]
        self.k = np.meshgrid(*along, indexing="ij")
        numbers = np.meshgrid(*(abs(np.fft.fftfreq(n, 1 / n)) for n in shape), indexing="ij")
        self.kept = np.prod([3 * number < n for number, n in zip(numbers, shape)], axis=0)
        self.square = sum(k**2 for k in self.k)

    def apply(self, symbol, f):
        return np.fft.ifftn(symbol * self.kept * np.fft.fftn(f, axes=self.axes), axes=self.axes).real

    def d(self, f, axis):
        return self.apply(1j * self.k[axis], f)

    def laplacian(self, f):
        return self.apply(-self.square, f)

    def inverse_laplacian(self, f, added=0.0):
        symbol = self.square + added
        return self.apply(-np.divide(1, symbol, out=np.zeros_like(symbol), where=symbol > 0), f)

    def along(self, u, f):
        """Return `(u·∇)f`."""
        return self.apply(1, sum(u[i] * self.d(f, i) for i in range(len(u))))

    def projected(self, v):
        pressure = self.inverse_laplacian(sum(self.d(v[i], i) for i in range(len(v))))
        return np.stack([self.apply(1, v[i]) - self.d(pressure, i) for i in range(len(v))])

    def noise(self, *components, seed=0, solenoidal=False):
        field = self.apply(1, random_field((*components, *self.k[0].shape), seed=seed))
        return self.projected(field) if solenoidal else field


def rate(equation, fields) -> np.ndarray:
    """Return the rate of change of `fields` by an equation."""
    fft = equation.fft
    with jax.set_mesh(fft.decomposition.mesh):
        u = equation.state(fft.decomposition.shard(fields))
        return fft.decomposition.gather(equation.fields(jax.jit(equation)(0.0, u)))


def after(equation, fields, time, steps) -> np.ndarray:
    fft = equation.fft
    solver = pde.ETDRK(equation, time / steps, 4)
    run = jax.jit(lambda fields: equation.fields(solver.rollout(equation.state(fields), steps)[0]))
    return fft.decomposition.gather(run(fft.decomposition.shard(fields)))


def grid(shape) -> list[np.ndarray]:
    return np.meshgrid(*(length * np.arange(n) / n for n, length in zip(shape, LENGTHS)), indexing="ij")


@pytest.mark.parametrize(("shape", "sizes", "kind"), thinned(SOLID, lambda *case: case == SOLID[1]))
def test_the_coriolis_force_is_equal_to_numpy(shape, sizes, kind):
    reference, rotation = Reference(shape), (0.3, -0.7, 1.1)
    u = reference.noise(3, solenoidal=True)
    fft = transform(shape, sizes, kind)
    turned = rate(pde.NavierStokes(fft, 0.1, forcing=pde.Coriolis(fft, rotation)), u) - rate(
        pde.NavierStokes(fft, 0.1), u
    )
    assert_close(turned, reference.projected(-2 * np.cross(rotation, u, axis=0)), 1e-11)


@pytest.mark.sweep
def test_inertial_waves_are_exact_solutions():
    """A helical wave in a rotating frame has the frequency `2 Ω·k / |k|`, at any amplitude."""
    shape, rotation, nu = (8, 9, 10), np.array([0.2, 0.5, 1.5]), 0.01
    fft, points = transform(shape, (2, 2)), grid(shape)
    k = 2 * np.pi / np.array(LENGTHS) * [1, -1, 1]
    size = np.linalg.norm(k)
    first = np.cross(k, [0, 0, 1.0]) / np.linalg.norm(np.cross(k, [0, 0, 1.0]))
    helical = first + 1j * np.cross(k / size, first)  # The curl of this wave is |k| times the wave, or its negative.

    def wave(t):
        # For a wave `h exp(i (k·x - ω t))` with `i k × h = ±|k| h`: -2 Ω × u and the pressure leave ∓2i Ω·k/|k| u.
        sign = np.sign((np.cross(1j * k, helical) / helical).real[0])
        phase = sum(q * x for q, x in zip(k, points)) + sign * 2 * rotation @ k / size * t
        return 0.8 * np.exp(-nu * size**2 * t) * (helical[:, None, None, None] * np.exp(1j * phase)).real

    equation = pde.NavierStokes(fft, nu, forcing=pde.Coriolis(fft, tuple(rotation)))
    assert_close(after(equation, wave(0.0), 0.8, 20), wave(0.8), 1e-6)


@pytest.mark.parametrize(
    ("shape", "sizes", "kind"), thinned([*SOLID, FLAT[2]], lambda *case: case in (SOLID[0], FLAT[2]))
)
def test_magnetohydrodynamics_is_equal_to_numpy(shape, sizes, kind):
    """The rates of the velocity and of the magnetic field equal NumPy's, in the form `(b·∇)b - (u·∇)u`."""
    reference, ndim = Reference(shape), len(shape)
    u, b = (reference.noise(ndim, seed=seed, solenoidal=True) for seed in (0, 1))
    convective = lambda a, c: np.stack([reference.along(a, part) for part in c])
    momentum = reference.projected(convective(b, b) - convective(u, u)) + 0.1 * reference.laplacian(u) - 0.3 * u
    induction = convective(b, u) - convective(u, b) + 0.2 * reference.laplacian(b)
    flow = pde.NavierStokes(transform(shape, sizes, kind), 0.1, drag=0.3)
    found = rate(pde.Magnetohydrodynamics(flow, 0.2), np.concatenate([u, b]))
    assert_close(found, np.concatenate([momentum, induction]), 1e-10)


def test_alfven_waves_are_exact_solutions():
    """A wave that moves along a uniform magnetic field with the Alfvén velocity, at any amplitude, and decays."""
    shape, nu = (8, 9, 10), 0.02
    x, _, _ = grid(shape)

    def wave(t):
        size, phase = np.exp(-nu * t), x - 0.7 * t  # Along the field, u = -b.
        turned = size * np.stack([0 * x, np.cos(phase), 0.5 * np.sin(phase)])
        uniform = 0 * turned
        uniform[0] = 0.7
        return np.concatenate([-turned, turned + uniform])

    equation = pde.Magnetohydrodynamics(pde.NavierStokes(transform(shape, (2, 2)), nu), nu)
    assert_close(after(equation, wave(0.0), 1.0, 20), wave(1.0), 1e-6)


@pytest.mark.sweep
def test_a_force_free_field_stays():
    """The field of Arnold, Beltrami and Childress, a multiple of its curl, makes no force and decays at its rate."""
    n = 8
    x, y, z = np.meshgrid(*[2 * np.pi * np.arange(n) / n] * 3, indexing="ij")
    field = np.stack([np.sin(z) + 0.5 * np.cos(y), 0.7 * np.sin(x) + np.cos(z), 0.5 * np.sin(y) + 0.7 * np.cos(x)])
    fft = transform((n, n, n), (2, 4), box=dops.Box())
    equation = pde.Magnetohydrodynamics(pde.NavierStokes(fft, 0.1), 0.3)
    start = np.concatenate([0 * field, field])
    assert_close(after(equation, start, 0.5, 2), np.exp(-0.15) * start, 1e-12)


def invariants(equation, fields):
    """Return the energy, the cross-helicity, and the magnetic helicity or the mean square of the potential in 2D."""
    fft, ndim = equation.fft, equation.fft.decomposition.ndim
    mean = fft.decomposition.mean
    u, b = fields[:ndim], fields[ndim:]
    if ndim == 3:
        third = jnp.sum(spectral.InverseCurl(fft)(b) * b, 0)
    else:
        third = spectral.Poisson(fft)(spectral.Curl(fft)(b)) ** 2
    return jnp.stack([mean(jnp.sum(u**2 + b**2, 0)) / 2, mean(jnp.sum(u * b, 0)), mean(third)])


@pytest.mark.parametrize(("shape", "sizes"), [((12, 9), (2,)), ((9, 8, 10), (2, 2))])
def test_ideal_magnetohydrodynamics_has_invariants(shape, sizes):
    """Energy, cross-helicity and helicity (in two dimensions the squared potential) stay constant, to rounding.

    In two dimensions, the start is the vortex of Orszag and Tang (J. Fluid Mech. 90, 1979).
    """
    fft, reference = transform(shape, sizes), Reference(shape)
    equation = pde.Magnetohydrodynamics(pde.NavierStokes(fft, 0.0), 0.0)
    if len(shape) == 2:
        x, y = (2 * np.pi * points / length for points, length in zip(grid(shape), LENGTHS))
        start = np.stack([-np.sin(y), np.sin(x), -np.sin(y), np.sin(2 * x)])
        start += 0.3 * np.concatenate([reference.noise(2, seed=seed, solenoidal=True) for seed in (0, 1)])
    else:
        start = np.concatenate([reference.noise(3, seed=seed, solenoidal=True) for seed in (0, 1)])
        start[3:] += 0.5 * start[:3]
    field = start[len(shape) :]
    field -= field.mean(reference.axes, keepdims=True)

    @jax.jit
    def both(fields):
        moved = equation.fields(equation(0.0, equation.state(fields)))
        return jax.jvp(lambda fields: invariants(equation, fields), (fields,), (moved,)), moved

    (values, slopes), moved = both(fft.decomposition.shard(start))
    assert abs(np.asarray(values)).min() > 1e-3
    scale = np.linalg.norm(start) * np.linalg.norm(moved) / np.prod(shape)
    assert abs(np.asarray(slopes)).max() < 1e-12 * scale


@pytest.mark.parametrize(("shape", "sizes", "kind"), thinned(FLAT, lambda *case: case == FLAT[2]))
def test_flat_flows_are_equal_to_numpy(shape, sizes, kind):
    """The rates of quasi-geostrophic flow, shallow water and drift waves equal NumPy's, in the form `(u·∇)f`."""
    fft, reference = transform(shape, sizes, kind), Reference(shape)
    d, laplacian = reference.d, reference.laplacian
    flow = lambda psi: (-d(psi, 1), d(psi, 0))

    q = reference.noise()
    psi = reference.inverse_laplacian(q, 1 / 0.8**2)
    expected = -reference.along(flow(psi), q) - 1.5 * d(psi, 0) + 0.1 * laplacian(q) - 0.3 * laplacian(psi)
    assert_close(rate(pde.QuasiGeostrophic(fft, 0.1, 1.5, 0.8, drag=0.3), q), expected, 1e-11)

    u, v, h = reference.noise(3)
    moving = lambda f: reference.along((u, v), f)
    expected = [
        -moving(u) + 0.9 * v - 2.0 * d(h, 0) + 0.1 * laplacian(u),
        -moving(v) - 0.9 * u - 2.0 * d(h, 1) + 0.1 * laplacian(v),
        -d((3.0 + h) * u, 0) - d((3.0 + h) * v, 1) + 0.2 * laplacian(h),
    ]
    water = pde.ShallowWater(fft, 3.0, 2.0, 0.9, viscosity=0.1, diffusivity=0.2)
    assert_close(rate(water, np.stack([u, v, h])), np.array(expected), 1e-11)

    zeta, n = reference.noise(2, seed=1)
    phi = reference.inverse_laplacian(zeta)
    for modified in (False, True):
        current = phi - n
        current -= current.mean(-1, keepdims=True) if modified else current.mean()
        decay = lambda f: 0.1 * laplacian(f) - 0.02 * laplacian(laplacian(f))
        expected = [
            -reference.along(flow(phi), zeta) + 0.6 * current + decay(zeta),
            -reference.along(flow(phi), n) + 0.6 * current - 1.3 * d(phi, 1) + decay(n),
        ]
        plasma = pde.HasegawaWakatani(fft, 0.6, 1.3, 0.1, hyper_diffusivity=0.02, modified=modified)
        assert_close(rate(plasma, np.stack([zeta, n])), np.array(expected), 1e-11)


def test_rossby_waves_are_exact_in_one_step():
    """A Rossby wave solves the whole equation. Its frequency is `-β k_x / (k² + 1/L_d²)`, also under a rigid lid."""
    shape, (x, y) = (12, 9), grid((12, 9))
    kx, ky = 1.0, -2 * np.pi / 5.0
    for radius in (None, 0.7):
        frequency = -2.5 * kx / (kx**2 + ky**2 + (0 if radius is None else radius**-2))
        wave = lambda t, frequency=frequency: 3 * np.cos(kx * x + ky * y - frequency * t)
        equation = pde.QuasiGeostrophic(transform(shape, (2,)), 0.0, 2.5, radius)
        assert_close(after(equation, wave(0.0), 4.0, 1), wave(4.0), 1e-11)


def test_a_very_large_deformation_radius_is_a_rigid_lid():
    """In single precision, the inverse of its square is zero."""
    f = random_field((12, 9)).astype(np.float32)
    lid, wide = (pde.QuasiGeostrophic(transform((12, 9), (2,)), 0.1, 2.5, radius) for radius in (None, 1e25))
    assert_close(rate(wide, f), np.asarray(rate(lid, f)), 1e-6)


def test_inertia_gravity_waves_and_a_geostrophic_balance():
    """Small waves have the frequency `√(f² + g H k²)`. A jet along x in geostrophic balance does not change."""
    shape, (x, y) = (12, 9), grid((12, 9))
    f, g, depth, size = 0.9, 2.0, 1.5, 1e-6
    frequency = np.sqrt(f**2 + g * depth)

    def wave(t):  # With k = (1, 0).
        phase = x - frequency * t
        return size * np.stack(
            [frequency / depth * np.cos(phase), f / depth * np.sin(phase), np.cos(phase)]
        )  # fmt: skip

    water = pde.ShallowWater(transform(shape, (2,)), depth, g, f)
    assert_close(after(water, wave(0.0), 1.0, 40), wave(1.0), 1e-5)
    ky = 2 * np.pi / 5.0
    jet = np.stack([0.4 * np.sin(ky * y), 0 * y, f / g * 0.4 / ky * np.cos(ky * y)])
    assert_close(after(water, jet, 0.5, 10), jet, 1e-11)
    moved = after(water, np.stack([0.2 * np.cos(x), 0.1 * np.sin(ky * y), 0.3 * np.cos(x + ky * y)]), 0.5, 10)
    assert abs(moved[2].mean()) < 1e-14


@pytest.mark.sweep
def test_drift_waves_grow_at_their_rate():
    """The rates of small drift waves are the eigenvalues of a matrix for each mode (Hasegawa & Wakatani, 1983)."""
    shape, (x, y) = (12, 9), grid((12, 9))
    alpha, kappa, nu, size = 0.5, 1.4, 0.01, 1e-6
    kx, ky = 1.0, 2 * np.pi / 5.0
    square = kx**2 + ky**2
    # The rates of φ and n, with ζ = -k² φ.
    matrix = np.array([[-alpha / square, alpha / square], [alpha - 1j * kappa * ky, -alpha]]) - nu * square * np.eye(2)
    values, vectors = np.linalg.eig(matrix)
    fastest = np.argmax(values.real)
    assert values[fastest].real > 0  # The wave grows.

    def wave(t):
        turned = vectors[:, fastest, None, None] * np.exp(1j * (kx * x + ky * y) + values[fastest] * t)
        return size * np.stack([-square * turned[0].real, turned[1].real])

    plasma = pde.HasegawaWakatani(transform(shape, (2,)), alpha, kappa, nu)
    assert_close(after(plasma, wave(0.0), 2.0, 40), wave(2.0), 1e-5)


def test_steps_of_a_courant_number_know_the_waves():
    """`CFL` gets the velocity of each flow, with the speed of Alfvén waves or gravity waves."""
    shape, reference = (12, 9), Reference((12, 9))
    fft = transform(shape, (2,))
    u, b = (reference.noise(2, seed=seed, solenoidal=True) for seed in (0, 1))
    psi, h = reference.noise(seed=2), 0.1 * reference.noise(seed=3)
    flow, vorticity = np.stack([-reference.d(psi, 1), reference.d(psi, 0)]), reference.laplacian(psi)
    ideal = pde.Magnetohydrodynamics(pde.NavierStokes(fft, 0.0), 0.0)
    for equation, fields, speeds in (
        (ideal, np.concatenate([u, b]), abs(u) + abs(b)),
        (pde.ShallowWater(fft, 3.0, 2.0), np.stack([*u, h]), abs(u) + np.sqrt(2 * (3 + h))),
        (pde.QuasiGeostrophic(fft, 0.0, 1.0, 0.5), vorticity - psi / 0.25, flow),
        (pde.HasegawaWakatani(fft, 1.0), np.stack([vorticity, h]), flow),
        (pde.VorticityNavierStokes(fft, 0.0), vorticity, flow),
    ):
        limit = jax.jit(lambda u, e=equation: pde.CFL(0.5).limit(pde.ETDRK(e, 0.1), e.state(u)))
        spacing = np.reshape([length / n for length, n in zip(LENGTHS, shape)], (2, 1, 1))
        expected = 0.5 / np.sum(abs(speeds) / spacing, 0).max()
        assert_close(limit(fft.decomposition.shard(fields)), expected, 1e-11)


def test_two_fields_that_are_no_velocity():
    fft = transform((12, 9), (2,))
    for equation in (pde.GrayScott(fft, (0.1, 0.1), 0.1, 0.1), pde.Wave(fft)):
        state = equation.state(random_field((2, 12, 9)))
        with pytest.raises(ValueError, match=f"`velocity` must be given for `{type(equation).__name__}`"):
            pde.CFL(0.5).limit(pde.ETDRK(equation, 0.1), state)


PARAMETERS = {
    "coriolis": (3, lambda fft, c: pde.NavierStokes(fft, 0.1, forcing=pde.Coriolis(fft, (c, 0.2, c**2)))),
    "magnetic": (4, lambda fft, c: pde.Magnetohydrodynamics(pde.NavierStokes(fft, c), c)),
    "geostrophic": (None, lambda fft, c: pde.QuasiGeostrophic(fft, c, c, c, drag=c)),
    "water": (3, lambda fft, c: pde.ShallowWater(fft, c, c, c, viscosity=c, diffusivity=c)),
    "plasma": (2, lambda fft, c: pde.HasegawaWakatani(fft, c, c, c, hyper_diffusivity=c)),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_derivatives_by_parameters_are_those_of_finite_differences(name):
    """JAX differentiates steps of a batch by the parameters. In single precision, a state stays single."""
    components, make = PARAMETERS[name]
    shape = (6, 5, 4) if name == "coriolis" else (8, 7)
    fft = transform(shape, (2,) if len(shape) == 2 else (2, 2), norm="forward")
    lead = () if components is None else (components,)
    start = fft.decomposition.shard(0.5 + 0.3 * random_field((2, *lead, *shape)))

    def loss(c):
        equation = make(fft, c)
        u = equation.state(start)
        weights = jnp.arange(1.0, u.size + 1).reshape(u.shape) / u.size
        return jnp.sum(weights * jnp.abs(pde.ETDRK(equation, 0.05, 1).step(0.0, u)) ** 2)

    derivative = jax.value_and_grad(loss)
    is_curved = name in ("magnetic", "plasma")
    both = jax.jit((lambda c: jax.jvp(derivative, (c,), (1.0,))) if is_curved else (lambda c: (derivative(c), None)))
    (above, _), (below, _), ((_, slope), curved) = map(both, (0.6 + 1e-5, 0.6 - 1e-5, 0.6))
    assert_close(slope, (above[0] - below[0]) / 2e-5, 1e-7)
    if is_curved:
        assert_close(curved[1], (above[1] - below[1]) / 2e-5, 1e-7)
    equation = make(fft, 0.6)
    single = jax.eval_shape(equation, 0.0, jax.eval_shape(equation.state, start.astype(np.float32)))
    assert single.dtype == np.complex64


def test_bad_input_is_refused(plain):
    pde = plain.pde
    flat = plain.FFT2D(make_mesh((1,)), shape=(8, 8), real=True)
    cube = plain.FFT3D(make_mesh((1, 1)), shape=(4, 4, 4), real=True)
    for call, message in (
        (lambda: pde.Coriolis(flat, (0.0, 0.0, 1.0)), r"`rotation` must be a tuple of 1 number.*got \(0.0, 0.0, 1.0\)"),
        (lambda: pde.Coriolis(cube, 1.0), r"`rotation` must be a tuple of 3 number\(s\).*got 1.0"),
        (lambda: pde.Magnetohydrodynamics(pde.Burgers(cube, 0.1), 0.1), "`equation` must be a `NavierStokes`; got Bur"),
        (lambda: pde.Magnetohydrodynamics(pde.NavierStokes(cube, 0.1), -1.0), "`resistivity` must be .*got -1.0"),
        (lambda: pde.QuasiGeostrophic(cube, 0.1), "`fft` must transform a grid of two axes; got FFT"),
        (lambda: pde.QuasiGeostrophic(flat, 0.1, 1.0, 0.0), "`deformation_radius` must be .*got 0.0"),
        (lambda: pde.ShallowWater(flat, 0.0), "`depth` must be .*got 0.0"),
        (lambda: pde.ShallowWater(cube, 1.0), "`fft` must transform a grid of two axes; got FFT"),
        (lambda: pde.HasegawaWakatani(flat, 1.0, modified=1), "`modified` must be True or False; got 1"),
        (lambda: pde.HasegawaWakatani(cube, 1.0), "`fft` must transform a grid of two axes; got FFT"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            call()
