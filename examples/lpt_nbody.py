"""Cosmological N-body: initial conditions by Lagrangian perturbation theory, and a differentiable particle-mesh code.

    python examples/lpt_nbody.py                     # 64³ particles on 8 virtual CPU devices, or on GPUs: two minutes
    python examples/lpt_nbody.py --n 96 --box 400 --mesh 4x2

A Gaussian random field δ is the linear density contrast at the scale factor a = 1. In an Einstein–de Sitter universe,
second-order Lagrangian perturbation theory (2LPT) moves the particle that starts at the point q of the grid to

    x(q) = q + a ψ₁ + 3/7 a² ψ₂,    ∇·ψ₁ = -δ,    ∇·ψ₂ = -½ ((∇·ψ₁)² - Σᵢⱼ (∂ᵢψ₁ⱼ)²).

From a = 0.1 on, an N-body code continues. It deposits the mass of the particles on the grid (cloud in cell), solves
Poisson's equation for the force, and moves the particles by a leapfrog.

Particles are stored as fields of displacements (3, nx, ny, nz), sharded by the positions where the particles start.
Each device deposits its own particles on its block plus a halo. The transpose of the halo exchange then adds the mass
in the halos to the neighbouring blocks. Lengths are in cells; only the power spectrum and the figure use Mpc/h.

Source: Bouchet et al. (A&A 296, 1995) for 2LPT; Feng et al. (MNRAS 463, 2016) for the leapfrog.
"""

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
from decompops import spectral
from jax import Array
from jax.sharding import PartitionSpec as P

import options


FIELD, VECTOR = P("x", "y", None), P(None, "x", "y", None)
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


class ParticleMesh(eqx.Module):
    """Particles, one per cell, and fields on a grid. A particle may move `halo` cells along x and y."""

    fft: dops.FFT  # The lengths of its box are in cells.
    halo: int = eqx.field(static=True)

    @property
    def exchange(self) -> dops.HaloExchange:
        return dops.HaloExchange(self.fft.decomposition, (self.halo, self.halo, 0))

    def attraction(self, delta: Array) -> Array:
        """Return the vector field -∇φ with ∇²φ = δ, by one forward transform and three batched inverse transforms."""
        return -spectral.InverseDivergence(self.fft)(delta)

    def lpt(self, delta: Array) -> tuple[Array, Array]:
        """Return the first- and second-order displacements ψ₁ and ψ₂."""
        first = self.attraction(delta)
        d = spectral.Gradient(self.fft)(first)
        return first, self.attraction((jnp.trace(d) ** 2 - jnp.sum(d * d, axis=(0, 1))) / 2)

    def deposit(self, displacement: Array) -> Array:
        """Return the density 1 + δ of displaced particles, or NaN everywhere if a particle has left the halo."""

        @jax.shard_map(in_specs=VECTOR, out_specs=FIELD)
        def on_block(displacement):
            cells, shares = self.clouds(displacement)
            _, nx, ny, nz = displacement.shape
            extended = jnp.zeros((nx + 2 * self.halo, ny + 2 * self.halo, nz), displacement.dtype)
            return self.exchange.T.local(extended.at[cells].add(shares))

        return jnp.where(self.reach(displacement) < self.halo, on_block(displacement), jnp.nan)

    def read(self, field: Array, displacement: Array) -> Array:
        """Interpolate a vector field at displaced particles. This is the transpose of `deposit`."""

        @jax.shard_map(in_specs=(VECTOR, VECTOR), out_specs=VECTOR)
        def on_block(field, displacement):
            cells, shares = self.clouds(displacement)
            return jnp.sum(shares * self.exchange.local(field)[:, *cells], axis=1)

        return on_block(field, displacement)

    def clouds(self, displacement: Array) -> tuple[tuple[Array, Array, Array], Array]:
        """Return the eight cells of an extended block that each particle's cloud touches, and each cell's share."""
        corner = jnp.indices((2, 2, 2)).reshape(3, 8, 1, 1, 1)
        whole = jnp.floor(displacement)
        fraction = (displacement - whole)[:, None]
        shares = jnp.prod(jnp.where(corner == 1, fraction, 1 - fraction), axis=0)
        x, y, z = (jnp.indices(displacement.shape[1:]) + whole.astype(int))[:, None] + corner
        return (x + self.halo, y + self.halo, z % displacement.shape[-1]), shares  # Blocks are not sharded along z.

    def reach(self, displacement: Array) -> Array:
        """Return the largest displacement along x or y. Along z, no halo is needed."""
        return jnp.max(jnp.abs(displacement[:2]))

    def evolve(self, displacement: Array, momentum: Array, times: Array) -> tuple[Array, Array]:
        """Return the displacements at the last of the scale factors `times`, and the largest displacement on the way.

        The momentum is a^{3/2} dx/da. The kicks and drifts of the leapfrog are exact for linear growth (FastPM)."""

        @jax.checkpoint
        def step(state, interval):
            (displacement, momentum), (start, end) = state, interval
            middle = (start + end) / 2
            displacement += (middle - start) / start**1.5 * momentum
            force = self.attraction(self.deposit(displacement) - 1)
            momentum += (end**1.5 - start**1.5) / middle * self.read(force, displacement)
            displacement, halfway = displacement + (end - middle) / end**1.5 * momentum, displacement
            return (displacement, momentum), jnp.stack([self.reach(halfway), self.reach(displacement)])

        (displacement, _), reach = jax.lax.scan(step, (displacement, momentum), (times[:-1], times[1:]))
        return displacement, jnp.nanmax(reach)  # After a particle has left the halo, all numbers are NaN.


