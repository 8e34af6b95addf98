"""The code of docs/coming_from.md."""

import importlib.util

from pages import blocks, check


CHECK = """
import scipy.fft

values = np.asarray(u)
close = lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * abs(np.asarray(b)).max())
close(k, np.fft.rfftn(values))
q = np.fft.fftfreq(16, 1 / 16)[:, None, None]
half = np.fft.rfftn(values)
close(slope, np.fft.irfftn(1j * q * half, s=shape, axes=(0, 1, 2)))

close(as_in_jaxdecomp, np.fft.fftn(values).transpose(1, 2, 0))
np.testing.assert_array_equal(same, values)
# Every cell is its own, and once more for each of the blocks that hold it in a halo: along an axis all but the middle.
def times(n, parts):
    block = n // parts
    place = np.arange(n) % block
    return 1 + (place < h) + (place >= block - h)
close(added, values * (times(16, 2)[:, None] * times(32, 4))[..., None])

close(forward.out_layout.gather(k_forward), np.fft.rfftn(values) / values.size)
expected = scipy.fft.dct(np.fft.fftn(values, axes=(0, 1)), type=2, axis=2)
close(walls.out_layout.gather(k_walls), expected)
np.testing.assert_array_equal(columns, values)
assert columns.sharding.is_equivalent_to(jax.NamedSharding(mesh, P(None, "x", "y")), 3)
np.testing.assert_allclose(total, values.sum(dtype=float), rtol=1e-3)
close(ours, theirs)
assert abs(np.asarray(theirs) - velocity).max() > 0.1
np.testing.assert_allclose(np.sum(painted, dtype=float), 16**3, rtol=1e-6)
assert forces.shape == (16**3, 3)
"""
JAXPM = """
import warnings

warnings.simplefilter("ignore", DeprecationWarning)  # JaxPM imports deprecated names of JAX.
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
JAXDECOMP = """
from jax.sharding import Mesh, NamedSharding
import jaxdecomp

mesh = Mesh(mesh.devices, mesh.axis_names)
auto = jax.device_put(np.asarray(u), NamedSharding(mesh, P("x", "y", None)))
theirs = jaxdecomp.fft.pfft3d(auto)
close(as_in_jaxdecomp, theirs)
assert theirs.sharding.spec == dops.FFT3D(mesh, axis_contiguous=True).out_spec
operator = dops.FFT3D(mesh, shape=shape, axis_contiguous=True)
for one, other in zip(operator.replace(box=dops.Box(shape)).wavenumbers(), jaxdecomp.fft.fftfreq3d(theirs)):
    close(one, other)
at_work = dict(mesh=mesh, in_specs=P("x", "y", None), out_specs=P("x", "y", None))
pad = jax.shard_map(lambda block: jnp.pad(block, ((h, h), (h, h), (0, 0))), **at_work)
exchanged = jaxdecomp.halo_exchange(pad(auto), (h, h), (True, True))
np.testing.assert_array_equal(extended, exchanged)
np.testing.assert_array_equal(dops.HaloExchange(mesh, (h, h, 0)).update(pad(auto)), exchanged)
np.testing.assert_array_equal(jaxdecomp.transposeXtoY(auto).transpose(1, 2, 0), auto)
"""
MPI4PY_FFT = """
from mpi4py import MPI
from mpi4py_fft import PFFT, newDistArray

plan = PFFT(MPI.COMM_SELF, shape, dtype=np.float64)
array = newDistArray(plan, False)
array[:] = values
close(forward.out_layout.gather(k_forward), plan.forward(array))
padded = PFFT(MPI.COMM_SELF, [12] * 3, dtype=np.float64, axes=((0,), (1,), (2,)), padding=[1.5] * 3)
one = jax.make_mesh((1,), ("x",), devices=jax.devices()[:1])
ours = dops.FFT3D(one, shape=(18,) * 3, modes=12, real=True, norm="forward")
assert padded.global_shape(False) == ours.decomposition.shape
field = np.random.default_rng(1).standard_normal((18,) * 3)
array = newDistArray(padded, False)
array[:] = field
kept = np.r_[:6, -5:0]  # without the Nyquist modes
found = ours.out_layout.gather(ours(field.astype(np.float32)))
close(found[np.ix_(kept, kept, range(6))], np.asarray(padded.forward(array))[np.ix_(kept, kept, range(6))])
"""
PYLIANS = """
import Pk_library as PKL

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
GUESTS = [name for name in ("jaxdecomp", "mpi4py_fft", "Pk_library", "jaxpm") if importlib.util.find_spec(name)]


def test_the_code():
    """Compare with NumPy, SciPy and exponax, and with the other libraries of the page if they are installed."""
    guests = {"jaxdecomp": JAXDECOMP, "mpi4py_fft": MPI4PY_FFT, "Pk_library": PYLIANS, "jaxpm": JAXPM}
    check("".join(blocks("docs/coming_from.md")) + CHECK + "".join(guests[name] for name in GUESTS))
