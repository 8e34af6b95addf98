"""A magnetised plasma in five dimensions: waves that a gradient of temperature drives, from growth to turbulence.

    python examples/gyrokinetics.py                  # 12x24x12x12x16 cells on 8 virtual CPU devices: two minutes
    python examples/gyrokinetics.py --mesh 1x1       # one device
    python examples/gyrokinetics.py --gradient       # differentiate the growth of a wave by the gradient of temperature

Ions circle around a strong magnetic field along z. The coordinates are z, the velocity v along the field, the speed s
of the circling, and x and y across the field. Lengths along x and y are in gyroradii, velocities in thermal speeds. The
deviation g of the ions' distribution from a Maxwellian F obeys the gyrokinetic equation

    ∂g/∂t + v ∂/∂z (g + ⟨φ⟩ F) + ẑ×∇⟨φ⟩·∇g = -∂⟨φ⟩/∂y [κₙ + κ (v²/2 + s²/2 - 3/2)] F + C g.

Here ⟨φ⟩ = J₀(k s) φ is the potential averaged over a gyration, κₙ and κ are the gradients of density and temperature,
and C are collisions. Electrons follow the potential at once, and charges balance:

    (1 + τ - Γ₀) φ = ∫ J₀ g d³v,   Γ₀ = ∫ J₀² F d³v.

The program transforms x and y, which are whole on every device, and takes differences along z, v and s. Devices send
halos along z and v, and an all-reduce sums over velocities. No transform communicates.

While the waves are small, each grows like exp(-iωt). The program fits ω, and prints it beside the theory. Later, the
waves mix the plasma, and grow no more.

Sources: Frieman & Chen, Physics of Fluids 25 (1982); Lenard & Bernstein, Physical Review 112 (1958), for collisions.
"""

import math
from argparse import Namespace
from typing import NamedTuple

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.special import i0e, i1e, j0

from options import Parser, at_least, figure, make_mesh, mesh_shape, positive


FASTEST = 4.0  # The grid ends at this velocity, in thermal speeds.


class Gradients(NamedTuple):
    """The gradients κₙ of the density and κ of the temperature, and the ratio τ of the ions' to the electrons'."""

    density: Array | float = 0.0
    temperature: Array | float = 2.5
    ratio: Array | float = 1.0


