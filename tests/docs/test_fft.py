"""The code of docs/fft.md."""

from pages import blocks, check


CHECK = """
np.testing.assert_allclose(k, np.fft.fftn(x), atol=1e-2)
np.testing.assert_allclose(y, x, atol=1e-4)
np.testing.assert_allclose(w, np.fft.rfftn(x, axes=(0, 2)), atol=1e-2)
np.testing.assert_allclose(v, scipy.fft.dct(np.asarray(x), type=2, axis=1), atol=1e-3)
specs = [array.sharding.spec for array in (k, y, v, w)]
assert specs[:2] + specs[3:] == [jax.P(None, "x", "y"), jax.P("x", "y", None), jax.P(None, ("x", "y"), None)]
"""
CHECK_ROUND_TRIP = """
np.testing.assert_allclose(y, x, atol=1e-4)
assert y.sharding.is_equivalent_to(x.sharding, 3)
"""


def test_the_code():
    first, round_trip = blocks("docs/fft.md")
    check("import scipy.fft\n" + first + CHECK + round_trip + CHECK_ROUND_TRIP)
