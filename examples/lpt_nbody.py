"""Cosmological N-body: initial conditions by Lagrangian perturbation theory, and a differentiable particle-mesh code.

    python examples/lpt_nbody.py                     # 64³ particles on 8 virtual CPU devices, or on GPUs: two minutes
    python examples/lpt_nbody.py --n 128 --box 1024 --mesh 4x2

A Gaussian random field δ is the linear density contrast today, at the scale factor a = 1. Second-order Lagrangian
perturbation theory (2LPT) moves the particle that starts at the point q of the grid to

    x(q) = q + D ψ₁ + 3/7 D² ψ₂,    ∇·ψ₁ = -δ,    ∇·ψ₂ = -½ ((∇·ψ₁)² - Σᵢⱼ (∂ᵢψ₁ⱼ)²),

where D(a) is the linear growth factor. From a = 0.1 on, an N-body code continues. It deposits the mass of the particles
on the grid (cloud in cell), solves Poisson's equation for the force, and moves the particles by a leapfrog.

Each particle is on the device that owns its cell. After each step, an exchange brings particles that have left their
block to their new device, however far they have moved. Lengths are in Mpc/h.

Source: Bouchet et al. (A&A 296, 1995) for 2LPT; Feng et al. (MNRAS 463, 2016) for the leapfrog.
"""

from typing import Any

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from decompops import particles, spectral
from jax import Array

import options


NAMES = ("linear", "1LPT", "2LPT", "N-body")  # The approximations of the density at a = 1.
START = 0.1  # The N-body code continues 2LPT from this scale factor on.


class MatterPower(eqx.Module):
    """The linear matter power spectrum in (Mpc/h)³ at wavenumbers k in h/Mpc: kⁿ times the square of the transfer
    function of Bardeen, Bond, Kaiser & Szalay (ApJ 304, 1986, eq. G3)."""

    sigma8: float = 0.8  # The standard deviation of δ in spheres of radius 8 Mpc/h.
    tilt: float = 0.96  # The exponent n.
    gamma: float = 0.21  # The shape parameter Ωₘh.

    def __call__(self, k: Array) -> Array:
        radius, samples = 8.0, jnp.geomspace(1e-4, 1e2, 4096, dtype=k.dtype)
        x = samples * radius
        sphere = 3 * (jnp.sin(x) - x * jnp.cos(x)) / x**3
        variance = jnp.trapezoid(self.shape(samples) * (sphere * samples) ** 2 / (2 * jnp.pi**2), samples)
        return self.sigma8**2 / variance * self.shape(k)

    def shape(self, k: Array) -> Array:
        """Return the power spectrum without its normalisation."""
        q = k / self.gamma
        polynomial = 1 + 3.89 * q + (16.1 * q) ** 2 + (5.46 * q) ** 3 + (6.71 * q) ** 4
        return k**self.tilt * (jnp.log1p(2.34 * q) / (2.34 * q)) ** 2 / jnp.sqrt(polynomial)


class Universe(eqx.Module):
    """From the linear density contrast of today to particles, in a periodic box with one particle for each cell."""

    fft: dops.FFT
    cosmology: particles.Cosmology
    steps: int = eqx.field(static=True)
    slots: float = eqx.field(static=True)  # How many times its share of the particles a device has room for.

    @property
    def mesh(self) -> particles.ParticleMesh:
        return particles.ParticleMesh(self.fft.decomposition, "cic")

    def lpt(self, delta: Array) -> tuple[Array, Array]:
        """Return the first- and second-order displacements ψ₁ and ψ₂ at the points of the grid."""
        attraction = spectral.InverseDivergence(self.fft)
        first = -attraction(delta)
        d = spectral.Gradient(self.fft)(first)
        return first, -attraction((jnp.trace(d) ** 2 - jnp.sum(d * d, axis=(0, 1))) / 2)

    def displaced(self, delta: Array, a: Any, *, second_order: bool = True) -> particles.Particles:
        """Return the particles at the scale factor a, in first- or second-order perturbation theory."""
        lattice, (first, second) = self.lattice(), self.lpt(delta)
        growth, momentum = self.cosmology.growth(a), self.cosmology.momentum_growth(a)
        beyond = 3 / 7 * growth * second if second_order else 0 * second
        shift, velocity = growth * (first + beyond), momentum * (first + 2 * beyond)
        read = lambda field: self.mesh.read(lattice, field)
        return self.mesh.exchange(lattice.replace(lattice.positions + read(shift), velocity=read(velocity)))

    def lattice(self) -> particles.Particles:
        dec = self.fft.decomposition
        return self.mesh.lattice(capacity=int(self.slots * dec.shape[0] ** 3 / dec.mesh.size))

    def evolve(self, p: particles.Particles) -> particles.Particles:
        """Return the particles at a = 1, for particles at a = `START`."""
        times = jnp.geomspace(START, 1, self.steps + 1)
        leapfrog = particles.KickDriftKick(self.mesh, particles.Gravity(self.mesh), times, self.cosmology)
        return leapfrog.rollout(p)[0]


def simulate(universe: Universe, delta: Array) -> tuple[Array, particles.Particles]:
    """Return the density 1 + δ at a = 1 in each approximation of `NAMES`, and the particles of the N-body code."""
    last = universe.evolve(universe.displaced(delta, START))
    moved = [universe.displaced(delta, 1.0, second_order=False), universe.displaced(delta, 1.0), last]
    return jnp.stack([1 + delta, *map(universe.mesh.deposit, moved)]), last


