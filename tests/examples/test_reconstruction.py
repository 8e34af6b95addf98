"""The example of reconstructing initial conditions, at a small size."""

import re

import pytest

import example


def test_it_finds_the_initial_field(tmp_path):
    output = example.run_for_gallery("reconstruction", tmp_path)
    start, found, truth = map(float, re.search(r"cell: (\S+) at the start, (\S+) rec\S+, (\S+) for", output).groups())
    assert abs(truth - 1) < 0.2  # Half of the sum of two squares of standard normal numbers.
    assert found < 0.15 * start
    correlations = dict(re.findall(r"h/Mpc, ([\w ]+): (\S+)", output))
    assert float(correlations["reconstruction"]) > 0.6
    assert float(correlations["reconstruction"]) > float(correlations["density today"])


@pytest.mark.parametrize(
    ("option", "value"), [("--n", "4"), ("--error", "0"), ("--iterations", "0"), ("--mesh", "3x3")]
)
def test_bad_option_is_refused_in_one_line(option, value, capsys):
    example.assert_refused(example.load("reconstruction"), option, value, capsys)
