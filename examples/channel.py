"""Turbulent flow in a plane channel: the mean velocity, its fluctuations, and the balance of stresses across it.

    python examples/channel.py                               # a few steps on a tiny grid: a check, not turbulence
    python examples/channel.py --n 97 96 96 --re-tau 180 --lengths 6.283 3.1416 --t-end 20 --average 10 \\
        --dt 0.0005 --mesh 8x1                               # for GPUs

The walls are at x = 0 and x = 2. The driving force and half the distance of the walls are 1, so that the friction
velocity of the steady flow is 1, and its viscosity is 1 / Re_tau. The stress across the channel has two parts, of
viscosity and of turbulence. The mean momentum of the averaging time says what their sum is:

    ν dV/dx - ⟨u'v'⟩ = τ - x + d/dt ∫₀ˣ V dx,

where V is the mean velocity along the channel, τ the stress at the wall x = 0, and u the velocity across. This program
prints how well the balance holds, which is as well as the flow is resolved. It also prints the profiles in wall units,
which Kim, Moin & Moser (J. Fluid Mech. 177, 1987) have computed for Re_tau = 180.
"""

from typing import NamedTuple

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
from decompops.pde import SBDF, Channel
from jax import Array
from numpy.polynomial import chebyshev

from options import Parser, at_least, figure, make_mesh, mesh_shape, positive


class Statistics(NamedTuple):
    """Means over planes parallel to the walls and over time: arrays over the points between the walls."""

    velocity: np.ndarray
    """Along the channel."""
    fluctuations: np.ndarray
    """Root mean squares of the three components."""
    turbulent: np.ndarray
    """The turbulent stress, `-⟨u'v'⟩`."""
    change: np.ndarray
    """How much the mean velocity along the channel changed during the averaging time, over that time."""
    stress: np.ndarray
    """The viscous stress at both walls."""


def initial_velocity(shape: tuple[int, ...], x: np.ndarray, re_tau: float, amplitude: float) -> np.ndarray:
    """The mean profile of Reichardt (1951) at both walls, with waves and noise added that vanish at the walls.

    The first step makes the velocity divergence-free.
    """
    distance = re_tau * np.minimum(x, 2 - x)
    mean = np.log(1 + 0.4 * distance) / 0.4 + 7.8 * (1 - np.exp(-distance / 11) - distance / 11 * np.exp(-distance / 3))
    z = 2 * np.pi * np.arange(shape[2]) / shape[2]
    y = 2 * np.pi * np.arange(shape[1])[:, None] / shape[1]
    noise = np.random.default_rng(0).standard_normal((3, *shape))
    waves = np.stack([np.sin(y) * np.sin(2 * z), np.cos(2 * z) + 0 * y, np.sin(y) * np.cos(2 * z)])
    shape_across = (x * (2 - x))[:, None, None]
    velocity = amplitude * shape_across * (waves[:, None] + 0.2 * noise)
    velocity[1] += mean[:, None, None]
    return velocity


def moments(equation: Channel, u: Array) -> tuple[Array, Array, Array]:
    """Means over planes of the components and of four products, and the stress at both walls."""
    fields = equation.fields(u)
    products = jnp.stack([*(fields * fields), fields[0] * fields[1]])
    return equation.plane_mean(fields), equation.plane_mean(products), equation.wall_stress(u)


def statistics(samples: tuple[np.ndarray, ...], first: np.ndarray, time: float) -> Statistics:
    """Averages over samples at equal intervals, by the trapezoidal rule; `first` is V when averaging began."""
    mean, products, stress = (np.trapezoid(values, axis=0) / (len(values) - 1) for values in samples)
    change = (samples[0][-1, 1] - first) / time
    variances = products[:3] - mean**2
    return Statistics(mean[1], np.sqrt(np.maximum(variances, 0)), mean[0] * mean[1] - products[3], change, stress)


def imbalance(x: np.ndarray, found: Statistics, viscosity: float) -> np.ndarray:
    """The sum of both stresses less what the momentum says it is, at each point."""
    degree = len(x) - 1
    series = chebyshev.Chebyshev.fit(x, found.velocity, degree, domain=[0, 2])
    change = chebyshev.Chebyshev.fit(x, found.change, degree, domain=[0, 2]).integ(lbnd=0)
    return viscosity * series.deriv()(x) + found.turbulent - (found.stress[0] - x + change(x))


def plot(
    transform: dops.Transform,
    along: Array,
    box: dops.Box,
    x: np.ndarray,
    found: Statistics,
    re_tau: float,
    title: str,
    path,
) -> None:
    flow, profile, fluctuation, stress = dops.plot.panels(1, 4, title=title)
    dops.plot.slice(transform, along, "y", index=0, box=box, vertical="x", ax=flow, title="velocity along the channel")
    half = x <= 1
    wall = re_tau * x[half]
    near, far = wall[wall < 15], wall[wall > 10]
    laws = {"x⁺": (near, near), "2.5 log x⁺ + 5.5": (far, np.log(far) / 0.4 + 5.5)}
    away = wall > 0  # of the wall, where the logarithm is infinite
    velocity, title = {"mean velocity": found.velocity[half][away]}, "mean velocity"
    dops.plot.curves(wall[away], velocity, references=laws, log="x", xlabel="x⁺", ax=profile, title=title)
    components = {name: values[half] for name, values in zip(("across", "along", "beside"), found.fluctuations)}
    dops.plot.curves(wall, components, xlabel="x⁺", ax=fluctuation, title="fluctuations, root mean square")
    viscous = chebyshev.Chebyshev.fit(x, found.velocity, len(x) - 1, domain=[0, 2]).deriv()(x) / re_tau
    stresses = {"viscous": viscous, "turbulent": found.turbulent, "sum": viscous + found.turbulent}
    dops.plot.curves(x, stresses, references={"1 - x": (x, 1 - x)}, xlabel="x", ax=stress, title="stress")
    flow.figure.savefig(path, dpi=150)


