"""Tests of `io.Writer`, which writes snapshots in the background, and of the memory that writing takes."""

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import decompops as dops
import jax
import numpy as np
import pytest
from decompops import io
from decompops.io._staging import Staging, leftovers
from decompops.io._zarr import Zarr

import forks
from helpers import make_mesh, random_field


SHAPE = (13, 10, 9)  # The mesh does not divide these lengths.
SUFFIXES = (".zarr", ".h5")


@pytest.fixture(scope="module")
def fft():
    return dops.FFT3D(make_mesh((2, 4)), shape=SHAPE, pad=True, real=True)


@pytest.fixture(scope="module")
def pressure():
    return random_field(SHAPE, seed=1).astype(np.float32)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_writer_works_in_the_background(tmp_path, fft, pressure, suffix):
    """`Writer` writes the field as it was at the call, although the field is donated right after the call."""
    double = jax.jit(lambda u: 2 * u, donate_argnums=0)
    u = fft.decomposition.shard(pressure)
    with io.Writer() as writer:
        for i in range(4):
            writer.write(tmp_path / f"{i}{suffix}", {"u": u}, fft, time=i)
            u = double(u)
    for i in range(4):
        read = io.read(tmp_path / f"{i}{suffix}", fft)
        assert read.time == i
        np.testing.assert_array_equal(fft.decomposition.gather(read.arrays["u"]), 2**i * pressure)
    assert not list(tmp_path.glob(".*"))


def test_the_program_computes_while_the_writer_writes(tmp_path, fft, pressure, monkeypatch):
    """`Writer.write` returns before its snapshot is written, but waits until the previous snapshot is written."""
    may_end, write = threading.Event(), Zarr.write
    monkeypatch.setattr(Zarr, "write", lambda *args: may_end.wait(60) and write(*args))
    u = fft.decomposition.shard(pressure)
    with io.Writer() as writer:
        writer.write(tmp_path / "0.zarr", {"u": u}, fft)
        assert not (tmp_path / "0.zarr").exists()
        second = threading.Thread(target=writer.write, args=(tmp_path / "1.zarr", {"u": u}, fft))
        second.start()
        second.join(0.3)
        assert second.is_alive()
        may_end.set()
        second.join()
        assert (tmp_path / "0.zarr").exists()
    np.testing.assert_array_equal(io.read(tmp_path / "1.zarr").arrays["u"], pressure)


def test_the_writer_replaces_a_snapshot_that_is_still_being_written(tmp_path, fft, pressure, monkeypatch):
    """A snapshot at the same path begins before the earlier snapshot is written. Both are written in turn."""
    path, run = tmp_path / "last.h5", Staging.run

    def run_late(*args):
        """Write the first snapshot after the second one has begun."""
        deadline = time.monotonic() + 60
        while not path.exists() and len(leftovers(path)) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        run(*args)

    monkeypatch.setattr(Staging, "run", run_late)
    with io.Writer() as writer:
        for i in range(2):
            writer.write(path, {"u": pressure}, fft, time=i)
    assert io.read(path).time == 1
    assert not list(tmp_path.glob(".*"))


def test_the_writer_raises_earlier_errors(tmp_path, fft, pressure):
    u = fft.decomposition.shard(pressure)
    (tmp_path / "file").touch()
    writer = io.Writer()
    with pytest.raises(ValueError, match="`time` must be one finite number"):
        writer.write(tmp_path / "u.zarr", {"u": u}, fft, time=np.nan)
    with pytest.raises(NotADirectoryError):
        writer.write(tmp_path / "file" / "u.zarr", {"u": u}, fft)
    writer.write(tmp_path / "u.zarr", {"u" * 300: u}, fft)
    with pytest.raises(OSError, match="File name too long"):
        writer.wait()
    writer.write(tmp_path / "u.zarr", {"u" * 300: u}, fft)
    with pytest.raises(OSError, match="File name too long"):
        writer.write(tmp_path / "v.zarr", {"u": u}, fft)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    with writer:
        writer.write(tmp_path / "u.zarr", {"u": u}, fft)
    np.testing.assert_array_equal(io.read(tmp_path / "u.zarr").arrays["u"], pressure)


