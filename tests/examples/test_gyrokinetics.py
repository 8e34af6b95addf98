"""The gyrokinetic example: the equation against NumPy, conservation, growth rates, and a derivative."""

import jax
import numpy as np
import pytest
from scipy.special import j0

import example
from helpers import make_mesh


gyrokinetics = example.load("gyrokinetics")


@pytest.fixture(autouse=True)
def standard_promotion():
    """Let the example multiply real and complex arrays, as most users do."""
    with jax.numpy_dtype_promotion("standard"):
        yield


SHAPE, LENGTHS = (8, 6, 4, 6, 8), (30.0, 9.0, 12.0)
GRADIENTS = gyrokinetics.Gradients(density=0.7, temperature=1.9, ratio=1.3)


def grids() -> tuple[np.ndarray, ...]:
    """Return v, s, kx and ky, with five axes each."""
    v = (np.arange(SHAPE[1]) + 0.5) * 8 / SHAPE[1] - 4
    s = (np.arange(SHAPE[2]) + 0.5) * 4 / SHAPE[2]
    kx = 2 * np.pi * np.fft.fftfreq(SHAPE[3], LENGTHS[1] / SHAPE[3])
    ky = 2 * np.pi * np.fft.rfftfreq(SHAPE[4], LENGTHS[2] / SHAPE[4])
    return tuple(
        a.reshape([-1 if i == axis else 1 for i in range(5)]) for axis, a in enumerate((v, s, kx, ky), start=1)
    )


def collisions(g: np.ndarray) -> np.ndarray:
    """Return the collisions of rate one, by a loop over the faces between cells."""
    v, s, *_ = grids()
    (dv, ds), result = (8 / SHAPE[1], 4 / SHAPE[2]), np.zeros_like(g)
    weight = np.exp(-(v**2 + s**2) / 2)
    h = g / weight
    for i in range(SHAPE[1] - 1):
        face = np.exp(-((v[:, i] + dv / 2) ** 2 + s[:, 0] ** 2) / 2)
        flux = face * (h[:, i + 1] - h[:, i]) / dv**2
        result[:, i] += flux
        result[:, i + 1] -= flux
    for i in range(SHAPE[2] - 1):
        edge = s[:, :, i] + ds / 2
        flux = edge * np.exp(-(v[:, :, 0] ** 2 + edge**2) / 2) * (h[:, :, i + 1] - h[:, :, i]) / ds**2
        result[:, :, i] += flux / s[:, :, i]
        result[:, :, i + 1] -= flux / s[:, :, i + 1]
    return result


def kept() -> np.ndarray:
    *_, kx, ky = grids()
    short = (3 * np.abs(kx) * LENGTHS[1] < 2 * np.pi * SHAPE[3]) & (3 * ky * LENGTHS[2] < 2 * np.pi * SHAPE[4])
    return short & (np.hypot(kx, ky) > 0)


def expected(g: np.ndarray, rate: float) -> np.ndarray:
    """Return dg/dt for a spectrum, by NumPy on one device."""
    (v, s, kx, ky), dz = grids(), LENGTHS[0] / SHAPE[0]
    average = j0(np.hypot(kx, ky) * s)
    f = np.exp(-(v**2 + s**2) / 2)
    f /= np.sum(s * f)
    integral = lambda u: np.sum(s * u, axis=(1, 2), keepdims=True)
    phi = average * integral(average * g) / (1 + GRADIENTS.ratio - integral(average**2 * f))
    h = g + phi * f
    slope = (8 * (np.roll(h, -1, 0) - np.roll(h, 1, 0)) - (np.roll(h, -2, 0) - np.roll(h, 2, 0))) / (12 * dz)
    drive = 1j * ky * phi * (GRADIENTS.density + GRADIENTS.temperature * ((v**2 + s**2) / 2 - 1.5)) * f
    inverse = lambda u: np.fft.irfftn(u, SHAPE[3:], axes=(3, 4))
    bracket = inverse(1j * kx * phi) * inverse(1j * ky * g) - inverse(1j * ky * phi) * inverse(1j * kx * g)
    return np.where(kept(), rate * collisions(g) - v * slope - drive - np.fft.rfftn(bracket, axes=(3, 4)), 0)


KINDS = [((1, 1), "auto"), ((4, 2), "explicit"), ((2, 3), "auto")]


