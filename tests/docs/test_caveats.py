"""The code of docs/caveats.md."""

from pages import blocks, check


CHECK = """
assert u.shape == (30, 32, 30)
np.testing.assert_allclose([wrong, right], [0.46875, 0.5], rtol=1e-4)
"""


def test_the_first_example():
    check(blocks("docs/caveats.md")[0] + CHECK)
