"""An electrostatic plasma: Landau damping and the two-stream instability by a particle-in-cell code.

    python examples/plasma.py                              # Landau damping on 8 virtual CPU devices: a minute
    python examples/plasma.py --case two-stream            # two beams of electrons trap each other in vortices
    python examples/plasma.py --shape 64 --mesh 1          # one dimension; also --shape 64x16x16, and --mesh 4
    python examples/plasma.py --gradient                   # differentiate through a whole (short) simulation

Electrons move in a periodic box, before ions at rest that neutralise their charge. In units of the plasma frequency,
the Debye length and the thermal speed, an electron and its field obey

    dx/dt = v,   dv/dt = -E,   ∇·E = 1 - n,   ∇×E = 0,

where n is the density of the electrons. The program deposits the electrons on a grid, solves for the field by Fourier
transforms, and moves the electrons by a leapfrog. After each step, an electron goes to the device that owns its cell.

At the start, n = 1 + α cos kx, and the velocities are Maxwellian about a mean along x: 0, or ±u for two beams. While
the wave is small, it grows or decays like exp(-iωt), where the complex frequency ω solves the dispersion relation

    2k² = ⟨Z'((ω/k - u) / √2)⟩,   averaged over the beams,

with the plasma dispersion function Z. The program fits ω to the simulated wave, and prints it beside this theory.

Source: Birdsall & Langdon, Plasma Physics via Computer Simulation (1985), chapters 4, 5 and 16.
"""

import math
from argparse import Namespace
from typing import NamedTuple

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
from decompops.particles import Gravity, KickDriftKick, ParticleMesh, Particles
from jax import Array
from scipy.special import ndtri, wofz
from scipy.stats import qmc

from options import Parser, at_least, figure, make_mesh, mesh_shape, positive


class Case(NamedTuple):
    """The defaults of a case, and between which times its wave is fitted."""

    wavenumber: float
    drift: float
    amplitude: float
    t_end: float
    fit: tuple[float, float]


CASES = {
    "landau": Case(wavenumber=0.5, drift=0.0, amplitude=0.02, t_end=20.0, fit=(4.0, 14.0)),
    "two-stream": Case(wavenumber=0.15, drift=4.0, amplitude=0.001, t_end=40.0, fit=(10.0, 19.0)),
}


class History(NamedTuple):
    """Numbers over time: the amplitude of the density wave, and the energies of the field and of the electrons."""

    wave: np.ndarray | Array
    field: np.ndarray | Array
    kinetic: np.ndarray | Array


def quiet_start(count: int, lengths: tuple[float, ...], drift: float) -> tuple[np.ndarray, np.ndarray]:
    """Return positions and velocities that fill the phase space evenly, without the noise of random numbers.

    The velocities along x are the quantiles of the beams in turn; all other coordinates are those of a Halton sequence,
    which reverses digits (Birdsall & Langdon, section 16-3).
    """
    ndim = len(lengths)
    halton = qmc.Halton(2 * ndim - 1, scramble=False)
    halton.fast_forward(1)  # The first point is zero, the quantile of the velocity -∞.
    others = halton.random(count)
    beams = 1 if drift == 0 else 2
    beam, quantile = np.divmod((np.arange(count) + 0.5) / count * beams, 1)
    velocities = ndtri(np.column_stack([quantile, others[:, ndim:]]))
    velocities[:, 0] += drift * (2 * beam - 1)
    return others[:, :ndim] * lengths, velocities


def simulate(fft: dops.FFT, p: Particles, amplitude: Array | float, steps: int, dt: float) -> tuple[Particles, History]:
    """Displace particles by a wave, and take steps by a leapfrog. Return the last particles and the history."""
    pm, k = ParticleMesh(fft.decomposition, "tsc"), 2 * jnp.pi / fft.box_lengths[0]
    # Electrons repel each other: the strength is negative, and such that their mean density is one.
    repulsion = Gravity(pm, -math.prod(fft.box_lengths) / jnp.sum(p.counts).astype(p.positions.dtype))

    def observe(t: Array, p: Particles) -> History:
        kinetic = pm.mean(p, jnp.sum(p["velocity"] ** 2, axis=1)) / 2
        wave = 2 * pm.mean(p, jnp.cos(k * p.positions[:, 0]))
        return History(wave, fft.decomposition.mean(jnp.sum(repulsion.field(p) ** 2, axis=0)) / 2, kinetic)

    wave = -amplitude / k * jnp.sin(k * p.positions[:, 0])
    p = pm.exchange(p.replace(p.positions.at[:, 0].add(wave)))
    leapfrog = KickDriftKick(pm, repulsion, dt * jnp.arange(steps + 1.0))
    return leapfrog.rollout(p, every=1, observe=observe)


