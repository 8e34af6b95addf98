"""Darcy flow: a Fourier neural operator learns the pressure from the permeability of random rock.

    pip install "decompops[examples,training]"
    python examples/darcy.py                                    # 32 x 32 cells on 4 virtual CPU devices: a minute
    python examples/darcy.py --n 85 --samples 1000 --steps 25000 --width 32 --data darcy

This is the data set on which neural operators are compared. The permeability a is 12 where a Gaussian random field is
positive, and 3 where it is negative. The pressure u in the unit square obeys

    -∇·(a ∇u) = 1   with   u = 0 at the walls.

The covariance of the field is (-∇² + 9)⁻² with zero slope at the walls, without the mean, as in the published data: so
the modes of the field are cosines, and the inverse of k² + 9 is their standard deviation. Conjugate gradients with a
multigrid cycle solve the equations of all samples together. The samples are sharded over the mesh axis `data`, and the
grid over `x`. The data set is two files, which other programs can read, too.

The network gets the permeability and the coordinates of each cell, and minimizes the relative error of the pressure.
With 1000 samples of 85 x 85 points, Li et al. report a relative error of 0.0108 for samples that were not trained on.

Source: Li et al., Fourier neural operator for parametric partial differential equations (ICLR 2021), section 5.2.
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
from decompops import io
from decompops.finite_volume import Diffusion
from decompops.solve import CG, Multigrid
from decompops.spectral import IsotropicFilter, white_noise
from jax import Array
from jax.sharding import PartitionSpec as P

from options import Parser, at_least, figure, make_mesh, mesh_shape, progress, writable_folder


BATCH, WHOLE = P("data", "x", None), P(None, "x", None)  # A group of devices along `data` holds its samples, or all.


def permeability(walls: dops.Transform, keys: Array) -> Array:
    """Return one random field (samples, n, n) of the values 3 and 12 for each key."""
    colour = IsotropicFilter(walls, lambda k: jnp.where(k == 0, 0, 1 / (k**2 + 9)))
    field = jax.vmap(lambda key: colour(white_noise(walls.decomposition, key)))(keys)
    return jax.sharding.reshard(jnp.where(field > 0, 12.0, 3.0), BATCH)


def pressure(dec: dops.Decomposition, a: Array) -> tuple[Array, Array, Array]:
    """Return the solution of each sample, its relative residual, and the number of steps of conjugate gradients."""

    def solve(a: Array) -> tuple[Array, Array, Array]:
        operator = Diffusion(dec, a, boundary="dirichlet")
        right = operator.volumes  # The integral of f = 1 over each cell, in units of the mean volume of the cells.
        found = CG(operator, Multigrid(operator), rtol=1e-8).solve(right)
        return found.value, dec.norm(operator(found.value) - right) / dec.norm(right), found.iterations

    return jax.vmap(solve)(a)


def predict(network: dops.nn.FNO, mean: Array, scale: Array, a: Array) -> Array:
    """Return the predicted pressures (samples, n, n). The network predicts the difference from `mean`, over `scale`."""
    places = network.blocks[0].spectral.fft.coordinates(dtype=a.dtype)
    x, y = (jnp.broadcast_to(place - 0.5, a.shape, out_sharding=BATCH) for place in places)
    return mean[None] + scale * network(jnp.stack([(a - 7.5) / 4.5, x, y], axis=1))[:, 0]


def relative_errors(dec: dops.Decomposition, guess: Array, u: Array) -> Array:
    """Return the relative L² error of each sample."""
    return dec.norm(guess - u) / dec.norm(u)


def train(
    network: dops.nn.FNO, mean: Array, scale: Array, data: list[Array], steps: int, batch: int, key: Array
) -> tuple[dops.nn.FNO, Array]:
    """Return the trained network, and the mean relative error of the samples of each step."""
    dec, optimiser = network.blocks[0].spectral.fft.decomposition, optax.adam(optax.cosine_decay_schedule(4e-3, steps))
    start, rest = eqx.partition(network, eqx.is_inexact_array)
    samples = [jax.sharding.reshard(field, WHOLE) for field in data]  # Each group can draw any of them.

    def loss(parameters: Any, a: Array, u: Array) -> Array:
        return jnp.mean(relative_errors(dec, predict(eqx.combine(parameters, rest), mean, scale, a), u))

    def step(state: tuple, drawn: Array) -> tuple[tuple, Array]:
        parameters, memory = state
        value, gradient = jax.value_and_grad(loss)(
            parameters, *(field.at[drawn].get(out_sharding=BATCH) for field in samples)
        )
        updates, memory = optimiser.update(gradient, memory)
        return (optax.apply_updates(parameters, updates), memory), value

    drawn = jax.random.randint(key, (steps, batch), 0, len(samples[0]))
    (parameters, _), losses = jax.lax.scan(step, (start, optimiser.init(start)), drawn)
    return eqx.combine(parameters, rest), losses


def plot(walls: dops.Transform, a: Array, u: Array, guess: Array, path: Path) -> None:
    """Draw the first sample, the prediction of the network, and its error."""
    rock, truth, found = (walls.decomposition.gather(field)[0] for field in (a, u, guess))
    axes, limits = dops.plot.panels(1, 4, size=(3.6, 3.2)), (0.0, float(truth.max()))
    dops.plot.slice(walls, rock, ax=axes[0], title="permeability a")
    dops.plot.slice(walls, truth, ax=axes[1], limits=limits, title="pressure u")
    dops.plot.slice(walls, found, ax=axes[2], limits=limits, title="prediction")
    dops.plot.slice(walls, found - truth, ax=axes[3], title="error")
    axes[0].figure.savefig(path, dpi=150)


def main(argv: list[str] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Run the example. Returns the losses, and the relative error of each sample that was not trained on."""
    parser = Parser(__doc__)
    parser.add_argument("--n", type=at_least(8), default=32, help="cells along each axis (32)")
    parser.add_argument("--samples", type=at_least(1), default=256, help="samples to train on (256)")
    parser.add_argument("--unseen", type=at_least(1), default=64, help="samples to test the network on (64)")
    parser.add_argument("--steps", type=at_least(1), default=1000, help="training steps (1000)")
    parser.add_argument("--batch", type=at_least(1), default=16, help="samples in each step (16)")
    parser.add_argument("--width", type=at_least(1), default=16, help="channels of the network (16)")
    parser.add_argument("--depth", type=at_least(1), default=4, help="layers of the network (4)")
    parser.add_argument("--mesh", type=mesh_shape, help="devices along data and x, such as 2x2")
    parser.add_argument("--data", type=writable_folder, help="folder for the data set (a temporary one)")
    parser.add_argument("--out", type=figure, default="darcy.png", help="file of the figure (darcy.png)")
    args = parser.parse_args(argv)
    mesh = make_mesh(parser, args.mesh, data=2, x=2)
    parts = mesh.shape["data"]
    for option in ("samples", "unseen", "batch"):
        if (count := getattr(args, option)) % parts:
            parser.error(f"argument --{option}: must be a multiple of the {parts} devices along data; got '{count}'")

    with jax.set_mesh(mesh), tempfile.TemporaryDirectory() as temporary, progress("solving and training", 3) as report:
        grid = {"shape": (args.n, args.n), "axes": "x", "box": dops.Box(1.0), "pad": True}
        walls = dops.Transform(mesh, bases=(dops.Cosine(2), dops.Cosine(2)), **grid)
        fft = dops.FFT2D(mesh, real=True, **grid)
        dec, folder = walls.decomposition, args.data or Path(temporary)
        for_network, for_steps, for_data = jax.random.split(jax.random.key(0), 3)
        keys = jax.random.split(for_data, args.samples + args.unseen)
        a = jax.jit(permeability, static_argnums=0)(walls, keys)
        u, residuals, steps = jax.jit(pressure, static_argnums=0)(dec, a)
        print(f"{len(keys)} samples in {steps.max()} steps: relative residuals up to {residuals.max():.1e}", flush=True)
        sets = []
        for name, part in (("training", slice(args.samples)), ("unseen", slice(args.samples, None))):
            whole = {"a": jax.sharding.reshard(a, WHOLE)[part], "u": jax.sharding.reshard(u, WHOLE)[part]}
            path = folder / f"{name}.h5"
            io.write(path, {field: values.astype("float32") for field, values in whole.items()}, walls)
            arrays = io.read(path, walls).arrays
            sets.append([jax.sharding.reshard(arrays[field], BATCH) for field in ("a", "u")])
        report(1)

        (_, u), (new_a, new_u) = sets
        options = {"width": args.width, "modes": min(12, (args.n + 2) // 4), "depth": args.depth, "dtype": "float32"}
        network = dops.nn.FNO2D(fft, 3, 1, **options, key=for_network).replace(fft=fft)
        mean = jnp.mean(u, axis=0)
        scale = jnp.sqrt(jnp.mean(dec.mean((u - mean[None]) ** 2)))
        network, losses = eqx.filter_jit(train)(network, mean, scale, sets[0], args.steps, args.batch, for_steps)
        print(f"The loss fell from {losses[0]:.3f} to {losses[-1]:.3f} in {args.steps} steps.")
        report(2)
        guess = eqx.filter_jit(predict)(network, mean, scale, new_a)
        errors, simple = (np.asarray(relative_errors(dec, each, new_u)) for each in (guess, mean[None]))
        print(f"Relative error of new samples: {errors.mean():.4f} (prediction of the mean: {simple.mean():.4f})")
        plot(walls, new_a, new_u, guess, args.out)
    print(f"Figure: {args.out}")
    return np.asarray(losses), errors


if __name__ == "__main__":
    main()
