"""The example of Poisson's equation: a run from the command line, and its solution against finite differences."""

import re

import numpy as np
import pytest

import example


poisson = example.load("poisson")


def test_error_falls_faster_than_any_power(tmp_path):
    output = example.run_for_gallery("poisson", tmp_path)
    errors = [float(text) for text in re.findall(r"error (\S+)", output)]
    orders = -np.diff(np.log(errors)) / np.diff(np.log([8, 12, 18]))
    assert orders[0] > 10
    assert orders[1] > orders[0] + 5


def test_right_hand_side_is_the_laplacian_of_the_solution():
    n = 64
    u, f = poisson.manufactured(n)
    differences = sum(
        (np.roll(u, 1, axis) - 2 * u + np.roll(u, -1, axis)) * (n / length) ** 2
        for axis, length in enumerate(poisson.LENGTHS)
    )
    np.testing.assert_allclose(differences, f, atol=0.02 * abs(f).max())
    finer, g = poisson.manufactured(2 * n)
    better = sum(
        (np.roll(finer, 1, axis) - 2 * finer + np.roll(finer, -1, axis)) * (2 * n / length) ** 2
        for axis, length in enumerate(poisson.LENGTHS)
    )
    assert abs(better - g).max() == pytest.approx(abs(differences - f).max() / 4, rel=0.05)


@pytest.mark.parametrize(
    ("option", "value"), [("--sizes", "1"), ("--mesh", "2x2x2"), ("--mesh", "20x20"), ("--out", "figure.txt")]
)
def test_bad_options_are_refused_in_one_line(option, value, capsys):
    example.assert_refused(poisson, option, value, capsys)
