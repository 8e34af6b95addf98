"""The code and the table of docs/plain_layers.md."""

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
"""


def test_the_table():
    check(TABLE, folder=ROOT)


def test_the_code():
    check("".join(blocks(PAGE)) + CHECK)
