"""The Taylor–Green vortex, pseudo-spectral and distributed, beside the published 512³ solution for Re = 1600.

    python examples/taylor_green.py                  # 64³ on 8 virtual CPU devices, or on all GPUs
    python examples/taylor_green.py --n 256 --dt 0.005 --mesh 2x4
    python examples/taylor_green.py --gradient       # differentiate through a whole (small) simulation
    mpiexec -n 4 python examples/taylor_green.py --backend mpi    # on a CPU cluster (docs/cluster.md)

Incompressible Navier–Stokes on [0, 2π]³ in rotational form. The pressure and the gradient part of u × ω drop out by the
projection P onto divergence-free fields:

    ∂u/∂t = P(u × ω) − νk²u,        ω = ik × u,        P f = f − k (k·f)/k².

The state is the half spectrum of the velocity. One evaluation of the right-hand side takes nine real transforms in two
batched calls: three components of u and three of ω to the grid, and three of u × ω back.

Re = 1600 takes about 512³ cells to resolve: 64³ follow the reference to t ≈ 4, 128³ to t ≈ 5, and overshoot the peak of
dissipation at t ≈ 9 by some percent, because what should be dissipated at smaller scales piles up at the smallest kept.
"""

import argparse
import contextlib
import functools
import importlib.util
import math
import os
import time
from pathlib import Path
from typing import NamedTuple

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from rich.console import Console
from rich.progress import Progress
from rich.table import Table


REFERENCE = Path(__file__).parent / "data" / "taylor_green_re1600_spectral_512.txt"
DEFAULTS = {"n": 64, "t_end": 10.0, "dt": 0.025, "dtype": "float32"}
GRADIENT_DEFAULTS = {"n": 16, "t_end": 1.0, "dt": 0.05, "dtype": "float64"}
STEPS_PER_DISPATCH = 10


class NavierStokes(eqx.Module):
    """The right-hand side, time step and integrals of a flow, given by its velocity's spectrum (3, *spectral shape).

    Wavenumbers are computed inside each call: stored as arrays here, they would be parameters to `jax.grad`.
    """

    fft: dops.FFT3D
    viscosity: Array

    def wavenumbers(self) -> tuple[tuple[Array, Array, Array], Array]:
        """The components of k, broadcastable against a spectrum, and k². Both are zero in padding."""
        kx, ky, kz = self.fft.wavenumbers()
        return (kx, ky, kz), kx**2 + ky**2 + kz**2

    def __call__(self, u: Array) -> Array:
        """∂u/∂t, dealiased by the 2/3 rule. Nothing acts on the mean flow (k = 0), and so nothing on padding."""
        k, k2 = self.wavenumbers()
        velocity, vorticity = self.fft.inverse(jnp.stack([u, 1j * cross(k, u)]))
        force = self.fft(cross(velocity, vorticity))

        cutoff = velocity.shape[-1] / 3  # on the grid z is whole everywhere, hence never padded
        kept = (k2 > 0) & (abs(k[0]) < cutoff) & (abs(k[1]) < cutoff) & (abs(k[2]) < cutoff)
        force = jnp.where(kept, force, 0)
        pressure = (k[0] * force[0] + k[1] * force[1] + k[2] * force[2]) / jnp.where(kept, k2, 1)
        return force - jnp.stack([component * pressure for component in k]) - self.viscosity * k2 * u

    def step(self, u: Array, dt: float) -> Array:
        """One time step of the classical fourth-order Runge–Kutta method."""
        k1 = self(u)
        k2 = self(u + dt / 2 * k1)
        k3 = self(u + dt / 2 * k2)
        k4 = self(u + dt * k3)
        return u + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    def integrals(self, u: Array) -> tuple[Array, Array]:
        """Kinetic energy and enstrophy, ⟨|u|²⟩/2 and ⟨|ω|²⟩/2, by Parseval's theorem."""
        k, k2 = self.wavenumbers()
        modes = jnp.where(k[2] > 0, 2, 1)  # a mode with kz > 0 stands for its conjugate too
        density = modes * jnp.sum(u.real**2 + u.imag**2, axis=0) / 2
        return jnp.sum(density), jnp.sum(k2 * density)


def cross(a, b) -> Array:
    """The cross product of vector fields whose components lie along the leading axis."""
    return jnp.stack([a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]])


@functools.partial(jax.jit, static_argnames=("n", "dtype"))
def initial_spectrum(fft: dops.FFT3D, n: int, dtype: str) -> Array:
    """The spectrum of u = (sin x cos y cos z, −cos x sin y cos z, 0)."""
    z = 2 * jnp.pi * jnp.arange(n, dtype=dtype) / n
    x, y = z[:, None, None], z[:, None]
    u = jnp.sin(x) * jnp.cos(y) * jnp.cos(z)
    v = -jnp.cos(x) * jnp.sin(y) * jnp.cos(z)
    return fft(jnp.stack([u, v, jnp.zeros_like(u)]))


