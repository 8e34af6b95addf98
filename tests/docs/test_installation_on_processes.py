"""The output of `selftest` over MPI in docs/installation.md."""

import re

import mpiexec
from pages import ROOT


pytestmark = mpiexec.MARKS


def test_selftest_prints_the_same_lines():
    page = (ROOT / "docs" / "installation.md").read_text()
    (shown,) = re.findall(r"^```text\n(MPI.*?)^```", page, re.DOTALL | re.MULTILINE)
    command = "-m decompops selftest --backend mpi"
    assert f"mpiexec -n 2 python {command}\n" in page
    done = mpiexec.run(*command.split(), ranks=2, COLUMNS="80")
    assert f"\n{shown}" in done.stdout
