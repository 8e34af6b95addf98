"""The example of an inverse problem, at a small size."""

import re

import example


def test_the_initial_field_is_recovered(tmp_path):
    options = ("--n", "8", "--steps", "4", "--iterations", "20", "--mesh", "2x2")
    result = example.run("inverse_problem.py", *options, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    fell = float(re.search(r"fell to (\S+) of", result.stdout)[1])
    error, before = map(float, re.search(r"field: (\S+) \(.*velocity: (\S+)\)", result.stdout).groups())
    assert fell < 1e-6
    assert error < 1e-2 < 0.1 < before
    assert (tmp_path / "inverse_problem.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