def theory(k: float, drift: float) -> complex:
    """Return the complex frequency of the wave that decays most slowly or grows fastest."""
    # From one start, Newton's method may find another root than the highest one, or none. So it starts at many points.
    omega = step = np.add.outer(np.linspace(0, math.hypot(1, 2 * k) + k * drift, 32), 1j * np.linspace(-2 * k, 0.5, 32))
    with np.errstate(all="ignore"):
        for _ in range(50):
            z = np.stack([omega / k - drift, omega / k + drift]) / math.sqrt(2)
            value = 1j * math.sqrt(math.pi) * wofz(z)  # Z(z)
            slope = -2 * (1 + z * value)  # Z'(z)
            curvature = -2 * (value + z * slope)  # Z''(z)
            step = math.sqrt(2) * k * (2 * k**2 - slope.mean(0)) / curvature.mean(0)
            omega = omega + step
    roots = omega[abs(step) < 1e-6]
    root = roots[np.argmax(np.imag(roots))]
    return complex(abs(root.real), root.imag)


def fitted(time: np.ndarray, wave: np.ndarray, between: tuple[float, float]) -> complex:
    """Return the complex frequency ω of the strongest exponential exp(-iωt) in a wave.

    By Prony's method, w(t + 3τ) = a w(t) + b w(t + τ) + c w(t + 2τ) for a sum of three exponentials, and each exp(-iωτ)
    is a root of z³ = a + bz + cz². A standing wave is the sum of two exponentials; the third one may grow, or be noise.
    """
    w, lag = wave[(time >= between[0]) & (time <= between[1])], round(1 / (time[1] - time[0]))
    count = len(w) - 3 * lag
    shifted = np.stack([w[i * lag : i * lag + count] for i in range(4)], axis=1)
    a, b, c = np.linalg.lstsq(shifted[:, :3], shifted[:, 3], rcond=None)[0]
    omega = 1j * np.log(np.roots([1, -c, -b, -a]).astype(complex)) / (lag * (time[1] - time[0]))
    exponentials = np.exp(-1j * omega * (time[1] - time[0]) * np.arange(len(w))[:, None])
    amplitudes = np.linalg.lstsq(exponentials, w.astype(complex), rcond=None)[0]
    return complex(omega[np.argmax(np.linalg.norm(amplitudes * exponentials, axis=0))])


def check_gradient(fft: dops.FFT, p: Particles, amplitude: float, dt: float) -> tuple[float, float]:
    """Compare the derivative of the final energy of the field by the amplitude with a central difference."""
    energy = jax.jit(lambda amplitude: simulate(fft, p, amplitude, round(2 / dt), dt)[1].field[-1])
    gradient, shift = float(jax.jit(jax.grad(energy))(amplitude)), 1e-4 * amplitude
    difference = float(energy(amplitude + shift) - energy(amplitude - shift)) / (2 * shift)
    print("Derivative of the energy of the field at t = 2 by the amplitude of the wave:")
    print(f"{gradient:.8e}, by differences {difference:.8e}")
    return gradient, difference


def plot(electrons: dict, time: np.ndarray, history: History, omega: complex, args: Namespace) -> None:
    """Draw the last electrons in phase space, and the energy of the field over time beside the theory."""
    phase, curve = dops.plot.panels(1, 2, size=(4.8, 3.6), title=f"Electrostatic plasma, case {args.case}")
    x, v = electrons["positions"][:, 0] % (2 * np.pi / args.wavenumber), electrons["velocity"][:, 0]
    phase.hist2d(x, v, bins=(128, 128), cmap="magma")
    phase.set(xlabel="x [Debye lengths]", ylabel="velocity [thermal speeds]", title=f"phase space at t = {time[-1]:g}")
    inside = (time >= args.fit[0]) & (time <= args.fit[1])
    size, exponential = np.abs(history.wave), np.exp(omega.imag * time[inside])
    known = {"growth rate of the theory": (time[inside], exponential * np.max(size[inside] / exponential))}
    dops.plot.curves(time, {"simulation": size}, references=known, log="y", xlabel="time [1/ωₚ]", ax=curve)
    curve.set(title="amplitude of the density wave", xlim=(0, time[-1]))
    curve.figure.savefig(args.out, dpi=150)