def growth(fft: dops.FFT, delta: Array, density: Array) -> Array:
    """Return the growth of the modes with the largest wavelengths, compared with linear theory."""
    edges = 2 * jnp.pi / fft.box_lengths[0] * np.array([0.5, 1.5])
    cross = spectral.cross_spectrum(fft, density - 1, delta, edges=edges).power
    return (cross / spectral.power_spectrum(fft, delta, edges=edges).power)[0]


def plot(fft: dops.FFT, densities: Array, path: options.Path) -> None:
    """Draw the mean of each density over a slab of an eighth of the box."""
    title = "Density 1 + δ at a = 1, mean over a slab"
    panels = dops.plot.panels(2, 2, size=(4, 3.6), title=title)
    slab = {"axis": "z", "reduce": "mean", "between": (0, fft.box_lengths[2] / 8)}
    colours = {"cmap": "magma", "log": True, "limits": (0.2, 5), "label": "1 + δ"}
    dops.plot.projection(fft, densities, **slab, **colours, ax=panels.ravel(), title=NAMES)
    for axes in panels.flat:
        axes.set(xlabel="x [Mpc/h]", ylabel="y [Mpc/h]")
        axes.images[0].set_interpolation("bicubic")
    panels[0, 0].figure.savefig(path, dpi=150)


def main(argv: list[str] | None = None) -> Array:
    """Run the example. Returns the density in each approximation."""
    parser = options.Parser(__doc__)
    parser.add_argument("--n", type=options.at_least(8), default=64, help="cells and particles along each axis (64)")
    parser.add_argument("--box", type=options.at_least(1.0), default=256.0, help="length of the box in Mpc/h (256)")
    parser.add_argument("--matter", type=options.at_least(0.05), default=0.31, help="density parameter today (0.31)")
    parser.add_argument("--steps", type=options.at_least(1), default=5, help="steps of the N-body code (5)")
    parser.add_argument("--slots", type=options.at_least(1.0), default=1.5, help="room for particles, in shares (1.5)")
    parser.add_argument("--seed", type=options.at_least(0), default=0, help="seed of the random numbers (0)")
    parser.add_argument("--mesh", type=options.mesh_shape, help="devices along x and y (2x4)")
    parser.add_argument(
        "--out", type=options.figure, default="lpt_nbody.png", help="file of the figure (lpt_nbody.png)"
    )
    args = parser.parse_args(argv)
    mesh = options.make_mesh(parser, args.mesh, x=2, y=4)
    options.check_divides(parser, mesh, args.n)

    print(f"{args.n}³ particles on {'x'.join(map(str, mesh.axis_sizes))} {jax.default_backend()} devices", flush=True)
    fft, power = dops.FFT3D(mesh, shape=(args.n,) * 3, box=dops.Box(args.box), real=True), MatterPower()
    universe = Universe(fft, particles.Cosmology(args.matter), args.steps, args.slots)
    colour = spectral.GaussianRandomField(fft, power).colour  # A function from white noise to δ.

    @jax.jit
    def random(key: Array) -> Array:
        return spectral.white_noise(fft.decomposition, key)

    @jax.jit
    def run(noise: Array):
        """Return the final density's mean square, intermediate results, and the gradient with respect to the noise."""

        def clumping(noise):
            delta = colour(noise)
            densities, last = simulate(universe, delta)
            measured = spectral.power_spectrum(fft, delta)
            found = densities, last, growth(fft, delta, densities[-1]), measured, power(measured.k)
            return jnp.mean(densities[-1] ** 2), found

        return jax.value_and_grad(clumping, has_aux=True)(noise)

    with jax.set_mesh(mesh):
        noise, direction = map(random, jax.random.split(jax.random.key(args.seed)))
        with options.progress("simulating with gradients", 3) as report:
            (_, (densities, last, grown, measured, expected)), gradient = run(noise)
            try:
                last.check()
            except ValueError as error:
                raise SystemExit(f"{error} Use a larger --slots.") from None
            eps, values = 1e-7, []  # eps is small because the density has kinks where particles pass from cell to cell.
            for shift in (eps, -eps):
                report(1 + len(values))
                values.append(float(run(noise + shift * direction)[0][0]))
        difference = (values[0] - values[1]) / (2 * eps)
        derivative = jnp.sum(gradient * direction)

    modes = float(measured.modes.sum())
    ratio, scatter = float(measured.modes @ (measured.power / expected)) / modes, (2 / modes) ** 0.5
    mass = abs(fft.decomposition.mean(densities[1:]) - 1).max()
    mismatch = abs(float(derivative / difference) - 1)
    load = np.max(last.counts) / np.mean(last.counts)
    print(f"Power spectrum of the initial field: {ratio:.4f} ± {scatter:.4f} times the expected one")
    print(f"The largest modes grew by {grown:.4f} of linear theory.")
    print(f"The fullest device has {load:.2f} times its share of the particles.")
    print(f"The relative error of the mass is at most {mass:.1e}.")
    print(f"Derivative in a random direction: {derivative:.10f}, by differences {difference:.10f} ({mismatch:.1e})")
    if not (abs(ratio - 1) < 5 * scatter and mass < 1e-12 and mismatch < 1e-2):
        raise SystemExit("A check failed.")
    plot(fft, densities, args.out)
    print(f"Figure: {args.out}")
    return densities


if __name__ == "__main__":
    main()
