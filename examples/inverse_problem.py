"""An inverse problem: find the initial velocity of a turbulent flow from the velocity at a later time.

    python examples/inverse_problem.py                          # 24³ cells on 8 virtual CPU devices: a minute
    python examples/inverse_problem.py --n 32 --steps 20 --iterations 80

The program minimises the misfit ⟨|u(T; v) - w|²⟩ over the initial velocity v, where u(T; v) solves the incompressible
Navier–Stokes equations from v to the time T, and w is the velocity seen at T. One backward run through the distributed
solver gives the gradient with respect to all 3n³ unknowns. `rollout` limits the memory of this run by checkpoints.

Source: Barzilai & Borwein (IMA J. Numer. Anal. 8, 1988) give the step sizes, which need nothing but the gradient.
"""

from collections.abc import Callable
from pathlib import Path

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
from decompops.pde import ETDRK, NavierStokes
from decompops.spectral import GaussianRandomField, LerayProjection
from jax import Array

from options import Parser, at_least, figure, make_mesh, mesh_shape, progress


def random_velocity(fft: dops.FFT, key: Array) -> Array:
    """Return a random divergence-free field of unit variance that is smooth on the scale of the box."""
    field = GaussianRandomField(fft, lambda k: jnp.exp(-(k**2) / 2))
    u = LerayProjection(fft)(jnp.stack([field(part) for part in jax.random.split(key, 3)]))
    return u / jnp.sqrt(jnp.mean(fft.decomposition.mean(u**2)))


def recover(solver: ETDRK, steps: int, seen: Array, iterations: int, report: Callable) -> tuple[Array, Array]:
    """Return the initial velocity whose flow ends nearest to `seen`, and the misfit before each iteration."""
    fft = solver.equation.transform
    project = LerayProjection(fft)
    unknowns = jnp.sum(fft.decomposition.sum(jnp.ones_like(seen)))

    def misfit(unknown: Array) -> Array:
        last, _ = solver.rollout(fft(project(unknown)), steps)
        return jnp.mean(fft.decomposition.mean((fft.inverse(last) - seen) ** 2))

    def iterate(carry, i):
        unknown, move, slope = carry
        value, gradient = jax.value_and_grad(misfit)(unknown)
        curvature = jnp.sum(move * (gradient - slope)) / jnp.sum(move**2)
        step = jnp.where(
            i == 0, unknowns / 4, 1 / curvature
        )  # The first step is exact for a flow that does not change.
        jax.debug.callback(report, i + 1)
        return (unknown - step * gradient, -step * gradient, gradient), value

    (unknown, *_), misfits = jax.lax.scan(
        iterate, (seen, jnp.ones_like(seen), jnp.zeros_like(seen)), jnp.arange(iterations)
    )
    return project(unknown), misfits


def plot(dec: dops.Decomposition, fields: dict[str, Array], misfits: np.ndarray, path: Path) -> None:
    """Draw a plane of each field, and the misfit over the iterations."""
    *images, curve = dops.plot.panels(1, len(fields) + 1, size=(2.5, 2.6))
    components = jnp.stack([u[0] for u in fields.values()])
    dops.plot.slice(dec, components, "z", index=0, ax=images, title=list(fields), label="velocity along x")
    for axes in images:
        axes.images[0].set_interpolation("bicubic")
    dops.plot.curves(np.arange(len(misfits)), misfits, log="y", xlabel="iteration", ax=curve, title="misfit")
    curve.figure.savefig(path, dpi=150)


def main(argv: list[str] | None = None) -> tuple[float, float]:
    """Run the example. Returns the last misfit divided by the first, and the relative error of the recovered field."""
    parser = Parser(__doc__)
    parser.add_argument("--n", type=at_least(8), default=24, help="cells along each axis (24)")
    parser.add_argument("--steps", type=at_least(1), default=10, help="time steps of 0.05 (10)")
    parser.add_argument("--iterations", type=at_least(1), default=40, help="iterations of the descent (40)")
    parser.add_argument("--mesh", type=mesh_shape, help="devices along x and y (2x4)")
    parser.add_argument("--out", type=figure, default="inverse_problem.png", help="file of the figure")
    args = parser.parse_args(argv)
    mesh = make_mesh(parser, args.mesh, x=2, y=4)

    with jax.set_mesh(mesh):
        fft = dops.FFT3D(mesh, shape=(args.n,) * 3, pad=True, real=True)
        solver = ETDRK(NavierStokes(fft, viscosity=0.02), dt=0.05, order=2)
        kept = solver.equation.transform  # This transform keeps the modes that the solver computes.
        truth = jax.jit(lambda key: kept.inverse(kept(random_velocity(fft, key))))(jax.random.key(0))
        last, _ = solver.rollout(kept(truth), args.steps)
        seen = kept.inverse(last)
        with progress("iterating", args.iterations) as report:
            descend = jax.jit(recover, static_argnums=(1, 3, 4))
            found, misfits = descend(solver, args.steps, seen, args.iterations, report)
            reduction = float(misfits[-1] / misfits[0])
        error, before = (float(jnp.linalg.norm(u - truth) / jnp.linalg.norm(truth)) for u in (found, seen))
        print(f"The misfit fell to {reduction:.1e} of the first misfit.")
        print(f"Relative error of the recovered field: {error:.1e} (first guess, the later velocity: {before:.1e})")
        fields = {"true initial field": truth, "later, as seen": seen, "recovered": found}
        plot(fft.decomposition, fields, np.asarray(misfits), args.out)
    print(f"Figure: {args.out}")
    return reduction, error


if __name__ == "__main__":
    main()
