"""The kernels on the devices of each process of a run with several: XLA numbers the devices of all processes."""

import pytest

from compiling import FLAGS
from processes import free_port, report, start, wait


# Each process makes a mesh of its own devices and runs operators on it, with the default backend.
SCRIPT = """
import sys

import decompops as dops
import jax
import numpy as np

import checks
import exchanges

port, rank = sys.argv[1:]
jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_enable_x64", True)
jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(rank))
mesh = jax.make_mesh((2, 2), ("x", "y"), devices=jax.local_devices())
assert {device.process_index for device in mesh.devices.flat} == {int(rank)}
backend = dops.FFT3D(mesh).decomposition.backend
assert type(backend) is dops.Native
checks.check_fft(backend, mesh, checks.UNEVEN, False)
checks.check_transposes(backend, mesh, checks.UNEVEN, False, ["zx", "yz"])
checks.check_halos(backend, mesh, checks.UNEVEN)
for moves in ("few", "random"):
    exchanges.check(exchanges.mesh_of(mesh, backend), moves)
dec = dops.Decomposition(mesh, shape=checks.UNEVEN, pad=True, backend=backend)
u = np.random.default_rng(int(rank)).normal(size=checks.UNEVEN)
np.testing.assert_allclose([dec.sum(dec.shard(u)), dec.max(dec.shard(u))], [u.sum(), u.max()], rtol=1e-12)
print("passed")
"""


@pytest.mark.timeout(240)
def test_each_process_has_a_mesh(tmp_path, monkeypatch):
    monkeypatch.delenv("DECOMPOPS_BACKEND")
    (tmp_path / "own.py").write_text(SCRIPT)
    port = free_port()
    with start(tmp_path, [[tmp_path / "own.py", port, rank] for rank in range(2)], FLAGS) as ranks:
        wait(ranks, limit=200)
        assert [rank.code for rank in ranks] == [0, 0], report(ranks)
        assert all("passed" in rank.output for rank in ranks), report(ranks)
