"""The code of docs/equations.md."""

from pages import blocks, check


# The pressure balances the products of this flow, so it only decays. The scalar is carried and diffuses.
RATE = """
velocity, change = np.stack([np.sin(x) * np.cos(y), -np.cos(x) * np.sin(y), 0 * x * y]), equation.fields(rate)
exact = -2 * 0.01 * velocity + 0 * np.asarray(z)
np.testing.assert_allclose(change[:3], exact, atol=1e-5)
np.testing.assert_allclose(change[3], velocity[0] * np.sin(x + z) - 2 * 0.02 * np.cos(x + z), atol=1e-5)
"""


def test_the_code():
    (code,) = blocks("docs/equations.md")
    check(code + RATE)