def simulate(pm: ParticleMesh, delta: Array, steps: int) -> tuple[Array, Array]:
    """Return the density at a = 1 in each approximation of `NAMES`, and the largest displacement."""
    first, second = pm.lpt(delta)

    def lpt(a):
        return a * first + 3 / 7 * a**2 * second, a**1.5 * (first + 6 / 7 * a * second)

    last, reach = pm.evolve(*lpt(START), jnp.geomspace(START, 1, steps + 1))
    moved = jnp.stack([first, lpt(1.0)[0], last])
    densities = jnp.concatenate([1 + delta[None], jax.vmap(pm.deposit)(moved)])
    return densities, jnp.maximum(reach, jnp.nanmax(jax.vmap(pm.reach)(moved)))


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
    parser.add_argument("--steps", type=options.at_least(1), default=5, help="steps of the N-body code (5)")
    parser.add_argument("--halo", type=options.at_least(1), default=8, help="cells that a particle may move (8)")
    parser.add_argument("--seed", type=options.at_least(0), default=0, help="seed of the random numbers (0)")
    parser.add_argument("--mesh", type=options.mesh_shape, help="devices along x and y (2x4)")
    parser.add_argument(
        "--out", type=options.figure, default="lpt_nbody.png", help="file of the figure (lpt_nbody.png)"
    )
    args = parser.parse_args(argv)
    mesh = options.make_mesh(parser, args.mesh, x=2, y=4)
    if any(args.n % parts for parts in mesh.axis_sizes):
        parser.error(
            f"argument --n: must be a multiple of the devices along x and y, {mesh.axis_sizes}; got '{args.n}'"
        )

    print(f"{args.n}³ particles on {'x'.join(map(str, mesh.axis_sizes))} {jax.default_backend()} devices", flush=True)
    fft = dops.FFT3D(mesh, shape=(args.n,) * 3, box=dops.Box(args.box), real=True)
    pm, power = ParticleMesh(fft.replace(box=dops.Box(args.n)), args.halo), MatterPower()
    colour = spectral.GaussianRandomField(fft, power).colour  # A function from white noise to δ.

    @jax.jit
    def random(key: Array) -> Array:
        return spectral.white_noise(fft.decomposition, key)

    @jax.jit
    def run(noise: Array):
        """Return the final density's mean square, intermediate results, and the gradient with respect to the noise."""

        def clumping(noise):
            delta = colour(noise)
            densities, reach = simulate(pm, delta, args.steps)
            measured = spectral.power_spectrum(fft, delta)
            return jnp.mean(densities[-1] ** 2), (densities, reach, measured, power(measured.k))

        return jax.value_and_grad(clumping, has_aux=True)(noise)

    with jax.set_mesh(mesh):
        noise, direction = map(random, jax.random.split(jax.random.key(args.seed)))
        with options.progress("simulating with gradients", 3) as report:
            (_, (densities, reach, measured, expected)), gradient = run(noise)
            if not reach < args.halo:
                raise SystemExit(
                    f"A particle moved {reach:.2f} cells, but the halo has {args.halo}; use a larger --halo."
                )
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
    print(f"Particles moved at most {reach:.2f} cells along x or y; the halo has {args.halo}.")
    print(f"Power spectrum of the initial field: {ratio:.4f} ± {scatter:.4f} times the expected one")
    print(f"The relative error of the mass is at most {mass:.1e}.")
    print(f"Derivative in a random direction: {derivative:.10f}, by differences {difference:.10f} ({mismatch:.1e})")
    if not (abs(ratio - 1) < 5 * scatter and mass < 1e-12 and mismatch < 1e-2):
        raise SystemExit("A check failed.")
    plot(fft, densities, args.out)
    print(f"Figure: {args.out}")
    return densities


if __name__ == "__main__":
    main()
