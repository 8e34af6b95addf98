"""The code of docs/coming_from_cosmology.md."""

import importlib.util

from pages import blocks, check


CHECK = """
close = lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * abs(np.asarray(b)).max())
np.testing.assert_allclose(np.sum(painted, dtype=float), 16**3, rtol=1e-6)
assert forces.shape == (16**3, 3)
"""
JAXPM = """
import warnings

warnings.simplefilter("ignore", DeprecationWarning)  # JaxPM imports deprecated names of JAX.
import jax.numpy as jnp
import jax_cosmo
from jaxpm.growth import growth_factor
from jaxpm.painting import cic_paint, compensate_cic
from jaxpm.pm import pm_forces

one = lambda x: jnp.asarray(np.asarray(x))
close(cells.gather(painted), cic_paint(jnp.zeros((16, 16, 16), np.float32), one(positions)))
close(forces, pm_forces(one(positions), (16, 16, 16)))
sharp = particles.Deconvolution(dops.FFT(cells, real=True), "cic")(painted)
close(cells.gather(sharp), compensate_cic(one(cells.gather(painted))))
cosmology = jax_cosmo.Cosmology(
    Omega_c=0.25, Omega_b=0.05, h=0.7, sigma8=0.8, n_s=0.96, Omega_k=0.0, w0=-1.0, wa=0.0
)
np.testing.assert_allclose(growth, growth_factor(cosmology, jnp.array([0.5]))[0], rtol=1e-3)
"""
PYLIANS = """
import Pk_library as PKL
from decompops import spectral

n, L = 32, 200.0
a, b = np.random.default_rng(0).standard_normal((2, n, n, n)).astype(np.float32)
b, a = b + a, a + 0.3 * a**2
box = dops.FFT3D(mesh, shape=(n, n, n), box=dops.Box(L), real=True)
below = 1 - 1e-5  # Rounding of bounds must not matter.
shells, bins = ([width * i * below for i in range(1, n // 2)] for width in (2 * np.pi / L, L / n))
both, alone = PKL.XPk([a, b], L, 2, ["None", "None"], 1), PKL.Pk(a, L, 2, "None", 1, False)
ours = spectral.power_multipoles(box, a, axis="z", edges=shells)
close(ours.power.T, alone.Pk[: n // 2 - 2])
close(ours.modes, 2 * alone.Nmodes3D[: n // 2 - 2])
close(spectral.power_multipoles(box, a, b, axis="z", edges=shells).power.T, both.XPk[: n // 2 - 2, :, 0])
close(spectral.correlation_function(box, a, edges=bins).correlation, PKL.Xi(a, L, "None", 2, 1).xi[: n // 2 - 2, 0])
k1, k2, k3 = (2 * np.pi / L * i for i in (4.25, 6.25, 8.25))
theta = np.arccos([(k3**2 - k1**2 - k2**2) / (2 * k1 * k2)])
edges = 2 * np.pi / L * np.array([3.25, 5.25, 7.25, 9.25])
found = spectral.bispectrum(box, a, edges, triangles=[(0, 1, 2)])
close(found.bispectrum, PKL.Bk(a, L, k1, k2, theta, "None", 1).B)
"""
GUESTS = [name for name in ("Pk_library", "jaxpm") if importlib.util.find_spec(name)]


def test_the_code():
    """Compare with the other libraries of the page, if they are installed."""
    guests = {"Pk_library": PYLIANS, "jaxpm": JAXPM}
    check("".join(blocks("docs/coming_from_cosmology.md")) + CHECK + "".join(guests[name] for name in GUESTS))
