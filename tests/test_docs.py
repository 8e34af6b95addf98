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


@pytest.mark.parametrize(
    ("page", "before", "after"), [("README.md", "", CHECK), ("docs/index.md", PREPARED, CHECK_INDEX)]
)
def test_the_first_example_of_a_page(page, before, after):
    code = re.search(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL).group(1)
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", before + code + after], capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == "checked\n"
