"""Tests of ground states of condensates, against the harmonic oscillator, the virial theorem, and NumPy."""

import functools

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import pde, spectral

from helpers import assert_close, make_mesh, random_field


LENGTHS, FREQUENCIES = (12.0, 10.0), (1.0, 1.5)


def transform(shape, sizes, kind="auto") -> dops.FFT:
    box = dops.Box(LENGTHS[: len(shape)])
    return dops.FFT(make_mesh(sizes, kind), shape=shape, pad=True, real=False, box=box)


def grid(shape) -> list[np.ndarray]:
    """Return the coordinates from the middle of the box."""
    return np.meshgrid(*(length * (np.arange(n) / n - 0.5) for n, length in zip(shape, LENGTHS)), indexing="ij")


def trap(shape) -> np.ndarray:
    return sum((frequency * x) ** 2 / 2 for frequency, x in zip(FREQUENCIES, grid(shape)))


def condensate(fft, interaction, dealiasing=None) -> pde.GrossPitaevskii:
    potential = fft.decomposition.shard(trap(fft.decomposition.shape))
    return pde.GrossPitaevskii(fft, interaction, potential=potential, dealiasing=dealiasing)


@pytest.mark.parametrize(("shape", "sizes", "kind"), [((32, 33), (2, 2), "auto"), ((33,), (4,), "explicit")])
def test_the_ground_state_of_the_harmonic_oscillator(shape, sizes, kind):
    """Without interaction, ψ becomes a Gaussian, and the energy of a particle the sum of half the frequencies."""
    fft, particles, frequencies = transform(shape, sizes, kind), 3.0, FREQUENCIES[: len(shape)]
    dec = fft.decomposition
    x = grid(shape)
    gaussian = np.sqrt(particles) * np.exp(-sum(w * a**2 / 2 for w, a in zip(frequencies, x)))
    gaussian *= np.prod(frequencies) ** 0.25 / np.pi ** (len(shape) / 4)

    @jax.jit
    def run(fields):
        equation = condensate(fft, 0.0)
        relaxation = pde.ImaginaryTime(equation, particles)
        seen = lambda t, u: (equation.particles(u), equation.energies(u))
        u, found = pde.IMEXRK(relaxation, 0.02).rollout(relaxation.state(fields), 1000, every=10, observe=seen)
        return relaxation.fields(u), found

    with jax.set_mesh(dec.mesh):
        last, (number, energies) = run(dec.shard(np.exp(-sum((a - 0.5) ** 2 for a in x)).astype(complex)))
        assert_close(dec.gather(last), gaussian, 1e-7)  # The box cuts the tail.
    assert abs(np.asarray(number) - particles).max() < 1e-13 * particles
    total = np.asarray(energies).sum(-1)
    assert total[-1] == pytest.approx(particles * sum(frequencies) / 2, rel=1e-12)
    assert np.all(np.diff(total) < 1e-12)
    assert energies[-1][0] == pytest.approx(float(energies[-1][1]), rel=1e-8)  # the virial theorem


