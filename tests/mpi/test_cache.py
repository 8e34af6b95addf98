"""Tests that JAX's persistent cache finds programs with `MPI()` again, and that messages still name the right lines."""

import re

import mpiexec


pytestmark = mpiexec.MARKS

PROGRAM = """
import decompops as dops
dops.MPI.initialize()
import jax, numpy as np
{comment}
mesh = jax.make_mesh((jax.device_count(),), ("x",))
fft = dops.FFT3D(mesh, shape=(8, 8, 8), backend=dops.MPI(planning="estimate"))
{comment}
def twice(u):
    {comment}
    return fft.inverse(2 * fft(u))
one, other = jax.jit(lambda u: fft(u)), jax.jit(lambda u: fft(u))  # equal instructions
u = fft.decomposition.shard(np.ones((8, 8, 8), np.complex64))
{comment}
for program in (fft, jax.jit(twice), one, other):
    jax.block_until_ready(program(u))
print("ended", flush=True)
if jax.process_index() == 0:
    {end}
"""
FIRST, SECOND = "# a comment", "# a comment\n    # of two lines"


def test_comments_change_no_program(tmp_path):
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }

    def run(comment: str, end: str) -> tuple[set[str], str, str]:
        """Return the names of the compiled programs, the output, and the program."""
        path = tmp_path / "program.py"
        path.write_text(PROGRAM.format(comment=comment, end=end))
        done = mpiexec.run(path, ranks=2, limit=120, **cache)
        assert done.stdout.splitlines().count("ended") == 2, done.stdout
        # JAX also stores the time of the last use of each program.
        return {path.name for path in (tmp_path / "cache").glob("*-cache")}, done.stdout, path.read_text()

    programs, *_ = run(FIRST, "pass")
    assert len(programs) >= 4
    again, output, text = run(SECOND, "one(u)")
    assert again == programs
    line = 1 + text.splitlines().index(next(line for line in text.splitlines() if line.startswith("one, other")))
    assert re.search(rf"at program\.py:{line}\b", output), output
