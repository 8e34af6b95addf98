"""Control of convection: find the temperatures along the bottom wall that minimise the heat flux through the fluid.

    python examples/control_convection.py                    # Ra = 2e4, on one virtual CPU device: two minutes
    python examples/control_convection.py --rayleigh 1e5 --n 48 --dt 0.02 --iterations 40 --mesh 4

The program solves the equations of examples/rayleigh_benard.py. The unknowns are the temperatures T(0, y) at the
points of the bottom wall; their mean is 1, and their root mean square deviation from 1 is bounded. The objective is the
Nusselt number, averaged over both walls and over the second half of a rollout that starts from developed rolls:

    minimise  ⟨-∂T/∂x⟩ at the walls  subject to  ⟨T(0, y)⟩ = 1  and  ⟨(T(0, y) - 1)²⟩ ≤ bound².

One backward run through the solver gives the gradient with respect to all unknowns. Each iteration takes a step against
the gradient, and halves the step until the heat flux falls. The descent ends when an iteration gains less than 1e-5 of
the heat flux.

Source: Nocedal & Wright, Numerical Optimization (Springer, 2006), chapter 3, describe such line searches.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
from decompops.pde import SBDF, RayleighBenard
from jax import Array

from options import Parser, at_least, figure, make_mesh, mesh_shape, positive, progress, stable


def rolls(n: int, along: int) -> np.ndarray:
    """Return a fluid at rest whose temperature falls linearly from 1 to 0, plus a weak pair of rolls."""
    x, y = dops.Chebyshev().points(n)[:, None], np.arange(along) / along
    temperature = 1 - x + 0.1 * np.sin(np.pi * x) * np.cos(2 * np.pi * y)
    return np.stack([np.zeros((n, along)), np.zeros((n, along)), temperature])


def heat_flux(convection: Callable[[Array], RayleighBenard], wall: Array, dt: float, steps: int, u: Array):
    """Return the mean Nusselt number of both walls in the second half of a rollout from `u`, and the last state."""
    equation = convection(wall)
    every = max(1, steps // 40)

    def observe(t: Array, u: Array) -> Array:
        return (equation.nusselt(u) + equation.nusselt(u, "top")) / 2

    last, numbers = SBDF(equation, dt).rollout(u, steps // every * every, every=every, observe=observe)
    return jnp.mean(numbers[len(numbers) // 2 :]), last


def admissible(wall: np.ndarray, bound: float) -> np.ndarray:
    """Return the nearest wall temperatures with mean 1 and a root mean square deviation of at most `bound`."""
    deviation = wall - wall.mean()
    return 1 + deviation * min(1.0, bound / max(deviation.std(), 1e-30))


class Descent(NamedTuple):
    """The result of a descent: wall temperatures, heat fluxes, and how a rollout ends before and after the descent."""

    wall: np.ndarray
    history: list[float]
    before: Array
    after: Array


def descend(flux: Callable, wall: np.ndarray, iterations: int, step: float, bound: float, report: Callable) -> Descent:
    """Reduce the heat flux. `flux(wall)` returns `((heat flux, last state), gradient)`."""
    (value, before), gradient = flux(wall)
    history, after = [float(value)], before
    print(f"{0:4d}  heat flux {history[0]:.6f}", flush=True)
    for iteration in range(1, iterations + 1):
        direction = np.asarray(gradient - np.mean(gradient))
        direction = direction / max(direction.std(), 1e-30)
        while step > 1e-6:
            trial = admissible(wall - step * direction, bound)
            (value, last), slope = flux(trial)
            if value < history[-1]:
                break
            step /= 2
        else:
            break  # No step reduces the heat flux.
        wall, gradient, after = trial, slope, last
        history.append(float(value))
        print(f"{iteration:4d}  heat flux {history[-1]:.6f}  step {step:.4f}  deviation {wall.std():.4f}", flush=True)
        report(iteration)
        if history[-1] > (1 - 1e-5) * history[-2]:
            break
        step *= 1.5
    return Descent(wall, history, before, after)


def plot(
    transform: dops.Transform,
    fields: dict[str, Array],
    wall: np.ndarray,
    history: list[float],
    path: Path,
) -> None:
    """Draw the temperatures without and with control, the temperature of the wall, and the heat flux."""
    upper, lower = dops.plot.panels(2, 2, size=(4.8, 2.8))
    titles, temperatures = list(fields), jnp.stack(list(fields.values()))
    colours = {"cmap": "inferno", "limits": (0, max(1.0, wall.max()))}
    dops.plot.slice(transform, temperatures, vertical="x", **colours, ax=upper, title=titles)
    for axes in upper:
        axes.collections[0].set(edgecolor="face")  # Otherwise thin gaps between the cells show.
    along = transform.decomposition.spacing[1] * np.arange(len(wall))
    uniform = {"without control": (along, np.ones(len(wall)))}
    title = "temperature of the bottom wall"
    dops.plot.curves(along, {"with control": wall}, references=uniform, xlabel="y", ax=lower[0], title=title)
    iterations = np.arange(len(history))
    title = "heat flux (Nusselt number)"
    dops.plot.curves(iterations, np.array(history), style="o-", xlabel="iteration", ax=lower[1], title=title)
    lower[1].xaxis.get_major_locator().set_params(integer=True)
    upper[0].figure.savefig(path, dpi=150)


def main(argv: list[str] | None = None) -> tuple[np.ndarray, list[float]]:
    """Run the example. Returns the best wall temperatures, and the heat flux before and after each iteration."""
    parser = Parser(__doc__)
    parser.add_argument("--n", type=at_least(8), default=24, help="points between the walls (24)")
    parser.add_argument("--aspect", type=positive, default=2.0, help="width of the box over its height (2)")
    parser.add_argument("--rayleigh", type=positive, default=2e4, help="Rayleigh number (2e4)")
    parser.add_argument("--prandtl", type=positive, default=1.0, help="Prandtl number (1)")
    parser.add_argument("--spin-up", type=positive, default=60.0, help="time for the rolls to develop (60)")
    parser.add_argument("--horizon", type=positive, default=20.0, help="length of the controlled rollout (20)")
    parser.add_argument("--dt", type=positive, default=0.05, help="time step (0.05)")
    parser.add_argument("--iterations", type=at_least(1), default=20, help="iterations of the descent (20)")
    parser.add_argument("--step", type=positive, default=0.05, help="root mean square of the first step (0.05)")
    parser.add_argument(
        "--bound", type=positive, default=0.3, help="bound of the deviation of the wall temperature (0.3)"
    )
    parser.add_argument("--mesh", type=mesh_shape, help="devices along x (1)")
    parser.add_argument("--out", type=figure, default="control_convection.png", help="file of the figure")
    args = parser.parse_args(argv)
    mesh = make_mesh(parser, args.mesh, x=1)
    along = 2 * max(4, round(args.n * args.aspect / 2))
    steps, spin_up = (max(4, round(time / args.dt)) for time in (args.horizon, args.spin_up))

    with jax.set_mesh(mesh):
        bases = (dops.Chebyshev(), dops.Fourier(half=True))
        box = dops.Box((1.0, args.aspect))
        transform = dops.Transform(mesh, shape=(args.n, along), bases=bases, axes="x", box=box, pad=True)

        def convection(wall: Array) -> RayleighBenard:
            return RayleighBenard(transform, args.rayleigh, args.prandtl, bottom=wall)

        wall = np.ones(along)
        print(
            f"Convection, Ra = {args.rayleigh:g}, Pr = {args.prandtl:g}, {args.n}x{along} points, {steps} steps",
            flush=True,
        )
        equation = convection(jnp.asarray(wall))
        first = equation.state(transform.decomposition.shard(rolls(args.n, along)))
        u = stable(SBDF(equation, args.dt), first, spin_up * args.dt).u
        flux = jax.jit(jax.value_and_grad(lambda wall: heat_flux(convection, wall, args.dt, steps, u), has_aux=True))
        with progress("iterating", args.iterations) as report:
            descent = descend(flux, wall, args.iterations, args.step, args.bound, report)
        states = {"temperature, without control": descent.before, "temperature, with control": descent.after}
        fields = {title: equation.fields(u)[-1] for title, u in states.items()}
    found, history = descent.wall, descent.history
    gain = 100 * (1 - history[-1] / history[0])
    print(f"The heat flux fell from {history[0]:.6f} to {history[-1]:.6f}, by {gain:.1f} %.")
    plot(transform, fields, found, history, args.out)
    print(f"Figure: {args.out}")
    return found, history


if __name__ == "__main__":
    main()
