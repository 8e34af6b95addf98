"""Tests of the command `selftest`: it passes for a correct backend, and reports the errors of a wrong one."""

import re

import jax
from decompops import XLA
from decompops.extend import run_stage
from decompops.tools import cli, selftest

from commands import assert_fits


def test_all_checks_pass(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(selftest, "mesh_sizes", lambda n: [(2, n // 2)])
    assert cli.main(["selftest"]) == 0
    printed = capsys.readouterr().out
    assert_fits(printed)
    lines = printed.splitlines()
    assert sum(line.startswith("passed ") for line in lines) == 9
    assert "9 passed, 0 failed" in lines
    assert any(line.startswith("not run: backend mpi: ") for line in lines)
    assert "not run: GPUs: JAX has none here" in lines


def test_every_check_is_announced(monkeypatch):
    monkeypatch.setattr(selftest, "CHECKS", selftest.CHECKS[:2])
    monkeypatch.setattr(selftest.CHECKS[1], "__doc__", None)  # as in `python -OO`
    announced = []
    outcomes = list(selftest.run(XLA(), jax.devices()[:2], announced.append))
    assert len(outcomes) == selftest.count(jax.devices()[:2]) == 4
    names = "complex FFT3D", "real transform"
    assert announced == [f"{name}, mesh {mesh}" for mesh in ("1x2", "2x1") for name in names]


def test_errors_are_seen(capsys, monkeypatch):
    class Wrong(XLA):
        def takes(self, stages):
            return len(stages)

        def run(self, plan, block, call):
            for stage in plan.stages:
                block = run_stage(stage, block, call.platform)
            return (1 + 1e-4) * block

    def raises(dec):
        """something that raises."""
        raise ValueError("of no use")

    monkeypatch.setattr(selftest, "CHECKS", (*selftest.CHECKS, raises))
    outcomes = list(selftest.run(Wrong(), jax.devices()[:1]))
    assert len(outcomes) == 10
    assert not any(outcome.passed for outcome in outcomes if "adjoint" not in outcome.check)
    assert outcomes[-1].raised == "ValueError: of no use"
    monkeypatch.setattr(selftest, "CHECKS", (raises,))
    assert cli.main(["selftest"]) == 1
    printed = capsys.readouterr().out
    assert re.search("FAILED +something that raises +1x8\n +ValueError: of no use", printed)
    assert "0 passed, 4 failed" in printed
