"""A flow solver and a network that learns from it while it runs: groups of devices with different programs.

    pip install "decompops[examples,training]"
    python examples/two_groups.py                    # 2 groups of 2x2 devices: GPUs, or CPUs (three minutes)
    python examples/two_groups.py --mesh 4x2x1       # 3 learners of different widths learn from the same flow

Group 0 solves the incompressible Navier–Stokes equations for a decaying turbulent flow,

    ∂u/∂t + (u·∇)u = -∇p + ν∇²u   and   ∇·u = 0   with   ν = 0.02.

After each interval, `mpmd.reshard` sends the velocity from group 0, where it lies in pencils, to the other groups,
where it lies in slabs. Each of these groups computes the energy spectrum, and trains a network that corrects a solver
of half the resolution. The inputs of the network are the flow at the start of the interval, and the coarse solver's
prediction of the flow at the end. The network learns the true flow at the end. Each snapshot first tests the network
and then trains it. All snapshots come from one flow, so the network is not a general model of turbulence.

With several processes, each process belongs to one group, and runs only the program of this group. The processes
exchange data only by `reshard`. On one machine with two cores:

    taskset -c 0 python examples/two_groups.py --mesh 2x1x1 --address 127.0.0.1:12345 --processes 2 --rank 0 &
    taskset -c 1 python examples/two_groups.py --mesh 2x1x1 --address 127.0.0.1:12345 --processes 2 --rank 1

While the learners train on one snapshot, the solver computes the next one. The example runs the groups first one after
the other, then together, and checks that both runs compute the same results. Together, the groups take as long as the
slower one alone if each group has its own hardware, as in the commands above. On CPUs, each group must also have its
own process: XLA runs the programs of several CPU devices in one process one after the other.

Source: Um et al., Solver-in-the-loop (NeurIPS 2020), train networks that correct a coarse solver.
"""

import math
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from decompops import mpmd, spectral
from decompops.mpmd import MpmdArray, MpmdMesh, MpmdSharding
from decompops.pde import ETDRK, NavierStokes
from jax import Array
from jax.sharding import Mesh, PartitionSpec as P

from options import Parser, at_least, figure, make_mesh, mesh_shape, progress


SOLVER = 0  # The number of the solver's group. All other groups learn.
INTERVAL = 0.1
VISCOSITY = 0.02
TRAINING_STEPS = 4  # The number of training steps per snapshot.


class Snapshot(NamedTuple):
    """The data that the solver sends."""

    velocity: Any  # The shape is (3, n, n, n).
    energy: Any


class Report(NamedTuple):
    """The measurements of a learner, one for each snapshot."""

    spectrum: Any  # The energy by |k|, of shape (snapshots, bins).
    energy: Any  # The energy from the solver, of shape (snapshots,).
    coarse: Any  # The mean square error of the coarse solver.
    corrected: Any  # The mean square error with the network, before the network trains on the snapshot.


def first_velocity(fft: dops.FFT) -> Array:
    """Return a random divergence-free field, the same on every mesh."""
    draw, project = spectral.GaussianRandomField(fft, lambda k: jnp.exp(-(k**2) / 8)), spectral.LerayProjection(fft)
    u = project(jax.vmap(draw)(jax.random.split(jax.random.key(0), 3)))
    return u / jnp.sqrt(jnp.mean(fft.decomposition.mean(u**2)))


def make_solver(mesh: Mesh, n: int) -> tuple[Array, Callable]:
    """Return the first state of group 0, and its program for one interval, which returns a state and a snapshot."""
    fft = dops.FFT3D(mesh, shape=(n,) * 3, real=True)
    steps = 2 * round(n / 16)
    solver = ETDRK(NavierStokes(fft, VISCOSITY), INTERVAL / steps)
    kept = solver.equation.transform

    @jax.jit
    def advance(state: Array) -> tuple[Array, Snapshot]:
        state, _ = solver.rollout(state, steps)
        return state, Snapshot(kept.inverse(state), spectral.mean_square(kept, state).sum() / 2)

    return jax.jit(lambda: kept(first_velocity(fft)))(), advance


