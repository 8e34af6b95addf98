"""A program that writes snapshots until it is killed. test_interrupted.py starts it and checks the remaining files.

    python writer.py FOLDER .zarr|.h5|checkpoints [--rank R --processes N --devices D --port P] [--limit BYTES]

Every cell of snapshot i is i times a random number. So a mixture of two snapshots is detected, and orbax cannot
compress the cells. Every third snapshot is named after its number. All others are written as `last`.
"""

import argparse
import itertools
import resource
import signal
from pathlib import Path

import decompops as dops
import jax
from decompops import io
from decompops.io import _barrier

from helpers import random_field


parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("suffix")
parser.add_argument("--rank", type=int, default=0)
parser.add_argument("--processes", type=int, default=1)
parser.add_argument("--devices", type=int, default=4)
parser.add_argument("--port")
parser.add_argument("--limit", type=int, help="after some snapshots, allow no larger files, as if the disk were full")
args = parser.parse_args()
_barrier.SECONDS = 3.0
jax.config.update("jax_num_cpu_devices", args.devices)
if args.processes > 1:
    jax.distributed.initialize(f"127.0.0.1:{args.port}", args.processes, args.rank)

dec = dops.Decomposition(jax.make_mesh((args.processes * args.devices,), ("x",)), shape=(64, 16, 16))
cells = dec.shard(random_field((3, 64, 16, 16)).astype("float32"))
with io.Writer() as writer, io.Checkpoints(args.folder) as checkpoints:
    for i in itertools.count((checkpoints.latest or 0) + 1 if args.suffix == "checkpoints" else 0):
        arrays = {"u": i * cells, "v": -i * cells}
        if args.suffix == "checkpoints":
            checkpoints.save(i, arrays)
        else:
            name = "last" if i % 3 else f"{i:06}"
            writer.write(args.folder / f"{name}{args.suffix}", arrays, dec, time=i)
        if args.rank == 0:
            print(i, flush=True)
        if args.limit and i == 4:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (args.limit, args.limit))
