"""Tests of flows between no-slip walls: exact solutions, growth rates, critical numbers, budgets, derivatives."""

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from decompops import pde, spectral

from helpers import assert_close, make_mesh, random_field


CHANNEL = dops.Box((2.0, 4.0, 3.0))
BASES = dops.Chebyshev(), dops.Fourier(), dops.Fourier(half=True)
# The critical Rayleigh number of convection between rigid walls, and its wavenumber (Chandrasekhar 1961).
CRITICAL_WAVENUMBER, CRITICAL_RAYLEIGH = 3.11632, 1707.762


def transform(shape, sizes, kind="auto", **options) -> dops.Transform:
    bases = BASES if len(shape) == 3 else (BASES[0], BASES[2])
    axes = None if len(shape) == 3 else "x"
    return dops.Transform(make_mesh(sizes, kind), bases=bases, shape=shape, axes=axes, pad=True, **options)


def heights(n: int, ndim: int) -> np.ndarray:
    return dops.Chebyshev().points(n).reshape(-1, *[1] * (ndim - 1))


def on_grid(equation, u) -> np.ndarray:
    return equation.transform.decomposition.gather(equation.fields(u))


@pytest.mark.parametrize(
    ("shape", "sizes", "kind"),
    [((18, 6, 10), (2, 2), "explicit"), pytest.param((17, 12), (4,), "auto", marks=pytest.mark.sweep)],
)
def test_every_flow_becomes_poiseuille_flow(shape, sizes, kind):
    """A random flow becomes Poiseuille flow, which then stays constant.

    Already after one step, any flow is zero at the walls and divergence-free.
    """
    ndim, viscosity = len(shape), 0.1
    fft = transform(shape, sizes, kind, box=dops.Box(CHANNEL.lengths[:ndim]))
    equation = pde.Channel(fft, viscosity, drive=2 * viscosity)
    x = 2 * heights(shape[0], ndim)
    poiseuille = np.zeros((ndim, *shape))
    poiseuille[1] = 1 - (x - 1) ** 2
    noise = 0.3 * random_field((ndim, *shape)) * (1 - (x - 1) ** 2) ** 2

    @jax.jit
    def run(fields, dt, steps):
        """Return the fields after some steps, their divergence, and the largest coefficient of the state."""
        step = lambda i, u: pde.IMEXRK(equation, dt).step(0.0, u)
        u = jax.lax.fori_loop(0, steps, step, equation.state(fields))
        return equation.fields(u), equation.divergence(u), jnp.max(jnp.abs(u))

    with jax.set_mesh(fft.decomposition.mesh):
        still, *_ = run(fft.decomposition.shard(poiseuille), 0.1, 300)
        assert_close(fft.decomposition.gather(still), poiseuille, 1e-13)
        noisy = fft.decomposition.shard(poiseuille + noise)
        first, divergence, largest = run(noisy, 0.005, 1)
        assert abs(fft.decomposition.gather(first)[:, [0, -1]]).max() < 1e-13
        assert abs(np.asarray(divergence)).max() < 1e-13 * float(largest)
        steady, divergence, _ = run(noisy, 0.1, 300)
        assert abs(np.asarray(divergence)).max() < 1e-13 * float(largest)
        assert_close(fft.decomposition.gather(steady), poiseuille, 1e-4)


@pytest.mark.sweep
def test_decay_of_a_stokes_mode():
    """The shear flow `cos(π x / 2)` between walls at x = ±1 decays as `exp(-ν (π/2)² t)`."""
    fft, viscosity = transform((24, 4, 4), (1, 1), box=CHANNEL), 0.3
    equation = pde.Channel(fft, viscosity)
    x = 2 * heights(24, 3)
    shear = np.zeros((3, 24, 4, 4))
    shear[1], shear[2] = np.sin(np.pi * x / 2), 0.5 * np.sin(np.pi * x)
    rates = viscosity * np.array([0, np.pi / 2, np.pi]) ** 2
    later = np.exp(-rates)[:, None, None, None] * shear
    u = jax.jit(lambda shear: pde.SBDF(equation, 0.01, 3).rollout(equation.state(shear), 100)[0])(shear)
    assert_close(on_grid(equation, u), later, 3e-6)


