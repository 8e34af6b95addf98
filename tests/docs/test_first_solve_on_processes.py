"""The script of docs/first_solve.md, on four ranks."""

import re

import mpiexec
from pages import ROOT


pytestmark = mpiexec.MARKS


def test_the_script(tmp_path):
    page = (ROOT / "docs" / "first_solve.md").read_text()
    script, printed = re.search(
        r"^```python title=.*?\n(.*?)^```.*?^```text\n(.*?)^```", page, re.DOTALL | re.M
    ).groups()
    path = tmp_path / "solve.py"
    path.write_text(script)
    done = mpiexec.run(path, ranks=4, XLA_FLAGS="")
    assert done.returncode == 0, done.stdout
    assert printed in done.stdout
