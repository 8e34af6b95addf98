"""The example of reconstructing initial conditions, at a small size."""

import re

import pytest

import example


def test_it_finds_the_initial_field(tmp_path):
    options = ("--n", "8", "--box", "160", "--steps", "1", "--iterations", "40", "--slots", "4", "--mesh", "2x2")
    result = example.run("reconstruction.py", *options, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    start, found, truth = map(
        float, re.search(r"cell: (\S+) at the start, (\S+) rec\S+, (\S+) for", result.stdout).groups()
    )
    assert abs(truth - 1) < 0.2  # Half of the sum of two squares of standard normal numbers.
    assert found < 0.15 * start
    correlations = dict(re.findall(r"h/Mpc, ([\w ]+): (\S+)", result.stdout))
    assert float(correlations["reconstruction"]) > 0.6
    assert float(correlations["reconstruction"]) > float(correlations["density today"])
    assert (tmp_path / "reconstruction.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.parametrize(
    ("option", "value"), [("--n", "4"), ("--error", "0"), ("--iterations", "0"), ("--mesh", "3x3")]
)
def test_bad_option_is_refused_in_one_line(option, value, capsys):
    example.assert_refused(example.load("reconstruction"), option, value, capsys)
