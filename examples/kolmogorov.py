"""Kolmogorov flow in two dimensions: a sinusoidal force drives layers of flow, which break up into vortices.

    python examples/kolmogorov.py                            # 128² points on 2 virtual CPU devices: half a minute
    python examples/kolmogorov.py --n 512 --viscosity 1e-3 --dt 0.002 --t-end 100 --mesh 8

The program solves the two-dimensional Navier–Stokes equations in vorticity form, in a periodic box of length 2π:

    ∂ω/∂t + u·∇ω = ν∇²ω - γω + F,

where ν is the viscosity, γ the drag, and F the curl of the force (sin my, 0). The force adds energy; viscosity and drag
remove energy. With the stream function ψ and the palinstrophy P = ⟨|∇ω|²⟩/2, the energy E = ⟨|u|²⟩/2 and the enstrophy
Z = ⟨ω²⟩/2 obey

    dE/dt = ⟨ψF⟩ - 2νZ - 2γE   and   dZ/dt = ⟨ωF⟩ - 2νP - 2γZ.

The program integrates both right-hand sides over time and compares the integrals with the changes of E and Z.

Source: Boffetta & Ecke, Two-dimensional turbulence (Annu. Rev. Fluid Mech. 44, 2012).
"""

from pathlib import Path
from typing import NamedTuple

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
from decompops.pde import ETDRK, KolmogorovForcing, VorticityNavierStokes
from decompops.spectral import GaussianRandomField, Laplacian, Poisson
from jax import Array

from options import Parser, at_least, figure, make_mesh, mesh_shape, positive, stable


class Budget(NamedTuple):
    """Energy, enstrophy, and the terms of their rates of change. Each field is an array over time."""

    energy: np.ndarray | Array
    enstrophy: np.ndarray | Array
    energy_input: np.ndarray | Array
    energy_loss: np.ndarray | Array
    enstrophy_input: np.ndarray | Array
    enstrophy_loss: np.ndarray | Array


def budget(equation: VorticityNavierStokes, force: Array, u: Array) -> Budget:
    """Return the terms of both budgets. `force` is the spectrum of F; the state `u` is the spectrum of ω."""
    transform = equation.transform
    stream, rough = -Poisson(transform).multiply(u), -Laplacian(transform).multiply(u)

    def mean(a: Array, b: Array) -> Array:
        """Return the mean of the product of two fields, which are given as spectra."""
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
    """Return the error of a budget relative to the gain: the change of `amount`, minus the integral of gain - loss."""
    gained, lost = (dt * (rate.sum() - (rate[0] + rate[-1]) / 2) for rate in (gain, loss))
    return float(abs(amount[-1] - amount[0] - gained + lost) / gained)


def plot(fft: dops.FFT, vorticity: np.ndarray, time: np.ndarray, terms: Budget, title: str, path: Path) -> None:
    """Draw the last vorticity, and the energy budget over time."""
    field, curve = dops.plot.panels(1, 2, title=title)
    dops.plot.slice(fft, vorticity, ax=field, title=f"vorticity at t = {time[-1]:g}")
    energy = {"energy": terms.energy, "input": terms.energy_input, "loss": terms.energy_loss}
    dops.plot.curves(time, energy, ax=curve, title="energy, and the rates of its input and loss")
    curve.set(xlim=(0, time[-1]), ylim=(0, None))
    curve.figure.savefig(path, dpi=150)


def main(argv: list[str] | None = None) -> tuple[np.ndarray, Budget, np.ndarray]:
    """Run the example. Returns the times of the steps, the budgets at these times, and the last vorticity."""
    parser = Parser(__doc__)
    parser.add_argument("--n", type=at_least(16), default=128, help="points along each axis (128)")
    parser.add_argument("--mode", type=at_least(1), default=4, help="wavenumber m of the force (4)")
    parser.add_argument("--viscosity", type=positive, default=5e-3, help="viscosity (0.005)")
    parser.add_argument("--drag", type=at_least(0.0), default=0.1, help="drag, a rate (0.1)")
    parser.add_argument("--t-end", type=positive, default=30.0, help="final time (30)")
    parser.add_argument("--dt", type=positive, default=0.01, help="time step (0.01)")
    parser.add_argument("--mesh", type=mesh_shape, help="devices along x (2)")
    parser.add_argument("--out", type=figure, default="kolmogorov.png", help="file of the figure (kolmogorov.png)")
    args = parser.parse_args(argv)
    mesh = make_mesh(parser, args.mesh, x=2)
    steps = max(1, round(args.t_end / args.dt))
    dt = args.t_end / steps
    title = f"Kolmogorov flow, viscosity {args.viscosity:g}, drag {args.drag:g}"

    with jax.set_mesh(mesh):
        fft = dops.FFT2D(mesh, shape=(args.n,) * 2, axes="x", pad=True, real=True)
        force = KolmogorovForcing(fft, args.mode, of="vorticity")
        equation = VorticityNavierStokes(fft, args.viscosity, drag=args.drag, forcing=force)
        noise = GaussianRandomField(fft, lambda k: jnp.exp(-((k / 4) ** 2)))
        first = jax.jit(lambda key: equation.state(noise(key)))(jax.random.key(0))
        print(f"{title}, {args.n}² points, {steps} steps, {mesh.devices.size} devices", flush=True)

        def observe(t: Array, u: Array) -> Budget:
            return budget(equation, force(t, u), u)

        flow = stable(ETDRK(equation, dt), first, args.t_end, interval=dt, observe=observe)
        vorticity = fft.decomposition.gather(equation.fields(flow.u))
    time, terms = flow.times, flow.observed
    print("  time" + "".join(f"{name.replace('_', ' '):>17}" for name in Budget._fields))
    for row in sorted({*np.linspace(0, steps, 9).round().astype(int)}):
        print(f"{time[row]:6g}" + "".join(f"{values[row]:17.6f}" for values in terms))
    for name, (amount, gain, loss) in (("energy", (terms[0], *terms[2:4])), ("enstrophy", (terms[1], *terms[4:]))):
        error = imbalance(dt, amount, gain, loss)
        print(f"The change of {name} differs from input minus loss by {error:.1e} of the input.")
    plot(fft, vorticity, time, terms, title, args.out)
    print(f"Figure: {args.out}")
    return time, terms, vorticity


if __name__ == "__main__":
    main()
