"""The example of an inverse problem, at a small size."""

import re

import example


def test_the_initial_field_is_recovered(tmp_path):
    output = example.run_for_gallery("inverse_problem", tmp_path)
    fell = float(re.search(r"fell to (\S+) of", output)[1])
    error, before = map(float, re.search(r"field: (\S+) \(.*velocity: (\S+)\)", output).groups())
    assert fell < 1e-6
    assert error < 1e-2 < 0.1 < before
