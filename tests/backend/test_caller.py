"""Tests of the place in the user's program that calls an operator."""

import decompops as dops
import jax
import pytest
from decompops._backend.native import caller


def called_in(file: str, line: int = 2) -> caller.Caller:
    """Return the place of a call on a line of a file."""
    space = {"current": caller.current}
    exec(compile("\n" * (line - 2) + "def f():\n    return current()", file, "exec"), space)
    with dops.MPI.thread("a test"):
        return space["f"]()


def test_places():
    assert called_in("a.py") == called_in("a.py")
    moved = called_in("a.py", line=5)
    assert (called_in("a.py").line, moved.line) == ("a.py:2", "a.py:5")
    assert moved.site == f"{called_in('a.py').site} #1"  # Both functions are there at the same time.
    assert called_in("b.py").line == "b.py:2"  # Python takes functions with equal lines for equal, whatever their file.
    assert called_in("b.py").site != called_in("a.py").site


@pytest.mark.parametrize("option", ["debug_nans", "debug_infs"])
def test_a_second_run_after_a_nan(option):
    before = called_in("nan.py")
    with getattr(jax, option)(True):
        after = called_in("nan.py")
    assert before.line == "nan.py:2"
    assert after.line.startswith(f"nan.py:2 (with `jax_{option}`, JAX runs a program again on the ranks")
    assert after.site == before.site  # Programs do not depend on the option.
