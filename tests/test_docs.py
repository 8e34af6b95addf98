"""The code that the documentation begins with does what it says. (docs/multiprocess.md: see tests/multiprocess.)"""

import re
import subprocess
import sys
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[1]
CHECK = """
half = np.fft.rfftn(np.asarray(u))
k = np.fft.fftfreq(64, 1 / 64)
q = k[:, None, None] ** 2 + k[:, None] ** 2 + k[:33] ** 2
weights = np.where(np.isin(np.arange(33), (0, 32)), 1, 2)
expected = 2 * 64**3 * np.fft.irfftn(q**2 * half / weights)
np.testing.assert_allclose(gradient, expected, atol=1e-4 * abs(expected).max())
assert gradient.sharding.is_equivalent_to(u.sharding, 3)
print("checked")
"""


PREPARED = """
import jax, numpy as np
import decompops as dops
jax.config.update("jax_num_cpu_devices", 8)
original = u = np.random.randn(16, 16, 16)
"""
CHECK_INDEX = """
np.testing.assert_allclose(k, np.fft.fftn(original), atol=1e-3)
np.testing.assert_allclose(u, original, atol=1e-5)
print("checked")
"""
PREPARED_GROUPS = """
import numpy as np
field = np.random.randn(32, 32, 32)
np.random.randn = lambda *shape: field
"""
CHECK_GROUPS = """
k = np.fft.fftfreq(32, 1 / 32)
damping = 1 + k[:, None, None] ** 2 + k[:, None] ** 2 + k[:17] ** 2
w = field
for energy in energies:
    np.testing.assert_allclose(energy, (w**2).mean(), rtol=1e-5)
    w = np.fft.irfftn(np.fft.rfftn(w) / damping)
assert {device.id for device in energy.devices()} == {4, 5, 6, 7}
"""
CHECK_DERIVATIVES = """
expected = 2 / w.size * np.fft.irfftn(np.fft.rfftn(w) / damping**2)
np.testing.assert_allclose(gradient, expected, atol=1e-5 * abs(expected).max())
assert gradient.sharding.is_equivalent_to(dec.sharding(), 3)
print("checked")
"""
CHECK_FFT = """
np.testing.assert_allclose(k, np.fft.fftn(x), atol=1e-2)
np.testing.assert_allclose(y, x, atol=1e-4)
np.testing.assert_allclose(w, np.fft.rfftn(x, axes=(0, 2)), atol=1e-2)
specs = [array.sharding.spec for array in (k, y, v, w)]
assert specs[:2] + specs[3:] == [jax.P(None, "x", "y"), jax.P("x", "y", None), jax.P(None, ("x", "y"), None)]
print("checked")
"""
CHECK_CAVEATS = """
assert u.shape == (30, 32, 30)
np.testing.assert_allclose([wrong, right], [0.46875, 0.5], rtol=1e-4)
print("checked")
"""
CHECK_PLOTTING = """
np.testing.assert_allclose(section.images[0].get_array(), np.asarray(vorticity)[2, :, :, 0].T, rtol=1e-6)
np.testing.assert_allclose(planes[1].images[0].get_array(), np.asarray(after)[0, 12], rtol=1e-6)
assert [len(ax.images) for ax in row] == [1, 1, 1]
assert len(spectrum.lines) == 3 and (np.diff(energy) < 0).all()
print("checked")
"""
CHECK_LONG_RUNS = """
assert (flow.steps, len(flow.times)) == (100, 21)
np.testing.assert_allclose([flow.t, flow.observed[0]], [2.0, 0.125], rtol=1e-6)
assert (np.diff(flow.observed) < 0).all()
for path in ("run/000020.h5", "velocity.zarr"):
    np.testing.assert_allclose((io.read(path).arrays["velocity"] ** 2).sum(0).mean() / 2, flow.observed[-1], rtol=1e-5)
last = io.read("decay/000002.zarr").arrays["velocity"]
np.testing.assert_allclose(last, 0.9**3 * vortex, atol=1e-5)
np.testing.assert_allclose(state["u"], u)
print("checked")
"""


@pytest.mark.parametrize(
    ("page", "before", "after"),
    [
        ("README.md", "", CHECK),
        ("docs/index.md", PREPARED, CHECK_INDEX),
        ("docs/caveats.md", "", CHECK_CAVEATS),
        ("docs/fft.md", "", CHECK_FFT),
    ],
)
def test_the_first_example_of_a_page(page, before, after):
    check(before + blocks(page)[0] + after)


def test_groups_and_their_derivatives():
    first, *_, derivatives = blocks("docs/mpmd.md")
    check(PREPARED_GROUPS + first + CHECK_GROUPS + derivatives + CHECK_DERIVATIVES)


def test_plotting(tmp_path):
    check(f"import os\nos.chdir({str(tmp_path)!r})\n" + "".join(blocks("docs/plotting.md")) + CHECK_PLOTTING)
    assert {path.name for path in tmp_path.iterdir()} == {"turbulence.png", "velocity.pdf", "temperature.pdf"}


def test_long_runs(tmp_path):
    check(f"import os\nos.chdir({str(tmp_path)!r})\n" + "".join(blocks("docs/long_runs.md")) + CHECK_LONG_RUNS)


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def check(script: str) -> None:
    run = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout.endswith("checked\n")
