"""An inverse problem with jumps: find the conductivity in a body from noisy measurements of the potential.

    python examples/conductivity.py                             # 48² cells on 2 virtual CPU devices: half a minute
    python examples/conductivity.py --cube --n 24               # a ball and a plate in a cube

The conductivity a is one, and ten in a disc and in a bar. Several drives set the potential u at the walls, from -1 to
1. For each of them, `-∇·(a ∇u) = 0`, and u is measured in a part of the cells, with errors σ. Potentials are the same
for a and for 2 a, so a must be known somewhere: in the cells at the walls. The program minimises

    ⟨((u(a) - measured) / σ)²⟩ + w ∫ |∇ log a|

over log a in all cells, where ⟨⟩ is the mean over the measurements. The second term, the total variation, permits jumps
but not noise. It is smoothed, so that it has derivatives. One solver, conjugate gradients with multigrid, takes all
drives as a batch. For the gradient, it solves one more system for each drive, by the implicit function theorem.

Source: Rudin, Osher & Fatemi (Physica D 60, 1992) for the total variation.
"""

import itertools
from collections.abc import Callable
from pathlib import Path

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from decompops import finite_volume, solve, spectral
from jax import Array

from options import Parser, at_least, figure, make_mesh, mesh_shape, positive, progress


CONTRAST = 10.0
SMOOTH = 1.0  # The total variation is smooth for gradients of log a that are smaller than this.


def bodies(points: np.ndarray) -> np.ndarray:
    """Return where the disc (or ball) and the bar (or plate) are. The entries of `points` lie between -1 and 1."""
    x, y, *rest = points
    inside = np.all(np.abs(rest) < 0.5, axis=0) if rest else True
    return ((x + 0.35) ** 2 + (y - 0.2) ** 2 + sum(z**2 for z in rest) < 0.35**2) | (
        (np.abs(x - 0.5) < 0.15) & (np.abs(y + 0.1) < 0.5) & inside
    )


def drives(points: np.ndarray) -> np.ndarray:
    """Return the potential of each drive at these points of the walls: x, y, xy, and so on."""
    return np.stack([*points, *(x * y for x, y in itertools.combinations(points, 2))])


def centres(n: int, dimensions: int) -> np.ndarray:
    """Return the coordinates of the centres of the cells, from -1 to 1."""
    return (2 * np.indices((n,) * dimensions) + 1) / n - 1


class Measurement(eqx.Module):
    """The potentials of all drives, measured in some of the cells."""

    dec: dops.Decomposition
    values: Array  # One field for each drive.
    weights: Array  # One divided by the variance of the errors, or zero in cells without a measurement.

    def misfit(self, log_a: Array) -> Array:
        """Return the mean square of the differences to the measurements, relative to their errors."""
        squares = self.dec.mean(self.weights[None] * (potentials(self.dec, log_a) - self.values) ** 2)
        return jnp.mean(squares) / self.dec.mean((self.weights > 0).astype(squares.dtype))

    def loss(self, log_a: Array, weight: float) -> tuple[Array, Array]:
        """Return what the program minimises, and the misfit."""
        gradient = finite_volume.Gradient(self.dec, boundary="neumann")(log_a)
        steepness = jnp.sqrt(jnp.sum(gradient**2, 0) + SMOOTH**2) - SMOOTH
        variation = self.dec.mean(steepness) * 2**self.dec.ndim  # The walls are at -1 and 1.
        misfit = self.misfit(log_a)
        return misfit + weight * variation, misfit


def potentials(dec: dops.Decomposition, log_a: Array) -> Array:
    """Return the potential of each drive. Without convergence, it is NaN."""
    n, *_ = dec.shape
    line = centres(n, dec.ndim - 1)
    walls = [[drives(np.insert(line, axis, side, 0)) for side in (-1, 1)] for axis in range(dec.ndim)]
    operator = finite_volume.Diffusion(dec, jnp.exp(log_a), boundary="dirichlet")
    return solve.CG(operator, solve.Multigrid(operator), rtol=1e-6)(operator.source(*walls))


def chosen(dec: dops.Decomposition, share: float, key: Array) -> Array:
    """Return whether a cell is measured: True in a random `share` of the cells."""
    return jax.scipy.stats.norm.cdf(spectral.white_noise(dec, key)) <= share


def measure(dec: dops.Decomposition, log_a: Array, noise: float, measured: Array, key: Array) -> Measurement:
    """Return measurements in the cells `measured`, with errors of standard deviation `noise`."""
    exact = potentials(dec, log_a)
    errors = jnp.stack([spectral.white_noise(dec, each) for each in jax.random.split(key, len(exact))])
    return Measurement(dec, exact + noise * errors, jnp.where(measured, noise**-2, 0.0))


