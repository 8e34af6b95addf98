"""Training of a Fourier neural operator: it learns flows of the library's solver, in parallel over data and space.

    pip install "decompops[examples,training]"
    python examples/fno_training.py                             # 16³ cells on 8 virtual CPU devices: three minutes
    python examples/fno_training.py --n 32 --samples 64 --steps 2000 --mesh 2x2x2

The network learns the map from a velocity u(t) to u(t + 0.25), where u obeys the incompressible Navier–Stokes equations

    ∂u/∂t + (u·∇)u = -∇p + ν∇²u   and   ∇·u = 0   with   ν = 0.02.

The mesh has the axes ("data", "x", "y"), all Explicit. Samples are sharded over `data`. The field of each sample, and
the modes that the spectral layers keep, are sharded over `x` and `y`. Where possible, the parameters and the state of
the optimizer are also sharded over `data` (FSDP): the program gathers parameters just before use, and sums and scatters
their gradients in one operation.

After half of the steps, `decompops.io` saves the whole state. The program then runs the second half of the steps twice,
the second time from the checkpoint, and compares the results bit for bit. It also restores the checkpoint on a mesh
with all devices along `x`. This works because the parameters and the state of the optimizer have the same shapes on
every mesh.

Source: Li et al., Fourier neural operator for parametric partial differential equations (ICLR 2021).
"""

import tempfile
from pathlib import Path
from typing import Any

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from decompops.io import Checkpoints
from decompops.pde import ETDRK, NavierStokes
from decompops.spectral import GaussianRandomField, LerayProjection
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from options import Parser, at_least, figure, make_mesh, mesh_shape, progress


INTERVAL = 0.25
FRAMES = 5  # The number of frames of each flow, one interval apart.


def make_flows(fft: dops.FFT, samples: int, key: Array) -> Array:
    """Return velocities `(FRAMES, samples, 3, nx, ny, nz)` of decaying flows from random initial fields."""
    field, project = GaussianRandomField(fft, lambda k: jnp.exp(-(k**2) / 4)), LerayProjection(fft)
    keys = jax.random.split(key, (samples, 3))
    u = jax.vmap(jax.vmap(lambda key: field(key, dtype="float32")))(keys)
    u = project(jax.sharding.reshard(u, P("data", None, "x", "y", None)))
    mean_square = jnp.mean(fft.decomposition.mean(u**2), axis=1)  # One number per flow.
    u = u / jnp.sqrt(mean_square)[:, None, None, None, None]
    solver = ETDRK(NavierStokes(fft, viscosity=0.02), dt=INTERVAL / 5)
    kept = solver.equation.transform
    _, later = solver.rollout(kept(u), 5 * (FRAMES - 1), every=5, observe=lambda t, u: kept.inverse(u))
    return jnp.concatenate([u[None], later])


def sharded_over_data(leaf: Array) -> NamedSharding:
    """Return the sharding for storing a parameter: `data` also shards the first free axis that it divides."""
    sharding = jax.typeof(leaf).sharding
    spec = [*sharding.spec, *[None] * leaf.ndim][: leaf.ndim]
    parts = sharding.mesh.shape["data"]
    free = [axis for axis, name in enumerate(spec) if name is None and leaf.shape[axis] % parts == 0]
    for axis in free[:1]:
        spec[axis] = "data"
    return NamedSharding(sharding.mesh, P(*spec))


def advance(model: dops.nn.FNO, u: Array) -> Array:
    """Return the prediction one interval later. The network predicts the change."""
    return u + model(u)