def make_learner(mesh: Mesh, n: int, width: int, report: Report) -> tuple[Any, Callable]:
    """Return the first state of a learning group, which includes its report, and its program for one snapshot."""
    fft = dops.FFT3D(mesh, shape=(n,) * 3, real=True)
    coarse_grid = (n // 2,) * 3
    half = dops.FFT3D(mesh, shape=coarse_grid, real=True)
    steps = round(n / 16)
    solver = ETDRK(NavierStokes(half, VISCOSITY), INTERVAL / steps)
    kept, project, cut = solver.equation.transform, spectral.LerayProjection(half), spectral.Resample(fft, coarse_grid)
    modes = (n // 2 + 2) // 3  # The number of modes that the coarse solver keeps.
    network = dops.nn.FNO3D(half, 6, 3, width=width, modes=modes, depth=2, key=jax.random.key(1))
    parameters, rest = eqx.partition(network, eqx.is_inexact_array)
    optimiser = optax.adam(1e-2)
    edges = np.arange(n) - 0.5  # The largest |k| that the solver keeps is n / √3.

    def filtered(u: Array) -> Array:
        return kept.inverse(kept(cut(u)))

    def loss(parameters: Any, u: Array, guess: Array, truth: Array) -> Array:
        force = eqx.combine(parameters, rest)(jnp.concatenate([u, (guess - u) / INTERVAL]))
        return jnp.mean((guess + INTERVAL * project(force) - truth) ** 2) / jnp.mean((guess - truth) ** 2)

    @jax.jit
    def learn(state: tuple, snapshot: Snapshot) -> tuple:
        parameters, memory, u, report, seen = state
        guess = kept.inverse(solver.rollout(kept(u), steps)[0])
        truth = filtered(snapshot.velocity)

        def step(state: tuple, _: None) -> tuple[tuple, Array]:
            parameters, memory = state
            error, gradient = jax.value_and_grad(loss)(parameters, u, guess, truth)
            updates, memory = optimiser.update(gradient, memory, parameters)
            return (optax.apply_updates(parameters, updates), memory), error

        (parameters, memory), errors = jax.lax.scan(step, (parameters, memory), length=TRAINING_STEPS)
        shells = spectral.power_spectrum(fft, snapshot.velocity, edges=edges)
        spectrum = (shells.power.sum(0) * shells.modes) / (2 * (2 * math.pi) ** 3)
        coarse = jnp.mean(half.decomposition.mean((guess - truth) ** 2))
        new = Report(spectrum, snapshot.energy, coarse, errors[0] * coarse)
        report = jax.tree.map(lambda all, one: all.at[seen].set(one), report, new)
        return parameters, memory, truth, report, seen + 1

    start = jax.jit(lambda: filtered(first_velocity(fft)))()
    report = jax.tree.map(jnp.asarray, report)
    return (parameters, optimiser.init(parameters), start, report, jnp.zeros((), int)), learn


def known(place: MpmdSharding, zero: np.ndarray, array: Array | None) -> MpmdArray:
    """Return an array of one group as an `MpmdArray`. In a process without a part of the array, `array` is `None`."""
    return MpmdArray([] if array is None else [array], place, zero.shape, zero.dtype)


class Groups:
    """The programs of the groups of this process, and the exchange between groups.

    If there is one process, it has all groups.
    """

    def __init__(self, mesh: Mesh, n: int, width: int, snapshots: int):
        line = Mesh(mesh.devices.reshape(len(mesh.devices), -1), ("group", "x"), axis_types=mesh.axis_types[:2])
        self.pencils, self.slabs = MpmdMesh(mesh, "group"), MpmdMesh(line, "group")  # Both have the same devices.
        self.meshes = [self.pencils.groups[SOLVER], *self.slabs.groups[1:]]
        self.learners = range(1, len(self.meshes))
        self.snapshot = Snapshot(np.zeros((3, n, n, n)), np.zeros(()))
        self.report = Report(np.zeros((snapshots, n - 1)), *[np.zeros(snapshots)] * 3)
        self.home = Snapshot(*(MpmdSharding(self.pencils, [SOLVER], spec) for spec in (P(None, "x", "y"), P())))
        # Exchange once before compilation: between CPUs, the first exchange fails if a process is 30 s late.
        self.deliver(mpmd.spmd_to_mpmd_reshard(self.pencils, self.snapshot, self.home))
        places = {group: MpmdSharding(self.slabs, [group], P()) for group in self.learners}
        self.collect(mpmd.spmd_to_mpmd_reshard(self.slabs, dict.fromkeys(self.learners, self.report), places))
        self.start, self.programs = {}, {}
        for group in self.pencils.local_mpmd_idxs:
            mesh = self.meshes[group]
            with jax.set_mesh(mesh):
                made = make_solver(mesh, n) if group == SOLVER else make_learner(mesh, n, width * group, self.report)
            self.start[group], self.programs[group] = made

    def advance(self, states: dict) -> Snapshot:
        """Run the solver for one interval in its own processes. Returns the snapshot at the end of the interval."""
        snapshot = Snapshot(None, None)
        if SOLVER in states:
            jax.block_until_ready(states[SOLVER])  # Dozens of waiting calls would deadlock XLA's CPU devices.
            with jax.set_mesh(self.meshes[SOLVER]):
                states[SOLVER], snapshot = self.programs[SOLVER](states[SOLVER])
        return Snapshot(*map(known, self.home, self.snapshot, snapshot))

    def deliver(self, snapshot: Snapshot) -> dict[int, Snapshot]:
        """Send a snapshot to all learners. Returns the snapshot for each learner of this process."""
        places = {g: Snapshot(*(MpmdSharding(self.slabs, [g], s) for s in (P(None, "x"), P()))) for g in self.learners}
        delivered = mpmd.reshard(dict.fromkeys(self.learners, snapshot), places)
        return {group: delivered[group] for group in self.learners if group in self.pencils.local_mpmd_idxs}

    def learn(self, states: dict, snapshots: dict[int, Snapshot]) -> None:
        """Let the learners of this process learn from a snapshot."""
        for group, snapshot in snapshots.items():
            jax.block_until_ready(states[group])
            with jax.set_mesh(self.meshes[group]):
                states[group] = self.programs[group](states[group], snapshot)

    def finish(self, states: dict) -> dict[int, Report]:
        """Wait for the learners. Return their reports in the processes of the solver, and `{}` in all others."""
        jax.block_until_ready(states)
        reports = {}
        for group in self.learners:
            report = states[group][3] if group in states else [None] * 4
            place = MpmdSharding(self.slabs, [group], P())
            reports[group] = Report(*map(known, [place] * 4, self.report, report))
        return self.collect(reports)

    def collect(self, reports: dict[int, Report]) -> dict[int, Report]:
        """Send the reports to the solver. Return the reports in the processes of the solver, and `{}` in all others."""
        reports = mpmd.reshard(reports, MpmdSharding(self.pencils, [SOLVER], P()))
        return jax.tree.map(np.asarray, reports) if SOLVER in self.pencils.local_mpmd_idxs else {}


class Result(NamedTuple):
    """The reports of both runs, and their times in seconds."""

    alone: dict[int, Report]
    together: dict[int, Report]
    solver: float
    learners: float
    both: float


def run(groups: Groups, intervals: int, report: Callable) -> Result:
    """Run the solver alone, then the learners alone, then all groups together. Every process calls this function."""
    states, begin = dict(groups.start), time.perf_counter()
    sent = []
    for i in range(intervals):
        sent.append(groups.advance(states))
        report(i)
    jax.block_until_ready(states)
    solver = time.perf_counter() - begin

    received = jax.block_until_ready([groups.deliver(snapshot) for snapshot in sent])
    groups.finish(states)  # Wait for the learners, because only they know when all data has arrived.
    begin = time.perf_counter()
    for i, snapshots in enumerate(received):
        groups.learn(states, snapshots)
        report(intervals + i)
    alone = groups.finish(states)
    learners = time.perf_counter() - begin

    states, begin = dict(groups.start), time.perf_counter()
    for i in range(intervals):
        # No call waits for its result: the solver starts the next interval while the learners train.
        groups.learn(states, groups.deliver(groups.advance(states)))
        report(2 * intervals + i)
    together = groups.finish(states)
    return Result(alone, together, solver, learners, time.perf_counter() - begin)


def summarise(result: Result, width: int) -> bool:
    """Print the results. Returns whether all checks pass."""
    energy, spectrum = result.together[1].energy, result.together[1].spectrum
    missed = abs(spectrum.sum(1) / energy - 1).max()
    print(f"The energy falls from {energy[0]:.8f} to {energy[-1]:.8f}; the spectra sum to it up to {missed:.1e}.")
    good = [missed < 1e-10, (np.diff(energy) < 0).all()]
    for group, noted in result.together.items():
        left = noted.corrected / noted.coarse
        last = left[-max(1, len(left) // 4) :].mean()
        print(
            f"Learner {group}, of width {width * group}: error over the coarse solver's error, in the mean square,"
            f" {left[0]:.5f} at first and {last:.5f} in the last quarter"
        )
        good.append(last < 1)
    pairs = list(zip(jax.tree.leaves(result.alone), jax.tree.leaves(result.together)))
    difference = max(abs(a - b).max() / abs(b).max() for a, b in pairs)
    good.append(difference < 1e-6)
    print(f"Separate and simultaneous runs differ by at most {difference:.1e}.")
    total, slower = result.solver + result.learners, max(result.solver, result.learners)
    print(f"Solver alone {result.solver:.2f} s, learners alone {result.learners:.2f} s, sum {total:.2f} s.")
    print(f"Together {result.both:.2f} s: {result.both / total:.2f} of the sum (ideal: {slower / total:.2f}).")
    return all(good)


def plot(reports: dict[int, Report], width: int, path: Path) -> None:
    """Draw the energy spectra, and the errors with the networks divided by the error of the coarse solver."""
    left, right = dops.plot.panels(1, 2)
    times = INTERVAL * np.arange(1, len(reports[1].energy) + 1)
    spectra = np.where(reports[1].spectrum > 1e-12, reports[1].spectrum, np.nan)
    rows = np.unique(np.linspace(0, len(times) - 1, 6).round().astype(int))
    chosen = {f"t = {times[row]:.1f}": spectra[row] for row in rows}
    title = "energy spectra"
    dops.plot.curves(np.arange(spectra.shape[1]), chosen, log="xy", xlabel="|k|", ax=left, title=title, label="energy")
    for line, colour in zip(left.lines, np.linspace(0, 0.9, len(rows))):
        line.set_color((colour, 0.2, 1 - colour))  # The colours follow the time, from blue to red.
    left.legend()
    errors = {f"group {group}, width {width * group}": r.corrected / r.coarse for group, r in reports.items()}
    coarse = {"coarse solver": (times, np.ones(len(times)))}
    title, label = "prediction of the next snapshot", "mean square error, relative"
    dops.plot.curves(times, errors, references=coarse, ax=right, title=title, label=label)
    right.set(ylim=(0, None))
    right.figure.savefig(path, dpi=150)


def connect(parser: Parser, args: Namespace) -> Mesh:
    """Make the mesh from the devices of all processes."""
    count = args.processes
    if args.rank >= count:
        parser.error(f"argument --rank: must be below --processes, {count}; got '{args.rank}'")
    if count > 1:
        if args.address is None:
            parser.error(f"argument --processes: needs --address; got '{count}'")
        args.mesh = args.mesh or (count, 2, max(1, 4 // count))
        if count % args.mesh[0] or math.prod(args.mesh) % count:
            text = "x".join(map(str, args.mesh))
            parser.error(f"argument --mesh: must divide each group's devices among its processes; got '{text}'")
        jax.config.update("jax_num_cpu_devices", math.prod(args.mesh) // count)
        jax.distributed.initialize(args.address, count, args.rank, heartbeat_timeout_seconds=30)
        jax.devices()  # This starts JAX, so `make_mesh` does not change the number of devices.
    return make_mesh(parser, args.mesh, group=2, x=2, y=2)


def main(argv: list[str] | None = None) -> dict[int, Report]:
    """Run the example. Returns the reports of the learners in the processes of group 0, and `{}` in all others."""
    parser = Parser(__doc__)
    parser.add_argument("--n", type=at_least(16), default=32, help="cells along each axis (32)")
    parser.add_argument("--snapshots", type=at_least(8), default=60, help=f"intervals of {INTERVAL} (60)")
    parser.add_argument(
        "--width", type=at_least(1), default=8, help="width of the network of group 1; group g has g times this (8)"
    )
    parser.add_argument("--mesh", type=mesh_shape, help="groups, and devices along x and y in each (2x2x2)")
    parser.add_argument("--address", help="host and port of process 0, for several processes")
    parser.add_argument("--processes", type=at_least(1), default=1, help="number of processes (1)")
    parser.add_argument("--rank", type=at_least(0), default=0, help="number of this process, from 0")
    parser.add_argument("--out", type=figure, default="two_groups.png", help="file of the figure")
    args = parser.parse_args(argv)
    mesh = connect(parser, args)
    shape, devices = "x".join(map(str, mesh.devices.shape)), mesh.devices[0].size
    if len(mesh.devices) < 2:
        parser.error(f"argument --mesh: must have 2 groups or more; got '{shape}'")
    if args.n % devices:
        parser.error(f"argument --n: must be a multiple of {devices}, the devices of a group; got '{args.n}'")

    programs = Groups(mesh, args.n, args.width, args.snapshots)
    with progress("running alone and together", 3 * args.snapshots) as report:
        run(programs, 1, lambda done: None)  # This compiles the programs.
        result = run(programs, args.snapshots, report)
    if jax.process_index() == 0:
        print(f"{args.n}³ cells, {args.snapshots} snapshots, {shape} {jax.default_backend()} devices")
        good = summarise(result, args.width)
        plot(result.together, args.width, args.out)
        print(f"Figure: {args.out}")
        if not good:
            raise SystemExit("A check failed.")
    return result.together


if __name__ == "__main__":
    main()
