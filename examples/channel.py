"""Turbulent flow in a plane channel: the mean velocity, its fluctuations, and the balance of stresses across it.

    python examples/channel.py       # a few steps on a tiny grid, too few for turbulence: a minute
    python examples/channel.py --n 97 96 96 --re-tau 180 --lengths 6.283 3.1416 --t-end 20 --average 10 \\
        --dt 0.0005 --mesh 8x1       # turbulence, for GPUs

The program solves the incompressible Navier–Stokes equations between walls at x = 0 and x = 2,

    ∂u/∂t + (u·∇)u = -∇p + ∇²u/Re_tau + e_y   and   ∇·u = 0,

where u = 0 at the walls. The unit of length is half the distance between the walls, and the driving force is 1, so the
friction velocity of the steady flow is 1. Let V be the mean velocity along the channel, ν = 1/Re_tau the viscosity, and
τ the stress at the wall x = 0. Averages over the averaging time then obey

    ν dV/dx - ⟨u'v'⟩ = τ - x + d/dt ∫₀ˣ V dx.

The left side is the sum of the viscous stress and the turbulent stress. The program prints the profiles in wall units,
and the largest error of this balance, which measures the resolution.

Source: Kim, Moin & Moser (J. Fluid Mech. 177, 1987) give these profiles for Re_tau = 180.
"""

from pathlib import Path
from typing import NamedTuple

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
from decompops.pde import SBDF, Channel
from jax import Array
from numpy.polynomial import chebyshev

from options import Parser, at_least, figure, make_mesh, mesh_shape, positive, stable


class Statistics(NamedTuple):
    """Means over time and over planes parallel to the walls. There is one plane for each point along x."""

    velocity: np.ndarray
    """The mean velocity along the channel."""
    fluctuations: np.ndarray
    """The root mean squares of the fluctuations of the three components."""
    turbulent: np.ndarray
    """The turbulent stress -⟨u'v'⟩."""
    change: np.ndarray
    """How much the mean velocity along the channel changes during the averaging time, divided by this time."""
    stress: np.ndarray
    """The viscous stress at both walls."""


