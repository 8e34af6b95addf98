"""The Taylor–Green vortex: its breakdown into turbulence, compared with the published 512³ solution for Re = 1600.

    python examples/taylor_green.py                  # 64³ on 8 virtual CPU devices, or on all GPUs: a minute
    python examples/taylor_green.py --gradient       # differentiate through a whole (small) simulation
    mpiexec -n 4 python examples/taylor_green.py --backend mpi    # on a CPU cluster (docs/cluster.md)
    python examples/taylor_green.py --n 512          # as fine as the reference: three and a half minutes on one H200
    python examples/taylor_green.py --folder run     # write vorticities for ParaView, and checkpoints to continue from
    python examples/taylor_green.py --n 128 --dt 0.025 --t-end 8 --vortex vortex.png   # docs/pictures/vortex.png

The program solves the incompressible Navier–Stokes equations in a periodic box of length 2π,

    ∂u/∂t + (u·∇)u = -∇p + ∇²u/Re   and   ∇·u = 0,

from u = (sin x cos y cos z, -cos x sin y cos z, 0), with a dealiased pseudo-spectral method. Re = 1600 needs about 512³
cells. A run with 64³ cells follows the reference to t ≈ 4, and a run with 128³ cells to t ≈ 5. Both runs overshoot the
peak of dissipation at t ≈ 9 by some percent, because energy that would dissipate at smaller scales accumulates at the
smallest resolved scale.

Source: Brachet et al. (J. Fluid Mech. 130, 1983); examples/data/README.md gives the origin of the reference.
"""

import importlib.util
from argparse import Namespace
from collections import namedtuple
from pathlib import Path
from typing import Any

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
from decompops.pde import ETDRK, AbstractEquation, NavierStokes, Snapshots
from decompops.spectral import Curl, mean_square
from jax import Array
from rich.console import Console
from rich.table import Table

from options import DATA, Parser, at_least, figure, make_mesh, mesh_shape, positive, progress, stable, writable_folder


REFERENCE = DATA / "taylor_green_re1600_spectral_512.txt"
GRADIENT_DEFAULTS = {"n": 16, "t_end": 1.0, "dt": 0.05, "dtype": "float64"}
History = namedtuple("History", "time energy dissipation enstrophy")  # The dissipation is −dE/dt.


def published(time: np.ndarray) -> History:
    """Return the spectral 512³ solution for Re = 1600 at the given times, with NaN after its end."""
    known, *columns = np.loadtxt(REFERENCE).T
    return History(time, *(np.interp(time, known, values, right=np.nan) for values in columns))


def initial_velocity(n: int, dtype: str) -> Array:
    """Return u = (sin x cos y cos z, -cos x sin y cos z, 0) on [0, 2π]³."""
    z = 2 * jnp.pi * jnp.arange(n, dtype=dtype) / n
    x, y = z[:, None, None], z[:, None]
    u, v = jnp.sin(x) * jnp.cos(y) * jnp.cos(z), -jnp.cos(x) * jnp.sin(y) * jnp.cos(z)
    return jnp.stack([u, v, jnp.zeros_like(u)])


def vorticity(equation: AbstractEquation, u: Array) -> Array:
    """Return the vorticity ω on the grid. `u` is the spectrum of a velocity."""
    return equation.transform.inverse(Curl(equation.transform).multiply(u))


def integrals(equation: AbstractEquation, u: Array) -> tuple[Array, Array]:
    """Return the kinetic energy ⟨|u|²⟩/2 and the enstrophy ⟨|ω|²⟩/2 of a velocity, which is given as a spectrum."""
    curl = Curl(equation.transform).multiply(u)
    return mean_square(equation.transform, u).sum() / 2, mean_square(equation.transform, curl).sum() / 2


def run(solver: ETDRK, u: Array, t_end: float, folder: Path | None) -> tuple[Array, History]:
    """Return the final state and the history. With `folder`, write vorticities and checkpoints there."""
    equation, dt = solver.equation, float(solver.dt)
    files = {}
    if folder is not None:
        fields = jax.jit(lambda u: {"vorticity": vorticity(equation, u)})
        write = Snapshots(folder / "{:06}.h5", every=max(1, round(1 / dt)), fields=fields)
        files = {"write": write, "checkpoint": folder / "checkpoints"}
    try:
        flow = stable(solver, u, t_end, interval=dt, observe=lambda t, u: integrals(equation, u), **files)
    except (ValueError, OSError) as error:
        if folder is None:
            raise
        raise SystemExit(f"The run in --folder does not continue: {error}") from None
    energy, enstrophy = flow.observed
    dissipation = -np.gradient(energy.astype(float), dt, edge_order=2 if flow.steps > 1 else 1)
    return flow.u, History(flow.times, energy, dissipation, enstrophy)


