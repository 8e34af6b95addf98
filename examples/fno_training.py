"""Train a Fourier neural operator on turbulence from our own solver, parallel over data and over space at once.

    pip install ".[examples,training]"
    python examples/fno_training.py --n 16 --steps 200          # 8 virtual CPU devices, mesh 2x2x2

The mesh has the axes ("data", "x", "y"), all Explicit. Samples are divided over `data`, the fields of each over `x` and
`y`, and so are the modes that the network's spectral layers keep. Parameters and the optimiser's state are divided over
`data` as well where they can be (FSDP): gathered just before use, their gradients summed and scattered at once.

Half-way, everything is saved by `decompops.io`. At the end the second half is trained again from there, and must come
out the same bit for bit. The same checkpoint is also restored on a mesh with all devices along `x`: parameters have the
same shapes on every mesh, and so has the optimiser's state.
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

from options import Parser, at_least, figure, make_mesh, mesh_shape


FRAMES = 5  # of each flow, an interval of 0.25 apart


def make_flows(fft: dops.FFT, samples: int, key: Array) -> Array:
    """Velocities `(FRAMES, samples, 3, nx, ny, nz)` of decaying flows from random initial fields."""
    field, project = GaussianRandomField(fft, lambda k: jnp.exp(-(k**2) / 4)), LerayProjection(fft)
    keys = jax.random.split(key, (samples, 3))
    u = jax.vmap(jax.vmap(lambda key: field(key, dtype="float32")))(keys)
    u = project(jax.sharding.reshard(u, P("data", None, "x", "y", None)))
    mean_square = jnp.mean(fft.decomposition.mean(u**2), axis=1)  # of each flow
    u = u / jnp.sqrt(mean_square)[:, None, None, None, None]
    solver = ETDRK(NavierStokes(fft, viscosity=0.02), dt=0.05)
    kept = solver.equation.transform
    _, later = solver.rollout(kept(u), 5 * (FRAMES - 1), every=5, observe=lambda t, u: kept.inverse(u))
    return jnp.concatenate([u[None], later])


def divided(leaf: Array) -> NamedSharding:
    """Where a parameter is stored: divided over `data` too, along the first axis that allows it."""
    sharding = jax.typeof(leaf).sharding
    spec = [*sharding.spec, *[None] * leaf.ndim][: leaf.ndim]
    parts = sharding.mesh.shape["data"]
    free = [axis for axis, name in enumerate(spec) if name is None and leaf.shape[axis] % parts == 0]
    for axis in free[:1]:
        spec[axis] = "data"
    return NamedSharding(sharding.mesh, P(*spec))


def advance(model: dops.nn.FNO, u: Array) -> Array:
    """One interval: the network predicts the change."""
    return u + model(u)


class Trainer:
    """A training step, and what it needs of the model besides its parameters."""

    def __init__(self, model: dops.nn.FNO, rate: float = 1e-2):
        self.optimiser = optax.adam(rate)
        self.decomposition = model.blocks[0].spectral.fft.decomposition
        parameters, self.rest = eqx.partition(model, eqx.is_inexact_array)
        self.used = jax.tree.map(lambda leaf: jax.typeof(leaf).sharding, parameters)
        parameters = jax.tree.map(lambda leaf: jax.sharding.reshard(leaf, divided(leaf)), parameters)
        self.start = parameters, jax.jit(self.optimiser.init)(parameters)

    def model(self, parameters: Any) -> dops.nn.FNO:
        """The network, its parameters gathered over `data`."""
        return eqx.combine(jax.tree.map(jax.sharding.reshard, parameters, self.used), self.rest)

    def loss(self, parameters: Any, inputs: Array, targets: Array) -> Array:
        return jnp.mean(self.decomposition.mean((advance(self.model(parameters), inputs) - targets) ** 2))

    def train(self, state: tuple, batches: tuple[Array, Array]) -> tuple[tuple, Array]:
        """One step for each of the `batches`, and the losses."""

        def step(state, batch):
            parameters, memory = state
            loss, gradient = jax.value_and_grad(self.loss)(parameters, *batch)
            updates, memory = self.optimiser.update(gradient, memory, parameters)
            return (optax.apply_updates(parameters, updates), memory), loss

        return jax.lax.scan(step, state, batches)


def draw_batches(flows: Array, steps: int, batch: int, key: Array) -> tuple[Array, Array]:
    """Random pairs of one frame and the next, `(steps, batch, 3, nx, ny, nz)`, the batch divided over `data`."""
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
    """The state in a checkpoint, restored on another mesh, and its loss there for a batch of pairs."""
    here = model.blocks[0].spectral.fft.decomposition
    frames = [here.gather(u) for u in pair]
    with jax.set_mesh(mesh):
        fft = dops.FFT3D(mesh, shape=here.shape, pad=True, real=True)
        trainer = Trainer(model.on(fft))
        state = checkpoints.restore({"state": trainer.start})["state"]
        return state, jax.jit(trainer.loss)(state[0], *map(fft.decomposition.shard, frames))


def equal(one: Any, other: Any) -> bool:
    """Whether two states are the same bit for bit, on whatever meshes they lie."""
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


def plot(losses: np.ndarray, errors: np.ndarray, path: Path) -> None:
    left, right = dops.plot.panels(1, 2)
    dops.plot.curves(np.arange(len(losses)), losses, log="y", xlabel="step", ax=left, title="training", label="loss")
    time, title = 0.25 * np.arange(1, len(errors) + 1), "rollout of flows never seen"
    dops.plot.curves(time, errors, style="o-", ax=right, title=title, label="relative error")
    right.set(ylim=(0, None))
    right.figure.savefig(path, dpi=150)


def main(argv: list[str] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Returns the losses, and the errors of a rollout, one for each interval."""
    parser = Parser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--n", type=at_least(8), default=16, help="cells along each axis (16)")
    parser.add_argument("--samples", type=at_least(1), default=32, help="flows to learn from (32)")
    parser.add_argument("--steps", type=at_least(2), default=200, help="training steps (200)")
    parser.add_argument("--batch", type=at_least(1), default=8, help="samples of a step (8)")
    parser.add_argument("--width", type=at_least(1), default=12, help="channels of the network (12)")
    parser.add_argument("--depth", type=at_least(1), default=3, help="its layers (3)")
    parser.add_argument("--mesh", type=mesh_shape, help="devices along data, x and y, such as 2x2x2")
    parser.add_argument("--out", type=figure, default=figure("fno_training.png"), help="the figure")
    args = parser.parse_args(argv)
    mesh = make_mesh(parser, args.mesh, double=False, data=2, x=2, y=2)
    parts = mesh.shape["data"]
    for option, count in (("--samples", args.samples), ("--batch", args.batch)):
        if count % parts:
            parser.error(f"argument {option}: must be a multiple of the {parts} devices along data; got '{count}'")

    with jax.set_mesh(mesh):
        fft = dops.FFT3D(mesh, shape=(args.n,) * 3, pad=True, real=True)
        for_data, for_test, for_model, for_batches = jax.random.split(jax.random.key(0), 4)
        make = jax.jit(make_flows, static_argnums=(0, 1))
        flows, unseen = (make(fft, args.samples, key) for key in (for_data, for_test))
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
            last, second = train(middle, halves[1])
            restored = checkpoints.restore({"state": middle})["state"]
            along_x = Mesh(mesh.devices.reshape(1, -1, 1), mesh.axis_names, axis_types=mesh.axis_types)
            moved, loss = restore_on(along_x, checkpoints, model, tuple(frames[0] for frames in halves[1]))
        resumed, _ = train(restored, halves[1])
        losses = np.concatenate([first, second])
        print(f"The loss fell from {losses[0]:.2e} to {losses[-1]:.2e} in {len(losses)} steps.")
        same = equal(last, resumed)
        print(f"Resumed from the checkpoint, the second half {'is the same bit for bit' if same else 'DIFFERS'}.")
        portable = equal(middle, moved) and bool(np.isclose(loss, second[0], rtol=1e-4))
        print(f"Restored with all devices along x, the state and its loss {'are the same' if portable else 'DIFFER'}.")

        network, u, errors = trainer.model(last[0]), unseen[0], []
        for truth in unseen[1:]:
            u = eqx.filter_jit(advance)(network, u)
            errors.append(float(jnp.sqrt(jnp.sum((u - truth) ** 2) / jnp.sum(truth**2))))
        still = float(jnp.sqrt(jnp.sum((unseen[0] - unseen[1]) ** 2) / jnp.sum(unseen[1] ** 2)))
        print(f"Error after 1 to {FRAMES - 1} intervals: {', '.join(f'{e:.3f}' for e in errors)}")
        print(f"(The flow itself changes by {still:.3f} in the first.)")
    plot(losses, np.array(errors), args.out)
    print(f"Figure: {args.out}")
    if not (same and portable):
        raise SystemExit("A check failed.")
    return losses, np.array(errors)


if __name__ == "__main__":
    main()