class Trainer:
    """A training step with its optimizer, and the parts of the model that are not trained."""

    def __init__(self, model: dops.nn.FNO, rate: float = 1e-2):
        self.optimiser = optax.adam(rate)
        self.decomposition = model.blocks[0].spectral.fft.decomposition
        parameters, self.rest = eqx.partition(model, eqx.is_inexact_array)
        self.used = jax.tree.map(lambda leaf: jax.typeof(leaf).sharding, parameters)
        parameters = jax.tree.map(lambda leaf: jax.sharding.reshard(leaf, sharded_over_data(leaf)), parameters)
        self.start = parameters, jax.jit(self.optimiser.init)(parameters)

    def model(self, parameters: Any) -> dops.nn.FNO:
        """Return the network with its parameters gathered over `data`."""
        return eqx.combine(jax.tree.map(jax.sharding.reshard, parameters, self.used), self.rest)

    def loss(self, parameters: Any, inputs: Array, targets: Array) -> Array:
        """Return the mean square error of the predictions."""
        return jnp.mean(self.decomposition.mean((advance(self.model(parameters), inputs) - targets) ** 2))

    def train(self, state: tuple, batches: tuple[Array, Array]) -> tuple[tuple, Array]:
        """Make one step for each of the `batches`. Returns the state and the losses."""

        def step(state, batch):
            parameters, memory = state
            loss, gradient = jax.value_and_grad(self.loss)(parameters, *batch)
            updates, memory = self.optimiser.update(gradient, memory, parameters)
            return (optax.apply_updates(parameters, updates), memory), loss

        return jax.lax.scan(step, state, batches)


def draw_batches(flows: Array, steps: int, batch: int, key: Array) -> tuple[Array, Array]:
    """Return random pairs of one frame and the next, `(steps, batch, 3, nx, ny, nz)`.

    The batch is sharded over `data`, and the grid over `x` and `y`.
    """
    frames, samples = flows.shape[:2]
    frame, sample = jax.random.randint(key, (2, steps, batch), 0, jnp.array([frames - 1, samples])[:, None, None])
    spec = P(None, "data", None, "x", "y", None)
    whole = jax.sharding.reshard(flows, P(None, None, None, "x", "y", None))

    def pick(frame: Array) -> Array:
        return jax.sharding.reshard(whole.at[frame, sample].get(out_sharding=P(None, None, None, "x", "y", None)), spec)

    return pick(frame), pick(frame + 1)


def restore_on(
    mesh: Mesh, checkpoints: Checkpoints, model: dops.nn.FNO, pair: tuple[Array, Array]
) -> tuple[Any, Array]:
    """Restore the state of a checkpoint on another mesh. Returns the state, and its loss for a batch on that mesh."""
    here = model.blocks[0].spectral.fft.decomposition
    frames = [here.gather(u) for u in pair]
    with jax.set_mesh(mesh):
        fft = dops.FFT3D(mesh, shape=here.shape, pad=True, real=True)
        trainer = Trainer(model.replace(fft=fft))
        state = checkpoints.restore({"state": trainer.start})["state"]
        return state, jax.jit(trainer.loss)(state[0], *map(fft.decomposition.shard, frames))


def equal(one: Any, other: Any) -> bool:
    """Return whether all values of two states are equal. The states may be on different meshes."""
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


def plot(
    fft: dops.FFT, truth: np.ndarray, guess: np.ndarray, losses: np.ndarray, errors: np.ndarray, path: Path
) -> None:
    """Draw a flow and its prediction, the losses, and the errors of the rollout."""
    upper, (left, right) = dops.plot.panels(2, 2, size=(4.2, 3.4))
    names = [f"velocity along x at t = {INTERVAL}: truth", "prediction of the network"]
    dops.plot.slice(fft, np.stack([truth[0], guess[0]]), "z", index=0, ax=upper, title=names)
    for axes in upper:
        axes.images[0].set_interpolation("bicubic")
    dops.plot.curves(np.arange(len(losses)), losses, xlabel="step", ax=left, title="training", label="loss")
    time, title = INTERVAL * np.arange(1, len(errors) + 1), "rollout of new flows"
    dops.plot.curves(time, errors, style="o-", ax=right, title=title, label="relative error")
    for axes in (left, right):
        axes.set(ylim=(0, None))
    right.figure.savefig(path, dpi=150)


