"""Write snapshots and checkpoints, and pack them into one archive:

    python tests/io/golden/make.py ARCHIVE.tar.xz [CLONE]

The script writes them with the decompops of the environment, or with that of a CLONE at an older commit:

    format1.tar.xz          3e6147b, snapshots and checkpoints of format 1
    format2_first.tar.xz    70a107f, the first snapshots of format 2
    format2.tar.xz          the first commit with this script

`tests/io/test_golden.py` reads the archives. If a format changes, add an archive, and keep the earlier ones. Two runs
differ only in the identities of the files, in the times that orbax stores, and in the checksums of both.
"""

import inspect
import os
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

import jax
import numpy as np


# The mesh divides neither the first axis nor the last.
SHAPE = (5, 4, 3)


def main(archive: str, clone: str | None = None) -> None:
    """Write the files into a temporary folder, and pack it."""
    jax.config.update("jax_num_cpu_devices", 4)
    jax.config.update("jax_enable_x64", True)
    if clone is not None:
        os.environ["DECOMPOPS_BACKEND"] = "xla"  # The kernels are those of the environment.
        # An editable installation puts a finder of modules before `sys.path`.
        sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in type(finder).__module__]
        sys.path.insert(0, clone)
    folder = Path(tempfile.gettempdir(), "golden")  # orbax stores this path.
    folder.mkdir()
    try:
        write(folder)
        with tarfile.open(archive, "w:xz", preset=9) as packed:
            packed.add(folder, ".", filter=_anonymous)
    finally:
        shutil.rmtree(folder)


def write(folder: Path) -> None:
    """Write a field and a spectrum in each format of snapshots, and a checkpoint."""
    import decompops as dops
    from decompops import io

    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    box = {"box": dops.Box((1.0, 2.0, 3.0))}
    # In the first versions, `write` had the box.
    of_grid, of_file = ({}, box) if "box" in inspect.signature(io.write).parameters else (box, {})
    fft = dops.FFT3D(mesh, shape=SHAPE, pad=True, real=True, norm="forward", **of_grid)
    # Every number is exact in float32.
    count = np.arange(2 * np.prod(SHAPE)).reshape(2, *SHAPE)
    velocity, density = count * 37 % 101 / 64 - 0.5, (count[0] * 29 % 67 / 32).astype(np.float32)
    shard = fft.decomposition.shard
    fields = {"velocity": shard(velocity), "density": shard(density)}
    spectra = {"spectrum": fft(shard(velocity))}
    for suffix in (".h5", ".zarr"):
        units, attributes = {"velocity": "m/s", "x": "m", "time": "s"}, {"note": "golden", "rates": [1, 2.5]}
        options = {"time": 0.25, "units": units, "attributes": attributes, **of_file}
        io.write(folder / f"field{suffix}", fields, fft, **options)
        io.write(folder / f"spectrum{suffix}", spectra, fft, space="spectrum", **of_file)
    with io.Checkpoints(folder / "checkpoints") as checkpoints:
        model = {"weight": np.arange(6.0).reshape(2, 3), "steps": np.arange(4, dtype=np.int32)}
        state = {"u": fields["velocity"], "k": spectra["spectrum"], "t": 0.25, "step": 3, "model": model}
        state["key"] = jax.random.key(7)
        checkpoints.save(3, state, {"u": fft.in_structure, "k": fft.out_structure})


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return a member of the archive without its time and its owner."""
    member.mtime, member.uid, member.gid, member.uname, member.gname = 0, 0, 0, "", ""
    return member


if __name__ == "__main__":
    main(*sys.argv[1:])