def test_a_condensate_with_repulsion():
    """The ground state satisfies `H ψ = μ ψ`, computed by NumPy, and the virial theorem.

    Its chemical potential is near the Thomas–Fermi limit `√(g N ω_x ω_y / π)`. In real time, only the phase changes, at
    the rate μ.
    """
    shape, strength = (40, 40), 60.0
    fft = transform(shape, (2,))
    dec = fft.decomposition
    equation = condensate(fft, strength)
    relaxation = pde.ImaginaryTime(equation)
    start = relaxation.state(dec.shard(np.exp(-trap(shape) / 4) * (1 + 0.2 * grid(shape)[0]) + 0j))
    u, number = pde.SBDF(relaxation, 0.02).rollout(start, 1000, every=1, observe=lambda t, u: equation.particles(u))
    assert abs(np.asarray(number) - 1).max() < 1e-13
    field = dec.gather(equation.fields(u))
    k = np.meshgrid(*(2 * np.pi * np.fft.fftfreq(n, w / n) for n, w in zip(shape, LENGTHS)), indexing="ij")
    square, cell = sum(q**2 for q in k), np.prod(LENGTHS) / np.prod(shape)
    kinetic = np.fft.ifftn(square / 2 * np.fft.fftn(field))
    applied = kinetic + (trap(shape) + strength * abs(field) ** 2) * field
    level = np.vdot(field, applied).real * cell
    assert_close(applied, level * field, 1e-6)
    energies = np.array(
        [np.vdot(field, kinetic).real, np.sum(trap(shape) * abs(field) ** 2), strength * np.sum(abs(field) ** 4) / 2]
    )
    assert_close(equation.energies(u), energies * cell, 1e-12)
    assert 2 * energies[0] - 2 * energies[1] + 2 * energies[2] == pytest.approx(0, abs=1e-5 * energies.sum())
    assert level == pytest.approx(np.sqrt(strength * np.prod(FREQUENCIES) / np.pi), rel=0.1)
    later, _ = pde.ETDRK(equation, 0.005).rollout(u, 20)
    assert_close(dec.gather(equation.fields(later)), np.exp(-0.1j * level) * field, 1e-6)


def test_batches_precision_and_derivatives():
    """The derivative of the energy of ground states by g is the energy of the interaction, divided by g."""
    fft = transform((16,), (2,))
    equation = condensate(fft, 1.0, spectral.Truncate(1 / 2))
    relaxation = pde.ImaginaryTime(equation, 2.0)
    u = relaxation.state(fft.decomposition.shard(random_field((2, 16), np.complex64)))
    later = pde.IMEXRK(relaxation, 0.02).step(0.0, u)
    assert later.dtype == np.complex64
    assert_close(equation.particles(later), np.full(2, 2.0), 1e-6)

    x = grid((16,))[0]
    start = fft.decomposition.shard(np.exp(-(x**2) / 2).astype(complex))

    @jax.jit
    @functools.partial(jax.value_and_grad, argnums=(0, 1), has_aux=True)
    def energy(strength, particles):
        equation = condensate(fft, strength)
        relaxation = pde.ImaginaryTime(equation, particles)
        u, _ = pde.IMEXRK(relaxation, 0.05).rollout(relaxation.state(start), 200)
        energies = equation.energies(u)
        return jnp.sum(energies), energies

    (_, energies), (by_strength, by_number) = energy(1.5, 2.0)
    assert float(by_strength) == pytest.approx(float(energies[2]) / 1.5, rel=1e-6)
    assert float(by_number) == pytest.approx(float(energies.sum() + energies[2]) / 2.0, rel=1e-6)  # μ


def test_a_run_that_continues(tmp_path):
    fft = transform((16, 15), (2, 2))
    relaxation = pde.ImaginaryTime(condensate(fft, 1.0), 2.0)
    u = relaxation.state(fft.decomposition.shard(random_field((16, 15), complex)))
    run = lambda t_end, folder=None: pde.simulate(
        pde.IMEXRK(relaxation, 0.02), u, t_end, interval=0.1, checkpoint=folder, progress=False
    )
    run(0.1, tmp_path)
    assert_close(run(0.2, tmp_path).u, run(0.2).u, 0)


def test_bad_input_is_refused(plain):
    fft = plain.FFT(make_mesh((1,)), shape=(8,), real=False)
    equation = plain.pde.GrossPitaevskii(fft, 1.0)
    for make, message in (
        (lambda: plain.pde.ImaginaryTime(plain.pde.Dispersion(fft, (1.0,))), "`equation` must be a `GrossPitaevskii`"),
        (lambda: plain.pde.ImaginaryTime(equation, 0.0), "`particles` must be a positive, finite number; got 0.0"),
        (
            lambda: plain.pde.ETDRK(plain.pde.ImaginaryTime(equation), 0.1),
            r"`equation` must be an `AbstractEquation`, .*; got `ImaginaryTime`. Use `IMEXRK` or `SBDF`",
        ),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            make()
