"""The Taylor–Green vortex, pseudo-spectral and distributed, beside the published 512³ solution for Re = 1600.

    python examples/taylor_green.py                  # 64³ on 8 virtual CPU devices, or on all GPUs
    python examples/taylor_green.py --n 256 --dt 0.005 --mesh 2x4
    python examples/taylor_green.py --gradient       # differentiate through a whole (small) simulation
    mpiexec -n 4 python examples/taylor_green.py --backend mpi    # on a CPU cluster (docs/cluster.md)
    python examples/taylor_green.py --folder run     # vorticities for ParaView; and checkpoints, to go on from

Re = 1600 takes about 512³ cells to resolve: 64³ follow the reference to t ≈ 4, 128³ to t ≈ 5, and overshoot the peak of
dissipation at t ≈ 9 by some percent, because what should be dissipated at smaller scales piles up at the smallest kept.
"""

import importlib.util
import math
import time
from argparse import Namespace
from pathlib import Path
from typing import NamedTuple

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
from decompops.pde import ETDRK, AbstractEquation, NavierStokes, NotFinite, Snapshots, simulate
from decompops.spectral import Curl, mean_square
from jax import Array
from rich.console import Console
from rich.table import Table

from options import Parser, at_least, figure, make_mesh, mesh_shape, positive


REFERENCE = Path(__file__).parent / "data" / "taylor_green_re1600_spectral_512.txt"
DEFAULTS = {"n": 64, "t_end": 10.0, "dt": 0.025, "dtype": "float32"}
GRADIENT_DEFAULTS = {"n": 16, "t_end": 1.0, "dt": 0.05, "dtype": "float64"}


def initial_velocity(n: int, dtype: str) -> Array:
    """u = (sin x cos y cos z, −cos x sin y cos z, 0) on [0, 2π]³."""
    z = 2 * jnp.pi * jnp.arange(n, dtype=dtype) / n
    x, y = z[:, None, None], z[:, None]
    u = jnp.sin(x) * jnp.cos(y) * jnp.cos(z)
    v = -jnp.cos(x) * jnp.sin(y) * jnp.cos(z)
    return jnp.stack([u, v, jnp.zeros_like(u)])


def integrals(equation: AbstractEquation, u: Array) -> tuple[Array, Array]:
    """Kinetic energy and enstrophy, ⟨|u|²⟩/2 and ⟨|ω|²⟩/2, of a velocity's spectrum."""
    vorticity = Curl(equation.transform).multiply(u)
    return mean_square(equation.transform, u).sum() / 2, mean_square(equation.transform, vorticity).sum() / 2


class History(NamedTuple):
    """Kinetic energy, dissipation −dE/dt and enstrophy over time."""

    time: np.ndarray
    energy: np.ndarray
    dissipation: np.ndarray
    enstrophy: np.ndarray


def published(time: np.ndarray) -> History:
    """The spectral 512³ solution for Re = 1600 at given times; NaN past its end."""
    known, *columns = np.loadtxt(REFERENCE).T
    return History(time, *(np.interp(time, known, values, right=np.nan) for values in columns))


def run(solver: ETDRK, u: Array, t_end: float, folder: Path | None) -> History:
    """Simulate, and observe after each step. With `folder`, write vorticities and checkpoints there."""
    equation, dt = solver.equation, float(solver.dt)

    def vorticity(u: Array) -> dict[str, Array]:
        return {"vorticity": equation.transform.inverse(Curl(equation.transform).multiply(u))}

    options = {}
    if folder is not None:
        write = Snapshots(folder / "{:06}.h5", every=max(1, round(1 / dt)), fields=jax.jit(vorticity))
        options = {"write": write, "checkpoint": folder / "checkpoints"}
    try:
        flow = simulate(solver, u, t_end, interval=dt, observe=lambda t, u: integrals(equation, u), **options)
    except NotFinite as error:
        raise SystemExit(f"The run became unstable after t = {error.t:.4g}; use a smaller --dt.") from None
    energy, enstrophy = flow.observed
    dissipation = -np.gradient(energy.astype(float), dt, edge_order=2 if flow.steps > 1 else 1)
    return History(flow.times, energy, dissipation, enstrophy)


