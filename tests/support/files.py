"""Checks of files that several processes write and read. multiprocess/worker.py runs these checks on every rank."""

import os
import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import decompops as dops
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decompops import io

from helpers import assert_blocks, make_mesh, random_field


UNEVEN = (5, 6, 7)


@contextmanager
def files_left(count: int) -> Iterator[None]:
    """Let this process open only `count` more files."""
    limits, taken = resource.getrlimit(resource.RLIMIT_NOFILE), []
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        stack.callback(lambda: [os.close(handle) for handle in taken])
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits[0], 4096), limits[1]))
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(count):
            os.close(taken.pop())
        yield


def check_snapshots(folder: Path) -> None:
    """Check that each process writes its blocks, and reads its blocks on another mesh."""
    mesh, other = make_mesh((2, 2)), make_mesh((1, 4))
    fft, target = (dops.FFT3D(m, shape=UNEVEN, pad=True, real=True) for m in (mesh, other))
    u = random_field((3, *UNEVEN))
    field = fft.decomposition.shard(u)
    for suffix in (".zarr", ".h5"):
        path = folder / f"u{suffix}"
        for time_ in (1, 2):  # The second snapshot replaces the first.
            io.write(path, {"u": time_ * field, "v": field}, fft, time=time_)
        snapshot = io.read(path, target)
        assert snapshot.time == 2
        assert_blocks(snapshot.arrays["u"], 2 * u)
        assert_blocks(snapshot.arrays["v"], u)
        with io.Writer() as writer:
            writer.write(folder / f"k{suffix}", {"u": fft(field)}, fft, space="spectrum")
        assert_blocks(io.read(folder / f"k{suffix}", target).arrays["u"], np.fft.rfftn(u, axes=(1, 2, 3)))
        with pytest.raises(ValueError, match=r"every process must write to the same `path`.* processes"):
            io.write(path, {"u": field}, fft, time=jax.process_index())
        here = jax.device_put(u, jax.local_devices()[0])
        with pytest.raises(ValueError, match="`arrays` must lie on the devices of `grid`"):
            io.write(path, {"u": here}, fft)
        assert io.read(path).time == 2
        other_places = (path, [fft, fft.decomposition.layout("x")][min(jax.process_index(), 1)])
        for arguments in ((path, fft, "uv"[min(jax.process_index(), 1)]), other_places):
            with pytest.raises(ValueError, match=r"`names` and `grid` must be the same on every process; got \{.*P\("):
                io.read(*arguments)
    if jax.process_index() == 0:  # The first process removes its temporary folder after the others have gone on.
        assert not list(folder.glob(".*"))


def check_checkpoints(folder: Path) -> None:
    """Check that a checkpoint of four devices can be restored on another mesh of these devices, with other padding."""
    fft, target = (dops.FFT3D(make_mesh(sizes), shape=UNEVEN, pad=True, real=True) for sizes in ((2, 2), (1, 4)))
    u = random_field((3, *UNEVEN))
    key, like = jax.random.key(3), target(target.decomposition.shard(0 * u))
    with io.Checkpoints(folder) as checkpoints:
        for step in (1, 2):
            k = fft(fft.decomposition.shard(step * u))
            checkpoints.save(step, {"k": k, "key": key, "t": 0.5, "w": jnp.ones(3)}, {"k": fft.out_structure})
    with io.Checkpoints(folder) as checkpoints:
        assert checkpoints.latest == 2
        tree = {"k": like, "key": jax.random.key(0), "t": 0.0, "w": jnp.zeros(3)}
        found = checkpoints.restore(tree, {"k": target.out_structure})
    assert found["t"] == 0.5
    assert bool(found["key"] == key)
    np.testing.assert_array_equal(found["w"], np.ones(3))
    assert_blocks(found["k"], np.fft.rfftn(2 * u, axes=(1, 2, 3)))


CHECKS = (check_snapshots, check_checkpoints)
