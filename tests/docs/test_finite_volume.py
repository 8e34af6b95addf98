"""The code of docs/finite_volume.md."""

import pytest

from pages import blocks, check


CHECK = """
assert 5 < int(steps) <= 12
np.testing.assert_allclose(operator(u), right, atol=1e-7 * np.abs(right).max())
through = np.asarray(u)[0] - 1
assert (through < 0).all() and (np.asarray(u) > 0).all()
scale = np.abs(np.asarray(divergence(velocity))).max()
assert np.abs(np.asarray(finite_volume.Divergence(dec, boundary=walls)(projected))).max() < 1e-6 * scale
excess = np.asarray(finite_volume.Divergence(dec, boundary=walls)(expanding)) - np.asarray(expansion)
assert np.abs(excess).max() < 1e-6 * scale
outside = np.asarray(hot.open_cells)
assert (np.asarray(temperature)[outside] > 0).all() and not np.asarray(temperature)[~outside].any()
assert np.asarray(temperature).max() < 1
assert np.abs(np.asarray(divergence(around) + inflow)).max() < 1e-6 * scale
weighted = np.asarray(gradient.weights * gradient(u))  # The weight is 1/2 at the outflow.
np.testing.assert_allclose(divergence.T(u), -weighted, atol=1e-12 * np.abs(weighted).max())
direction = np.asarray(np.random.default_rng(1).normal(size=a.shape)) * np.asarray(a)
h = 1e-5
numeric = (flux_through_wall(a + h * direction) - flux_through_wall(a - h * direction)) / (2 * h)
np.testing.assert_allclose(np.vdot(np.asarray(slope), direction), numeric, rtol=1e-5)
np.testing.assert_allclose(same, operator(u), atol=1e-7 * np.abs(right).max())
"""


@pytest.mark.promotes_ranks
def test_the_code(tmp_path):
    check("".join(blocks("docs/finite_volume.md")) + CHECK, folder=tmp_path)
