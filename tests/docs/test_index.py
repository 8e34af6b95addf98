"""The code of docs/index.md."""

from pages import blocks, check


CHECK = """
source = dec.gather(f)
half = np.fft.rfftn(source)
np.testing.assert_allclose(fft.out_layout.gather(k), half, atol=1e-2)
n = np.fft.fftfreq(64, 1 / 64)
squared = n[:, None, None] ** 2 + n[:, None] ** 2 + n[:33] ** 2
squared[0, 0, 0] = np.inf  # the mean is ignored
expected = np.fft.irfftn(-half / squared)
np.testing.assert_allclose(dec.gather(u), expected, atol=1e-5)
np.testing.assert_allclose(dec.gather(gradient), 2 * expected, atol=1e-5)
assert [array.sharding.spec for array in (f, k)] == [jax.P("x", "y", None), jax.P(None, "x", "y")]
for array in (u, gradient):
    assert array.sharding.is_equivalent_to(f.sharding, 3)
"""


def test_the_code():
    (code,) = blocks("docs/index.md")
    check(code + CHECK)