def report(history: History, reference: History | None, viscosity: float, console: Console) -> None:
    """Print the integrals over time, and how well the energy budget −dE/dt = 2ν·enstrophy closes."""
    table = Table("time", title="This run beside the spectral 512³ reference (ref)" if reference else None)
    for name in ("energy", "−dE/dt", "enstrophy"):
        table.add_column(name, justify="right")
        if reference:
            table.add_column("ref", justify="right", style="dim")
    steps = len(history.time) - 1
    early = min(steps, max(1, round(0.1 / history.time[1])))
    for row in sorted({early, *np.linspace(0, steps, 11).round().astype(int)}):
        columns = [column for pair in zip(history[1:], *([reference[1:]] if reference else [])) for column in pair]
        cells = ("" if math.isnan(column[row]) else f"{column[row]:.6f}" for column in columns)
        table.add_row(f"{history.time[row]:.4g}", *cells)
    console.print(table)
    known = f" (reference {reference.energy[early]:.12f})" if reference else ""
    console.print(f"E({history.time[early]:.4g}) = {history.energy[early]:.12f}{known}", highlight=False)
    budget = 2 * viscosity * history.enstrophy
    error = np.abs(history.dissipation - budget).max() / budget.max()
    console.print(f"−dE/dt is 2ν·enstrophy to {error:.1e} of its peak.", highlight=False)