def initial_velocity(shape: tuple[int, ...], x: np.ndarray, re_tau: float, amplitude: float) -> np.ndarray:
    """Return the mean profile of Reichardt (1951) at both walls, plus waves and noise that vanish at the walls.

    The first step makes this velocity divergence-free.
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
    """Return the plane means of the components, the plane means of four products, and the stress at both walls."""
    fields = equation.fields(u)
    products = jnp.stack([*(fields * fields), fields[0] * fields[1]])
    return equation.plane_mean(fields), equation.plane_mean(products), equation.wall_stress(u)


def statistics(samples: tuple[np.ndarray, ...], first: np.ndarray, time: float) -> Statistics:
    """Average equally spaced samples by the trapezoidal rule. `first` is V at the start of the averaging time."""
    mean, products, stress = (np.trapezoid(values, axis=0) / (len(values) - 1) for values in samples)
    change = (samples[0][-1, 1] - first) / time
    variances = products[:3] - mean**2
    return Statistics(mean[1], np.sqrt(np.maximum(variances, 0)), mean[0] * mean[1] - products[3], change, stress)


def imbalance(x: np.ndarray, found: Statistics, viscosity: float) -> np.ndarray:
    """Return the error of the balance at each point: the left side minus the right side."""
    degree = len(x) - 1
    series = chebyshev.Chebyshev.fit(x, found.velocity, degree, domain=[0, 2])
    change = chebyshev.Chebyshev.fit(x, found.change, degree, domain=[0, 2]).integ(lbnd=0)
    return viscosity * series.deriv()(x) + found.turbulent - (found.stress[0] - x + change(x))


def plot(
    transform: dops.Transform,
    along: Array,
    x: np.ndarray,
    found: Statistics,
    re_tau: float,
    title: str,
    path: Path,
) -> None:
    """Draw a plane of the flow, and the profiles of the mean velocity, the fluctuations and the stresses."""
    (flow, profile), (fluctuation, stress) = dops.plot.panels(2, 2, title=title)
    dops.plot.slice(transform, along, "y", index=0, vertical="x", ax=flow, title="velocity along the channel")
    half = x <= 1
    wall = re_tau * x[half]
    near, far = wall[wall < 15], wall[wall > 10]
    laws = {"x⁺": (near, near), "2.5 log x⁺ + 5.5": (far, np.log(far) / 0.4 + 5.5)}
    away = wall > 0  # The logarithm of x⁺ is infinite at the wall.
    velocity = {"mean velocity": found.velocity[half][away]}
    dops.plot.curves(wall[away], velocity, references=laws, log="x", xlabel="x⁺", ax=profile, title="mean velocity")
    components = {f"{name} the channel": rms[half] for name, rms in zip(("across", "along"), found.fluctuations)}
    components["spanwise"] = found.fluctuations[2][half]
    dops.plot.curves(wall, components, xlabel="x⁺", ax=fluctuation, title="root mean square fluctuations")
    viscous = chebyshev.Chebyshev.fit(x, found.velocity, len(x) - 1, domain=[0, 2]).deriv()(x) / re_tau
    stresses = {"viscous": viscous, "turbulent": found.turbulent, "sum": viscous + found.turbulent}
    steady = {"steady flow": (x, 1 - x)}
    dops.plot.curves(x, stresses, references=steady, xlabel="x", ax=stress, title="stress")
    flow.figure.savefig(path, dpi=150)


def main(argv: list[str] | None = None) -> tuple[np.ndarray, Statistics]:
    """Run the example. Returns the points between the walls, and the statistics at these points."""
    parser = Parser(__doc__)
    parser.add_argument("--n", type=at_least(8), nargs=3, default=[65, 16, 16], help="points along x, y, z (65 16 16)")
    parser.add_argument(
        "--lengths", type=positive, nargs=2, default=[3.1416, 1.5708], help="lengths of the box along y and z"
    )
    parser.add_argument("--re-tau", type=positive, default=100.0, help="friction Reynolds number (100)")
    parser.add_argument("--amplitude", type=at_least(0.0), default=3.0, help="amplitude of the first perturbation (3)")
    parser.add_argument(
        "--t-end", type=positive, default=0.5, help="final time, in half widths over the friction velocity (0.5)"
    )
    parser.add_argument("--average", type=positive, default=0.25, help="averaging time at the end (0.25)")
    parser.add_argument("--dt", type=positive, default=0.001, help="time step (0.001)")
    parser.add_argument("--mesh", type=mesh_shape, help="devices along x and y (2x1)")
    parser.add_argument("--out", type=figure, default="channel.png", help="file of the figure (channel.png)")
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
        box = dops.Box((2.0, *args.lengths))
        transform = dops.Transform(mesh, shape=tuple(args.n), bases=bases, box=box, pad=True)
        equation = Channel(transform, 1 / args.re_tau, drive=1.0)
        solver, middle = SBDF(equation, args.dt), developed * args.dt
        print(f"{title}, {developed} + {averaged} steps, {mesh.devices.size} devices", flush=True)
        x = 2 * bases[0].points(args.n[0])
        velocity = initial_velocity(tuple(args.n), x, args.re_tau, args.amplitude)
        begun = solver.start(equation.state(transform.decomposition.shard(velocity)))
        first = stable(solver, begun, middle)
        averaging = {"interval": every * args.dt, "observe": lambda t, u: moments(equation, u)}
        second = stable(solver, first.u, middle + averaged * args.dt, t=middle, **averaging)
        divergence = transform.decomposition.gather(equation.transform.inverse(equation.divergence(second.u.state)))
        along = equation.fields(second.u.state)[1]
    mean, products, stress = second.observed
    samples = mean[..., : args.n[0]], products[..., : args.n[0]], stress  # without the padding
    found = statistics(samples, samples[0][0, 1], averaged * args.dt)

    print("      x       x⁺  velocity   across    along spanwise   stress")
    half = np.flatnonzero(x <= 1)
    for row in sorted({*half[np.linspace(0, len(half) - 1, 10).round().astype(int)]}):
        numbers = found.velocity[row], *found.fluctuations[:, row], found.turbulent[row]
        print(f"{x[row]:7.4f}{args.re_tau * x[row]:9.3f}" + "".join(f"{value:9.4f}" for value in numbers))
    weights = bases[0].weights(args.n[0])
    bulk = float(weights @ found.velocity)
    gained = 1 - found.stress.sum() / 2
    print(f"The bulk velocity is {bulk:.4f}, and the bulk Reynolds number is {2 * bulk * args.re_tau:.0f}.")
    print(f"The stress at the walls is {found.stress[0]:.4f} and {found.stress[1]:.4f}; a steady flow has 1 at both.")
    change = float(weights @ found.change)
    print(f"The mean velocity changes at the rate {change:.6f}; force minus stress is {gained:.6f}.")
    print(f"The error of the balance of stresses is at most {abs(imbalance(x, found, 1 / args.re_tau)).max():.1e}.")
    print(f"The divergence of the velocity is at most {abs(divergence).max():.1e}.")
    plot(transform, along, x, found, args.re_tau, title, args.out)
    print(f"Figure: {args.out}")
    return x, found


if __name__ == "__main__":
    main()
