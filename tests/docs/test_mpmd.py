"""The code of docs/mpmd.md."""

from pages import blocks, check


PREPARED = """
import numpy as np
field = np.random.randn(32, 32, 32)
np.random.randn = lambda *shape: field
"""
CHECK = """
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
"""


def test_groups_and_their_derivatives():
    first, *_, derivatives = blocks("docs/mpmd.md")
    check(PREPARED + first + CHECK + derivatives + CHECK_DERIVATIVES)
