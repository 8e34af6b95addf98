"""Rayleigh–Bénard convection: rolls between a hot and a cold wall, and five measurements of the heat that they carry.

    python examples/rayleigh_benard.py                          # Ra = 1e5, Pr = 1, in two dimensions
    python examples/rayleigh_benard.py --ndim 3 --n 32 --t-end 60 --mesh 2x2
    python examples/rayleigh_benard.py --rayleigh 3000 --prandtl 0.71 --aspect 2.0155 --n 24 --t-end 80

In a steady flow the Nusselt number Nu has five forms, which this program prints side by side:

- the heat flux through the bottom wall, and through the top wall, over that of conduction;
- 1 + ⟨u_x T⟩ / κ, the mean flux in the volume;
- ⟨|∇T|²⟩, the dissipation of the variance of temperature;
- 1 + ν ⟨|∇u|²⟩ / κ, the dissipation of kinetic energy.

The last command computes the steady rolls of Clever & Busse (J. Fluid Mech. 65, 1974), whose Nusselt number is 1.66.
"""

from argparse import Namespace
from typing import NamedTuple

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
from decompops.pde import SBDF, RayleighBenard
from jax import Array

from options import Parser, at_least, figure, make_mesh, mesh_shape, positive


class Nusselt(NamedTuple):
    """The five forms of the Nusselt number, each an array over time."""

    bottom: np.ndarray | Array
    top: np.ndarray | Array
    volume: np.ndarray | Array
    thermal: np.ndarray | Array
    viscous: np.ndarray | Array


def initial_fields(shape: tuple[int, ...], rolls: int) -> np.ndarray:
    """A fluid at rest whose temperature falls linearly from 1 to 0, with rolls and a little noise added."""
    x = dops.Chebyshev().points(shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    y = (np.arange(shape[1]) / shape[1]).reshape(-1, *[1] * (len(shape) - 2))
    pattern = 0.1 * np.cos(2 * np.pi * rolls * y)
    if len(shape) == 3:  # Rolls of two dimensions would remain two-dimensional.
        pattern = pattern + 0.02 * np.random.default_rng(0).standard_normal(shape[1:])
    temperature = 1 - x + np.sin(np.pi * x) * np.broadcast_to(pattern, shape[1:])
    return np.stack([*[np.zeros(shape)] * len(shape), temperature])


def nusselt(equation: RayleighBenard, u: Array) -> Nusselt:
    """The five forms of the Nusselt number of a state."""
    fields = equation.fields(u)
    viscosity, diffusivity = (
        (equation.prandtl / equation.rayleigh) ** 0.5,
        (equation.prandtl * equation.rayleigh) ** -0.5,
    )
    *shear, thermal = jnp.unstack(equation.gradient_squares(u))
    return Nusselt(
        equation.nusselt(u),
        equation.nusselt(u, "top"),
        1 + equation.transform.mean(fields[0] * fields[-1]) / diffusivity,
        thermal,
        1 + viscosity * sum(shear) / diffusivity,
    )


def report(time: np.ndarray, numbers: Nusselt) -> None:
    """Print the five forms over time, and how much they differ at the end."""
    print("   time" + "".join(f"{name:>12}" for name in numbers._fields))
    for row in sorted({*np.linspace(0, len(time) - 1, 10).round().astype(int)}):
        print(f"{time[row]:7.2f}" + "".join(f"{values[row]:12.6f}" for values in numbers))
    half = len(time) // 2
    means = [float(values[half:].mean()) for values in numbers]
    print(f"The mean Nusselt number of the second half is {np.mean(means):.6f}.")
    last = [float(values[-1]) for values in numbers]
    print(f"At the end its five forms differ by {(max(last) - min(last)) / min(last):.1e}.")


def plot(
    transform: dops.Transform, temperature: Array, box: dops.Box, time: np.ndarray, numbers: Nusselt, title: str, path
) -> None:
    field, curve = dops.plot.panels(1, 2, size=(6, 3.3), title=title)
    plane = {"axis": "z", "index": 0} if temperature.ndim == 3 else {}
    colours = {"cmap": "RdBu_r", "limits": (0, 1)}
    dops.plot.slice(
        transform, temperature, **plane, **colours, box=box, vertical="x", ax=field, title="temperature at the end"
    )
    dops.plot.curves(time, numbers._asdict(), xlabel="time of free fall", ax=curve, title="Nusselt number")
    curve.set(ylim=(0, None))
    curve.figure.savefig(path, dpi=150)


def parse(argv: list[str] | None) -> tuple[Namespace, jax.sharding.Mesh]:
    """Read the options, and make the mesh."""
    parser = Parser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--ndim", type=int, choices=[2, 3], default=2, help="dimensions (2)")
    parser.add_argument("--n", type=at_least(8), default=48, help="points between the walls (48)")
    parser.add_argument("--aspect", type=positive, default=2.0, help="width of the box over its height (2)")
    parser.add_argument("--rolls", type=at_least(1), default=1, help="pairs of rolls to start with (1)")
    parser.add_argument("--rayleigh", type=positive, default=1e5, help="Rayleigh number (1e5)")
    parser.add_argument("--prandtl", type=positive, default=1.0, help="Prandtl number (1)")
    parser.add_argument("--t-end", type=positive, default=150.0, help="final time, in times of free fall (150)")
    parser.add_argument("--dt", type=positive, default=0.02, help="time step (0.02)")
    parser.add_argument("--mesh", type=mesh_shape, help="devices: 2 in two dimensions, 2x2 in three")
    parser.add_argument("--out", type=figure, default=figure("rayleigh_benard.png"), help="the figure")
    args = parser.parse_args(argv)
    if args.ndim == 2:
        return args, make_mesh(parser, args.mesh, x=2)
    return args, make_mesh(parser, args.mesh, x=2, y=1)


def main(argv: list[str] | None = None) -> tuple[np.ndarray, Nusselt]:
    """Returns the times of observation, and the five forms of the Nusselt number at these times."""
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
        transform = dops.Transform(mesh, shape=shape, bases=bases, pad=True)
        print(f"{title}, {'x'.join(map(str, shape))} points, {steps} steps, {mesh.devices.size} devices")
        equation = RayleighBenard(transform, args.rayleigh, args.prandtl, box)
        solver = SBDF(equation, dt)
        u = equation.state(transform.decomposition.shard(initial_fields(shape, args.rolls)))
        u, numbers = solver.rollout(u, steps, every=steps // samples, observe=lambda t, u: nusselt(equation, u))
        temperature = equation.fields(u)[-1]
    numbers = Nusselt(*map(np.asarray, numbers))
    time = args.t_end * np.arange(1, samples + 1) / samples
    if not np.isfinite(numbers.bottom[-1]):
        raise SystemExit("The run became unstable; use a smaller --dt.")
    report(time, numbers)
    plot(transform, temperature, box, time, numbers, title, args.out)
    print(f"Figure: {args.out}")
    return time, numbers


if __name__ == "__main__":
    main()
