"""Tracers in turbulence: how fast particles of a fluid separate, compared with the laws of Batchelor and Taylor.

    python examples/tracers.py                             # 64³ cells on 8 virtual CPU devices, or GPUs: two minutes
    python examples/tracers.py --n 128 --mesh 4x2

A force adds energy to the largest scales of a flow in a periodic box of length 2π, with power 1:

    ∂u/∂t + (u·∇)u = -∇p + ν∇²u + f   and   ∇·u = 0.

When the flow is turbulent, the program lets tracers go, which move with the flow: dX/dt = u(X, t). Each tracer of a
lattice has partners at the distances r along x, y and z. As long as velocities hardly change, pairs separate
ballistically (Batchelor 1950):

    ⟨|R(t) - R(0)|²⟩ = S₂(r) t²,   with the structure function S₂(r) = ⟨|u(x + r) - u(x)|²⟩,

which the program computes from the velocity on the grid. A single tracer moves ballistically first and then like a
random walk. In stationary turbulence, the autocorrelation of its velocity gives the whole curve (Taylor 1921):

    ⟨|X(t) - X(0)|²⟩ = 2 ∫₀ᵗ (t - s) ⟨u(0)·u(s)⟩ ds.

The box has room for few large eddies, so the energy of the flow varies by some ten percent, and so does this law.

The velocity at a tracer is the cubic spline through the values on the grid, as in Yeung & Pope (J. Comput. Phys. 79,
1988); the time step is an Adams–Bashforth method of second order.

Source: Salazar & Collins, Two-particle dispersion in isotropic turbulent flows (Annu. Rev. Fluid Mech. 41, 2009).
"""

import math
from functools import partial
from typing import NamedTuple

import decompops as dops
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from decompops.particles import ParticleMesh, Particles
from decompops.pde import ETDRK, AbstractEquation, NavierStokes, state_transform
from decompops.spectral import (
    Curl,
    GaussianRandomField,
    IsotropicFilter,
    LerayProjection,
    SpectralOperator,
    mean_square,
)
from jax import Array

from options import Parser, Path, at_least, figure, make_mesh, mesh_shape, positive, progress, stable


DISTANCES = 1, 2, 4, 8  # The initial distances of pairs, in cells.


class Stirring(eqx.Module):
    """A force along the velocity at large scales, |k| < 2.5, that adds energy with power 1.

    Source: Machiels (Phys. Rev. Lett. 79, 1997).
    """

    fft: dops.FFT

    def __call__(self, t: Array, u: Array, args: None) -> Array:
        transform = state_transform(self.fft)
        large = IsotropicFilter(transform, lambda k: jnp.where(k < 2.5, 1.0, 0.0)).multiply(u)
        return large / jnp.sum(mean_square(transform, large))


class Turbulence(NamedTuple):
    """The flow at the time when the tracers start."""

    viscosity: float
    dissipation: float
    speed_squared: float  # ⟨|u|²⟩
    structure: np.ndarray  # S₂ at the `DISTANCES`.

    @property
    def length(self) -> float:
        """Kolmogorov's length η."""
        return (self.viscosity**3 / self.dissipation) ** 0.25

    @property
    def duration(self) -> float:
        """Kolmogorov's time τ."""
        return (self.viscosity / self.dissipation) ** 0.5

    @property
    def reynolds(self) -> float:
        """The Reynolds number of Taylor's length λ."""
        return self.speed_squared / 3 * (15 / (self.viscosity * self.dissipation)) ** 0.5


