"""The code in the README does what it says. (docs/multiprocess.md: see tests/multiprocess.)"""

import re
import subprocess
import sys
from pathlib import Path


README = Path(__file__).parents[1] / "README.md"
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


def test_ten_lines():
    code = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL).group(1)
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code + CHECK], capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == "checked\n"