@functools.partial(jax.jit, static_argnames="steps", donate_argnames="u")
def advance(solver: NavierStokes, u: Array, dt: float, steps: int) -> tuple[Array, tuple[Array, Array]]:
    """Several time steps in one dispatch: the last state, and the integrals after each step."""

    def body(u, _):
        u = solver.step(u, dt)
        return u, solver.integrals(u)

    return jax.lax.scan(body, u, length=steps)


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


def run(solver: NavierStokes, u: Array, dt: float, steps: int, reference: History | None, console: Console) -> History:
    """Simulate under a progress bar."""
    energy, enstrophy = (np.array([value]) for value in jax.jit(NavierStokes.integrals)(solver, u))
    early = max(1, round(0.1 / dt))  # the step whose energy is printed at once, with 12 digits
    with Progress(console=console) as progress:
        task = progress.add_task("Simulating", total=steps)
        for done in range(0, steps, STEPS_PER_DISPATCH):
            u, (energies, enstrophies) = advance(solver, u, dt, min(STEPS_PER_DISPATCH, steps - done))
            energy, enstrophy = np.append(energy, energies), np.append(enstrophy, enstrophies)
            progress.update(task, completed=len(energy) - 1)
            if not math.isfinite(energy[-1]):
                raise SystemExit(f"The run became unstable after t = {done * dt:.4g}; use a smaller --dt.")
            if done < early < len(energy):
                known = f" (reference {reference.energy[early]:.12f})" if reference else ""
                console.print(f"E({early * dt:.4g}) = {energy[early]:.12f}{known}", highlight=False)
    dissipation = -np.gradient(energy.astype(float), dt, edge_order=2 if steps > 1 else 1)
    return History(dt * np.arange(steps + 1), energy, dissipation, enstrophy)


def report(history: History, reference: History | None, viscosity: float, console: Console) -> None:
    """Print the integrals over time, and how well the energy budget −dE/dt = 2ν·enstrophy closes."""
    table = Table("time", title="This run beside the spectral 512³ reference (ref)" if reference else None)
    for name in ("energy", "−dE/dt", "enstrophy"):
        table.add_column(name, justify="right")
        if reference:
            table.add_column("ref", justify="right", style="dim")
    steps = len(history.time) - 1
    rows = {round(0.1 / history.time[1]), *np.linspace(0, steps, 11).round().astype(int)}
    for row in sorted(row for row in rows if row <= steps):
        columns = [column for pair in zip(history[1:], *([reference[1:]] if reference else [])) for column in pair]
        cells = ("" if math.isnan(column[row]) else f"{column[row]:.6f}" for column in columns)
        table.add_row(f"{history.time[row]:.4g}", *cells)
    console.print(table)
    budget = 2 * viscosity * history.enstrophy
    error = np.abs(history.dissipation - budget).max() / budget.max()
    console.print(f"−dE/dt is 2ν·enstrophy to {error:.1e} of its peak.", highlight=False)


