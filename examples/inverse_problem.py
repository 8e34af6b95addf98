"""An inverse problem: find the velocity field that a turbulent flow began with, from what became of it.

    python examples/inverse_problem.py --n 24 --steps 10 --iterations 40

The gradient of the misfit with respect to all 3 n³ unknowns is one backward run through the solver: `jax.grad` through
a distributed Navier–Stokes simulation, whose memory `rollout` bounds by checkpoints. The descent takes the steps of
Barzilai & Borwein (IMA J. Numer. Anal. 8, 1988), which need no more than that gradient.
"""

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
from decompops.pde import ETDRK, NavierStokes
from decompops.spectral import GaussianRandomField, LerayProjection
from jax import Array

from options import Parser, at_least, figure, make_mesh, mesh_shape


def random_velocity(fft: dops.FFT, key: Array) -> Array:
    """A random divergence-free field of unit variance, smooth on the scale of the box."""
    field = GaussianRandomField(fft, lambda k: jnp.exp(-(k**2) / 2))
    u = LerayProjection(fft)(jnp.stack([field(part) for part in jax.random.split(key, 3)]))
    return u / jnp.sqrt(jnp.mean(fft.decomposition.mean(u**2)))


def recover(solver: ETDRK, steps: int, seen: Array, iterations: int) -> tuple[Array, Array]:
    """The initial velocity whose flow ends nearest to `seen`, and the misfit before each iteration."""
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
        step = jnp.where(i == 0, unknowns / 4, 1 / curvature)  # the first as if the flow changed nothing
        return (unknown - step * gradient, -step * gradient, gradient), value

    (unknown, *_), misfits = jax.lax.scan(
        iterate, (seen, jnp.ones_like(seen), jnp.zeros_like(seen)), jnp.arange(iterations)
    )
    return project(unknown), misfits


def plot(dec: dops.Decomposition, fields: dict[str, Array], misfits: np.ndarray, path) -> None:
    *images, curve = dops.plot.panels(1, len(fields) + 1, size=(2.6, 2.6))
    components = jnp.stack([u[0] for u in fields.values()])
    dops.plot.slice(dec, components, "z", index=0, ax=images, title=list(fields), label="velocity along x")
    dops.plot.curves(np.arange(len(misfits)), misfits, log="y", xlabel="iteration", ax=curve, title="misfit")
    curve.figure.savefig(path, dpi=150)


def main(argv: list[str] | None = None) -> tuple[float, float]:
    """Returns by how much the misfit fell, and the relative error of the recovered field."""
    parser = Parser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--n", type=at_least(8), default=24, help="cells along each axis (24)")
    parser.add_argument("--steps", type=at_least(1), default=10, help="time steps of 0.05 (10)")
    parser.add_argument("--iterations", type=at_least(1), default=40, help="of the descent (40)")
    parser.add_argument("--mesh", type=mesh_shape, help="devices along x and y, such as 2x4")
    parser.add_argument("--out", type=figure, default=figure("inverse_problem.png"), help="the figure")
    args = parser.parse_args(argv)
    mesh = make_mesh(parser, args.mesh, x=2, y=4)

    with jax.set_mesh(mesh):
        fft = dops.FFT3D(mesh, shape=(args.n,) * 3, pad=True, real=True)
        solver = ETDRK(NavierStokes(fft, viscosity=0.02), dt=0.05, order=2)
        kept = solver.equation.transform  # the modes that the solver carries
        truth = jax.jit(lambda key: kept.inverse(kept(random_velocity(fft, key))))(jax.random.key(0))
        last, _ = solver.rollout(kept(truth), args.steps)
        seen = kept.inverse(last)
        found, misfits = jax.jit(recover, static_argnums=(1, 3))(solver, args.steps, seen, args.iterations)

        reduction = float(misfits[-1] / misfits[0])
        error, before = (float(jnp.linalg.norm(u - truth) / jnp.linalg.norm(truth)) for u in (found, seen))
        print(f"The misfit fell to {reduction:.1e} of what it was.")
        print(f"Relative error of the initial field: {error:.1e} (of the evolved one, the first guess: {before:.1e})")
        fields = {"truth": truth, "seen": seen, "found": found, "found - truth": found - truth}
        plot(fft.decomposition, fields, np.asarray(misfits), args.out)
    print(f"Figure: {args.out}")
    return reduction, error


if __name__ == "__main__":
    main()
