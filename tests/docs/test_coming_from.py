"""The code of docs/coming_from.md."""

import importlib.util

from pages import blocks, check


CHECK = """
import jax.numpy as jnp
import scipy.fft
from jax import P

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
GUESTS = [name for name in ("jaxdecomp", "mpi4py_fft") if importlib.util.find_spec(name)]


def test_the_code():
    """Compare with NumPy and SciPy, and with the other libraries of the page if they are installed."""
    guests = {"jaxdecomp": JAXDECOMP, "mpi4py_fft": MPI4PY_FFT}
    check("".join(blocks("docs/coming_from.md")) + CHECK + "".join(guests[name] for name in GUESTS))