def main(argv: list[str] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Run the example. Returns the losses, and the error of a rollout after each interval."""
    parser = Parser(__doc__)
    parser.add_argument("--n", type=at_least(8), default=16, help="cells along each axis (16)")
    parser.add_argument("--samples", type=at_least(1), default=32, help="number of flows in the training data (32)")
    parser.add_argument("--steps", type=at_least(2), default=800, help="training steps (800)")
    parser.add_argument("--batch", type=at_least(1), default=8, help="samples per step (8)")
    parser.add_argument("--width", type=at_least(1), default=12, help="channels of the network (12)")
    parser.add_argument("--depth", type=at_least(1), default=3, help="layers of the network (3)")
    parser.add_argument("--mesh", type=mesh_shape, help="devices along data, x and y, such as 2x2x2")
    parser.add_argument("--out", type=figure, default="fno_training.png", help="file of the figure")
    args = parser.parse_args(argv)
    mesh = make_mesh(parser, args.mesh, double=False, data=2, x=2, y=2)
    parts = mesh.shape["data"]
    for option, count in (("--samples", args.samples), ("--batch", args.batch)):
        if count % parts:
            parser.error(f"argument {option}: must be a multiple of the {parts} devices along data; got '{count}'")

    with jax.set_mesh(mesh), progress("making flows, training and checking", 4) as report:
        fft = dops.FFT3D(mesh, shape=(args.n,) * 3, pad=True, real=True)
        for_data, for_test, for_model, for_batches = jax.random.split(jax.random.key(0), 4)
        make = jax.jit(make_flows, static_argnums=(0, 1))
        flows, unseen = jax.block_until_ready([make(fft, args.samples, key) for key in (for_data, for_test)])
        report(1)
        modes = (args.n + 2) // 4
        model = dops.nn.FNO3D(fft, 3, 3, width=args.width, modes=modes, depth=args.depth, key=for_model)
        trainer = Trainer(model)
        train = jax.jit(trainer.train)
        halves = [
            jax.jit(draw_batches, static_argnums=(1, 2))(flows, args.steps // 2, args.batch, key)
            for key in jax.random.split(for_batches)
        ]

        middle, first = train(trainer.start, halves[0])
        with tempfile.TemporaryDirectory() as folder, Checkpoints(folder) as checkpoints:
            checkpoints.save(len(first), {"state": middle})
            report(2)
            last, second = train(middle, halves[1])
            restored = checkpoints.restore({"state": middle})["state"]
            along_x = Mesh(mesh.devices.reshape(1, -1, 1), mesh.axis_names, axis_types=mesh.axis_types)
            report(3)
            moved, loss = restore_on(along_x, checkpoints, model, tuple(frames[0] for frames in halves[1]))
        resumed, _ = train(restored, halves[1])
        losses = np.concatenate([first, second])
        print(f"The loss fell from {losses[0]:.2e} to {losses[-1]:.2e} in {len(losses)} steps.")
        same = equal(last, resumed)
        print(f"From the checkpoint, the second half {'is the same bit for bit' if same else 'DIFFERS'}.")
        portable = equal(middle, moved) and bool(np.isclose(loss, second[0], rtol=1e-4))
        print(f"With all devices along x, the restored state and its loss {'are the same' if portable else 'DIFFER'}.")

        network, u, guesses, errors = trainer.model(last[0]), unseen[0], [], []
        for truth in unseen[1:]:
            u = eqx.filter_jit(advance)(network, u)
            guesses.append(u)
            errors.append(float(jnp.sqrt(jnp.sum((u - truth) ** 2) / jnp.sum(truth**2))))
        still = float(jnp.sqrt(jnp.sum((unseen[0] - unseen[1]) ** 2) / jnp.sum(unseen[1] ** 2)))
        print(f"Relative errors after 1 to {FRAMES - 1} intervals: {', '.join(f'{e:.3f}' for e in errors)}")
        print(f"(A prediction of no change would have the error {still:.3f} after the first interval.)")
        truth, guess = (fft.decomposition.gather(flow)[0] for flow in (unseen[1], guesses[0]))
        plot(fft, truth, guess, losses, np.array(errors), args.out)
    print(f"Figure: {args.out}")
    if not (same and portable):
        raise SystemExit("A check failed.")
    return losses, np.array(errors)


if __name__ == "__main__":
    main()
