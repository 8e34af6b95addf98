"""The code of docs/index.md."""

from pages import blocks, check


PREPARED = """
import jax, numpy as np
import decompops as dops
jax.config.update("jax_num_cpu_devices", 8)
original = u = np.random.randn(16, 16, 16)
"""
CHECK = """
np.testing.assert_allclose(k, np.fft.fftn(original), atol=1e-3)
np.testing.assert_allclose(u, original, atol=1e-5)
"""


def test_the_code():
    check(PREPARED + blocks("docs/index.md")[0] + CHECK)
