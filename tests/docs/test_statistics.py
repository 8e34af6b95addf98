"""The code of docs/statistics.md."""

from pages import blocks, check


# A Gaussian filter is its own transfer function, up to its change within a shell.
STATISTICS = """
np.testing.assert_allclose(transfer, np.exp(-0.5 * 0.3**2 * power.k**2), rtol=0.05)
np.testing.assert_allclose(multipoles.power[0], power.power, rtol=1e-5)
assert bispectrum.bispectrum.shape == bispectrum.number.shape == (len(bispectrum.triangles),)
assert correlation.correlation[0] > 0
np.testing.assert_allclose(kinetic, np.mean(np.sum(np.asarray(solenoidal) ** 2, 0)) / 2, rtol=1e-5)
"""


def test_the_code():
    code = blocks("docs/statistics.md")
    check("".join(block + after for block, after in zip(code, (STATISTICS,), strict=True)))
