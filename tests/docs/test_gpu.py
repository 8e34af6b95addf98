"""The code of docs/gpu.md on two CPU ranks, with kernels that call the mock of cuDecomp in tests/cudecomp."""

import mock_kernels
import mpiexec
from pages import blocks


pytestmark = mpiexec.MARKS

PREPARED = """
import sys
from pathlib import Path
from checks import assert_same
from decompops._backend.native import library
library.folder = lambda: Path(sys.argv[1])
library.build.cache_clear()
import jax, numpy as np
jax.config.update("jax_cpu_enable_async_dispatch", False)
u = np.random.default_rng(0).standard_normal((16, 16, 16)).astype(np.float32)
trials = []
shown, print = print, trials.append
my_solver = lambda fft: lambda u: fft.inverse(fft(u))
"""
CHECK = """
def check(fft):
    k = fft.out_layout.gather(fft(fft.decomposition.shard(u)))
    np.testing.assert_allclose(k, np.fft.rfftn(u), atol=1e-3)

assert jax.process_count() == 2
assert fft.decomposition.backend.transpose == "nccl_pl"
check(fft)
"""
CHECK_TUNED = """
check(fft)
assert isinstance(dec.backend, dops.CuDecomp)
assert_same(*(halos(dec.shard(u)) for halos in (exchange, dops.HaloExchange(dec.mesh, 2, backend=dops.XLA()))))
"""
CHECK_OPERATOR = """
check(dops.FFT3D(dec, real=True))
assert dops.XLA() in {trial.decomposition.backend for trial in trials}
trials.clear()
"""
CHECK_KINDS = """
assert {trial.decomposition.backend for trial in trials} == {dops.XLA(), *(dops.CuDecomp(k, "nccl") for k in kinds)}
assert [trial.failure for trial in trials] == [None] * len(trials)
shown("checked")
"""


def test_the_code(tmp_path, tmp_path_factory):
    initial, tuned, operator, kinds = blocks("docs/gpu.md")
    code = PREPARED + initial + CHECK + tuned + CHECK_TUNED + operator + CHECK_OPERATOR + kinds + CHECK_KINDS
    path = tmp_path / "script.py"
    path.write_text(code.replace("512", "16").replace("(2, 2)", "(2, 1)"))
    done = mpiexec.run(path, mock_kernels.build(tmp_path_factory.getbasetemp()), ranks=2)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("checked") == 2, done.stdout
