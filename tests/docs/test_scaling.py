"""The page on scaling shows what the model says today."""

import subprocess
import sys

from pages import ROOT


def test_tables_and_picture():
    command = [sys.executable, "docs/tools/scaling.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=ROOT)
    assert done.returncode == 0, done.stderr
