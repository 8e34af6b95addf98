"""The example of reaction and diffusion: a run from the command line, and its fields against finite differences."""

import re

import numpy as np
import pytest

import example


gray_scott = example.load("gray_scott")


def test_amounts_change_by_feeding_and_killing(tmp_path):
    output = example.run_for_gallery("gray_scott", tmp_path)
    gained, supplied = map(float, re.search(r"changed by (\S+); .* supplied (\S+)\.\n", output).groups())
    assert abs(gained) > 0.05
    assert gained == pytest.approx(supplied, rel=1e-3)
    least, most = map(float, re.search(r"between (\S+) and (\S+)\.\n", output).groups())
    assert most > 0.2 + least > 0.1  # A pattern has grown.


def test_fields_agree_with_finite_differences(tmp_path):
    n, length, steps, feed, kill = 96, 0.4, 800, 0.035, 0.065
    options = ("--n", str(n), "--length", str(length), "--feed", str(feed), "--kill", str(kill), "--t-end", "100")
    _, amounts, (u, v) = gray_scott.main([*options, "--mesh", "2", "--out", str(tmp_path / "figure.png")])

    def laplacian(field):
        return sum(np.roll(field, shift, axis) - field for shift in (1, -1) for axis in (0, 1)) * (n / length) ** 2

    expected = gray_scott.initial_fields(n, length)
    for _ in range(steps):
        substance, catalyst = expected
        reaction = substance * catalyst**2
        fed = 2e-5 * laplacian(substance) - reaction + feed * (1 - substance)
        grown = 1e-5 * laplacian(catalyst) + reaction - (feed + kill) * catalyst
        expected = expected + 100 / steps * np.stack([fed, grown])
    np.testing.assert_allclose((u, v), expected, atol=0.01)
    np.testing.assert_allclose(amounts[-1], expected.mean((1, 2)), atol=1e-3)
    assert np.ptp(v) > 0.2


@pytest.mark.parametrize(("option", "value"), [("--n", "8"), ("--dt", "0"), ("--mesh", "2x2"), ("--out", "figure.txt")])
def test_bad_options_are_refused_in_one_line(option, value, capsys):
    example.assert_refused(gray_scott, option, value, capsys)