@pytest.mark.parametrize(("suffix", "library"), [(".zarr", "tensorstore"), (".h5", "h5py")])
def test_a_missing_library_is_told_before_the_program_continues(tmp_path, fft, pressure, monkeypatch, suffix, library):
    monkeypatch.setitem(sys.modules, library, None)
    with io.Writer() as writer, pytest.raises(ImportError, match=f"pip install {library}"):
        writer.write(tmp_path / f"u{suffix}", {"u": pressure}, fft)
    assert not list(tmp_path.iterdir())


def test_a_writer_is_used_up_by_its_with_block(tmp_path, fft, pressure):
    writer = io.Writer()
    for _ in range(2):
        with writer:
            pass
    with pytest.raises(RuntimeError, match=r"a `Writer` must not write after its `with` block; .* Make a new one"):
        writer.write(tmp_path / "u.zarr", {"u": pressure}, fft)
    writer.wait()
    assert not list(tmp_path.iterdir())


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess:
    return forks.run(*command, cwd=cwd, environment=os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""})


MEMORY = """
import re, sys
from pathlib import Path
import decompops as dops, jax, jax.numpy as jnp
from decompops import io

def peak():
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

dec = dops.Decomposition(jax.make_mesh((1,), ("x",)), shape=(256, 256, 256))
io.write(sys.argv[1], {"u": jnp.ones((256, 256, 256))}, dec)  # Loads libraries and compiles programs.
u = jnp.full((256, 256, 256), 2.0)
Path("/proc/self/clear_refs").write_text("5")  # Resets the peak.
before = peak()
if sys.argv[2] == "background":
    with io.Writer() as writer:
        writer.write(sys.argv[1], {"u": u}, dec)
else:
    io.write(sys.argv[1], {"u": u}, dec)
print((peak() - before) / u.nbytes)
"""


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="only Linux reports the peak memory of a process"
)
@pytest.mark.parametrize("how", ["foreground", "background"])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_writing_needs_at_most_one_more_block(tmp_path, suffix, how):
    """A write in the foreground needs memory for some chunks only. A write in the background also copies the block.

    Files store the cells of a chunk in another order than memory, or with padding. So a write copies each chunk.
    """
    done = run("-c", MEMORY, str(tmp_path / f"u{suffix}"), how, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    blocks = float(done.stdout)
    assert blocks < (0.6 if how == "foreground" else 1.6)


def test_a_program_without_with_loses_nothing(tmp_path):
    """At its end, a program waits for what it still writes, or it fails."""
    program = """
import decompops as dops, jax, numpy as np, resource, signal, sys
from decompops import io
dec = dops.Decomposition(jax.make_mesh((1,), ("x",)), shape=(128, 64, 64), axes=("x",))
cells = np.random.default_rng(0).random((128, 64, 64))
number = len(sys.argv)
if number > 1:  # as on a full disk
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
def save():  # Nothing else refers to the checkpoints and the writers.
    io.Checkpoints("checkpoints").save(number, {"u": cells})
    for suffix in (".zarr", ".h5"):
        io.Writer().write(f"u{suffix}", {"u": cells}, dec, time=number)
save()
"""
    for arguments, status in ([], 0), (["fail"], 1):
        done = run("-c", program, *arguments, cwd=tmp_path)
        assert done.returncode == status
        assert [io.read(tmp_path / f"u{suffix}").time for suffix in SUFFIXES] == [1, 1]
        with io.Checkpoints(tmp_path / "checkpoints") as checkpoints:
            assert checkpoints.steps == [1]
        if status == 0:
            assert done.stderr == ""
    for error in r"a checkpoint in .* was not written", r".*/\.u\.zarr", r".*(File too large|file write failed)":
        assert re.search(f"^OSError: {error}", done.stderr, re.MULTILINE), done.stderr
