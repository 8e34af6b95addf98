"""Rayleigh–Bénard convection: rolls between a hot and a cold wall, and five formulas for the heat that they carry.

    python examples/rayleigh_benard.py                          # Ra = 1e5, Pr = 1, in two dimensions: a minute
    python examples/rayleigh_benard.py --ndim 3 --n 32 --t-end 60 --mesh 2x2
    python examples/rayleigh_benard.py --rayleigh 3000 --prandtl 0.71 --aspect 2.0155 --n 24 --t-end 80

The program solves the Boussinesq equations between walls at x = 0 and x = 1 with the temperatures T = 1 and T = 0:

    ∂u/∂t + (u·∇)u = -∇p + ν∇²u + T eₓ,   ∇·u = 0   and   ∂T/∂t + u·∇T = κ∇²T,

where ν = (Pr/Ra)^(1/2) and κ = (Pr Ra)^(-1/2); the unit of time is the free-fall time. In a steady flow, five formulas
give the same Nusselt number. The program prints the results of all five:

- the heat flux through the bottom wall, divided by the heat flux by conduction alone;
- the same quotient at the top wall;
- 1 + ⟨uₓT⟩/κ, from the mean heat flux in the volume;
- ⟨|∇T|²⟩, from the dissipation of the temperature variance;
- 1 + ν⟨|∇u|²⟩/κ, from the dissipation of kinetic energy.

The last command computes the steady rolls of Clever & Busse (J. Fluid Mech. 65, 1974), whose Nusselt number is 1.66.
"""

from argparse import Namespace
from pathlib import Path
from typing import NamedTuple

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
from decompops.pde import SBDF, RayleighBenard
from jax import Array

from options import Parser, at_least, figure, make_mesh, mesh_shape, positive, stable


class Nusselt(NamedTuple):
    """The Nusselt number by five formulas. Each field is an array over time."""

    bottom: np.ndarray | Array
    top: np.ndarray | Array
    volume: np.ndarray | Array
    thermal: np.ndarray | Array
    viscous: np.ndarray | Array


