"""Tests that programs with `MPI()` reduce fields by its kernels, and exchange nothing by XLA."""

from pathlib import Path

from decompops.tools.hlo import collectives

import mpiexec


WORKER = Path(__file__).parent / "reductions.py"
pytestmark = mpiexec.MARKS
# JAX compares arguments between processes, and collects arrays for the host, in programs of these names.
OF_THE_HOST = ("device_put", "_identity_fn")


def test_real_programs_exchange_nothing_by_xla(tmp_path):
    done = mpiexec.run(WORKER, tmp_path, ranks=2)
    assert done.returncode == 0, done.stdout
    assert "as expected" in done.stdout, done.stdout
    programs = {path.name: path.read_text() for path in tmp_path.glob("*after_optimizations.txt")}
    assert {"jit_run", "jit_advance", "jit_exchanged", "jit_norm"} <= {name.split(".")[1] for name in programs}
    found = {name: collectives(text) for name, text in programs.items()}
    assert {name for name, every in found.items() if every and not any(host in name for host in OF_THE_HOST)} == set()