def plot(history: History, reference: History | None, viscosity: float, title: str, path: Path) -> None:
    """Draw energy and dissipation over time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    figure.suptitle(title)
    left, right = figure.subplots(1, 2)
    if reference:
        left.plot(reference.time, reference.energy, "k--", label="spectral 512³ (reference)")
        right.plot(reference.time, reference.dissipation, "k--", label="spectral 512³ (reference)")
    left.plot(history.time, history.energy, label="this run")
    right.plot(history.time, history.dissipation, label="this run, −dE/dt")
    budget, every = 2 * viscosity * history.enstrophy, max(1, len(history.time) // 25)
    right.plot(history.time[::every], budget[::every], "o", ms=4, label="this run, 2ν·enstrophy")
    left.set(ylabel="kinetic energy")
    right.set(ylabel="dissipation rate")
    for axes in (left, right):
        axes.set(xlabel="time", xlim=(0, history.time[-1]), ylim=(0, None))
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=150)


def check_gradient(solver: NavierStokes, u: Array, dt: float, steps: int, console: Console) -> dict[str, tuple]:
    """Differentiate the final energy by viscosity and initial amplitude, and compare with central differences."""

    @jax.jit
    def final_energy(parameters: dict[str, Array], u: Array) -> Array:
        flow = NavierStokes(solver.fft, parameters["viscosity"])
        step = jax.checkpoint(lambda u, _: (flow.step(u, dt), None))  # keeps one state per step, recomputes the rest
        u, _ = jax.lax.scan(step, parameters["amplitude"] * u, length=steps)
        return flow.integrals(u)[0]

    parameters = {"viscosity": solver.viscosity, "amplitude": jnp.ones_like(solver.viscosity)}
    gradients = jax.jit(jax.grad(final_energy))(parameters, u)
    accuracy = float(jnp.finfo(solver.viscosity.dtype).eps) ** (1 / 3)  # the best relative step of a central difference
    table = Table("final energy by", "jax.grad", "central difference", "relative difference")
    results = {}
    for name, value in parameters.items():
        h = accuracy * value
        above, below = (final_energy(parameters | {name: value + shift}, u) for shift in (h, -h))
        gradient, difference = float(gradients[name]), float((above - below) / (2 * h))
        results[name] = gradient, difference
        table.add_row(name, f"{gradient:.10f}", f"{difference:.10f}", f"{abs(gradient / difference - 1):.1e}")
    console.print(table)
    if not all(abs(gradient / difference - 1) < 1e3 * accuracy**2 for gradient, difference in results.values()):
        raise SystemExit("A gradient differs from its central difference by more than rounding explains.")
    return results


class Parser(argparse.ArgumentParser):
    """An argument parser that says what is wrong in one line."""

    def error(self, message: str):
        self.exit(2, f"{self.prog}: error: {message}\n")


def number(kind: type, least: float | None = None):
    """The type of an option: a finite positive number, of at least `least`."""

    def convert(text: str):
        with contextlib.suppress(ValueError):
            value = kind(text)
            if 0 < value < math.inf and (least is None or value >= least):
                return value
        rule = "positive" if least is None else f"at least {least}"
        raise argparse.ArgumentTypeError(f"must be {rule} ({kind.__name__}); got {text!r}")

    return convert


def mesh_shape(text: str) -> tuple[int, int]:
    """The type of an option: "2x4" is (2, 4)."""
    rows, _, columns = text.lower().partition("x")
    if not (rows.isdecimal() and columns.isdecimal() and int(rows) and int(columns)):
        raise argparse.ArgumentTypeError(f"must be two positive integers such as 2x4; got {text!r}")
    return int(rows), int(columns)


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Read the options, and set JAX up by them: before it starts, because then the devices are fixed."""
    parser = Parser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--n", type=number(int, 8), help="cells along each axis (64; with --gradient 16)")
    parser.add_argument("--t-end", type=number(float), help="final time (10; with --gradient 1)")
    parser.add_argument("--dt", type=number(float), help="time step (0.025; with --gradient 0.05)")
    parser.add_argument("--dtype", choices=["float32", "float64"], help="precision (float32; with --gradient float64)")
    parser.add_argument("--mesh", type=mesh_shape, help="devices along x and y, such as 2x4 (all along x)")
    parser.add_argument("--backend", choices=["xla", "mpi"], default="xla", help="mpi: compiled kernels, under mpiexec")
    parser.add_argument("--re", type=number(float), default=1600.0, help="Reynolds number (1600)")
    parser.add_argument("--out", type=Path, default=Path("taylor_green.png"), help="the figure (taylor_green.png)")
    parser.add_argument("--no-plot", action="store_true", help="draw no figure")
    parser.add_argument("--gradient", action="store_true", help="check the gradient of the final energy instead")
    args = parser.parse_args(argv)
    for name, value in (GRADIENT_DEFAULTS if args.gradient else DEFAULTS).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    if args.dt > args.t_end:
        parser.error(f"argument --dt: must not exceed the final time {args.t_end:g}; got '{args.dt:g}'")
    if not (args.no_plot or args.gradient):
        if args.out.suffix != ".png" or not os.access(args.out.parent, os.W_OK):
            parser.error(f"argument --out: must be a .png file in a folder that can be written; got '{args.out}'")
        if importlib.util.find_spec("matplotlib") is None:
            parser.error("the figure needs matplotlib: pip install matplotlib, or leave it out by --no-plot")

    jax.config.update("jax_enable_x64", args.dtype == "float64")
    if args.backend == "mpi":
        dops.MPI.initialize()
    else:
        with contextlib.suppress(RuntimeError):  # where JAX runs already, its devices are what they are
            jax.config.update("jax_num_cpu_devices", math.prod(args.mesh or (8, 1)))
    devices = jax.device_count()
    args.mesh = args.mesh or (devices, 1)
    least = jax.process_count()  # each has a device to take part with
    if not least <= math.prod(args.mesh) <= devices:
        rule = f"must have {least} to {devices} devices"
        parser.error(f"argument --mesh: {rule}; got '{args.mesh[0]}x{args.mesh[1]}'")
    return args


def main(argv: list[str] | None = None) -> History | dict[str, tuple]:
    """Run the example. Returns its history or, with `--gradient`, each gradient and central difference."""
    args = parse(argv)
    first = jax.process_index() == 0
    console = Console(quiet=not first)
    mesh = jax.make_mesh(args.mesh, ("x", "y"), devices=jax.devices()[: math.prod(args.mesh)])
    steps = max(1, round(args.t_end / args.dt))
    dt = args.t_end / steps
    title = f"Taylor–Green vortex, Re = {args.re:g}, {args.n}³ cells, {args.dtype}"
    grid = "x".join(map(str, args.mesh))
    console.print(f"{title}, {steps} steps, {grid} {jax.default_backend()} devices", highlight=False)

    with jax.set_mesh(mesh):
        fft = dops.FFT3D(
            mesh, shape=(args.n,) * 3, real=True, norm="forward", axis_contiguous=True, backend=args.backend
        )
        solver = NavierStokes(fft, jnp.asarray(1 / args.re, args.dtype))
        u = initial_spectrum(fft, args.n, args.dtype)
        if args.gradient:
            return check_gradient(solver, u, dt, steps, console)
        reference = published(dt * np.arange(steps + 1)) if args.re == 1600 else None
        start = time.perf_counter()
        history = run(solver, u, dt, steps, reference, console)
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