def plot(history: History, reference: History | None, viscosity: float, title: str, path: Path) -> None:
    """Draw energy and dissipation over time."""
    left, right = dops.plot.panels(1, 2, size=(5, 4), title=title)
    known = {"spectral 512³ (reference)": reference} if reference else {}
    energies = {name: (run.time, run.energy) for name, run in known.items()}
    rates = {name: (run.time, run.dissipation) for name, run in known.items()}
    dops.plot.curves(history.time, {"this run": history.energy}, references=energies, ax=left, label="kinetic energy")
    dops.plot.curves(history.time, {"this run, −dE/dt": history.dissipation}, references=rates, ax=right)
    some = np.arange(0, len(history.time), max(1, len(history.time) // 25))
    budget = {"this run, 2ν·enstrophy": 2 * viscosity * history.enstrophy[some]}
    dops.plot.curves(history.time[some], budget, style="o", ax=right, label="dissipation rate")
    for axes in (left, right):
        axes.set(xlim=(0, history.time[-1]), ylim=(0, None))
    left.figure.savefig(path, dpi=150)


def check_gradient(solver: ETDRK, u: Array, viscosity: float, steps: int, console: Console) -> dict[str, tuple]:
    """Differentiate the final energy by viscosity and initial amplitude, and compare with central differences."""
    fft = solver.equation.transform

    @jax.jit
    def final_energy(parameters: dict[str, Array], u: Array) -> Array:
        flow = ETDRK(NavierStokes(fft, parameters["viscosity"]), solver.dt)
        last, _ = flow.rollout(parameters["amplitude"] * u, steps)
        return integrals(flow.equation, last)[0]

    dtype = u.real.dtype
    parameters = {"viscosity": jnp.asarray(viscosity, dtype), "amplitude": jnp.ones((), dtype)}
    gradients = jax.jit(jax.grad(final_energy))(parameters, u)
    accuracy = float(jnp.finfo(dtype).eps) ** (1 / 3)  # the best relative step of a central difference
    table = Table("final energy by", "jax.grad", "central difference", "relative difference")
    results = {}
    for name, value in parameters.items():
        h = 10 * accuracy * value  # the energy is nearly linear: rounding counts for more than curvature
        above, below = (final_energy(parameters | {name: value + shift}, u) for shift in (h, -h))
        gradient, difference = float(gradients[name]), float((above - below) / (2 * h))
        results[name] = gradient, difference
        table.add_row(name, f"{gradient:.10f}", f"{difference:.10f}", f"{abs(gradient / difference - 1):.1e}")
    console.print(table)
    if not all(abs(gradient / difference - 1) < 1e3 * accuracy**2 for gradient, difference in results.values()):
        raise SystemExit("A gradient differs from its central difference by more than rounding explains.")
    return results


def parse(argv: list[str] | None) -> tuple[Namespace, jax.sharding.Mesh]:
    """Read the options, and make the mesh."""
    parser = Parser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--n", type=at_least(8), help="cells along each axis (64; with --gradient 16)")
    parser.add_argument("--t-end", type=positive, help="final time (10; with --gradient 1)")
    parser.add_argument("--dt", type=positive, help="time step (0.025; with --gradient 0.05)")
    parser.add_argument("--dtype", choices=["float32", "float64"], help="precision (float32; with --gradient float64)")
    parser.add_argument("--mesh", type=mesh_shape, help="devices along x and y, such as 2x4 (all along x)")
    backends = ["xla", "native", "mpi"]
    parser.add_argument("--backend", choices=backends, help="mpi needs mpiexec (native on CPUs, else xla)")
    parser.add_argument("--re", type=positive, default=1600.0, help="Reynolds number (1600)")
    parser.add_argument("--out", default="taylor_green.png", help="the figure (taylor_green.png)")
    parser.add_argument("--no-plot", action="store_true", help="draw no figure")
    parser.add_argument("--folder", type=Path, help="write vorticities and checkpoints there; start again to go on")
    parser.add_argument("--gradient", action="store_true", help="check the gradient of the final energy instead")
    args = parser.parse_args(argv)
    for name, value in (GRADIENT_DEFAULTS if args.gradient else DEFAULTS).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    if args.dt > args.t_end:
        parser.error(f"argument --dt: must not exceed the final time {args.t_end:g}; got '{args.dt:g}'")
    if not (args.no_plot or args.gradient):
        args.out = parser.checked("--out", figure, args.out)
        if importlib.util.find_spec("matplotlib") is None:
            parser.error("the figure needs matplotlib: pip install matplotlib, or leave it out by --no-plot")
    return args, make_mesh(parser, args.mesh, double=args.dtype == "float64", backend=args.backend, x=8, y=1)


def main(argv: list[str] | None = None) -> History | dict[str, tuple]:
    """Run the example. Returns its history or, with `--gradient`, each gradient and central difference."""
    args, mesh = parse(argv)
    first = jax.process_index() == 0
    console = Console(quiet=not first)
    steps = max(1, round(args.t_end / args.dt))
    dt = args.t_end / steps
    title = f"Taylor–Green vortex, Re = {args.re:g}, {args.n}³ cells, {args.dtype}"
    grid = "x".join(map(str, mesh.devices.shape))
    console.print(f"{title}, {steps} steps, {grid} {jax.default_backend()} devices", highlight=False)

    with jax.set_mesh(mesh):
        fft = dops.FFT3D(mesh, shape=(args.n,) * 3, pad=True, real=True, norm="forward", backend=args.backend)
        solver = ETDRK(NavierStokes(fft, 1 / args.re), dt)
        u = jax.jit(lambda: solver.equation.transform(initial_velocity(args.n, args.dtype)))()
        if args.gradient:
            return check_gradient(solver, u, 1 / args.re, steps, console)
        start = time.perf_counter()
        history = run(solver, u, args.t_end, args.folder)
    reference = published(dt * np.arange(steps + 1)) if args.re == 1600 else None
    report(history, reference, 1 / args.re, console)
    console.print(f"{time.perf_counter() - start:.1f} s, compilation included.", highlight=False)
    if first and not args.no_plot:
        plot(history, reference, 1 / args.re, title, args.out)
        console.print(f"Figure: {args.out}", highlight=False)
    return history


if __name__ == "__main__":
    try:
        main()
    except jax.errors.JaxRuntimeError as error:
        if "out of memory" not in str(error).lower():
            raise
        raise SystemExit("There is not enough memory for this size; use a smaller --n.") from None
