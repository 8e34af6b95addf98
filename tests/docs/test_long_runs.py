"""The code of docs/long_runs.md."""

from pages import blocks, check


CHECK = """
from decompops import io

assert (flow.steps, len(flow.times)) == (100, 21)
np.testing.assert_allclose([flow.t, flow.observed[0]], [2.0, 0.125], rtol=1e-6)
assert (np.diff(flow.observed) < 0).all()
last = io.read("run/000020.h5").arrays["velocity"]
np.testing.assert_allclose((last**2).sum(0).mean() / 2, flow.observed[-1], rtol=1e-5)
"""


def test_the_code(tmp_path):
    check("".join(blocks("docs/long_runs.md")) + CHECK, folder=tmp_path)
