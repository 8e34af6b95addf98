"""Patterns of the Gray–Scott reaction: a catalyst that feeds on a substance grows into spots, stripes or mazes.

    python examples/gray_scott.py                                   # a maze, on 2 virtual CPU devices: half a minute
    python examples/gray_scott.py --feed 0.035 --kill 0.065         # spots
    python examples/gray_scott.py --n 256 --length 2.5 --t-end 10000 --mesh 4

The substance u and the catalyst v diffuse and react in a periodic box:

    ∂u/∂t = Dᵤ∇²u - uv² + F(1 - u)   and   ∂v/∂t = Dᵥ∇²v + uv² - (F + k)v,

where F is the feed rate, k the kill rate, Dᵤ = 2e-5 and Dᵥ = 1e-5. The reaction turns substance into catalyst, so only
feeding and killing change the total amount. The program compares this change with what feeding adds minus what killing
removes.

Source: Pearson, Complex patterns in a simple system (Science 261, 1993), maps the patterns over F and k.
"""

from pathlib import Path

import decompops as dops
import jax
import numpy as np
from decompops.pde import ETDRK, GrayScott
from jax import Array

from options import Parser, at_least, figure, make_mesh, mesh_shape, positive, stable


DIFFUSIVITIES = 2e-5, 1e-5  # of the substance and the catalyst


def initial_fields(n: int, length: float) -> np.ndarray:
    """Return fields with substance everywhere, and with catalyst in squares of width 0.1, about five per unit area."""
    rng = np.random.default_rng(0)
    substance, catalyst = np.ones((n, n)), np.zeros((n, n))
    width = max(2, round(0.1 * n / length))
    for x, y in rng.integers(0, n, (max(1, round(5 * length**2)), 2)):
        patch = np.ix_((x + np.arange(width)) % n, (y + np.arange(width)) % n)
        substance[patch], catalyst[patch] = 0.5, 0.25
    return np.stack([substance, catalyst])


def plot(fft: dops.FFT, fields: np.ndarray, title: str, path: Path) -> None:
    """Draw both concentrations."""
    axes = dops.plot.panels(1, 2, title=title)
    for panel, name, field in zip(axes, ("substance u", "catalyst v"), fields):
        dops.plot.slice(fft, field, ax=panel, title=name)
    axes[0].figure.savefig(path, dpi=150)


def main(argv: list[str] | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Run the example. Returns the times of the steps, the means of u and v at these times, and the last fields."""
    parser = Parser(__doc__)
    parser.add_argument("--n", type=at_least(16), default=128, help="points along each axis (128)")
    parser.add_argument("--length", type=positive, default=1.25, help="length of the box (1.25)")
    parser.add_argument("--feed", type=positive, default=0.04, help="feed rate F (0.04)")
    parser.add_argument("--kill", type=positive, default=0.06, help="kill rate k (0.06)")
    parser.add_argument("--t-end", type=positive, default=4000.0, help="final time (4000)")
    parser.add_argument("--dt", type=positive, default=2.0, help="time step (2)")
    parser.add_argument("--mesh", type=mesh_shape, help="devices along x (2)")
    parser.add_argument("--out", type=figure, default="gray_scott.png", help="file of the figure (gray_scott.png)")
    args = parser.parse_args(argv)
    mesh = make_mesh(parser, args.mesh, x=2)
    steps = max(1, round(args.t_end / args.dt))
    dt = args.t_end / steps
    title = f"Gray–Scott reaction, feed rate {args.feed:g}, kill rate {args.kill:g}"

    with jax.set_mesh(mesh):
        fft = dops.FFT2D(mesh, shape=(args.n,) * 2, axes="x", box=dops.Box(args.length), pad=True, real=True)
        equation = GrayScott(fft, DIFFUSIVITIES, args.feed, args.kill)
        first = equation.state(fft.decomposition.shard(initial_fields(args.n, args.length)))
        print(f"{title}, {args.n}² points, {steps} steps, {mesh.devices.size} devices", flush=True)

        def means(t: Array, u: Array) -> Array:
            return fft.decomposition.mean(equation.fields(u))

        flow = stable(ETDRK(equation, dt), first, args.t_end, interval=dt, observe=means)
        fields = fft.decomposition.gather(equation.fields(flow.u))
    time, amounts = flow.times, flow.observed
    print("    time    mean u    mean v")
    for row in sorted({*np.linspace(0, steps, 9).round().astype(int)}):
        print(f"{time[row]:8g}{amounts[row, 0]:10.6f}{amounts[row, 1]:10.6f}")
    supply = args.feed * (1 - amounts[:, 0]) - (args.feed + args.kill) * amounts[:, 1]
    supplied = dt * (supply.sum() - (supply[0] + supply[-1]) / 2)
    gained = amounts[-1].sum() - amounts[0].sum()
    print(f"The total amount changed by {gained:.6f}; feeding minus killing supplied {supplied:.6f}.")
    print(f"The catalyst lies between {fields[1].min():.4f} and {fields[1].max():.4f}.")
    plot(fft, fields, f"{title}, t = {args.t_end:g}", args.out)
    print(f"Figure: {args.out}")
    return time, amounts, fields


if __name__ == "__main__":
    main()
