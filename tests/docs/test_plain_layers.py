"""The code and the table of docs/plain_layers.md."""

import pytest

from pages import ROOT, blocks, check


PAGE = "docs/plain_layers.md"
TABLE = """
import runpy

runpy.run_path("docs/tools/plain_layers.py")["check"]()
"""
CHECK = """
found = collectives(program.as_text())
gathered = sum(one.bytes * one.times for one in found if one.kind == "all-gather")
assert gathered > u.nbytes  # The gradient of the weights gathers the finer field.

# "JAX 0.10.2 gathers the whole field" for a transform along an axis that is whole on each device.
found = collectives(jax.jit(jax.numpy.fft.rfft).lower(u).compile().as_text())
version = jax.__version_info__[:2]
assert version == (0, 11) or (len(found) > 0) == (version == (0, 10)), found
"""


@pytest.mark.sweep
def test_the_table():
    check(TABLE, folder=ROOT)


def test_the_code():
    check("".join(blocks(PAGE)) + CHECK)