def main(argv: list[str] | None = None) -> tuple[np.ndarray, Statistics]:
    """Returns the points between the walls, and the statistics there."""
    parser = Parser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--n", type=at_least(8), nargs=3, default=[65, 16, 16], help="points along x, y, z (65 16 16)")
    parser.add_argument("--lengths", type=positive, nargs=2, default=[3.1416, 1.5708], help="of the box along y and z")
    parser.add_argument("--re-tau", type=positive, default=100.0, help="friction Reynolds number (100)")
    parser.add_argument("--amplitude", type=at_least(0.0), default=3.0, help="of the perturbation at first (3)")
    parser.add_argument("--t-end", type=positive, default=0.5, help="final time, of half width over friction velocity")
    parser.add_argument("--average", type=positive, default=0.25, help="averaging time at the end (0.25)")
    parser.add_argument("--dt", type=positive, default=0.001, help="time step (0.001)")
    parser.add_argument("--mesh", type=mesh_shape, help="devices along x and y (2x1)")
    parser.add_argument("--out", type=figure, default=figure("channel.png"), help="the figure (channel.png)")
    args = parser.parse_args(argv)
    if args.average >= args.t_end:
        parser.error(f"argument --average: must be less than the final time {args.t_end:g}; got '{args.average:g}'")
    mesh = make_mesh(parser, args.mesh, x=2, y=1)
    every = max(1, round(args.average / args.dt / 400))
    averaged = every * max(1, round(args.average / args.dt / every))
    developed = max(1, round(args.t_end / args.dt) - averaged)
    title = f"Channel flow, Re_tau = {args.re_tau:g}, {'x'.join(map(str, args.n))} points"

    with jax.set_mesh(mesh):
        bases = (dops.Chebyshev(), dops.Fourier(), dops.Fourier(half=True))
        transform = dops.Transform(mesh, shape=tuple(args.n), bases=bases, pad=True)
        box = dops.Box((2.0, *args.lengths))
        equation = Channel(transform, 1 / args.re_tau, box, drive=1.0)
        solver = SBDF(equation, args.dt)
        print(f"{title}, {developed} + {averaged} steps, {mesh.devices.size} devices")
        x = 2 * bases[0].points(args.n[0])
        velocity = initial_velocity(tuple(args.n), x, args.re_tau, args.amplitude)
        history = solver.start(equation.state(transform.decomposition.shard(velocity)))
        history, _ = solver.rollout(history, developed)
        start = jax.jit(lambda u: moments(equation, u))(history.state)
        history, later = solver.rollout(history, averaged, every=every, observe=lambda t, u: moments(equation, u))
        divergence = transform.decomposition.gather(equation.transform.inverse(equation.divergence(history.state)))
        along = equation.fields(history.state)[1]
    samples = tuple(np.concatenate([np.asarray(a)[None], np.asarray(b)]) for a, b in zip(start, later))
    samples = (*(values[..., : args.n[0]] for values in samples[:2]), samples[2])  # without padding
    if not np.isfinite(samples[0]).all():
        raise SystemExit("The run became unstable; use a smaller --dt.")
    found = statistics(samples, samples[0][0, 1], averaged * args.dt)

    print("      x       x⁺  velocity   across    along   beside   stress")
    half = np.flatnonzero(x <= 1)
    for row in sorted({*half[np.linspace(0, len(half) - 1, 10).round().astype(int)]}):
        numbers = found.velocity[row], *found.fluctuations[:, row], found.turbulent[row]
        print(f"{x[row]:7.4f}{args.re_tau * x[row]:9.3f}" + "".join(f"{value:9.4f}" for value in numbers))
    weights = bases[0].weights(args.n[0])
    bulk = float(weights @ found.velocity)
    gained = 1 - found.stress.sum() / 2
    print(f"The mean velocity of the volume is {bulk:.4f}, and its Reynolds number {2 * bulk * args.re_tau:.0f}.")
    print(f"The stress at the walls is {found.stress[0]:.4f} and {found.stress[1]:.4f}; in a steady flow it is 1.")
    change = float(weights @ found.change)
    print(f"The mean velocity changes at the rate {change:.6f}; drive less stress is {gained:.6f}.")
    print(f"The stresses differ from their balance by at most {abs(imbalance(x, found, 1 / args.re_tau)).max():.1e}.")
    print(f"The divergence of the velocity is at most {abs(divergence).max():.1e}.")
    plot(transform, along, box, x, found, args.re_tau, title, args.out)
    print(f"Figure: {args.out}")
    return x, found


if __name__ == "__main__":
    main()