class Dispersion(NamedTuple):
    """Means over the tracers, at the times `time` since they started."""

    time: np.ndarray
    displacement: np.ndarray  # ⟨|X(t) - X(0)|²⟩
    correlation: np.ndarray  # ⟨u(0)·u(t)⟩
    separation: np.ndarray  # ⟨|R(t) - R(0)|²⟩: one row for each time, one column for each of the `DISTANCES`.

    def over_batchelor(self, flow: Turbulence) -> np.ndarray:
        """Return the separation divided by Batchelor's law."""
        return self.separation / (flow.structure * self.time[:, None] ** 2)

    def taylor(self, flow: Turbulence) -> np.ndarray:
        """Return the mean square displacement that follows from the autocorrelation of the velocity."""
        t, r = np.append(0, self.time), np.append(flow.speed_squared, self.correlation)
        integral = lambda y: np.append(0, np.cumsum(np.diff(t) * (y[1:] + y[:-1]) / 2))
        return 2 * integral(integral(r))[1:]


def first_velocity(fft: dops.FFT, equation: NavierStokes, key: Array) -> Array:
    """Return the spectrum of a random divergence-free velocity with ⟨|u|²⟩ = 3."""
    noise = GaussianRandomField(fft, lambda k: jnp.exp(-((k / 3) ** 2)))
    u = equation.transform(LerayProjection(fft)(jax.vmap(noise)(jax.random.split(key, 3))))
    return u * jnp.sqrt(3 / jnp.sum(mean_square(equation.transform, u)))


def spline(equation: AbstractEquation, u: Array) -> Array:
    """Return the coefficients of the cubic splines through the velocity on the grid."""
    dx = equation.fft.decomposition.spacing[0]
    # At a point of the grid, a spline is 1/6, 4/6 and 1/6 of three coefficients along each axis.
    sharpen = SpectralOperator(equation.transform, lambda *k: 1 / math.prod((2 + jnp.cos(q * dx)) / 3 for q in k))
    return equation.transform.inverse(sharpen.multiply(u))