def recover(
    seen: Measurement, weight: float, iterations: int, report: Callable[[int], None]
) -> tuple[Array, np.ndarray]:
    """Return the log a that Adam finds from a = 1, and the misfit before each iteration."""
    adam = optax.adam(optax.cosine_decay_schedule(1.0, iterations))

    @jax.jit
    def step(log_a, state):
        (_, misfit), gradient = jax.value_and_grad(seen.loss, has_aux=True)(log_a, weight)
        updates, state = adam.update(inner * gradient, state)
        return optax.apply_updates(log_a, updates), state, misfit

    n, *_ = seen.dec.shape
    inner = seen.dec.shard(np.all(np.abs(centres(n, seen.dec.ndim)) < 1 - 1.5 / n, axis=0).astype(np.float64))
    log_a, misfits = jnp.zeros_like(seen.values[0]), []
    state = adam.init(log_a)
    for i in range(iterations):
        log_a, state, misfit = step(log_a, state)
        misfits.append(float(misfit))
        report(i + 1)
    return log_a, np.array(misfits)


def plot(dec: dops.Decomposition, fields: dict[str, Array], u: Array, misfits: np.ndarray, path: Path) -> None:
    """Draw the conductivities, a potential, and the misfit over the iterations; in 3-D, the plane in the middle."""
    *images, image, curve = dops.plot.panels(1, len(fields) + 2, size=(3.2, 2.8))
    plane = {"axis": "z", "at": 1.0} if dec.ndim == 3 else {}
    pair = jnp.stack(list(fields.values()))
    dops.plot.slice(dec, pair, **plane, limits=(0, 1.2 * CONTRAST), ax=images, title=list(fields), label="conductivity")
    dops.plot.slice(dec, u, **plane, limits=(-1, 1), ax=image, title="a potential")
    dops.plot.curves(np.arange(len(misfits)), misfits, log="y", xlabel="iteration", ax=curve, title="misfit")
    curve.figure.savefig(path, dpi=150)


def main(argv: list[str] | None = None) -> tuple[Array, np.ndarray]:
    """Run the example. Returns the conductivity that was found, and the misfit before each iteration."""
    parser = Parser(__doc__)
    parser.add_argument("--cube", action="store_true", help="a ball and a plate in a cube, instead of a square")
    parser.add_argument("--n", type=at_least(8), default=48, help="cells along each axis (48)")
    parser.add_argument("--noise", type=positive, default=0.005, help="standard deviation of the errors (0.005)")
    parser.add_argument("--share", type=positive, default=0.5, help="share of the cells with measurements (0.5)")
    parser.add_argument("--weight", type=positive, default=0.5, help="weight of the total variation (0.5)")
    parser.add_argument("--iterations", type=at_least(1), default=150, help="iterations of Adam (150)")
    parser.add_argument("--seed", type=at_least(0), default=0, help="seed of the random numbers (0)")
    parser.add_argument("--mesh", type=mesh_shape, help="devices along x (2)")
    parser.add_argument("--out", type=figure, default="conductivity.png", help="file of the figure (conductivity.png)")
    args = parser.parse_args(argv)
    if args.share > 1:
        parser.error(f"argument --share: must be at most 1; got '{args.share}'")
    mesh, dimensions = make_mesh(parser, args.mesh, x=2), 3 if args.cube else 2
    dec = dops.Decomposition(mesh, shape=(args.n,) * dimensions, axes="x", pad=True, box=dops.Box(2.0))
    body, keys = bodies(centres(args.n, dimensions)), jax.random.split(jax.random.key(args.seed))
    measured = jax.jit(chosen, static_argnums=1)(dec, args.share, keys[0])
    if not dec.sum(measured):
        cells = args.n**dimensions
        parser.error(f"argument --share: must choose one or more of the {cells} cells; got '{args.share}'")

    with jax.set_mesh(mesh), progress("iterating", args.iterations) as report:
        inside, a = dec.shard(body.astype(float)), dec.shard(np.where(body, CONTRAST, 1.0))
        seen = jax.jit(measure, static_argnums=2)(dec, jnp.log(a), args.noise, measured, keys[1])
        log_a, misfits = recover(seen, args.weight, args.iterations, report)
        found = jnp.exp(log_a)
        error = dec.norm(found - a) / dec.norm(a)
        contrast = jnp.exp(dec.sum(inside * log_a) / dec.sum(inside))
        u = jax.jit(potentials)(dec, log_a)
    print(f"{len(u)} drives, {args.n}{'²³'[dimensions - 2]} cells, {mesh.devices.size} devices")
    print(f"The misfit fell from {misfits[0]:.1f} to {misfits[-1]:.2f}; the errors of the measurements alone give 1.")
    print(f"Relative error of the conductivity: {error:.2f} (first guess: {dec.norm(1 - a) / dec.norm(a):.2f})")
    print(f"Geometric mean of the conductivity in the bodies: {contrast:.1f} (true: {CONTRAST:g})")
    plot(dec, {"true": a, "found": found}, u[0], misfits, args.out)
    print(f"Figure: {args.out}")
    return found, misfits


if __name__ == "__main__":
    main()
