"""The example of the flow past a cylinder: its numbers from known signals, and a short run."""

import re

import numpy as np
import pytest

import example


cylinder = example.load("cylinder")


def test_numbers_of_a_known_signal():
    time = np.linspace(0, 100, 1401)
    force = np.stack([0.7 + 0.01 * np.cos(4 * np.pi * 0.16 * time), 0.05 + 0.2 * np.sin(2 * np.pi * 0.16 * time)], 1)
    found = cylinder.shedding(time, force)
    assert found.drag == pytest.approx(1.4, abs=1e-3)
    assert found.lift == pytest.approx(0.4, rel=2e-2)
    assert found.strouhal == pytest.approx(0.16, rel=1e-3)


def test_forces_change_the_momentum(tmp_path):
    output = example.run_for_gallery("cylinder", tmp_path)
    (error,) = re.findall(r"differs from the forces by (\S+) of the drag", output)
    assert float(error) < 1e-3
    assert 1.4 < float(re.findall(r"Drag coefficient (\S+),", output)[0]) < 3


@pytest.mark.parametrize(("option", "value"), [("--cells", "2"), ("--reynolds", "0"), ("--mesh", "2x2")])
def test_bad_options_are_refused_in_one_line(option, value, capsys):
    example.assert_refused(cylinder, option, value, capsys)
