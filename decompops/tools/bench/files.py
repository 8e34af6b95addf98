"""The bandwidth of snapshots, and of NumPy's files with the same bytes on the same disk.

`python -m decompops.tools.bench.files --size 256 --folder /scratch`
"""

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from ... import Decomposition, io
from .run import make_mesh


SUFFIXES = (".npy", ".zarr", ".h5")


def seconds(function: Callable[..., object], *arguments: object) -> float:
    """Return the seconds that a call takes, until the arrays that it returns are ready."""
    start = time.perf_counter()
    jax.block_until_ready(function(*arguments))
    return time.perf_counter() - start


def write(path: Path, field: jax.Array, whole: np.ndarray, dec: Decomposition) -> None:
    """Write a field and wait until the file is on disk. NumPy writes `whole`, and decompops writes `field`."""
    if path.suffix == ".npy":
        with path.open("wb") as file:
            np.save(file, whole)
            file.flush()
            os.fsync(file.fileno())
    else:
        io.write(path, {"u": field}, dec)


def read(path: Path, dec: Decomposition) -> jax.Array | np.ndarray:
    """Read a field. decompops returns an array on the mesh, and NumPy returns an array in memory."""
    return np.load(path) if path.suffix == ".npy" else io.read(path, dec).arrays["u"]


def forget(path: Path) -> None:
    """Ask the system to drop the files below a path from its cache, so that the next read is from the disk."""
    for file in [path] if path.is_file() else path.rglob("*"):
        if file.is_file():
            handle = os.open(file, os.O_RDONLY)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=256, help="cells along each axis of a field of vectors (256)")
    parser.add_argument("--mesh", type=int, nargs=2, default=(2, 4), help="(2 4)")
    parser.add_argument("--folder", type=Path, help="a folder on the disk to measure (default: /tmp or TMPDIR)")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    rows, columns = args.mesh
    jax.config.update("jax_num_cpu_devices", rows * columns)
    shape = (args.size,) * 3
    dec = Decomposition(make_mesh((rows, columns), jax.devices()), shape=shape)
    whole = np.random.default_rng(0).standard_normal((3, *shape), np.float32)
    field = dec.shard(whole)
    folder = Path(tempfile.mkdtemp(dir=args.folder))
    times = {(what, suffix): [] for what in ("write", "read", "read from memory") for suffix in SUFFIXES}
    try:
        for _ in range(args.repeats):
            for suffix in SUFFIXES:
                path = folder / f"u{suffix}"
                times["write", suffix].append(seconds(write, path, field, whole, dec))
                forget(path)
                times["read", suffix].append(seconds(read, path, dec))
                times["read from memory", suffix].append(seconds(read, path, dec))
                found = read(path, dec)
                assert np.array_equal(np.asarray(found), whole)
                del found
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    finally:
        shutil.rmtree(folder)
    print(f"{field.nbytes / 1e6:.0f} MB in {rows * columns} blocks; bandwidth over NumPy's (median / fastest)")
    for (what, suffix), own in times.items():
        plain = times[what, ".npy"]
        print(f"{what:17}{suffix:6}{np.median(plain) / np.median(own):6.2f} /{min(plain) / min(own):5.2f}", end="")
        print(f"   {field.nbytes / min(own) / 1e9:5.2f} GB/s")


if __name__ == "__main__":
    main()
