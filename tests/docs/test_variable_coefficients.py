"""The code of docs/variable_coefficients.md."""

from pages import blocks, check


CHECK = """
close = lambda a, b, tolerance: np.testing.assert_array_less(np.linalg.norm(a - b), tolerance * np.linalg.norm(b))
close(laplacian(u), f, 1e-7)
assert int(solver.solve(f).iterations) == 7
close(transport(c), f, 1e-7)
close(between_walls(w), f, 1e-7)
close(v, u, 1e-7)
step = 0.01 * dec.shard(1 + np.sin(x) * np.cos(y))
change = (misfit(a + step) - misfit(a - step)) / 2
np.testing.assert_allclose(np.vdot(slope, step), change, rtol=1e-3)
assert slope.sharding.is_equivalent_to(dec.sharding(), 3)
"""


def test_the_code(tmp_path):
    check("".join(blocks("docs/variable_coefficients.md")) + CHECK, folder=tmp_path)
