"""The script of docs/first_solve.md, on four ranks."""

import re

import mpiexec
from pages import ROOT, scripts


PAGE = "docs/first_solve.md"
pytestmark = mpiexec.MARKS


def test_the_script(tmp_path):
    page = (ROOT / PAGE).read_text()
    (printed,) = re.findall(r"^```text\n(.*?)^```", page.partition('title="solve.py"')[2], re.DOTALL | re.M)
    path = tmp_path / "solve.py"
    path.write_text(scripts(PAGE)["solve.py"])
    done = mpiexec.run(path, ranks=4, XLA_FLAGS="")
    assert done.returncode == 0, done.stdout
    assert printed in done.stdout
