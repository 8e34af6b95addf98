"""Tests of the section on scaling in a report: its points, and how the points are checked and collected."""

import json

import jax
import numpy as np
import pytest
from decompops import XLA
from decompops.tools.bench.model import near_square
from decompops.tools.report import scaling
from decompops.tools.report.scaling import error_of_blocks, plane_wave, powers_of_two
from decompops.tools.report.setting import Clock, Setting


@pytest.mark.parametrize("nodes", [2**power for power in range(9)])
def test_points_of_a_cluster_have_little_padding(nodes):
    """For each number of nodes in the job script `cpu.sbatch`, no point has more blocks than cells along an axis.

    Points with pencils come before points with slabs.
    """
    found = scaling.points([64 * nodes], Setting([], XLA(), strong=1024, weak=128))
    kept = [point for point in found if scaling.fits(point)]
    assert {point.kind for point in kept} == {"strong", "weak"}
    for point in kept:
        sizes = dict(zip("ab", point.mesh))
        for parts in (("a", "b", ""), ("a", "", "b"), ("", "a", "b")):  # These are the z-, y- and x-pencils.
            assert all(n >= sizes.get(part, 1) for n, part in zip(point.shape, parts))
    slabs = [point.mesh[1] == 1 for point in kept]
    assert slabs == sorted(slabs)
    assert ((1024, 1) in {point.mesh for point in kept if point.kind == "strong"}) == (nodes == 16)
    assert (64 * nodes in {point.mesh[0] for point in kept}) == (nodes <= 16)


def test_spectra_are_compared_in_every_block():
    for real in (True, False):
        u = plane_wave((8, 6, 4), real=real)
        spectrum = (np.fft.rfftn if real else np.fft.fftn)(u)
        assert error_of_blocks(jax.numpy.asarray(spectrum), u) < 1e-6
        spectrum[3, 2, 1] += 0.25 * np.abs(spectrum).max()
        assert error_of_blocks(jax.numpy.asarray(spectrum), u) == pytest.approx(0.25)


def test_numbers_of_devices():
    assert powers_of_two(1) == [1]
    assert powers_of_two(6) == [1, 2, 4, 6]
    assert powers_of_two(8) == [1, 2, 4, 8]
    assert near_square(8) == (2, 4)


def test_children_measure_numbers_of_cores(monkeypatch):
    """For each number of cores, a child process runs. The section holds the results and failures of all children."""
    asked = []

    def child(command, **_):
        asked.append(command[command.index("--devices") + 1])
        found = {"rows": [{"devices": 1}], "failed": [], "left_out": ["fft"], "too_many_devices": ["rfft"]}
        section = {"error": None, "data": found}
        answer = {"sections": {"scaling": section}}
        return type("Done", (), {"stdout": json.dumps(answer), "stderr": ""})

    monkeypatch.setattr(scaling.subprocess, "run", child)
    found = scaling.scaling(Setting(jax.devices(), XLA(), child_counts=(1, 2), clock=Clock(10)), {})
    assert asked == ["1", "2"]
    more = {"left_out": ["fft", "fft"], "too_many_devices": ["rfft", "rfft"]}
    assert found == {"rows": [{"devices": 1}] * 2, "failed": [], **more}
