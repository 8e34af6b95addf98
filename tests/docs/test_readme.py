"""The code of README.md."""

from pages import blocks, check


CHECK = """
half = np.fft.rfftn(np.asarray(u))
k = np.fft.fftfreq(64, 1 / 64)
q = k[:, None, None] ** 2 + k[:, None] ** 2 + k[:33] ** 2
weights = np.where(np.isin(np.arange(33), (0, 32)), 1, 2)
expected = 2 * 64**3 * np.fft.irfftn(q**2 * half / weights)
np.testing.assert_allclose(gradient, expected, atol=1e-4 * abs(expected).max())
assert gradient.sharding.is_equivalent_to(u.sharding, 3)
"""


def test_the_first_example():
    check(blocks("README.md")[0] + CHECK)
