"""The code of docs/exponax.md. tests/pde/test_exponax.py tests the table of steppers."""

from pages import blocks, check


CHECK = """
np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * abs(np.asarray(theirs)).max())
assert abs(np.asarray(theirs) - velocity).max() > 0.1
"""


def test_the_code():
    check("".join(blocks("docs/exponax.md")) + CHECK)
