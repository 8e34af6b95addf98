"""Kolmogorov flow in two dimensions: a sine of force along y, whose layers break up into vortices.

    python examples/kolmogorov.py                            # 128² points on 2 virtual CPU devices
    python examples/kolmogorov.py --n 512 --viscosity 1e-3 --dt 0.002 --t-end 100 --mesh 8

The force puts energy in, viscosity and drag take it out. With the curl F of the force, the stream function ψ and the
palinstrophy P = ⟨|∇ω|²⟩/2, the energy E = ⟨|u|²⟩/2 and the enstrophy Z = ⟨ω²⟩/2 change by

    dE/dt = ⟨ψ F⟩ - 2ν Z - 2γ E   and   dZ/dt = ⟨ω F⟩ - 2ν P - 2γ Z.

This program integrates both right-hand sides over time, and prints how well they are the changes of E and Z.
"""

from typing import NamedTuple

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
from decompops.pde import ETDRK, KolmogorovForcing, VorticityNavierStokes
from decompops.spectral import GaussianRandomField, InverseCurl, Laplacian, Poisson
from jax import Array

from options import Parser, at_least, figure, make_mesh, mesh_shape, positive


class Budget(NamedTuple):
    """Energy, enstrophy, and the terms of their rates of change, each an array over time."""

    energy: np.ndarray | Array
    enstrophy: np.ndarray | Array
    energy_input: np.ndarray | Array
    energy_loss: np.ndarray | Array
    enstrophy_input: np.ndarray | Array
    enstrophy_loss: np.ndarray | Array


def budget(equation: VorticityNavierStokes, force: Array, u: Array) -> Budget:
    """The terms of the budgets of a state, from the spectra of the force's curl and of the vorticity."""
    transform = equation.transform
    stream, rough = -Poisson(transform).multiply(u), -Laplacian(transform).multiply(u)

    def mean(a: Array, b: Array) -> Array:
        """The mean of the product of two fields, from their spectra."""
        return transform.decomposition.mean(transform.inverse(a) * transform.inverse(b))

    energy, enstrophy, palinstrophy = (mean(a, b) / 2 for a, b in ((stream, u), (u, u), (rough, u)))
    loss = 2 * equation.viscosity, 2 * equation.drag
    return Budget(
        energy,
        enstrophy,
        mean(stream, force),
        loss[0] * enstrophy + loss[1] * energy,
        mean(u, force),
        loss[0] * palinstrophy + loss[1] * enstrophy,
    )


def imbalance(dt: float, amount: np.ndarray | Array, gain: np.ndarray | Array, loss: np.ndarray | Array) -> float:
    """How far the change of an amount differs from what was gained and lost, over what was gained."""
    gained, lost = (dt * (rate.sum() - (rate[0] + rate[-1]) / 2) for rate in (gain, loss))
    return float(abs(amount[-1] - amount[0] - gained + lost) / gained)


def plot(
    fft: dops.FFT, vorticity: np.ndarray, speed: np.ndarray, time: np.ndarray, terms: Budget, title: str, path
) -> None:
    field, profile, curve = dops.plot.panels(1, 3, title=title)
    dops.plot.slice(fft, vorticity, ax=field, title="vorticity at the end")
    y = 2 * np.pi * np.arange(len(speed)) / len(speed)
    dops.plot.curves(speed, y, xlabel="u", ax=profile, title="mean velocity along x at the end", label="y")
    energy = {name.replace("_", " "): values for name, values in terms._asdict().items() if name.startswith("energy")}
    dops.plot.curves(time, energy, ax=curve, title="energy, and its input and loss")
    curve.set(ylim=(0, None))
    curve.figure.savefig(path, dpi=150)


def main(argv: list[str] | None = None) -> tuple[np.ndarray, Budget, np.ndarray]:
    """Returns the times of the steps, the budgets at these times, and the last vorticity."""
    parser = Parser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--n", type=at_least(16), default=128, help="points along each axis (128)")
    parser.add_argument("--mode", type=at_least(1), default=4, help="waves of the force along y (4)")
    parser.add_argument("--viscosity", type=positive, default=5e-3, help="viscosity (0.005)")
    parser.add_argument("--drag", type=at_least(0.0), default=0.1, help="drag, a rate (0.1)")
    parser.add_argument("--t-end", type=positive, default=30.0, help="final time (30)")
    parser.add_argument("--dt", type=positive, default=0.01, help="time step (0.01)")
    parser.add_argument("--mesh", type=mesh_shape, help="devices along x (2)")
    parser.add_argument("--out", type=figure, default=figure("kolmogorov.png"), help="the figure (kolmogorov.png)")
    args = parser.parse_args(argv)
    mesh = make_mesh(parser, args.mesh, x=2)
    steps = max(1, round(args.t_end / args.dt))
    dt = args.t_end / steps
    title = f"Kolmogorov flow, viscosity {args.viscosity:g}, drag {args.drag:g}"

    with jax.set_mesh(mesh):
        fft = dops.FFT2D(mesh, shape=(args.n,) * 2, axes="x", pad=True, real=True)
        force = KolmogorovForcing(fft, args.mode, of="vorticity")
        equation = VorticityNavierStokes(fft, args.viscosity, drag=args.drag, forcing=force)
        solver = ETDRK(equation, dt)
        noise = GaussianRandomField(fft, lambda k: jnp.exp(-((k / 4) ** 2)))
        first = jax.jit(lambda key: equation.state(noise(key)))(jax.random.key(0))
        print(f"{title}, {args.n}² points, {steps} steps, {mesh.devices.size} devices")
        u, later = solver.rollout(first, steps, every=1, observe=lambda t, u: budget(equation, force(t, u), u))
        start = jax.jit(lambda u: budget(equation, force(0.0, u), u))(first)
        velocity = fft.decomposition.gather(equation.transform.inverse(InverseCurl(equation.transform).multiply(u)))
        vorticity = fft.decomposition.gather(equation.fields(u))
    terms = Budget(*(np.append(a, b) for a, b in zip(start, later)))
    if not np.isfinite(terms.energy[-1]):
        raise SystemExit("The run became unstable; use a smaller --dt.")
    time = dt * np.arange(steps + 1)
    print("  time" + "".join(f"{name.replace('_', ' '):>17}" for name in Budget._fields))
    for row in sorted({*np.linspace(0, steps, 9).round().astype(int)}):
        print(f"{time[row]:6g}" + "".join(f"{values[row]:17.6f}" for values in terms))
    for name, (amount, gain, loss) in (("energy", (terms[0], *terms[2:4])), ("enstrophy", (terms[1], *terms[4:]))):
        print(f"The {name} changes as its input and loss say, to {imbalance(dt, amount, gain, loss):.1e} of the input.")
    plot(fft, vorticity, velocity[0].mean(0), time, terms, title, args.out)
    print(f"Figure: {args.out}")
    return time, terms, vorticity


if __name__ == "__main__":
    main()