@pytest.mark.parametrize(("sizes", "kind"), KINDS)
def test_equation_is_that_of_numpy(sizes, kind, monkeypatch):
    monkeypatch.setenv("DECOMPOPS_BACKEND", "xla")  # Only XLA's programs show what they communicate.
    mesh = make_mesh(sizes, kind, ("z", "v"))
    g = np.where(kept(), np.fft.rfftn(np.random.default_rng(0).standard_normal(SHAPE), axes=(3, 4)), 0)
    with jax.set_mesh(mesh):
        motion = gyrokinetics.Gyrokinetics(mesh, SHAPE, LENGTHS, 0.3)
        field = motion.grid.shard(g)
        program = jax.jit(lambda g: motion(g, GRADIENTS)).lower(field).compile()
        found, text = program(field), program.as_text()
    np.testing.assert_allclose(found, expected(g, 0.3), atol=1e-12 * np.abs(g).max())
    assert "all-to-all" not in text
    assert "all-gather" not in text


def test_collisions_keep_ions_and_a_maxwellian():
    v, s, *_ = grids()
    f = np.exp(-(v**2 + s**2) / 2) * np.ones(SHAPE)
    np.testing.assert_allclose(collisions(f), 0, atol=1e-14)
    g = np.random.default_rng(1).standard_normal(SHAPE)
    np.testing.assert_allclose(np.sum(s * collisions(g), axis=(1, 2)), 0, atol=1e-12)


def test_theory_balances_charges():
    """The frequencies solve the dispersion relation, here integrated over both velocities by Gauss's rule."""
    nodes, weights = np.polynomial.legendre.leggauss(400)
    v, dv = 9 * nodes[:, None], 9 * weights[:, None]
    s, ds = 4.5 * (nodes + 1), 4.5 * weights
    kz, gradients = 0.1, gyrokinetics.Gradients(density=0.2, temperature=3.0, ratio=1.2)
    for ky in (0.3, 0.6, 0.9):
        f = np.exp(-(v**2 + s**2) / 2) / np.sqrt(2 * np.pi) * s * j0(ky * s) ** 2 * dv * ds
        omega = gyrokinetics.theory(kz, ky, gradients)
        drive = kz * v + ky * (gradients.density + gradients.temperature * ((v**2 + s**2) / 2 - 1.5))
        response = np.sum(f * drive / (omega - kz * v))
        assert 1 + gradients.ratio - np.sum(f) == pytest.approx(response, abs=1e-8)
        assert omega.imag > 0.01


@pytest.mark.parametrize(("kz", "ky", "temperature"), [(0.2, 0.1, 2.5), (0.03, 0.6, 2.5), (0.1, 0.3, 0.0)])
def test_theory_has_no_waves_that_do_not_grow(kz, ky, temperature):
    """The balance of charges is zero also at frequencies where the integral over real velocities does not hold."""
    assert np.isnan(gyrokinetics.theory(kz, ky, gyrokinetics.Gradients(temperature=temperature)))


def test_waves_grow_as_in_theory(tmp_path):
    options = ("--shape", "12x16x12x4x8", "--t-end", "40", "--dt", "0.4", "--amplitude", "1e-6", "--mesh", "4x2")
    found, known, _ = gyrokinetics.main([*options, "--out", str(tmp_path / "figure.png")])
    np.testing.assert_allclose(np.real(found), np.real(known), rtol=0.02)
    np.testing.assert_allclose(np.imag(found), np.imag(known), rtol=0.04)


def test_gradient(tmp_path):
    """The derivative through the whole simulation, against a difference."""
    options = ("--gradient", "--shape", "8x8x4x4x8", "--t-end", "40", "--dt", "0.5", "--mesh", "2x2")
    gradient, difference = gyrokinetics.main([*options, "--out", str(tmp_path / "figure.png")])
    assert gradient == pytest.approx(difference, rel=1e-6)
    assert gradient > 0.1


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--shape", "8x8x4x4"),
        ("--shape", "6x8x4x4x8"),
        ("--t-end", "10"),
        ("--mesh", "2"),
        ("--dt", "0"),
        ("--wide", "60"),
    ],
)
def test_bad_options_are_refused_in_one_line(option, value, capsys):
    example.assert_refused(gyrokinetics, option, value, capsys)
