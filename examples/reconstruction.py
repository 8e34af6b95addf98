"""Initial conditions of a universe: reconstructed from the density today, by gradients through an N-body code.

    python examples/reconstruction.py                # 32³ particles on 8 virtual CPU devices, or on GPUs: two minutes
    python examples/reconstruction.py --n 64 --iterations 200 --mesh 4x2

The N-body code of lpt_nbody.py turns white noise ε into a density today. Some noise, the truth, gave the density that
we observe, with independent errors of variance σ² in each cell. The most probable noise minimises

    L(ε) = ½ Σ ((density(ε) - observed) / σ)² + ½ Σ ε²,

because white noise has a Gaussian prior. Adam minimises L. Each iteration runs the whole N-body code and its derivative
on all devices.

The figure shows the initial field, the truth and the reconstruction, and their cross-correlation for each wavenumber.

Source: Modi, Lanusse & Seljak (Astronomy and Computing 37, 2021).
"""

from functools import partial

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from decompops import particles, spectral
from jax import Array

import lpt_nbody
import options


class Posterior(eqx.Module):
    """The probability of white noise, given an observed density."""

    universe: lpt_nbody.Universe
    colour: spectral.IsotropicFilter  # From white noise to the linear density contrast of today.
    error: float  # The standard deviation of an observed density, in units of the mean density.

    def density(self, noise: Array) -> Array:
        """Return the density 1 + δ today."""
        start = self.universe.displaced(self.colour(noise), lpt_nbody.START)
        return self.universe.mesh.deposit(self.universe.evolve(start))

    def loss(self, noise: Array, observed: Array) -> Array:
        """Return minus the logarithm of the probability."""
        misfit = (self.density(noise) - observed) / self.error
        return (jnp.sum(misfit**2) + jnp.sum(noise**2)) / 2


def reconstruct(posterior: Posterior, observed: Array, iterations: int, tell=lambda i, loss: None) -> Array:
    """Return the noise that Adam finds after some iterations."""
    adam = optax.adam(optax.cosine_decay_schedule(0.1, iterations))

    @jax.jit
    def step(noise, state):
        loss, gradient = jax.value_and_grad(posterior.loss)(noise, observed)
        updates, state = adam.update(gradient, state)
        return optax.apply_updates(noise, updates), state, loss

    noise = jnp.zeros_like(observed)
    state = adam.init(noise)
    for i in range(iterations):
        noise, state, loss = step(noise, state)
        tell(i + 1, float(loss))
    return noise


@partial(jax.jit, static_argnames="fft")
def correlation(fft: dops.FFT, a: Array, b: Array) -> tuple[Array, Array]:
    """Return wavenumbers, and the correlation coefficient of two fields at each of them."""
    cross = spectral.cross_spectrum(fft, a, b)
    powers = [spectral.power_spectrum(fft, u).power for u in (a, b)]
    return cross.k, cross.power / jnp.sqrt(powers[0] * powers[1])


def plot(fft: dops.FFT, fields: Array, k: Array, curves: dict[str, Array], path: options.Path) -> None:
    """Draw the true and the reconstructed initial field in a slab, and the correlation coefficients."""
    panels = dops.plot.panels(1, 3, size=(4, 3.6), title="Initial conditions from the density today").ravel()
    slab = {"axis": "z", "reduce": "mean", "between": (0, fft.box_lengths[2] / 8)}
    dops.plot.projection(fft, fields, **slab, ax=panels[:2], title=("truth", "reconstruction"), label="linear δ today")
    for name, values in curves.items():
        panels[2].semilogx(k, values, label=name)
    panels[2].set(xlabel="k [h/Mpc]", ylabel="correlation with the truth", ylim=(0, 1.02))
    panels[2].legend()
    panels[0].figure.savefig(path, dpi=150)


def main(argv: list[str] | None = None) -> dict[str, Array]:
    """Run the example. Returns the correlation coefficients with the true initial field."""
    parser = options.Parser(__doc__)
    parser.add_argument("--n", type=options.at_least(8), default=32, help="cells and particles along each axis (32)")
    parser.add_argument("--box", type=options.at_least(1.0), default=256.0, help="length of the box in Mpc/h (256)")
    parser.add_argument("--steps", type=options.at_least(1), default=4, help="steps of the N-body code (4)")
    parser.add_argument("--iterations", type=options.at_least(1), default=100, help="iterations of Adam (100)")
    parser.add_argument("--error", type=options.at_least(1e-3), default=0.1, help="error of observed densities (0.1)")
    parser.add_argument("--slots", type=options.at_least(1.0), default=2.0, help="room for particles, in shares (2)")
    parser.add_argument("--seed", type=options.at_least(0), default=0, help="seed of the random numbers (0)")
    parser.add_argument("--mesh", type=options.mesh_shape, help="devices along x and y (2x4)")
    parser.add_argument("--out", type=options.figure, default="reconstruction.png", help="file of the figure")
    args = parser.parse_args(argv)
    mesh = options.make_mesh(parser, args.mesh, x=2, y=4)
    options.check_divides(parser, mesh, args.n)

    print(f"{args.n}³ particles on {'x'.join(map(str, mesh.axis_sizes))} {jax.default_backend()} devices", flush=True)
    fft = dops.FFT3D(mesh, shape=(args.n,) * 3, box=dops.Box(args.box), real=True)
    colour = spectral.GaussianRandomField(fft, lpt_nbody.MatterPower()).colour
    universe = lpt_nbody.Universe(fft, particles.Cosmology(), args.steps, args.slots)
    posterior = Posterior(universe, colour, args.error)
    with jax.set_mesh(mesh):
        truth, errors = (
            spectral.white_noise(fft.decomposition, key) for key in jax.random.split(jax.random.key(args.seed))
        )
        observed = jax.jit(posterior.density)(truth) + args.error * errors
        if not jnp.isfinite(observed).all():
            raise SystemExit("A device has too few slots for its particles; use a larger --slots.")
        with options.progress("reconstructing", args.iterations) as report:
            found = reconstruct(posterior, observed, args.iterations, lambda i, loss: report(i))
        fields = jnp.stack([colour(truth), colour(found)])
        k, reconstruction = correlation(fft, *fields)
        curves = {"reconstruction": reconstruction, "density today": correlation(fft, fields[0], observed)[1]}
    loss = jax.jit(posterior.loss)
    losses = [float(loss(x, observed)) / args.n**3 for x in (0 * found, found, truth)]
    print("Loss for each cell: {:.3f} at the start, {:.3f} reconstructed, {:.3f} for the truth".format(*losses))
    middle = len(k) // 2
    for name, values in curves.items():
        print(f"Correlation with the true initial field at k = {k[middle]:.2f} h/Mpc, {name}: {values[middle]:.3f}")
    plot(fft, fields, k, curves, args.out)
    print(f"Figure: {args.out}")
    return curves


if __name__ == "__main__":
    main()