def parse(argv: list[str] | None) -> tuple[Namespace, jax.sharding.Mesh]:
    """Read the options, with the defaults of the case, and make the mesh."""
    parser = Parser(__doc__)
    parser.add_argument("--case", choices=CASES, default="landau", help="the wave to simulate (landau)")
    parser.add_argument("--shape", type=mesh_shape, default=(64, 16), help="cells along each of 1 to 3 axes (64x16)")
    parser.add_argument("--electrons", type=at_least(1), default=2**17, help="number of simulated electrons (131072)")
    parser.add_argument("--slots", type=at_least(1.0), default=2.0, help="slots for each electron (2)")
    parser.add_argument("--wavenumber", type=positive, help="k, in inverse Debye lengths (0.5 or 0.15)")
    parser.add_argument("--amplitude", type=positive, help="amplitude α of the wave at the start (0.02 or 0.001)")
    parser.add_argument("--t-end", type=positive, help="final time, in inverse plasma frequencies (20 or 40)")
    parser.add_argument("--dt", type=positive, default=0.1, help="time step (0.1)")
    parser.add_argument("--mesh", type=mesh_shape, help="devices along x (8; 1 in one dimension)")
    parser.add_argument("--out", type=figure, default="plasma.png", help="file of the figure (plasma.png)")
    parser.add_argument("--gradient", action="store_true", help="check a derivative instead")
    args = parser.parse_args(argv)
    if len(args.shape) > 3:
        parser.error(f"argument --shape: must have 1 to 3 axes; got '{'x'.join(map(str, args.shape))}'")
    for name, value in CASES[args.case]._asdict().items():
        if getattr(args, name, None) is None:
            setattr(args, name, value)
    if args.t_end < args.fit[1]:
        parser.error(f"argument --t-end: must be at least {args.fit[1]:g}, the end of the fit; got '{args.t_end:g}'")
    if args.dt > 0.5:
        parser.error(f"argument --dt: must be at most 0.5, to resolve the oscillation; got '{args.dt:g}'")
    return args, make_mesh(parser, args.mesh, x=8 if len(args.shape) > 1 else 1)


def main(argv: list[str] | None = None):
    """Run the example. Returns the fitted frequency, the theoretical one, the times and the history."""
    args, mesh = parse(argv)
    steps = round(args.t_end / args.dt)
    dt, length = args.t_end / steps, 2 * np.pi / args.wavenumber
    lengths = tuple(length * n / args.shape[0] for n in args.shape)
    axes = "x" if len(args.shape) > 1 else ()  # One axis of a grid is whole on each device.
    title = f"Electrostatic plasma, case {args.case}, k = {args.wavenumber:g}, {args.electrons} electrons"
    print(f"{title}, {'x'.join(map(str, args.shape))} cells, {steps} steps, {mesh.devices.size} devices", flush=True)

    with jax.set_mesh(mesh):
        fft = dops.FFT(mesh, shape=args.shape, axes=axes, box=dops.Box(lengths), pad=True, real=True)
        pm = ParticleMesh(fft.decomposition)
        positions, velocity = quiet_start(args.electrons, lengths, args.drift)
        capacity = math.ceil(args.slots * args.electrons / (mesh.devices.size if axes else 1))
        p = pm.place(positions, velocity=velocity, capacity=capacity)
        if args.gradient:
            return check_gradient(fft, p, args.amplitude, dt)
        p, history = jax.jit(lambda p: simulate(fft, p, args.amplitude, steps, dt))(p)
        if p.overflows:
            raise SystemExit(f"A device needs {p.needed.max()} slots, but has {capacity}; use a larger --slots.")
        electrons = pm.gather(p)
    time = dt * np.arange(1, steps + 1)
    history = History(*map(np.asarray, history))
    omega, known = fitted(time, np.asarray(history.wave), args.fit), theory(args.wavenumber, args.drift)
    print(f"Frequency     {abs(omega.real):9.4f}   theory {abs(known.real):9.4f}")
    print(f"Growth rate   {omega.imag:9.4f}   theory {known.imag:9.4f}")
    total = history.field + history.kinetic
    change = np.ptp(total) / np.max(history.field)
    print(f"The total energy changes by {change:.1e} of the largest energy of the field.")
    plot(electrons, time, history, known, args)
    print(f"Figure: {args.out}")
    return omega, known, time, history


if __name__ == "__main__":
    main()