def report(history: History, reference: History | None, budget: np.ndarray, console: Console) -> None:
    """Print the integrals over time, and the error of the energy budget −dE/dt = 2ν·enstrophy."""
    columns = [history[1:], reference[1:]] if reference else [history[1:]]
    names = [text for name in ("energy", "−dE/dt", "enstrophy") for text in (name, "ref")[: len(columns)]]
    table = Table("time", *names, title="This run beside the spectral 512³ reference (ref)" if reference else None)
    steps = len(history.time) - 1
    early = min(steps, max(1, round(0.1 / history.time[1])))
    for row in sorted({early, *np.linspace(0, steps, 11).round().astype(int)}):
        cells = (f"{column[row]:.6f}" for pair in zip(*columns) for column in pair)
        table.add_row(f"{history.time[row]:.4g}", *cells)
    console.print(table)
    known = f" (reference {reference.energy[early]:.12f})" if reference else ""
    console.print(f"E({history.time[early]:.4g}) = {history.energy[early]:.12f}{known}")
    error = np.abs(history.dissipation - budget).max() / budget.max()
    console.print(f"−dE/dt differs from 2ν·enstrophy by at most {error:.1e} of the peak.")


def draw_vortex(equation: AbstractEquation, u: Array, axes: Any, title: str) -> None:
    """Draw the greatest magnitude of the vorticity along z. All processes call this function."""
    magnitude = jax.jit(lambda u: jnp.sqrt(jnp.sum(vorticity(equation, u) ** 2, axis=0)))(u)
    style: Any = {"cmap": "inferno", "title": title, "label": "greatest |ω| along z"}
    dops.plot.projection(equation.transform, magnitude, "z", ax=axes, **style)
    axes.images[0].set_interpolation("bicubic")


