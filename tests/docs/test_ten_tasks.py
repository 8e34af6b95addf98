"""The code of docs/ten_tasks.md."""

from pages import blocks, check


CHECK = """
import numpy as np

lengths = 100.0
k = 2 * np.pi * np.fft.fftfreq(32, lengths / 32)
squared = k[:, None, None] ** 2 + k[:, None] ** 2 + k**2
rho = np.fft.fftn(np.asarray(density, float))
solved = np.fft.ifftn(np.where(squared == 0, 0, -rho / np.where(squared == 0, 1, squared))).real
np.testing.assert_allclose(potential, solved, atol=1e-4 * abs(solved).max())
np.testing.assert_allclose(screened, np.fft.ifftn(rho / (squared + 0.01)).real, atol=1e-4)

values = np.asarray(density, float)
second = sum(np.roll(values, 1, axis) + np.roll(values, -1, axis) - 2 * values for axis in range(3)) * 32**2
np.testing.assert_allclose(diffused, values + 1e-5 * second, atol=1e-4)

x = 1 - np.cos(np.pi * np.arange(33) / 32)
np.testing.assert_allclose(channel.decomposition.gather(heated)[:, 3, 5], x / 2, atol=1e-5)
assert abs(np.asarray(pressure)).max() < 1e-4  # A constant right-hand side is replaced by zero.

assert features.shape == (3, 32, 32, 32)
assert on_a_finer_grid(jnp.ones((3, 64, 64, 64))).shape == (3, 64, 64, 64)
assert result.t == 2.0
np.testing.assert_allclose(group_fft.out_layout.gather(spectra)[2], np.fft.rfftn(np.ones((32, 32, 32))), atol=1e-3)
divergence = spectral.Divergence(fft)(displacement)
smooth = spectral.GaussianFilter(fft, 10.0)
np.testing.assert_allclose(smooth(divergence), -smooth(delta), atol=1e-4 * float(abs(smooth(delta)).max()))
once = np.fft.rfftn(values)
expected = np.fft.irfftn(np.where(abs(once) < 1, 0, once), (32, 32, 32), axes=(0, 1, 2))
np.testing.assert_allclose(thresholded, expected, atol=0.02)
"""


def test_the_code(tmp_path):
    check("".join(blocks("docs/ten_tasks.md")) + CHECK, folder=tmp_path)
