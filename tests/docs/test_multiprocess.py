"""The code of docs/multiprocess.md, with several processes. tests/multiprocess runs the first script of the page."""

import inspect
import re

import jax

import mpiexec
from pages import ROOT, blocks, scripts
from processes import free_port, report, start, wait


PAGE = "docs/multiprocess.md"
INITIALIZE, HOOK = blocks(PAGE)
BEFORE = """
import sys

import decompops as dops
import jax
import numpy as np

address, processes, rank = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
"""
LOOP = """
mesh = jax.make_mesh((2,), ("x",))
fft = dops.FFT3D(mesh, shape=(8, 8, 8))
u = fft.decomposition.shard(np.ones((8, 8, 8)))
for i in range(3):
    if (i, rank) == (1, 1):
        raise ValueError("the victim's own error")
    np.testing.assert_allclose(fft.decomposition.gather(fft.inverse(fft(u))), 1, rtol=1e-5)
"""


def test_an_uncaught_exception_ends_all_processes(tmp_path):
    """The hook on the page ends both processes after an exception in one of them.

    Without the hook, both processes would wait for each other for 300 s at their exit.
    """
    path = tmp_path / "script.py"
    path.write_text(BEFORE + INITIALIZE.replace("...", "address, processes, rank") + HOOK + LOOP)
    address = f"127.0.0.1:{free_port()}"
    with start(tmp_path, [[path, address, 2, rank] for rank in range(2)]) as ranks:
        wait(ranks, limit=100)
        assert [rank.code for rank in ranks] == [1, 1], report(ranks)
        assert "ValueError: the victim's own error" in ranks[1].output, report(ranks)
        failure = "JaxRuntimeError: .*Gloo .* failed: .*Connection (closed|reset) by peer"
        assert re.search(failure, ranks[0].output), report(ranks)


def test_the_default_time_limits():
    text = (ROOT / PAGE).read_text()
    defaults = {
        name: parameter.default for name, parameter in inspect.signature(jax.distributed.initialize).parameters.items()
    }
    stated = dict(re.findall(r"`?(\w+_timeout(?:_seconds)?)[=`].*?default (\d+)", text))
    assert {name: str(defaults[name]) for name in stated} == stated
    assert set(stated) == {"heartbeat_timeout_seconds", "shutdown_timeout_seconds", "initialization_timeout"}


@mpiexec.NEEDED
@mpiexec.IN_TURN
def test_a_launch_by_mpi(tmp_path):
    text = (ROOT / PAGE).read_text()
    script = scripts(PAGE)["power.py"]
    (call,) = re.findall(r"\| any MPI.*`(jax\.distributed\.initialize\(.*\))`", text)
    plain = "jax.distributed.initialize(heartbeat_timeout_seconds=30)"
    assert plain in script
    path = tmp_path / "power.py"
    path.write_text(script.replace(plain, call))
    done = mpiexec.run(path, ranks=2, XLA_FLAGS="", JAX_PLATFORMS="cpu")
    assert done.returncode == 0, done.stdout
    assert "4 devices, power 4.5000, gradient (30, 20, 10)" in done.stdout
