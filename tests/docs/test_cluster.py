"""Tests of the table of faults in docs/cluster_faults.md, and of the defaults there and in docs/cluster.md.

tests/mpi runs the script of the latter.
"""

import inspect
import re
import runpy

import decompops as dops

from pages import ROOT


TEXT = "".join((ROOT / f"docs/{page}.md").read_text() for page in ("cluster", "cluster_faults"))


def test_the_table_lists_the_tested_faults():
    faults = runpy.run_path(str(ROOT / "tests/mpi/faults/test_faults.py"))["FAULTS"]
    rows = re.findall(r"^\| (.*?) \| (.*?) \| [\d.]+ \| \d+ \|$", TEXT, re.MULTILINE)
    assert rows == [(fault.what, fault.says) for fault in faults]


def test_the_defaults():
    (stated,) = re.findall(r"`MPI\.initialize\((timeout=.*?)\)`", TEXT)
    parameters = inspect.signature(dops.MPI.initialize).parameters
    assert stated == ", ".join(f"{name}={parameters[name].default}" for name in ("timeout", "limit", "heartbeat"))
    for name, value in re.findall(r"`(reuse_memory|share_memory|traces)=(\w+)`", TEXT):
        assert value == str(not parameters[name].default)
