"""The code of docs/mpmd.md."""

from pages import blocks, check
from processes import free_port, report, start, wait


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
PREPARED_OUTLINE = """
import sys

import jax
import numpy as np
from decompops import mpmd
from jax.sharding import NamedSharding, PartitionSpec as P

jax.config.update("jax_num_cpu_devices", 4)
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
mpmd_mesh = mpmd.MpmdMesh(jax.make_mesh((2, 2, 2), ("group", "x", "y")), "group")
place = mpmd.MpmdSharding(mpmd_mesh, [0], P("x", "y"))
shape, dtype, intervals, parameters = (4, 4, 4), np.dtype(np.float32), 3, []
field = np.arange(64, dtype=dtype).reshape(shape)
u = None
if mpmd_mesh.my_mpmd_idx == 0:
    u = jax.device_put(field, NamedSharding(mpmd_mesh.groups[0], P("x", "y")))


def advance(state):
    return jax.jit(lambda u: 2 * u)(state)


def train(parameters, snapshot):
    return [*parameters, float(jax.jit(lambda u: u.sum())(snapshot))]
"""
CHECK_OUTLINE = """
if mpmd_mesh.my_mpmd_idx == 1:
    assert parameters == [field.sum(), 2 * field.sum(), 4 * field.sum()]
print("checked")
"""


def test_groups_and_their_derivatives():
    first, _, derivatives = blocks("docs/mpmd.md")
    check(PREPARED + first + CHECK + derivatives + CHECK_DERIVATIVES)


def test_groups_in_two_processes(tmp_path):
    _, outline, _ = blocks("docs/mpmd.md")
    path = tmp_path / "script.py"
    path.write_text(PREPARED_OUTLINE + outline + CHECK_OUTLINE)
    address = f"127.0.0.1:{free_port()}"
    with start(tmp_path, [[path, address, rank] for rank in range(2)]) as ranks:
        wait(ranks, limit=100)
        assert [rank.code for rank in ranks] == [0, 0], report(ranks)
        assert all("checked" in rank.output for rank in ranks), report(ranks)