def draw_dissipation(history: History, reference: History | None, budget: np.ndarray, axes: Any) -> None:
    """Draw the dissipation over time, and the dissipation that follows from the enstrophy."""
    known = {"spectral 512³ (reference)": (reference.time, reference.dissipation)} if reference else {}
    axes.plot(history.time, budget, "C1o", markevery=max(1, len(budget) // 25), label="this run, 2ν·enstrophy")
    dops.plot.curves(history.time, {"this run, −dE/dt": history.dissipation}, references=known, ax=axes)
    axes.set(title="dissipation rate", xlim=(0, history.time[-1]), ylim=(0, None))


def check_gradient(solver: ETDRK, u: Array, viscosity: float, steps: int, console: Console) -> None:
    """Compare derivatives of the final energy by viscosity and by initial amplitude with central differences."""

    @jax.jit
    def final_energy(parameters: Array, u: Array) -> Array:
        equation = NavierStokes(solver.equation.transform, parameters[0])
        last, _ = ETDRK(equation, solver.dt).rollout(parameters[1] * u, steps)
        return integrals(equation, last)[0]

    parameters = jnp.array([viscosity, 1], u.real.dtype)
    accuracy = float(jnp.finfo(parameters.dtype).eps) ** (1 / 3)  # The best relative step of a central difference.
    shifts = 10 * accuracy * jnp.diag(parameters)  # The energy is nearly linear: rounding matters more than curvature.
    with progress("checking the gradient", 3) as report_done:
        gradients = np.asarray(jax.jit(jax.grad(final_energy))(parameters, u))
        for i, name in enumerate(("viscosity", "amplitude")):
            report_done(1 + i)
            above, below = (final_energy(parameters + shift, u) for shift in (shifts[i], -shifts[i]))
            difference = (above - below) / (2 * shifts[i, i])
            error = abs(gradients[i] / difference - 1)
            text = f"{gradients[i]:.10f}, central difference {difference:.10f}, relative difference {error:.1e}"
            console.print(f"gradient of the final energy by {name}: {text}", soft_wrap=True)
            if not error < 1e3 * accuracy**2:
                raise SystemExit("A gradient differs from the central difference by more than rounding errors.")


def parse(argv: list[str] | None) -> tuple[Namespace, jax.sharding.Mesh]:
    """Read the options and make the mesh."""
    parser = Parser(__doc__)
    parser.add_argument("--n", type=at_least(8), default=64, help="cells along each axis (64; with --gradient 16)")
    parser.add_argument("--t-end", type=positive, default=10.0, help="final time (10; with --gradient 1)")
    parser.add_argument("--dt", type=positive, help="time step (1.6 / n; with --gradient 0.05)")
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32", help="(with --gradient float64)")
    parser.add_argument("--mesh", type=mesh_shape, help="devices along x and y, such as 2x4 (all along x)")
    parser.add_argument("--backend", choices=["xla", "native", "mpi"], help="(native on CPUs, xla on GPUs)")
    parser.add_argument("--re", type=positive, default=1600.0, help="Reynolds number (1600)")
    parser.add_argument("--out", default="taylor_green.png", help="file of the figure (taylor_green.png)")
    parser.add_argument("--no-plot", action="store_true", help="draw no figure")
    parser.add_argument("--vortex", type=figure, help="file of a picture of the final vorticity")
    parser.add_argument("--folder", type=writable_folder, help="for vorticities and checkpoints; rerun to continue")
    parser.add_argument("--gradient", action="store_true", help="check the gradient of the final energy instead")
    args = parser.parse_args(argv)
    if args.gradient:
        args = parser.parse_args(argv, Namespace(**GRADIENT_DEFAULTS))
    args.dt = args.dt or min(1.6 / args.n, args.t_end)  # The flow crosses at most a quarter of a cell in a step.
    if args.dt > args.t_end:
        parser.error(f"argument --dt: must not exceed the final time {args.t_end:g}; got '{args.dt:g}'")
    if not (args.no_plot or args.gradient):
        args.out = parser.checked("--out", figure, args.out)
        if importlib.util.find_spec("matplotlib") is None:
            parser.error("the figure needs matplotlib: pip install matplotlib, or pass --no-plot")
    return args, make_mesh(parser, args.mesh, double=args.dtype == "float64", backend=args.backend, x=8, y=1)


def main(argv: list[str] | None = None) -> History | None:
    """Run the example. Return the history, or nothing with `--gradient`."""
    args, mesh = parse(argv)
    console = Console(quiet=jax.process_index() > 0, highlight=False)
    steps = round(args.t_end / args.dt)
    title = f"Taylor–Green vortex, Re = {args.re:g}, {args.n}³ cells"
    devices = f"{'x'.join(map(str, mesh.devices.shape))} {jax.default_backend()} devices"
    console.print(f"{title}, {args.dtype}, {steps} steps, {devices}")

    with jax.set_mesh(mesh):
        fft = dops.FFT3D(mesh, shape=(args.n,) * 3, pad=True, real=True, norm="forward", backend=args.backend)
        equation = NavierStokes(fft, 1 / args.re)
        solver = ETDRK(equation, args.t_end / steps)
        u = jax.jit(lambda: equation.transform(initial_velocity(args.n, args.dtype)))()
        if args.gradient:
            return check_gradient(solver, u, 1 / args.re, steps, console)
        u, history = run(solver, u, args.t_end, args.folder)
        budget = 2 / args.re * history.enstrophy
        reference = published(history.time) if args.re == 1600 and REFERENCE.exists() else None
        report(history, reference, budget, console)
        figures = {}
        if not args.no_plot:
            left, right = dops.plot.panels(1, 2, size=(4.6, 4), title=title)
            draw_vortex(equation, u, left, f"vorticity at t = {args.t_end:g}")
            draw_dissipation(history, reference, budget, right)
            figures[args.out] = left.figure
        if args.vortex:
            (axes,) = dops.plot.panels(size=(6, 5.2))
            draw_vortex(equation, u, axes, f"{title}, t = {args.t_end:g}")
            figures[args.vortex] = axes.figure
        for path, picture in () if console.quiet else figures.items():
            picture.savefig(path, dpi=150)
            console.print(f"Figure: {path}")
    return history


if __name__ == "__main__":
    try:
        main()
    except jax.errors.JaxRuntimeError as error:
        if "out of memory" not in str(error).lower():
            raise
        raise SystemExit("There is not enough memory for this size; use a smaller --n.") from None
