"""The flow past a circular cylinder: the vortex street, its frequency, and the drag and lift on the cylinder.

    python examples/cylinder.py                                 # 320 x 192 points on 2 virtual CPU devices: a minute
    python examples/cylinder.py --cells 32 --length 28 --height 24 --t-end 120

The diameter of the cylinder and the velocity U of the flow far away are one. A body force keeps the fluid at rest in
the cylinder (`Penalisation`). The box is periodic, so a second force in front of its end brings the flow back to U
before it enters again. After a while, vortices leave the cylinder in turns. Their frequency is the Strouhal number; the
mean force along the flow is half of the drag coefficient. At a Reynolds number of 100, in a wide box, they are 0.164
and 1.33 (Williamson, Annu. Rev. Fluid Mech. 28, 1996; Park, Kwon & Choi, KSME Int. J. 12, 1998). In a narrower box,
both are larger, because the flow is faster beside the cylinder.

The force on the fluid is the change of its momentum. The program integrates both over time, and compares them.
"""

from pathlib import Path
from typing import NamedTuple

import decompops as dops
import jax.numpy as jnp
import numpy as np
from decompops.pde import ETDRK, NavierStokes, Penalisation
from decompops.spectral import Curl
from jax import Array

from options import Parser, at_least, figure, make_mesh, mesh_shape, positive, stable


SPONGE = 4.0  # The length of the region in which the flow returns to U, in diameters.


class Wake(NamedTuple):
    """The forces and the momentum at each time. Each array has a row (x, y) for each time."""

    on_cylinder: np.ndarray | Array
    on_sponge: np.ndarray | Array
    momentum: np.ndarray | Array


class Shedding(NamedTuple):
    """Numbers of the vortex street, over the second half of a run. NaN if there are fewer than three periods."""

    drag: float
    lift: float
    strouhal: float


def shedding(time: np.ndarray, force: np.ndarray) -> Shedding:
    """Return the mean drag coefficient, the amplitude of the lift coefficient and the Strouhal number."""
    late = time >= time[-1] / 2
    t, (drag, lift) = time[late], 2 * force[late].T
    lift = lift - lift.mean()
    up = np.flatnonzero((lift[:-1] < 0) & (lift[1:] >= 0))
    crossings = t[up] - lift[up] * (t[up + 1] - t[up]) / (lift[up + 1] - lift[up])
    known = len(crossings) > 3
    periods = (len(crossings) - 1) / (crossings[-1] - crossings[0]) if known else np.nan
    return Shedding(float(drag.mean()), float(abs(lift).max()), float(periods))


def imbalance(time: np.ndarray, wake: Wake) -> float:
    """Return by how much the change of momentum differs from the integral of the forces, relative to the drag."""
    push = -(wake.on_cylinder + wake.on_sponge)
    given = ((push[1:] + push[:-1]) / 2 * np.diff(time)[:, None]).sum(0)
    scale = abs(wake.on_cylinder[:, 0]).mean() * time[-1]
    return float(abs(wake.momentum[-1] - wake.momentum[0] - given).max() / scale)


def plot(fft: dops.FFT, vorticity: np.ndarray, time: np.ndarray, wake: Wake, title: str, path: Path) -> None:
    """Draw the last vorticity, and the force over time."""
    field, curve = dops.plot.panels(1, 2, title=title)
    dops.plot.slice(fft, vorticity, ax=field, limits=(-3, 3), title=f"vorticity at t = {time[-1]:g}")
    drag, lift = 2 * np.asarray(wake.on_cylinder).T
    dops.plot.curves(time, {"drag": drag, "lift": lift}, ax=curve, title="coefficients of drag and lift")
    curve.set(xlim=(0, time[-1]), ylim=(-1, 3))
    curve.figure.savefig(path, dpi=150)


def main(argv: list[str] | None = None) -> tuple[np.ndarray, Wake, np.ndarray]:
    """Run the example. Returns the times, the forces at these times, and the last velocity."""
    parser = Parser(__doc__)
    parser.add_argument("--cells", type=at_least(4), default=16, help="points for each diameter (16)")
    parser.add_argument("--length", type=at_least(12), default=20, help="length of the box in diameters (20)")
    parser.add_argument("--height", type=at_least(4), default=12, help="height of the box in diameters (12)")
    parser.add_argument("--reynolds", type=positive, default=100.0, help="Reynolds number (100)")
    parser.add_argument("--t-end", type=positive, default=100.0, help="final time (100)")
    parser.add_argument("--dt", type=positive, help="time step (0.35 spacings)")
    parser.add_argument("--mesh", type=mesh_shape, help="devices along x (2)")
    parser.add_argument("--out", type=figure, default="cylinder.png", help="file of the figure (cylinder.png)")
    args = parser.parse_args(argv)
    mesh = make_mesh(parser, args.mesh, double=False, x=2)
    steps = max(1, round(args.t_end / (args.dt or 0.35 / args.cells)))
    dt, viscosity = args.t_end / steps, 1 / args.reynolds
    box, shape = (float(args.length), float(args.height)), (args.length * args.cells, args.height * args.cells)
    at = (0.3 * box[0], box[1] / 2)

    def distance(x: Array, y: Array) -> Array:
        return jnp.hypot(x - at[0], y - at[1]) - 0.5

    fft = dops.FFT2D(mesh, shape=shape, axes="x", pad=True, real=True, box=dops.Box(box))
    x, y = fft.coordinates()
    ahead = jnp.clip((x - (box[0] - SPONGE)) / SPONGE, 0, 1)
    cylinder = Penalisation(fft, distance, viscosity=viscosity)
    sponge = Penalisation(fft, jnp.sin(jnp.pi * ahead) ** 2 + 0 * y, time=0.25, value=(1.0, 0.0))
    equation = NavierStokes(fft, viscosity, forcing=(cylinder, sponge))
    # A gust behind the cylinder breaks the symmetry, so that vortices form early.
    gust = 0.3 * jnp.exp(-((x - at[0] - 1) ** 2) - (y - at[1]) ** 2)
    first = equation.state(jnp.stack([jnp.ones_like(gust), gust]))
    title = f"Flow past a cylinder, Reynolds number {args.reynolds:g}"
    print(f"{title}, {shape[0]} x {shape[1]} points, {steps} steps, {mesh.devices.size} devices", flush=True)

    def observe(t: Array, u: Array) -> Wake:
        momentum = fft.decomposition.mean(equation.fields(u)) * box[0] * box[1]
        return Wake(cylinder.force(u), sponge.force(u), momentum)

    run = stable(ETDRK(equation, dt, order=3), first, args.t_end, interval=dt, observe=observe)
    time, wake = run.times, Wake(*map(np.asarray, run.observed))
    found = shedding(time, np.asarray(wake.on_cylinder))
    print(f"Drag coefficient {found.drag:.3f}, lift amplitude {found.lift:.3f}, Strouhal number {found.strouhal:.4f}")
    print(f"The change of momentum differs from the forces by {imbalance(time, wake):.1e} of the drag.")
    curl = Curl(equation.transform).multiply(run.u)
    plot(fft, fft.decomposition.gather(equation.transform.inverse(curl)), time, wake, title, args.out)
    print(f"Figure: {args.out}")
    return time, wake, fft.decomposition.gather(equation.fields(run.u))


if __name__ == "__main__":
    main()
