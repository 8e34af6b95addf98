"""The example of training a neural operator, at a small size."""

import re

import example


def test_it_learns_and_resumes_exactly(tmp_path):
    output = example.run_for_gallery("fno_training", tmp_path)
    first, last = map(float, re.search(r"from (\S+) to (\S+) in 60 steps", output).groups())
    assert last < 0.9 * first
    assert "the second half is the same bit for bit" in output
    assert "along x, the restored state and its loss are the same" in output
    assert len(re.search(r"intervals: (.*)", output)[1].split(", ")) == 4
