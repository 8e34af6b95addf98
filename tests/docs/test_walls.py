"""The code of docs/walls.md."""

from pages import blocks, check


# This code computes the exact solutions along x. The tolerances allow the second-order errors of a grid of 32 cells.
WALLS = """
def helmholtz(x):  # (10 - d²/dx²) u = cos(pi x / 2), and its derivative
    particular = 1 / (10 + np.pi**2 / 4)
    return particular * np.cos(np.pi * x / 2), -particular * np.pi / 2 * np.sin(np.pi * x / 2)


q, x = np.sqrt(10), np.asarray(across)
expected = -4 / np.pi**2 * np.cos(np.pi * x / 2) + 0 * np.asarray(f)
np.testing.assert_allclose(transform.decomposition.gather(pressure), expected, atol=5e-3)
exact = helmholtz(x)[0] + (1 - helmholtz(0)[0]) * np.cosh(q * (2 - x)) / np.cosh(2 * q) + 0 * np.asarray(f)
np.testing.assert_allclose(transform.decomposition.gather(temperature), exact, atol=5e-3)
np.testing.assert_allclose(mean, (1 - helmholtz(0)[0]) * np.tanh(2 * q) / q / 2, atol=2e-3)
"""
POLYNOMIALS = """
x, zero = across, np.zeros((33, 16, 16))
first, second = 1 - helmholtz(0)[0], -helmholtz(2)[0]  # u = 1 and u = 0 at the walls
sinh = np.sinh(2 * q)
exact = helmholtz(x)[0] + (first * np.sinh(q * (2 - x)) + second * np.sinh(q * x)) / sinh + zero
derivative = helmholtz(x)[1] + q * (second * np.cosh(q * x) - first * np.cosh(q * (2 - x))) / sinh + zero
np.testing.assert_allclose(transform.decomposition.gather(u), exact, atol=1e-5)
np.testing.assert_allclose(transform.decomposition.gather(slope), derivative, atol=1e-3)
"""
COUETTE = """
linear = np.asarray(across).ravel() / 2
np.testing.assert_allclose(np.asarray(profile)[:33], linear, atol=1e-4)
np.testing.assert_allclose(stress, [0.05, -0.05], atol=1e-4)
np.testing.assert_allclose(force, 0, atol=1e-4)
"""


def test_the_code():
    code = blocks("docs/walls.md")
    check("".join(block + after for block, after in zip(code, (WALLS, POLYNOMIALS, COUETTE), strict=True)))
