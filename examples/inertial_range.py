"""Forced turbulence with a large-eddy model: the energy spectrum k^(-5/3) of the inertial range.

    python examples/inertial_range.py                        # 64³ points on 2 virtual CPU devices: a minute
    python examples/inertial_range.py --n 128 --t-end 5      # the figure of the documentation: six minutes

A force of constant power drives the eddies with the wavenumbers 1 and 2 of a periodic box of length 2π. Smagorinsky's
model takes their energy from the smallest eddies; there is no other viscosity. Between the two, in the inertial range,
energy passes from larger to smaller eddies at the rate ε, and its spectrum is Kolmogorov's,

    E(k) = C ε^(2/3) k^(-5/3),   C = 1.62 ± 0.17.

The constant is that of experiments: the survey by Sreenivasan (Phys. Fluids 7, 1995) has 0.53 ± 0.055 for the
one-dimensional longitudinal spectrum, and in isotropic turbulence C is 55/18 of that.

The flow starts on a grid of half as many points, where it becomes turbulent, and continues on the full grid. The
spectrum is the mean over the last three quarters of that time, and ε is the power minus the growth of the energy.
"""

from pathlib import Path
from typing import NamedTuple

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
from decompops.pde import ETDRK, NavierStokes, PowerForcing, Smagorinsky
from decompops.spectral import GaussianRandomField, LerayProjection, Resample, energy_spectrum
from jax import Array

from options import Parser, at_least, figure, make_mesh, mesh_shape, positive, stable


POWER = 0.1
CONSTANT, UNCERTAINTY = 55 / 18 * 0.53, 55 / 18 * 0.055


class Spectrum(NamedTuple):
    """An energy spectrum, the rate ε, the slope and the constant C of a fit, and its range of wavenumbers."""

    k: np.ndarray
    energy: np.ndarray
    rate: float
    slope: float
    constant: float
    within: tuple[float, float]


def equation(fft: dops.FFT3D, constant: float) -> NavierStokes:
    """Return the equation of motion, with Smagorinsky's constant."""
    return NavierStokes(fft, 0.0, forcing=(PowerForcing(fft, POWER, (1.0, 2.0)), Smagorinsky(fft, constant)))


def first_flow(fft: dops.FFT3D) -> Array:
    """Return a random velocity without divergence, with the energy that the flow will have, about 2/3."""
    noise = GaussianRandomField(fft, lambda k: jnp.exp(-((k - 2) ** 2)) * (k > 0))
    u = LerayProjection(fft)(jnp.stack([noise(key) for key in jax.random.split(jax.random.key(0), 3)]))
    return u * jnp.sqrt(4 / 3 / (3 * fft.decomposition.mean(jnp.mean(u**2, axis=0))))


def fitted(k: np.ndarray, energy: np.ndarray, rate: float, n: int) -> Spectrum:
    """Fit a power of k between the forced eddies and those that the model damps."""
    low, high = 5.0, n / 4
    inside = (k >= low) & (k <= high)
    slope, _ = np.polyfit(np.log(k[inside]), np.log(energy[inside]), 1)
    constant = np.mean(energy[inside] * k[inside] ** (5 / 3)) / rate ** (2 / 3)
    return Spectrum(k, energy, rate, float(slope), float(constant), (low, high))


def plot(found: Spectrum, title: str, path: Path) -> None:
    """Draw the spectrum, and the spectrum times k^(5/3) beside the measured constant."""
    left, right = dops.plot.panels(1, 2, size=(4.8, 3.6), title=title)
    drawn = (found.k > 0) & (found.k < 4 / 3 * found.within[1])  # Larger wavenumbers are not resolved.
    k, energy = found.k[drawn], found.energy[drawn]
    law = CONSTANT * found.rate ** (2 / 3) * k ** (-5 / 3)
    inside = (k >= found.within[0]) & (k <= found.within[1])
    known = {f"{CONSTANT:.2f} ε^(2/3) k^(-5/3)": (k[inside], law[inside])}
    dops.plot.curves(k, {"energy spectrum": energy}, references=known, log="xy", xlabel="wavenumber k", ax=left)
    dops.plot.curves(k, {"E(k) k^(5/3) / ε^(2/3)": energy / law * CONSTANT}, log="x", xlabel="wavenumber k", ax=right)
    right.axhspan(CONSTANT - UNCERTAINTY, CONSTANT + UNCERTAINTY, color="0.85", label="experiments")
    right.set(ylim=(0, 3), xlim=(1, k[-1]))
    right.legend()
    left.figure.savefig(path, dpi=150)


def main(argv: list[str] | None = None) -> Spectrum:
    """Run the example. Returns the spectrum and its fit."""
    parser = Parser(__doc__)
    parser.add_argument("--n", type=at_least(32), default=64, help="points along each axis (64)")
    parser.add_argument("--constant", type=positive, default=0.15, help="Smagorinsky's constant (0.15)")
    parser.add_argument("--spin-up", type=positive, default=12.0, help="time on the coarser grid (12)")
    parser.add_argument("--t-end", type=positive, default=12.0, help="time on the full grid (12)")
    parser.add_argument("--mesh", type=mesh_shape, help="devices along x (2)")
    parser.add_argument("--out", type=figure, default="inertial_range.png", help="file of the figure")
    args = parser.parse_args(argv)
    mesh = make_mesh(parser, args.mesh, double=False, x=2)
    if args.n % (2 * mesh.size):
        parser.error(f"argument --n: must be a multiple of twice the number of devices, {mesh.size}; got '{args.n}'")
    title = f"Forced turbulence, {args.n}³ points, Smagorinsky's constant {args.constant:g}"
    print(f"{title}, {mesh.devices.size} devices", flush=True)

    with jax.set_mesh(mesh):
        coarse, fine = (dops.FFT3D(mesh, shape=(n,) * 3, axes="x", real=True) for n in (args.n // 2, args.n))
        before, after = (equation(fft, args.constant) for fft in (coarse, fine))
        early = stable(ETDRK(before, 2 / args.n, order=2), before.state(first_flow(coarse)), args.spin_up)
        u = after.state(Resample(coarse, (args.n,) * 3)(before.fields(early.u)))

        def observe(t: Array, u: Array) -> tuple[Array, Array]:
            velocity = after.fields(u)
            energy = fine.decomposition.mean(jnp.sum(velocity**2, axis=0)) / 2
            return energy_spectrum(fine, velocity).energy, energy

        flow = stable(ETDRK(after, 1 / args.n, order=2), u, args.t_end, interval=args.t_end / 32, observe=observe)
        k = np.asarray(energy_spectrum(fine, after.fields(flow.u)).k)
    spectra, energies = flow.observed
    rate = POWER - (energies[-1] - energies[8]) / (flow.times[-1] - flow.times[8])
    found = fitted(k, np.mean(spectra[8:], axis=0), float(rate), args.n)
    low, high = found.within
    print(f"For k from {low:g} to {high:g}, the spectrum falls like k^({found.slope:.2f}); Kolmogorov: -1.67")
    print(f"Kolmogorov's constant is {found.constant:.2f} there; experiments: {CONSTANT:.2f} ± {UNCERTAINTY:.2f}")
    plot(found, title, args.out)
    print(f"Figure: {args.out}")
    return found


if __name__ == "__main__":
    main()