def initial_fields(shape: tuple[int, ...], rolls: int) -> np.ndarray:
    """Return a fluid at rest whose temperature falls linearly from 1 to 0, plus weak rolls and, in 3D, noise."""
    x = dops.Chebyshev().points(shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    y = (np.arange(shape[1]) / shape[1]).reshape(-1, *[1] * (len(shape) - 2))
    pattern = 0.1 * np.cos(2 * np.pi * rolls * y)
    if len(shape) == 3:  # Without noise, two-dimensional rolls remain two-dimensional.
        pattern = pattern + 0.02 * np.random.default_rng(0).standard_normal(shape[1:])
    temperature = 1 - x + np.sin(np.pi * x) * np.broadcast_to(pattern, shape[1:])
    return np.stack([*[np.zeros(shape)] * len(shape), temperature])


def nusselt(equation: RayleighBenard, u: Array) -> Nusselt:
    """Return the Nusselt number of a state by the five formulas."""
    fields = equation.fields(u)
    viscosity, diffusivity = (
        (equation.prandtl / equation.rayleigh) ** 0.5,
        (equation.prandtl * equation.rayleigh) ** -0.5,
    )
    *shear, thermal = jnp.unstack(equation.gradient_squares(u))
    return Nusselt(
        equation.nusselt(u),
        equation.nusselt(u, "top"),
        1 + equation.transform.volume_mean(fields[0] * fields[-1]) / diffusivity,
        thermal,
        1 + viscosity * sum(shear) / diffusivity,
    )


def report(time: np.ndarray, numbers: Nusselt) -> None:
    """Print the five Nusselt numbers over time, and how much they differ at the end."""
    print("   time" + "".join(f"{name:>12}" for name in numbers._fields))
    for row in sorted({*np.linspace(0, len(time) - 1, 10).round().astype(int)}):
        print(f"{time[row]:7.2f}" + "".join(f"{values[row]:12.6f}" for values in numbers))
    half = len(time) // 2
    means = [float(values[half:].mean()) for values in numbers]
    print(f"The mean Nusselt number of the second half is {np.mean(means):.6f}.")
    last = [float(values[-1]) for values in numbers]
    print(f"At the end the five Nusselt numbers differ by {(max(last) - min(last)) / min(last):.1e}.")


def plot(
    transform: dops.Transform,
    temperature: Array,
    time: np.ndarray,
    numbers: Nusselt,
    title: str,
    path: Path,
) -> None:
    """Draw the last temperature, and the Nusselt numbers over time."""
    field, curve = dops.plot.panels(2, 1, size=(7, 3.2), title=title)[:, 0]
    plane = {"axis": "z", "index": 0} if temperature.ndim == 3 else {}
    colours = {"cmap": "inferno", "limits": (0, 1), "title": f"temperature at t = {time[-1]:g}"}
    dops.plot.slice(transform, temperature, **plane, **colours, vertical="x", ax=field)
    field.collections[0].set(edgecolor="face")  # Otherwise thin gaps between the cells show.
    dops.plot.curves(time, numbers._asdict(), xlabel="time [free-fall times]", ax=curve, label="Nusselt number")
    curve.set(xlim=(0, time[-1]))
    curve.figure.savefig(path, dpi=150)


def parse(argv: list[str] | None) -> tuple[Namespace, jax.sharding.Mesh]:
    """Read the options and make the mesh."""
    parser = Parser(__doc__)
    parser.add_argument("--ndim", type=int, choices=[2, 3], default=2, help="number of dimensions (2)")
    parser.add_argument("--n", type=at_least(8), default=48, help="points between the walls (48)")
    parser.add_argument("--aspect", type=positive, default=2.0, help="width of the box over its height (2)")
    parser.add_argument("--rolls", type=at_least(1), default=1, help="pairs of rolls at the start (1)")
    parser.add_argument("--rayleigh", type=positive, default=1e5, help="Rayleigh number (1e5)")
    parser.add_argument("--prandtl", type=positive, default=1.0, help="Prandtl number (1)")
    parser.add_argument("--t-end", type=positive, default=150.0, help="final time, in free-fall times (150)")
    parser.add_argument("--dt", type=positive, default=0.02, help="time step (0.02)")
    parser.add_argument("--mesh", type=mesh_shape, help="devices along x, and in 3D along y (2 or 2x1)")
    parser.add_argument("--out", type=figure, default="rayleigh_benard.png", help="file of the figure")
    args = parser.parse_args(argv)
    if args.ndim == 2:
        return args, make_mesh(parser, args.mesh, x=2)
    return args, make_mesh(parser, args.mesh, x=2, y=1)


def main(argv: list[str] | None = None) -> tuple[np.ndarray, Nusselt]:
    """Run the example. Returns the times of observation, and the Nusselt numbers at these times."""
    args, mesh = parse(argv)
    samples = 100
    steps = samples * max(1, round(args.t_end / args.dt / samples))
    dt = args.t_end / steps
    along = 2 * max(4, round(args.n * args.aspect / 2))
    title = f"Rayleigh–Bénard convection, Ra = {args.rayleigh:g}, Pr = {args.prandtl:g}"

    with jax.set_mesh(mesh):
        shape = (args.n, *[along] * (args.ndim - 1))
        box = dops.Box((1.0, *[args.aspect] * (args.ndim - 1)))
        bases = (dops.Chebyshev(), *[dops.Fourier()] * (args.ndim - 2), dops.Fourier(half=True))
        transform = dops.Transform(mesh, shape=shape, bases=bases, box=box, pad=True)
        print(f"{title}, {'x'.join(map(str, shape))} points, {steps} steps, {mesh.devices.size} devices", flush=True)
        equation = RayleighBenard(transform, args.rayleigh, args.prandtl)
        u = equation.state(transform.decomposition.shard(initial_fields(shape, args.rolls)))
        interval = args.t_end / samples
        flow = stable(SBDF(equation, dt), u, args.t_end, interval=interval, observe=lambda t, u: nusselt(equation, u))
        temperature = equation.fields(flow.u)[-1]
    time, numbers = flow.times, flow.observed
    report(time, numbers)
    plot(transform, temperature, time, numbers, title, args.out)
    print(f"Figure: {args.out}")
    return time, numbers


if __name__ == "__main__":
    main()
