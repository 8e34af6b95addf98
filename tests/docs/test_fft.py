"""The code of docs/fft.md."""

from pages import blocks, check


CHECK = """
np.testing.assert_allclose(k, np.fft.fftn(x), atol=1e-2)
np.testing.assert_allclose(y, x, atol=1e-4)
np.testing.assert_allclose(w, np.fft.rfftn(x, axes=(0, 2)), atol=1e-2)
specs = [array.sharding.spec for array in (k, y, v, w)]
assert specs[:2] + specs[3:] == [jax.P(None, "x", "y"), jax.P("x", "y", None), jax.P(None, ("x", "y"), None)]
"""


def test_the_first_example():
    check(blocks("docs/fft.md")[0] + CHECK)
