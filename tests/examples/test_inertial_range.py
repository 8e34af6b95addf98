"""The example of forced turbulence: its fit, and the spectrum of a small run."""

import re

import numpy as np
import pytest

import example


inertial_range = example.load("inertial_range")


def test_the_fit_finds_a_law():
    """Kolmogorov's law with other numbers, and other energies outside of the range of the fit."""
    k = np.arange(40.0)
    law = 1.3 * 0.2 ** (2 / 3) * np.maximum(k, 1) ** (-5 / 3)
    found = inertial_range.fitted(k, np.where((k >= 5) & (k <= 16), law, 7.0), 0.2, 64)
    assert found.slope == pytest.approx(-5 / 3)
    assert found.constant == pytest.approx(1.3)


def test_a_small_run_has_the_spectrum_of_experiments(tmp_path):
    """On 32³ points, the range is short: from the wavenumber 5 to 8."""
    output = example.run_for_gallery("inertial_range", tmp_path)
    assert float(re.search(r"falls like k\^\((\S+)\);", output)[1]) == pytest.approx(-5 / 3, abs=0.5)
    assert float(re.search(r"constant is (\S+) there", output)[1]) == pytest.approx(1.62, abs=2 * 0.17)


@pytest.mark.parametrize(("option", "value"), [("--n", "33"), ("--n", "34"), ("--constant", "0"), ("--mesh", "2x2")])
def test_bad_options_are_refused_in_one_line(option, value, capsys):
    example.assert_refused(inertial_range, option, value, capsys)
