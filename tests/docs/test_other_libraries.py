"""The code of docs/other_libraries.md and of its sibling on each kind of mesh, and the table."""

import pytest

from pages import ROOT, blocks, check


# Values of closed forms, of residuals, and of chains that were interrupted.
CHECK = """
import runpy

tool = runpy.run_path("docs/tools/other_libraries.py")


def check_values(names):
    import numpy as np

    u = np.asarray(names["u"])  # an eigenfunction: minus its Laplacian is 3 u
    np.testing.assert_allclose(names["after"], np.exp(-0.3) * u, atol=1e-4)
    np.testing.assert_allclose(names["slopes"], [-6 * np.exp(-0.6) * np.sum(u**2)] * 2, rtol=1e-4)
    np.testing.assert_allclose(names["half_life"], np.log(2) / 1.5, rtol=1e-3)
    np.testing.assert_allclose(names["quarter"], np.exp(-1.5 / 4) * u, atol=1e-3)
    np.testing.assert_allclose(names["v"], u / 4, atol=1e-5)
    frequencies = np.fft.fftfreq(8, 1 / 8)
    squares = sum(k**2 for k in np.meshgrid(*[frequencies] * 3, indexing="ij"))
    for root in (*names["roots"], names["minimum"]):
        root = np.asarray(root, float)
        laplacian = -np.fft.ifftn(squares * np.fft.fftn(root)).real
        np.testing.assert_allclose(root - laplacian + root**3, u, atol=1e-3)
    # If the root v changes by v, then u changes by v - ∇²v + 3 v³, and |v|² by 2 |v|².
    change = np.sum(names["slope"] * (root - laplacian + 3 * root**3))
    np.testing.assert_allclose(change, 2 * np.sum(root**2), rtol=1e-3)
    assert np.isnan(names["diffuse"](names["u"], 1e6)).all()  # It needs too many steps.
    assert np.mean(names["losses"][-5:]) < 0.6 * np.mean(names["losses"][:5])
    state = names["state"]
    assert {x.sharding.shard_shape(x.shape) for x in (state.acc_grads, state.inner_opt_state[0].mu)} == {(4,)}
    for one, other in ((names["chain"].position, names["resumed"].position), (x.z["v"] for x in names["pair"])):
        np.testing.assert_array_equal(one, other)
        assert np.std(one) > 1e-3
        assert one.sharding.shard_shape(one.shape) == (64,)


check_values(tool["run"]("KIND"))
"""


@pytest.mark.parametrize("kind", ["Auto", pytest.param("Explicit", marks=pytest.mark.sweep)])
def test_the_code(kind):
    pages = ("docs/other_libraries.md", "docs/training_and_sampling.md")
    assert [len(blocks(page)) for page in pages] == [6, 5]  # The script runs them.
    check(CHECK.replace("KIND", kind), folder=ROOT, imported=False)  # The script sets `EQX_ON_ERROR`.


@pytest.mark.sweep
def test_the_table():
    """The table shows what its calls communicate on both kinds of mesh."""
    check(
        """
import runpy

tool = runpy.run_path("docs/tools/other_libraries.py")
with tool["cached_programs"]():
    tool["check"]()
""",
        folder=ROOT,
        imported=False,
    )
