"""The code of docs/first_solve.md."""

import re

from pages import ROOT, blocks, check


PAGE = (ROOT / "docs" / "first_solve.md").read_text()
PRINTED = re.findall(r"^```text\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
PREPARED = """
printed = []


def print(*values):
    printed.append(" ".join(map(str, values)))
"""
CHECK = (
    f"""
del print
assert printed == {"".join(PRINTED[:-1]).splitlines()}
"""
    + """
assert f.shape == (32, 32, 32)
np.testing.assert_allclose(dec.gather(u), exact, atol=1e-12)
assert error < 1e-12
np.testing.assert_allclose(mean_square, 0.75, rtol=1e-12)
for sharded in (u, gradient):
    assert sharded.sharding.is_equivalent_to(f.sharding, 3)


def symbol(m):  # of second differences of a mode m
    return -(2 * np.sin(m * np.pi / n) / (2 * np.pi / n)) ** 2


differences = (symbol(1) + symbol(2)) * np.sin(x) * np.cos(2 * y) + symbol(3) * np.cos(3 * z)
np.testing.assert_allclose(dec.gather(residual), differences - source, atol=1e-10)
largest = np.abs(differences - source).max()
assert (round(largest, 2), round(100 * largest / np.abs(source).max())) == (0.31, 2)
"""
)


def test_the_code():
    check(PREPARED + "".join(blocks("docs/first_solve.md")) + CHECK)


def test_each_way_to_solve_by_itself():
    """Check the solution that the page computes by hand with `jnp`. Later code on the page overwrites this solution."""
    code = blocks("docs/first_solve.md")
    (by_hand,) = (i for i, block in enumerate(code) if "fft.wavenumbers()" in block)
    check("".join(code[: by_hand + 1]) + "np.testing.assert_allclose(dec.gather(u), exact, atol=1e-12)")