def lattice(n: int, per_axis: int) -> np.ndarray:
    """Return the positions, in cells, of the tracers of a lattice, each followed by its partners."""
    first = np.indices((per_axis,) * 3).reshape(3, -1).T * (n // per_axis)
    shifts = np.concatenate([np.zeros((1, 3)), *(r * np.eye(3) for r in DISTANCES)])
    return (first[:, None] + shifts).reshape(-1, 3)


@eqx.filter_jit
def advance(solver: ETDRK, pm: ParticleMesh, u: Array, p: Particles, steps: Array) -> tuple[Array, Particles, Array]:
    """Take steps with the flow and its tracers. Also returns whether a device had too few slots."""
    step = solver.stepper(u)

    def body(_: Array, state: tuple[Array, Particles, Array]) -> tuple[Array, Particles, Array]:
        u, p, overflows = state  # The force depends on u only, so the time does not matter.
        v = pm.read(p, spline(solver.equation, u))
        p = pm.exchange(p.replace(p.positions + solver.dt * (1.5 * v - 0.5 * p["before"]), before=v))
        return step(0.0, u), p, overflows | p.overflows

    return jax.lax.fori_loop(0, steps, body, (u, p, p.overflows))


def vorticity(equation: NavierStokes, u: Array) -> Array:
    """Return the vorticity on the grid."""
    return equation.transform.inverse(Curl(equation.transform).multiply(u))


def measured(equation: NavierStokes, u: Array) -> Turbulence:
    """Return the numbers that describe a flow. Structure functions are means over x, y and z."""
    dec = equation.fft.decomposition

    @jax.jit
    def numbers(u: Array) -> tuple[Array, Array, Array]:
        v = equation.transform.inverse(u)
        mean_square = lambda field: jnp.sum(dec.mean(field**2))
        shifted = lambda r, axis: dops.Roll(dec, [r * (i == axis) for i in range(3)])(v)
        structure = [sum(mean_square(shifted(r, axis) - v) for axis in range(3)) / 3 for r in DISTANCES]
        return mean_square(vorticity(equation, u)), mean_square(v), jnp.stack(structure)

    enstrophy, speed_squared, structure = map(np.asarray, numbers(u))
    viscosity = float(equation.viscosity)
    return Turbulence(viscosity, viscosity * float(enstrophy), float(speed_squared), structure)


def disperse(
    solver: ETDRK, pm: ParticleMesh, u: Array, p: Particles, steps: int
) -> tuple[Array, Particles, Dispersion]:
    """Let tracers move with the flow, and observe them at times that grow like a geometric series."""
    dt, rows = float(solver.dt), []
    times = np.unique(np.geomspace(1, steps, 40).round().astype(int))
    read = eqx.filter_jit(lambda u, p: pm.read(p, spline(solver.equation, u)))
    v = read(u, p)
    p, first = p.replace(before=v, velocity=v, start=p.positions), separations(pm, p)
    with progress("steps with tracers", steps) as report:
        for done, until in zip([0, *times], times):
            u, p, overflows = advance(solver, pm, u, p, until - done)
            if overflows:
                raise SystemExit("A device has too few slots for its tracers; use a larger --slots.")
            displacement = pm.mean(p, jnp.sum((p.positions - p["start"]) ** 2, axis=1))
            correlation = pm.mean(p, jnp.sum(read(u, p) * p["velocity"], axis=1))
            separation = np.mean(np.sum((separations(pm, p) - first) ** 2, axis=-1), axis=(0, 2))
            rows.append((until * dt, displacement, correlation, separation))
            report(until)
    return u, p, Dispersion(*map(np.array, zip(*rows)))


def separations(pm: ParticleMesh, p: Particles) -> np.ndarray:
    """Return the vectors from each tracer of the lattice to its partners: `(lattice, distances, directions, 3)`."""
    positions = pm.gather(p)["positions"].reshape(-1, 1 + 3 * len(DISTANCES), 3)  # In the order of `id`.
    return (positions[:, 1:] - positions[:, :1]).reshape(-1, len(DISTANCES), 3, 3)


def report(distances: np.ndarray, flow: Turbulence, dispersion: Dispersion) -> None:
    """Print the numbers of the flow, and the dispersion beside both laws."""
    print(
        f"Rλ = {flow.reynolds:.1f}, dissipation {flow.dissipation:.3f}, η = {flow.length:.4f}, τ = {flow.duration:.4f}"
    )
    time, ratios, law = dispersion.time, dispersion.over_batchelor(flow), dispersion.taylor(flow)
    rows = [np.argmin(np.abs(time - fraction * flow.duration)) for fraction in (0, 0.3, 1)]
    print("Separation over Batchelor's law, S₂(r) t²:")
    print("     r/η     S₂(r)" + "".join(f"   t = {time[row] / flow.duration:.2f}τ" for row in rows))
    for r, s2, ratio in zip(distances / flow.length, flow.structure, ratios.T):
        print(f"{r:8.2f}{s2:10.6f}" + "".join(f"{ratio[row]:12.4f}" for row in rows))
    print("    time  displacement²  Taylor's formula")
    for row in np.searchsorted(time, np.linspace(0.1, 1, 6) * time[-1]):
        print(f"{time[row]:8.3f}{dispersion.displacement[row]:15.5f}{law[row]:18.5f}")


def plot(fft: dops.FFT, speed: Array, positions: np.ndarray, flow: Turbulence, dispersion: Dispersion, path: Path):
    """Draw the tracers near a plane, the separation of pairs, and the displacement of tracers."""
    plane, pairs, single = dops.plot.panels(1, 3, title=f"Tracers in turbulence, Rλ = {flow.reynolds:.0f}")
    time, dx = dispersion.time, fft.decomposition.spacing[0]
    dops.plot.slice(
        fft, speed, "z", at=np.pi, ax=plane, cmap="magma", title=f"vorticity and tracers at t = {time[-1]:g}"
    )
    x, y, z = positions.T % (2 * np.pi)
    near = np.abs(z - np.pi) < dx
    plane.plot(x[near], y[near], "w.", markersize=1)
    plane.set(xlim=(0, 2 * np.pi - dx), ylim=(0, 2 * np.pi - dx))
    ratios = {f"r = {r * dx / flow.length:.1f} η": y for r, y in zip(DISTANCES, dispersion.over_batchelor(flow).T)}
    one = {"Batchelor's law": (time / flow.duration, np.ones_like(time))}
    dops.plot.curves(time / flow.duration, ratios, references=one, log="x", ax=pairs, xlabel="time [τ]")
    pairs.set(title="mean square separation / S₂(r) t²", ylim=(0, 4))
    laws = {"Taylor's formula": (time, dispersion.taylor(flow)), "ballistic": (time, flow.speed_squared * time**2)}
    dops.plot.curves(time, {"tracers": dispersion.displacement}, references=laws, log="xy", ax=single)
    single.set_title("mean square displacement")
    plane.figure.savefig(path, dpi=150)


def main(argv: list[str] | None = None) -> tuple[Turbulence, Dispersion]:
    """Run the example. Returns the numbers of the flow, and the dispersion."""
    parser = Parser(__doc__)
    parser.add_argument("--n", type=at_least(16), default=64, help="cells along each axis (64)")
    parser.add_argument("--viscosity", type=positive, help="viscosity (so large that η is 0.7 cells)")
    parser.add_argument("--tracers", type=at_least(1), default=16, help="tracers of the lattice along each axis (16)")
    parser.add_argument("--spin-up", type=positive, default=4.0, help="time before the tracers start (4)")
    parser.add_argument("--t-end", type=positive, default=5.0, help="time with tracers (5)")
    parser.add_argument("--dt", type=positive, help="time step (0.8 / n)")
    parser.add_argument("--slots", type=at_least(1.0), default=2.0, help="slots for each tracer (2)")
    parser.add_argument("--mesh", type=mesh_shape, help="devices along x and y (8x1)")
    parser.add_argument("--out", type=figure, default="tracers.png", help="file of the figure (tracers.png)")
    args = parser.parse_args(argv)
    if args.n % args.tracers:
        parser.error(f"argument --tracers: must divide the {args.n} cells; got '{args.tracers}'")
    mesh = make_mesh(parser, args.mesh, x=8, y=1)
    viscosity, dt = args.viscosity or (4.5 / args.n) ** (4 / 3), args.dt or 0.8 / args.n
    steps, steps_before = (max(1, round(time / dt)) for time in (args.t_end, args.spin_up))
    cells = lattice(args.n, args.tracers)
    devices = "x".join(map(str, mesh.devices.shape))
    print(f"{args.n}³ cells, {len(cells)} tracers, {steps_before} + {steps} steps, {devices} devices", flush=True)

    with jax.set_mesh(mesh):
        fft = dops.FFT3D(mesh, shape=(args.n,) * 3, pad=True, real=True)
        equation = NavierStokes(fft, viscosity, forcing=Stirring(fft))
        solver, pm = ETDRK(equation, dt), ParticleMesh(fft.decomposition, "pcs")
        u = stable(solver, first_velocity(fft, equation, jax.random.key(0)), steps_before * dt).u
        flow = measured(equation, u)
        capacity = math.ceil(args.slots * len(cells) / mesh.devices.size)
        spacing = np.array(fft.decomposition.spacing)
        p = pm.place(cells * spacing, id=np.arange(len(cells)), capacity=capacity)
        u, p, dispersion = disperse(solver, pm, u, p, steps)
        speed = jnp.sqrt(jnp.sum(jax.jit(partial(vorticity, equation))(u) ** 2, axis=0))
        report(np.array(DISTANCES) * spacing[0], flow, dispersion)
        plot(fft, speed, pm.gather(p)["positions"], flow, dispersion, args.out)
    print(f"Figure: {args.out}")
    return flow, dispersion


if __name__ == "__main__":
    main()