def test_growth_of_the_orr_sommerfeld_mode():
    """The Orr–Sommerfeld mode has the phase speed c = 0.24989154 + 0.00223498i at Re = 7500 and wavenumber 1.

    Let R be the resolvent of the linear part L for a step of length one, and J the Jacobian of the nonlinear part. Then
    `(L + J) u = λ u` is the generalised eigenvalue problem `R (1 + J) u - u = λ R u`.
    """
    n, viscosity = 64, 1 / 7500
    fft = transform((n, 4), (1,), box=dops.Box((2.0, 2 * np.pi)))
    equation = pde.Channel(fft, viscosity, drive=2 * viscosity, dealiasing=None)
    base = np.zeros((2, n, 4))
    base[1] = 1 - (2 * heights(n, 2) - 1) ** 2
    start = equation.state(base)

    def column(j):
        w = jnp.zeros_like(start).reshape(2 * n, -1).at[j, 1].set(1).reshape(start.shape)
        pushed = jax.jvp(lambda u: equation.nonlinear(0.0, u), (start,), (w,))[1]
        images = equation.resolvent(w + pushed, 1.0), equation.resolvent(w, 1.0)
        return [image.reshape(2 * n, -1)[:, 1] for image in images]

    a, b = (np.asarray(columns).T for columns in jax.jit(jax.vmap(column))(jnp.arange(2 * n)))
    values = scipy.linalg.eigvals(a - np.eye(2 * n), b)  # For gradients, R is zero, so some eigenvalues are infinite.
    values = 1j * values[np.isfinite(values)]
    nearest = values[np.argmin(abs(values - (0.25 + 0.002j)))]
    assert abs(nearest - (0.24989154 + 0.00223498j)) < 1e-8


