"""The example of training a neural operator, at a small size."""

import re

import example


def test_it_learns_and_resumes_exactly(tmp_path):
    options = ("--n", "8", "--samples", "4", "--steps", "60", "--batch", "4", "--width", "4", "--depth", "1")
    result = example.run("fno_training.py", *options, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    first, last = map(float, re.search(r"from (\S+) to (\S+) in 60 steps", result.stdout).groups())
    assert last < 0.9 * first
    assert "the second half is the same bit for bit" in result.stdout
    assert "along x, the restored state and its loss are the same" in result.stdout
    assert len(re.search(r"intervals: (.*)", result.stdout)[1].split(", ")) == 4
    assert (tmp_path / "fno_training.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
