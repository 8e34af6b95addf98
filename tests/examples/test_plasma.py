"""The plasma example: the frequencies of waves, the conservation of energy, and a derivative."""

import re

import numpy as np
import pytest

import example


plasma = example.load("plasma")


def run(tmp_path, *options: str):
    return plasma.main([*options, "--out", str(tmp_path / "figure.png")])


def test_theory_has_the_published_frequencies():
    """Landau damping at k = 0.5, and the fastest growth of two cold beams, 1/√8 at ku = √(3/8) (Birdsall & Langdon)."""
    damped = plasma.theory(0.5, 0.0)
    np.testing.assert_allclose([damped.real, damped.imag], [1.4156, -0.1533], atol=1e-4)
    growing = plasma.theory(np.sqrt(3 / 8) / 1000, 1000.0)
    np.testing.assert_allclose([growing.real, growing.imag], [0, 1 / np.sqrt(8)], atol=1e-4)
    # Strongly damped (Canosa, J. Comput. Phys. 13, 1973).
    for k, omega in ((1.5, 2.6323 - 1.7757j), (2.0, 3.1891 - 2.8272j)):
        assert abs(plasma.theory(k, 0.0) - omega) < 1e-4


@pytest.mark.parametrize("k", [0.01, 0.05, 0.25])
def test_theory_has_the_fastest_growth(k):
    """Landau's integral over real velocities, which holds for waves that grow, has one zero with a growth."""
    omega, drift = plasma.theory(k, 4.0), 4.0
    v, dv = np.linspace(-16, 16, 200001, retstep=True)
    slope = sum(-(v - u) * np.exp(-((v - u) ** 2) / 2) for u in (-drift, drift)) / np.sqrt(8 * np.pi)
    assert omega.imag > 0
    assert np.sum(slope / (v - omega / k)) * dv == pytest.approx(k**2, rel=1e-6)


def test_a_wave_is_damped(tmp_path):
    """In one dimension, on one device. The wave is too weak to be damped otherwise than in the linear theory."""
    options = ("--shape", "64", "--mesh", "1", "--electrons", "32768", "--t-end", "14")
    omega, known, *_ = run(tmp_path, *options)
    assert abs(omega.real) == pytest.approx(1.4156, rel=0.01)
    assert omega.imag == pytest.approx(known.imag, rel=0.02)


@pytest.mark.sweep
def test_two_beams_are_unstable(tmp_path):
    """In two dimensions, on eight devices: electrons move from each device to others."""
    options = ("--case", "two-stream", "--shape", "32x8", "--electrons", "16384", "--t-end", "30", "--dt", "0.2")
    omega, known, _, history = run(tmp_path, *options)
    assert abs(omega.real) < 1e-6
    assert omega.imag == pytest.approx(known.imag, rel=0.03)
    total = history.field + history.kinetic
    assert np.max(history.field) > 0.01 * total[0]
    assert np.ptp(total) < 0.01 * np.max(history.field)


@pytest.mark.sweep
def test_every_mesh_gives_the_same_wave(tmp_path):
    options = ("--shape", "16x8x8", "--electrons", "2000", "--t-end", "14", "--dt", "0.2")
    waves = [run(tmp_path, *options, "--mesh", mesh)[-1].wave for mesh in ("1", "4")]
    np.testing.assert_allclose(*waves, atol=1e-12)


def test_gradient(tmp_path):
    """The derivative through the whole simulation, in which electrons go to other devices, against a difference."""
    gradient, difference = run(tmp_path, "--gradient", "--shape", "16x4", "--electrons", "1000", "--mesh", "4")
    assert gradient == pytest.approx(difference, rel=1e-6)
    assert gradient > 1e-4


def test_a_run_of_a_user(tmp_path):
    output = example.run_for_gallery("plasma", tmp_path)
    assert re.search(r"Growth rate +-0\.\d{4} +theory +-0\.1534\n", output)


@pytest.mark.sweep
def test_too_few_slots_are_said_in_one_line(tmp_path):
    options = ("--case", "two-stream", "--shape", "16x8", "--electrons", "1000", "--slots", "1.05")
    with pytest.raises(SystemExit, match=r"^A device needs \d+ slots, but has 132; use a larger --slots\.$"):
        run(tmp_path, *options)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--case", "cold"),
        ("--shape", "8x8x8x8"),
        ("--electrons", "0"),
        ("--slots", "0.5"),
        ("--t-end", "3"),
        ("--dt", "1"),
        ("--mesh", "2x4"),
    ],
)
def test_bad_options_are_refused_in_one_line(option, value, capsys):
    example.assert_refused(plasma, option, value, capsys)