def conduction(n: int, along: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Return the fields of the state without motion, and a perturbation of the temperature."""
    s = heights(n, 2)
    base, perturbation = np.zeros((2, 3, n, along))
    base[2] = 1 - s
    perturbation[2] = np.sin(np.pi * s) * np.cos(2 * np.pi * np.arange(along) / along)
    return base, perturbation


def stage(equation, u, h):
    """Return the result of an explicit step of the nonlinear part, followed by an implicit step."""
    return equation.resolvent(u + h * equation.nonlinear(0.0, u), h)


def test_convection_begins_at_the_critical_rayleigh_number():
    """The growth rate is zero at the critical Rayleigh number.

    The test finds this number by bisection, and by Newton's method with the derivative of the growth rate.
    """
    n = 20
    fft = transform((n, 4), (1,), box=dops.Box((1.0, 2 * np.pi / CRITICAL_WAVENUMBER)))
    base, perturbation = conduction(n)

    @jax.jit
    @jax.value_and_grad
    def growth(rayleigh):
        equation = pde.RayleighBenard(fft, rayleigh, 1.0, dealiasing=None)
        step = lambda u: stage(equation, u, 1.0)
        start = equation.state(base)

        def grow(w, _):
            w = jax.jvp(step, (start,), (w,))[1]
            norm = jnp.sqrt(jnp.sum(jnp.abs(w) ** 2))
            return w * (1 / norm).astype(w.dtype), jnp.log(norm)

        return jax.lax.scan(grow, equation.state(perturbation), length=40)[1][-1]

    low, high = 1700.0, 1720.0
    assert growth(low)[0] < 0 < growth(high)[0]
    for _ in range(11):
        middle = (low + high) / 2
        low, high = (low, middle) if growth(middle)[0] > 0 else (middle, high)
    assert low == pytest.approx(CRITICAL_RAYLEIGH, rel=1e-5)
    rayleigh = 1650.0
    for _ in range(3):
        value, slope = growth(rayleigh)
        rayleigh = rayleigh - float(value / slope)
    assert rayleigh == pytest.approx(CRITICAL_RAYLEIGH, rel=1e-6)
    difference = (growth(1700.0 + 0.1)[0] - growth(1700.0 - 0.1)[0]) / 0.2
    assert growth(1700.0)[1] == pytest.approx(float(difference), rel=1e-5)


def test_steady_rolls_have_the_nusselt_number_of_clever_and_busse():
    """At Ra = 3000 and Pr = 0.71, the Nusselt number is 1.66 (J. Fluid Mech. 65, 1974). The budget of heat closes."""
    n, along, rayleigh, prandtl = 24, 16, 3e3, 0.71
    fft = transform((n, along), (2,), "explicit", box=dops.Box((1.0, 2.0155)))
    equation = pde.RayleighBenard(fft, rayleigh, prandtl)
    base, perturbation = conduction(n, along)
    dec = fft.decomposition
    with jax.set_mesh(dec.mesh):

        @jax.jit
        def run(fields):
            u, nusselt = pde.SBDF(equation, 0.15, 2).rollout(
                equation.state(fields), 600, every=300, observe=lambda t, u: equation.nusselt(u)
            )
            fields = equation.fields(u)
            return nusselt, fft.volume_mean(fields[0] * fields[2])

        nusselt, carried = run(dec.shard(base + 0.2 * perturbation))
        before, nusselt = map(float, nusselt)
        assert nusselt == pytest.approx(1.66, abs=3e-3)
        assert nusselt == pytest.approx(before, rel=1e-4)
    diffusivity = 1 / np.sqrt(rayleigh * prandtl)
    assert 1 + float(carried) / diffusivity == pytest.approx(nusselt, rel=1e-4)


def test_wall_temperatures_that_vary():
    """Without motion, heat is conducted. A sinusoidal temperature of the lower wall decays upwards as a `sinh`."""
    n, along = 24, 8
    fft = transform((n, along), (2,), box=dops.Box((1.0, 4.0)))
    q, s = 2 * np.pi / 4.0, heights(n, 2)
    wave = np.cos(2 * np.pi * np.arange(along) / along)
    equation = pde.RayleighBenard(fft, 1e-6, 1.0, bottom=1 + 0.3 * wave, top=0.0)
    conducted = 1 - s + 0.3 * np.sinh(q * (1 - s)) / np.sinh(q) * wave

    @jax.jit
    def run(fields):
        u, _ = pde.SBDF(equation, 1e-3).rollout(equation.state(fields), 60)
        return equation.fields(u), equation.nusselt(u)

    fields, nusselt = run(fft.decomposition.shard(np.zeros((3, n, along))))
    assert_close(fft.decomposition.gather(fields)[2], conducted, 1e-6)
    assert float(nusselt) == pytest.approx(1.0, rel=1e-6)


def test_derivatives():
    """Test first derivatives and a second derivative with respect to state, Rayleigh number and wall temperature."""
    n, along = 9, 6
    fft = transform((n, along), (2,), box=dops.Box((1.0, 2.0)))
    base, perturbation = conduction(n, along)
    start, direction = base + perturbation, random_field((3, n, along), seed=3)
    wave = np.cos(2 * np.pi * np.arange(along) / along)
    dec = fft.decomposition

    @jax.value_and_grad
    def loss(parts):
        fields, rayleigh, bottom = parts
        equation = pde.RayleighBenard(fft, rayleigh, 0.7, bottom=bottom)
        return jnp.sum(equation.fields(stage(equation, equation.state(fields), 0.1)) ** 2)

    point = dec.shard(start), jnp.asarray(2e4), jnp.ones(along)
    directions = dec.shard(direction), jnp.asarray(1.0), jnp.asarray(wave)
    both = jax.jit(lambda point: jax.jvp(loss, (point,), (directions,)))
    (_, gradients), (_, (_, _, second)) = both(point)
    for i, step in enumerate((1e-5, 1.0, 1e-5)):

        def moved(by, i=i):
            return tuple(x + by * d if j == i else x for j, (x, d) in enumerate(zip(point, directions)))

        above, below = (float(both(moved(by))[0][0]) for by in (step, -step))
        slope = np.vdot(gradients[i], directions[i])
        assert slope == pytest.approx((above - below) / (2 * step), rel=1e-6)
    ends = (jax.tree.map(lambda x, d, by=by: x + by * d, point, directions) for by in (1e-5, -1e-5))
    forward, backward = (np.asarray(both(end)[0][1][2]) for end in ends)
    assert_close(second, (forward - backward) / 2e-5, 1e-6)


def test_derivatives_by_the_lengths_of_the_box():
    """The length along the walls is traced in both flows, and the distance of the walls in the channel."""
    n, along = 9, 6
    fft = transform((n, along), (2,), "explicit")
    base, perturbation = conduction(n, along)
    fields = fft.decomposition.shard(base + 0.3 * perturbation + 0.1 * random_field((3, n, along)))

    def loss(height, width):
        channel = pde.Channel(fft.replace(box=dops.Box((height, width))), 0.1, drive=1.0)
        convection = pde.RayleighBenard(fft.replace(box=dops.Box((1.0, width))), 2e3, 0.7)
        flow, warm = channel.state(fields[:2]), convection.state(fields)
        return jnp.sum(channel.fields(stage(channel, flow, 0.1)) ** 2) + jnp.sum(
            convection.fields(stage(convection, warm, 0.1)) ** 2
        )

    with jax.set_mesh(fft.decomposition.mesh):
        both = jax.jit(jax.value_and_grad(loss, (0, 1)))
        value, derivatives = both(2.0, 3.0)
        assert_close(value, jax.jit(lambda: loss(2.0, 3.0))(), 1e-12)  # These lengths are constants.
        for derivative, (dx, dy) in zip(derivatives, ((1e-5, 0.0), (0.0, 1e-5))):
            above, below = both(2.0 + dx, 3.0 + dy)[0], both(2.0 - dx, 3.0 - dy)[0]
            assert_close(derivative, (above - below) / 2e-5, 1e-6)


def test_an_implicit_step_of_length_zero_changes_nothing():
    """An implicit step of length zero does not change a state that satisfies the conditions at the walls.

    If the viscosity is zero, an implicit step of any length changes nothing.
    """
    shape = (12, 6, 8)
    fft = transform(shape, (2,), box=dops.Box((1.0, 2.0, 3.0)))
    convection, channel = pde.RayleighBenard(fft, 2e3, 0.7), pde.Channel(fft, 0.0)
    fields = fft.decomposition.shard(random_field((4, *shape)))

    @jax.jit
    def run(fields):
        u = convection.resolvent(convection.state(fields), 0.1)
        return u, convection.resolvent(u, 0.0), channel.resolvent(u[:3], 0.1)

    u, again, flow = run(fields)
    assert_close(again, u, 1e-11)
    assert_close(flow, u[:3], 1e-11)


def test_batches_precision_and_every_rule_of_products():
    n, along = 12, 8
    fft = transform((n, along), (2,), box=dops.Box((1.0, 2.0)))
    base, perturbation = conduction(n, along)
    both = fft.decomposition.shard(np.stack([base, base + 0.1 * perturbation]))
    rules = (None, spectral.Truncate(), spectral.Pad(1.5), spectral.Mask())
    equations = [pde.RayleighBenard(fft, 2e3, 1.0, dealiasing=rule) for rule in rules]

    @jax.jit
    def run(both):
        states = [equation.state(both) for equation in equations]
        fields = [equation.fields(stage(equation, u, 0.05)) for equation, u in zip(equations, states)]
        return fields, jax.vmap(lambda u: equations[0].fields(stage(equations[0], u, 0.05)))(states[0])

    fields, mapped = run(both)
    assert_close(mapped, fields[0], 1e-12)
    for later in fields[1:]:  # All dealiasing rules resolve the flow.
        assert_close(later, fields[0], 1e-3)
    u = jax.eval_shape(equations[0].state, jax.ShapeDtypeStruct((3, n, along), np.float32))
    assert jax.eval_shape(lambda u: stage(equations[0], u, 0.1), u).dtype == np.complex64


@pytest.mark.parametrize("basis", [dops.Chebyshev(1), dops.Chebyshev(2)], ids=repr)
def test_products_of_polynomials_are_free_of_aliasing_for_every_rule(basis):
    """Every rule gives the exact coefficients that it keeps. `Mask` leaves out all products with other polynomials."""
    n = 13
    fft = dops.Transform(make_mesh((1,)), bases=(basis, BASES[2]), shape=(n, 4), axes="x", box=dops.Box((2.0, 4.0)))
    for rule, kept in ((spectral.Truncate(), None), (spectral.Pad(1.5), n), (spectral.Mask(), 7)):
        equation = pde.Channel(fft.replace(norm="forward"), 0.1, dealiasing=rule)
        kept = kept or equation.transform.modes[0]
        a, b = np.random.default_rng(0).standard_normal((2, kept))
        lines = np.zeros((2, *equation.transform.out_layout.shape), complex)
        lines[0, :kept, 0], lines[1, :kept, 0] = a / 2, b / 2  # With this norm, coefficients are stored halved.
        u, v = equation.to_grid(jnp.asarray(lines))
        expected = np.polynomial.chebyshev.chebmul(a, b)[:kept] / 2
        found = np.asarray(equation.from_grid(u * v))
        assert_close(found[:kept, 0].real, expected, 1e-13)
        assert not found[kept:].any()


def test_flow_on_a_grid_without_points_at_the_walls():
    """The points next to the walls of `Chebyshev(2)` are no walls: the fluid moves there."""
    basis, n = dops.Chebyshev(2), 8
    fft = dops.Transform(make_mesh((2,)), bases=(basis, BASES[2]), shape=(n, 4), axes="x", box=dops.Box((2.0, 4.0)))
    equation = pde.Channel(fft, 0.1, drive=0.2, wall_velocity=(0.0, 1.0))
    x = 2 * basis.points(n)[:, None]
    flow = np.stack([np.zeros((n, 4)), (1 - (x - 1) ** 2 + x / 2) * np.ones(4)])
    after = jax.jit(lambda u: equation.fields(stage(equation, u, 0.1)))(equation.state(flow))
    assert_close(fft.decomposition.gather(after), flow, 1e-13)


def test_bad_input_is_refused(plain):
    chebyshev, f, h = plain.Chebyshev(), plain.Fourier(), plain.Fourier(half=True)
    unit = plain.Box((1.0, 2.0, 2.0))

    def fft(*bases, sizes=(1, 1), shape=(8, 8, 8), box=unit):
        return plain.Transform(make_mesh(sizes), bases=bases, shape=shape, box=box)

    for make, message in (
        (lambda: plain.pde.Channel(fft(f, h, chebyshev), 0.1), "must have its walls normal to x.*first axis"),
        (lambda: plain.pde.Channel(fft(f, f, h), 0.1), r"must have the basis `Chebyshev\(\)` along x"),
        (lambda: plain.pde.Channel(fft(chebyshev, h, plain.Cosine(2)), 0.1), "must be periodic along z"),
        (lambda: plain.pde.Channel(fft(chebyshev, f, f), 0.1), "must be built with `real=True`|real fields"),
        (lambda: plain.pde.Channel(None, 0.1), "`fft` must be an `FFT` or a `Transform`; got None"),
        (lambda: plain.pde.Channel(fft(chebyshev, f, h), -1.0), "`viscosity` must be a finite number"),
        (
            lambda: plain.pde.RayleighBenard(fft(chebyshev, f, h), 0.0, 1.0),
            "`rayleigh` must be a positive, finite number; got 0.0",
        ),
        (
            lambda: plain.pde.RayleighBenard(fft(chebyshev, f, h, box=plain.Box(jnp.array([2.0, 1, 1]))), 1e4, 1.0),
            r"`fft` must have a `box` of the length 1 along x.*got Box\(\(.*2",
        ),
        (
            lambda: plain.pde.RayleighBenard(fft(chebyshev, f, h, box=plain.Box(2.0)), 1e4, 1.0),
            r"`fft` must have a `box` of the length 1 along x.*got Box\(\(2.0, 2.0, 2.0\)\)",
        ),
        *(
            (
                lambda wall=wall, bad=bad: plain.pde.RayleighBenard(fft(chebyshev, f, h), 1e4, 1.0, **{wall: bad}),
                f"`{wall}` must be {message}",
            )
            for wall in ("bottom", "top")
            for bad, message in (
                (jnp.ones(8), r"a real number or a real array of shape \(8, 8\); got an array float64\[8\]"),
                (np.ones((8, 8), complex), r"a real .*; got an array complex128\[8, 8\]"),
                (1j, "a real .*; got 1j"),
                (None, "a real .*; got None"),
                ("hot", "a real .*; got 'hot'"),
                (lambda t: jnp.exp(1j), "a real .*; got "),
                (np.nan, "finite; got nan"),
                (lambda t: jnp.full((8, 8), jnp.inf), r"finite; got an array float64\[8, 8\]"),
            )
        ),
        (
            lambda: plain.pde.NavierStokes(fft(chebyshev, f, h), 0.1),
            "modes each have one wavenumber.*got Chebyshev",
        ),
        *(
            (lambda make=make: make(fft(chebyshev, f, h, box=None)), r"`box` must be given.*along x .*got Chebyshev")
            for make in (lambda f: plain.pde.Channel(f, 0.1), lambda f: plain.pde.RayleighBenard(f, 1e4, 1.0))
        ),
        (lambda: plain.pde.ETDRK(plain.pde.Channel(fft(chebyshev, f, h), 0.1), 0.1), "`equation` must be an"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            make()
