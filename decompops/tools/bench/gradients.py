"""The memory and time of gradients of long rollouts that keep few states, compared with binomial checkpoints.

`python -m decompops.tools.bench.gradients --steps 100 1000 --keep 60 500 --plot docs/gradients.svg`
"""

import argparse
import importlib
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from ... import FFT3D
from ..._rollout.binomial import count_moves
from ..._rollout.memory import scratch_bytes
from ...pde import ETDRK, NavierStokes
from ...spectral import LerayProjection


class Row(NamedTuple):
    """The measurements of one gradient.

    `keep` is the number of states that the gradient may keep. `states` is its scratch memory, in units of one state.
    `time` and `work` are its wall time and its CPU time, each divided by the same time of a forward run.
    """

    steps: int
    keep: int | None
    states: float
    time: float
    work: float


def problem(n: int, mesh: Mesh) -> tuple[ETDRK, jax.Array]:
    """Return decaying turbulence in a box of n³ cells, in float32."""
    fft = FFT3D(mesh, shape=(n, n, n), real=True, norm="forward")
    solver = ETDRK(NavierStokes(fft, 1e-2), 1e-2)
    noise = jax.random.normal(jax.random.key(0), (3, n, n, n), jnp.float32)
    return solver, solver.equation.state(LerayProjection(fft)(noise))


def measured(solver: ETDRK, u: jax.Array, steps: int, keeps: Sequence[int | None], repeats: int) -> list[Row]:
    """Time the gradients of `steps` steps, one for each entry of `keeps`. A forward run follows each gradient."""

    def loss(keep: int | None) -> Callable[[jax.Array], jax.Array]:
        return lambda u: jnp.sum(jnp.abs(solver.rollout(u, steps, keep=keep)[0]) ** 2)

    forward = jax.jit(loss(None)).lower(u).compile()
    gradients = [jax.jit(jax.grad(loss(keep))).lower(u).compile() for keep in keeps]
    ratios: list[list[np.ndarray]] = [[] for _ in keeps]
    for _ in range(repeats):
        for own, gradient in zip(ratios, gradients):
            own.append(seconds(gradient, u) / seconds(forward, u))
    sizes = (scratch_bytes(gradient) / u.nbytes for gradient in gradients)
    medians = (np.median(own, axis=0).tolist() for own in ratios)
    return [Row(steps, keep, size, *own) for keep, size, own in zip(keeps, sizes, medians)]


def seconds(program: Any, u: jax.Array) -> np.ndarray:
    """Return the wall time of a run, and the CPU time of all cores. A busy machine changes the CPU time less."""
    start = np.array([time.perf_counter(), time.process_time()])
    jax.block_until_ready(program(u))
    return np.array([time.perf_counter(), time.process_time()]) - start


def plot(rows: Sequence[Row], path: str) -> None:
    """Plot CPU time against memory for the largest number of steps, and for binomial checkpoints of single steps."""
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    steps = max(row.steps for row in rows)
    kept = sorted((row for row in rows if row.steps == steps and row.keep is not None), key=lambda row: row.states)
    figure, axes = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
    checkpoints = np.arange(12, 1000)
    moves = np.array([count_moves(steps, int(c)) for c in checkpoints]) / steps
    axes.plot(checkpoints, moves, "k--", lw=1, label="moves of binomial checkpoints (Griewank & Walther)")
    axes.plot([row.states for row in kept], [row.work for row in kept], "o-", label="`keep`: the gradient")
    for row in rows:
        if row.steps == steps and row.keep is None:
            axes.plot(row.states, row.work, "s", label="without `keep`: two levels of checkpoints")
    axes.set(xscale="log", xlabel="states", ylabel="forward runs", xlim=(10, 1000), ylim=(0, kept[0].work + 0.5))
    axes.set_title(f"{steps} steps")
    axes.legend(fontsize=8)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=32, help="cells along each axis (32)")
    parser.add_argument("--steps", type=int, nargs="+", default=[100, 1000], help="(100 1000)")
    parser.add_argument("--keep", type=int, nargs="+", default=[45, 60, 80, 120, 250, 500], help="states")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--plot", metavar="FILE", help="draw the trade-off; needs matplotlib")
    args = parser.parse_args()
    solver, u = problem(args.size, jax.make_mesh((1, 1), ("x", "y")))
    rows = []
    print("| steps | `keep` | states | gradient / forward, time | all cores |\n|---|---|---|---|---|")
    for steps in args.steps:
        for row in measured(solver, u, steps, [None, *args.keep], args.repeats):
            print(
                f"| {row.steps} | {row.keep or ''} | {row.states:.0f} | {row.time:.2f} | {row.work:.2f} |", flush=True
            )
            rows.append(row)
    if args.plot:
        plot(rows, args.plot)


if __name__ == "__main__":
    main()
