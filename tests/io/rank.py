"""One process of a run with two processes. test_processes.py starts both processes and reads their output.

python rank.py TASK --rank R --processes N --devices D --port P --folder FOLDER
"""

import argparse
import time
from pathlib import Path

import decompops as dops
import jax
import numpy as np
from decompops import io
from decompops.io._snapshot import _Writing
from jax.experimental import multihost_utils


SHAPE = (16, 16, 16)
U = np.random.default_rng(0).integers(2**32, size=SHAPE, dtype=np.uint32)  # Random bits cannot be compressed.


def elsewhere(folder: Path) -> None:
    """Write a NumPy array on a mesh without devices of the first process."""
    mesh = jax.sharding.Mesh(jax.devices()[-2:], "x")
    dec = dops.Decomposition(mesh, shape=SHAPE)
    for suffix in (".zarr", ".h5"):
        try:
            io.write(folder / f"u{suffix}", {"u": U}, dec)
            np.testing.assert_array_equal(io.read(folder / f"u{suffix}").arrays["u"], U)
            print("written")
        except ValueError as error:
            print(f"ValueError: {error}")


def unwritable(folder: Path) -> None:
    """Try to write to a path inside a file, and over a folder that is not a snapshot."""
    dec = dops.Decomposition(jax.make_mesh((jax.device_count(),), ("x",)), shape=SHAPE)
    foreign = folder / "foreign.zarr"
    for path in (folder / "file" / "u.h5", foreign):
        (folder / "file").touch()
        foreign.mkdir(exist_ok=True)
        start = time.monotonic()
        try:
            io.write(path, {"u": dec.shard(U)}, dec)
        except (OSError, RuntimeError) as error:
            print(f"{type(error).__name__} after {'short' if time.monotonic() - start < 60 else 'long'}: {error}")


def failing(folder: Path) -> None:
    """Let one process fail while both write a snapshot: first process 0, then process 1."""
    dec = dops.Decomposition(jax.make_mesh((jax.device_count(),), ("x",)), shape=SHAPE)
    for process in range(jax.process_count()):
        for suffix in (".zarr", ".h5"):
            writing = _Writing(folder / f"u{process}{suffix}", {"u": dec.shard(U)}, dec)
            if jax.process_index() == process:
                writing.cells = [("v", ((0, 16),) * 3, U)]  # The snapshot has no such array.
            try:
                writing.run()
            except Exception as error:
                print(f"{type(error).__name__}: {error}")


def checkpoint(folder: Path) -> None:
    """Restore a checkpoint in which a bit of a block has flipped."""
    dec = dops.Decomposition(jax.make_mesh((jax.device_count(),), ("x",)), shape=SHAPE)
    u = dec.shard(U)
    with io.Checkpoints(folder) as checkpoints:
        checkpoints.save(0, {"u": u})
        np.testing.assert_array_equal(dec.gather(checkpoints.restore({"u": 0 * u})["u"]), U)
        if jax.process_index() == 0:
            cells = U[-1, -1, -8:].tobytes()
            file = next(file for file in folder.glob("0/arrays/**/d/*") if cells in file.read_bytes())
            data = bytearray(file.read_bytes())
            data[data.index(cells)] ^= 1
            file.write_bytes(data)
        multihost_utils.sync_global_devices("changed")
        try:
            checkpoints.restore({"u": u})
        except ValueError as error:
            print(f"ValueError: {error}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("task")
    for name in ("rank", "processes", "devices", "port"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", args.devices)
    jax.distributed.initialize(f"127.0.0.1:{args.port}", args.processes, args.rank)
    globals()[args.task](args.folder)
