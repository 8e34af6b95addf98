"""The example of a galaxy: a run from the command line, and its exact speeds against a direct sum."""

import re

import numpy as np
import pytest

import example


galaxy = example.load("galaxy")


def test_open_space_is_exact_and_a_periodic_box_is_not(tmp_path):
    output = example.run_for_gallery("galaxy", tmp_path)
    opened, periodic = (float(text) for text in re.findall(r"error (\S+)", output))
    assert opened < 1e-6
    assert periodic > 0.05


def test_exact_speeds_are_those_of_a_sum_over_cells():
    x = (np.arange(60) - 29.5) * 0.6
    mass = galaxy.density(x[:, None, None], x[None, :, None], x[None, None, :]) * 0.6**3
    assert mass.sum() == pytest.approx(sum(part[0] for part in galaxy.PARTS), rel=1e-4)
    pull = (9.0 - x[:, None, None]) / ((9.0 - x[:, None, None]) ** 2 + x[None, :, None] ** 2 + x**2) ** 1.5
    assert np.sqrt(galaxy.G * np.sum(mass * pull) * 9.0) == pytest.approx(
        float(galaxy.exact_speeds(np.array([9.0]))[0]), rel=1e-3
    )


@pytest.mark.parametrize(("option", "value"), [("--n", "7"), ("--mesh", "2x2x2"), ("--out", "figure.txt")])
def test_bad_options_are_refused_in_one_line(option, value, capsys):
    example.assert_refused(galaxy, option, value, capsys)
