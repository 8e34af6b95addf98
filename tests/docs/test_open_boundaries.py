"""The code of docs/open_boundaries.md."""

from pages import blocks, check


CHECK = """
from scipy.special import erf

r = np.sqrt(x**2 + y**2 + z**2)
r[16, 16, 16] = 1
mass = (2 * np.pi * 0.15**2) ** 1.5
exact = -mass * erf(r / 0.15 / np.sqrt(2)) / (4 * np.pi * r)
exact[16, 16, 16] = -mass * np.sqrt(2 / np.pi) / 0.15 / (4 * np.pi)
np.testing.assert_allclose(dec.gather(u), exact, atol=1e-8 * abs(exact).max())
assert np.isfinite(np.asarray(slab(density))).all()
assert np.isfinite(np.asarray(wire(density))).all()
np.testing.assert_allclose(dec.gather(correlation(density)), dec.gather(soft(density)), atol=1e-12)
assert abs(dec.gather(soft(density))[16, 16, 16]) < abs(exact[16, 16, 16])
waist = 0.2
rayleigh = wavenumber * waist**2 / 2
wide = waist * np.sqrt(1 + (distance / rayleigh) ** 2)
np.testing.assert_allclose(np.abs(beam), waist / wide * np.exp(-r2 / wide**2), atol=0.01)
step = 1e-4
np.testing.assert_allclose(slope, (energy(2.0 + step) - energy(2.0 - step)) / (2 * step), rtol=1e-6)
"""


def test_the_code(tmp_path):
    check("".join(blocks("docs/open_boundaries.md")) + CHECK, folder=tmp_path)