class Gyrokinetics(eqx.Module):
    """The equation of motion of the spectrum of g, an array with the axes z, v, s, kx and ky.

    `shape` counts the cells along z, v, s, x and y; `lengths` are those of the box along z, x and y.
    """

    fft: dops.FFT2D
    grid: dops.Decomposition
    average: Array  # J₀
    kept: Array
    collisions: float = eqx.field(static=True)

    def __init__(self, mesh: jax.sharding.Mesh, shape: tuple[int, ...], lengths: tuple[float, ...], collisions: float):
        *outer, nx, ny = shape
        # Every device holds x and y whole. The other axes are batch axes of this transform, which leaves their shards.
        self.fft = dops.FFT2D(mesh, shape=(nx, ny), axes=(), box=dops.Box(lengths[1:]), real=True)
        modes = (nx, ny // 2 + 1)
        box = dops.Box((lengths[0], 2 * FASTEST, FASTEST, *map(float, modes)))
        self.grid = dops.Decomposition(mesh, shape=(*outer, *modes), axes=("z", "v"), box=box)
        self.collisions = collisions
        kx, ky = map(np.asarray, self.fft.wavenumbers())
        s = (np.arange(outer[-1]) + 0.5).reshape(-1, 1, 1) * self.grid.spacing[2]
        self.average = jnp.asarray(j0(np.hypot(kx, ky) * s)[None, None])
        # Products of these modes have no aliases. The mean over x and y stays zero.
        inside = [3 * np.abs(k) * length < 2 * np.pi * n for k, length, n in zip((kx, ky), lengths[1:], (nx, ny))]
        self.kept = jnp.asarray((inside[0] & inside[1] & (np.hypot(kx, ky) > 0))[None, None, None])

    def velocities(self) -> tuple[Array, Array]:
        """Return v and s in the middle of the cells, as arrays that are sharded like g and broadcast against it."""
        _, v, s, *_ = dops.FFT(self.grid).coordinates()
        return v - FASTEST + self.grid.spacing[1] / 2, s + self.grid.spacing[2] / 2

    def maxwellian(self) -> Array:
        v, s = self.velocities()
        f = jnp.exp(-(v**2 + s**2) / 2)
        return f / total(f, s)

    def potential(self, g: Array, gradients: Gradients) -> Array:
        """Return the spectrum of φ, an array with the axes z, 1, 1, kx and ky."""
        _, s = self.velocities()
        charge = 1 + gradients.ratio - total(self.average**2 * self.maxwellian(), s)
        return total(self.average * g, s) / charge

    def difference(self, g: Array, axis: int, offsets: tuple[int, ...], weights: tuple[float, ...]) -> Array:
        """Return a weighted sum of neighbours over the width of a cell. Beyond the fastest velocity, all is zero."""
        before, after = max(0, -min(offsets)), max(0, *offsets)

        def combine(h: Array) -> Array:
            n = h.shape[axis] - before - after
            part = lambda i: jax.lax.slice_in_dim(h, before + i, before + i + n, axis=axis)
            first, *others = (weight * part(i) for i, weight in zip(offsets, weights))
            return sum(others, start=first) / self.grid.spacing[axis]

        halo = [(before, after) if i == axis else 0 for i in range(5)]
        return dops.Stencil(self.grid, combine, halo=halo, periodic=[i not in (1, 2) for i in range(5)])(g)

    def collide(self, g: Array) -> Array:
        """Return the divergence of F ∇(g/F) in v and s: collisions keep the number of ions, and a Maxwellian."""
        (v, s), f, (_, dv, ds, *_) = self.velocities(), self.maxwellian(), self.grid.spacing
        result = jnp.zeros_like(g)
        for axis, u, du, jacobian in ((1, v, dv, 1.0), (2, s, ds, s + ds / 2)):
            face = f * jnp.exp(-(u * du + du**2 / 4) / 2) * jacobian  # F on the face behind each cell
            face = jnp.where(u + du < FASTEST, face, 0)  # Nothing leaves the grid.
            flux = face * self.difference(g / f, axis, (0, 1), (-1.0, 1.0))
            result += self.difference(flux, axis, (-1, 0), (-1.0, 1.0)) / (1.0 if axis == 1 else s)
        return self.collisions * result

    def advect(self, g: Array, phi: Array) -> Array:
        """Return the spectrum of ẑ×∇φ·∇g."""
        kx, ky = (1j * k[None, None, None] for k in self.fft.wavenumbers())
        phi_x, phi_y, g_x, g_y = (self.fft.inverse(k * u) for u in (phi, g) for k in (kx, ky))
        return self.fft(phi_x * g_y - phi_y * g_x)

    def __call__(self, g: Array, gradients: Gradients) -> Array:
        """Return dg/dt."""
        (v, s), f = self.velocities(), self.maxwellian()
        phi = self.average * self.potential(g, gradients)
        streaming = v * self.difference(g + phi * f, 0, (-2, -1, 1, 2), (1 / 12, -2 / 3, 2 / 3, -1 / 12))
        steepness = gradients.density + gradients.temperature * ((v**2 + s**2) / 2 - 1.5)
        drive = 1j * self.fft.wavenumbers()[1][None, None, None] * phi * steepness * f
        rate = -streaming - drive - self.advect(g, phi)
        return jnp.where(self.kept, rate + self.collide(g) if self.collisions else rate, 0)


def total(u: Array, s: Array) -> Array:
    """Return the sum over the velocities v and s, whose axes keep a length of one."""
    return jnp.sum(s * u, axis=(1, 2), keepdims=True)


def start(motion: Gyrokinetics, amplitude: float) -> Array:
    """Return waves of random phases, in every mode with ky > 0 that is long."""
    nz, *_, nx, nky = motion.grid.shape
    random = np.random.default_rng(0)
    kx, ky = map(np.asarray, motion.fft.wavenumbers())
    size = np.where(ky > 0, np.exp(-(kx**2 + ky**2)), 0) * nx * 2 * (nky - 1)
    phase = random.uniform(0, 2 * np.pi, (2, *size.shape))
    wave = size * np.exp(1j * phase[0]) * np.cos(2 * np.pi * np.arange(nz).reshape(-1, 1, 1) / nz + phase[1])
    everywhere = motion.grid.shard(np.broadcast_to(amplitude * wave[:, None, None], motion.grid.shape))
    return jnp.where(motion.kept, everywhere * motion.maxwellian(), 0)


def simulate(motion: Gyrokinetics, gradients: Gradients, g: Array, steps: int, dt: float) -> tuple[Array, Array]:
    """Take steps of the classical Runge-Kutta method.

    Returns the last g and, after each step, φ of the modes with kx = 0 and the smallest kz > 0, for each ky.
    """
    nz = motion.grid.shape[0]
    wave = jnp.exp(-2j * np.pi * jnp.arange(nz) / nz) / (nz * math.prod(motion.fft.decomposition.shape))

    def step(g: Array, _):
        a = motion(g, gradients)
        b = motion(g + dt / 2 * a, gradients)
        c = motion(g + dt / 2 * b, gradients)
        d = motion(g + dt * c, gradients)
        g = g + dt / 6 * (a + 2 * b + 2 * c + d)
        phi = motion.potential(g, gradients)[:, 0, 0, 0]
        return g, jnp.sum(wave[:, None] * phi, axis=0)

    return jax.lax.scan(step, g, length=steps)


def theory(kz: float, ky: float, gradients: Gradients) -> complex:
    """Return the complex frequency of the fastest growth at kx = 0, without collisions; NaN if no wave grows."""
    v, dv = np.linspace(-8, 8, 1001, retstep=True)
    f, b = np.exp(-(v**2) / 2) / np.sqrt(2 * np.pi) * dv, ky**2
    gamma = i0e(b)  # ∫ J₀² F over s
    weighted = gamma - b * (gamma - i1e(b))  # ∫ J₀² F s²/2 over s
    drive = kz * v + ky * (gradients.density + gradients.temperature * (v**2 / 2 - 1.5))
    drive = gamma * drive + weighted * ky * gradients.temperature

    # Several frequencies balance the charges. From one start, Newton's method may find one that is not the fastest
    # growth, or none. So it starts at many points.
    omega = step = kz * np.add.outer(np.arange(-5, 0, 0.25), 1j * np.arange(0.1, 2, 0.2)).ravel()
    with np.errstate(all="ignore"):
        for _ in range(40):
            inverse = 1 / (omega[:, None] - kz * v)
            charge = 1 + gradients.ratio - gamma - inverse @ (f * drive)
            step = -charge / (inverse**2 @ (f * drive))
            omega = omega + step
    # The integral over real velocities holds for waves that grow. Elsewhere, its zeros are no waves.
    waves = omega[(abs(step) < 1e-12) & (omega.imag > 0.01 * kz)]
    return complex(max(waves, key=np.imag, default=complex(np.nan, np.nan)))


def fitted(time: np.ndarray, wave: np.ndarray) -> complex:
    """Return the complex frequency ω of a wave exp(-iωt) by a least-squares line through its logarithm."""
    slope = [np.polyfit(time, part, 1)[0] for part in (np.log(np.abs(wave)), np.unwrap(np.angle(wave)))]
    return complex(-slope[1], slope[0])


def check_gradient(motion: Gyrokinetics, amplitude: float, steps: int, dt: float) -> tuple[float, float]:
    """Compare the derivative of a wave's logarithm by the gradient of the temperature with a central difference."""
    g = start(motion, amplitude)

    @jax.jit
    def logarithm(temperature: Array | float) -> Array:
        _, waves = simulate(motion, Gradients(temperature=temperature), g, steps, dt)
        return jnp.log(jnp.abs(waves[-1, 1]))

    at, shift = Gradients().temperature, 1e-4
    gradient = float(jax.jit(jax.grad(logarithm))(at))
    difference = float(logarithm(at + shift) - logarithm(at - shift)) / (2 * shift)
    print(f"Derivative of the logarithm of the longest wave at t = {steps * dt:g} by the gradient of the temperature:")
    print(f"{gradient:.8e}, by differences {difference:.8e}")
    return gradient, difference


def plot(motion: Gyrokinetics, phi: Array, time: np.ndarray, waves: dict, known: dict, out: str) -> None:
    """Draw the potential at z = 0, and the waves over time beside the theory."""
    field, curve = dops.plot.panels(1, 2, size=(4.8, 3.6), title="A plasma with a gradient of temperature")
    dops.plot.slice(motion.fft, phi, ax=field, title=f"potential at z = 0, t = {time[-1]:g}")
    dops.plot.curves(time, waves, references=known, log="y", ax=curve, title="waves of the potential along y")
    curve.figure.savefig(out, dpi=150)


def longest_waves(args: Namespace) -> list[tuple[float, float]]:
    """Return kz and ky of the two waves that are compared with the theory."""
    return [(2 * np.pi / args.long, 2 * np.pi * mode / args.wide) for mode in (1, 2)]


def parse(argv: list[str] | None) -> tuple[Namespace, jax.sharding.Mesh]:
    parser = Parser(__doc__)
    parser.add_argument("--shape", type=mesh_shape, default=(12, 24, 12, 12, 16), help="cells along z, v, s, x and y")
    parser.add_argument("--long", type=positive, default=62.8, help="length of the box along z (62.8)")
    parser.add_argument("--wide", type=positive, default=20.9, help="lengths of the box along x and y (20.9)")
    parser.add_argument("--collisions", type=at_least(0.0), default=0.0, help="rate of collisions (0)")
    parser.add_argument("--amplitude", type=positive, default=3e-3, help="amplitude of the waves at the start (0.003)")
    parser.add_argument("--t-end", type=positive, default=110.0, help="final time (110)")
    parser.add_argument("--dt", type=positive, default=0.25, help="time step (0.25)")
    parser.add_argument("--mesh", type=mesh_shape, help="devices along z and v (4x2)")
    parser.add_argument("--out", type=figure, default="gyrokinetics.png", help="file of the figure (gyrokinetics.png)")
    parser.add_argument("--gradient", action="store_true", help="check a derivative instead")
    args = parser.parse_args(argv)
    if len(args.shape) != 5 or min(args.shape) < 4:
        parser.error(f"argument --shape: must have 5 axes of at least 4 cells; got '{'x'.join(map(str, args.shape))}'")
    if args.t_end < 40:
        parser.error(f"argument --t-end: must be at least 40, the end of the fit; got '{args.t_end:g}'")
    if not args.gradient and any(np.isnan(theory(*wave, Gradients())) for wave in longest_waves(args)):
        parser.error(
            f"argument --wide: both of the longest waves must grow in theory; got '{args.wide:g}' with --long "
            f"{args.long:g}"
        )
    mesh = make_mesh(parser, args.mesh, z=4, v=2)
    if any(n % parts for n, parts in zip(args.shape, mesh.axis_sizes)):
        text = "x".join(map(str, args.shape))
        parser.error(f"argument --shape: z and v must be multiples of the mesh, {mesh.axis_sizes}; got '{text}'")
    return args, mesh


def main(argv: list[str] | None = None):
    """Run the example. Returns the fitted and the theoretical frequencies of the two longest waves, and all waves."""
    args, mesh = parse(argv)
    steps = round(args.t_end / args.dt)
    text = "x".join(map(str, args.shape))
    print(f"A magnetised plasma, {text} cells, {steps} steps, {mesh.devices.size} devices", flush=True)
    with jax.set_mesh(mesh):
        motion = Gyrokinetics(mesh, args.shape, (args.long, args.wide, args.wide), args.collisions)
        if args.gradient:
            return check_gradient(motion, args.amplitude, steps, args.dt)
        run = jax.jit(lambda g: simulate(motion, Gradients(), g, steps, args.dt))
        g, waves = run(start(motion, args.amplitude))
        if not np.all(np.isfinite(waves)):
            raise SystemExit("The run became unstable; use a smaller --dt.")
        phi = jax.jit(lambda g: motion.fft.inverse(motion.potential(g, Gradients())))(g)
        phi = np.asarray(phi)[0, 0, 0]
    time, waves = args.dt * np.arange(1, steps + 1), np.asarray(waves)
    found, known, curves, references = [], [], {}, {}
    for mode, (kz, ky) in enumerate(longest_waves(args), 1):
        wave, inside = waves[:, mode], (time >= 20) & (time <= 40)
        found.append(fitted(time[inside], wave[inside]))
        known.append(theory(kz, ky, Gradients()))
        print(f"ky = {ky:.2f}: frequency {found[-1].real:8.4f}, theory {known[-1].real:8.4f}; ", end="")
        print(f"growth rate {found[-1].imag:8.4f}, theory {known[-1].imag:8.4f}")
        curves[f"ky = {ky:.2f}"] = np.abs(wave)
        growth = np.exp(known[-1].imag * time[inside])
        references[f"theory, ky = {ky:.2f}"] = (time[inside], growth * np.max(np.abs(wave)[inside] / growth))
    plot(motion, phi, time, curves, references, args.out)
    print(f"Figure: {args.out}")
    return found, known, waves


if __name__ == "__main__":
    main()
