"""One process of a run with two processes. test_processes.py starts both processes and reads their output.

python rank.py TASK --rank R --processes N --devices D --port P --folder FOLDER
"""

import argparse
import json
import resource
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from unittest.mock import patch

import decompops as dops
import h5py
import jax
import numpy as np
from decompops import io, pde
from decompops.io import _barrier, _read
from decompops.io._snapshot import _Writing
from jax.experimental import multihost_utils


SHAPE = (16, 16, 16)
U = np.random.default_rng(0).integers(2**32, size=SHAPE, dtype=np.uint32)  # Random bits cannot be compressed.


def say(text: object) -> None:
    """Print a line that test_processes.py can tell from what libraries print."""
    print(f"> {text}", flush=True)


def elsewhere(folder: Path) -> None:
    """Write a NumPy array on a mesh without devices of process 0. Process 0 raises an error. Process 1 writes.

    Simulate there with checkpoints. Then save and restore an array on this mesh, which both processes refuse, and on a
    mesh of all devices.
    """
    mesh = jax.sharding.Mesh(jax.devices()[-2:], "x")
    dec = dops.Decomposition(mesh, shape=SHAPE)
    for suffix in (".zarr", ".h5"):
        try:
            io.write(folder / f"u{suffix}", {"u": U}, dec)
            np.testing.assert_array_equal(io.read(folder / f"u{suffix}").arrays["u"], U)
            say("written")
        except ValueError as error:
            say(f"ValueError: {error}")
    if jax.process_index() == 1:
        solver = pde.ETDRK(pde.Diffusion(dops.FFT(mesh, shape=(4, 4)), 1.0), 0.5)
        u = solver.equation.state(solver.equation.transform.decomposition.shard(np.ones((4, 4), complex)))
        try:
            pde.simulate(solver, u, 1.0, checkpoint=folder / "run")
        except ValueError as error:
            say(f"simulate: {error}")
    everywhere = jax.sharding.Mesh(jax.devices(), "x")
    arrays = [
        jax.make_array_from_callback(SHAPE, jax.NamedSharding(of, jax.P("x")), U.__getitem__, dtype=U.dtype)
        for of in (mesh, everywhere)
    ]
    with io.Checkpoints(folder / "checkpoints") as checkpoints:
        for task in (partial(checkpoints.save, 1), checkpoints.restore):
            for array in arrays:
                try:
                    task({"u": array})
                    say("passed")
                except ValueError as error:
                    say(f"refused: {error}")


def unwritable(folder: Path) -> None:
    """Try to write to a path inside a file, over a folder that is not a snapshot, and to save inside a file."""
    dec = dops.Decomposition(jax.make_mesh((jax.device_count(),), ("x",)), shape=SHAPE)
    foreign = folder / "foreign.zarr"
    (folder / "file").touch()
    foreign.mkdir(exist_ok=True)
    tasks = [partial(io.write, path, {"u": dec.shard(U)}, dec) for path in (folder / "file" / "u.h5", foreign)]
    with io.Checkpoints(folder / "file" / "checkpoints") as checkpoints:
        for task in (*tasks, checkpoints.claim, partial(checkpoints.save, 1, {"i": 1})):
            start = time.monotonic()
            try:
                task()
            except (OSError, RuntimeError) as error:
                say(f"{type(error).__name__} after {'short' if time.monotonic() - start < 60 else 'long'}: {error}")


def failing(folder: Path) -> None:
    """Let one process fail while both processes write a snapshot: first process 0, and then process 1."""
    dec = dops.Decomposition(jax.make_mesh((jax.device_count(),), ("x",)), shape=SHAPE)
    for process in range(jax.process_count()):
        for suffix in (".zarr", ".h5"):
            writing = _Writing(folder / f"u{process}{suffix}", {"u": dec.shard(U)}, dec)
            if jax.process_index() == process:
                writing.cells = [("v", ((0, 16),) * 3, U)]  # The snapshot has no such array.
            try:
                writing.run()
            except Exception as error:
                say(f"{type(error).__name__}: {error}")


def refused(folder: Path) -> None:
    """Restore damaged checkpoints, and read checkpoints and snapshots of a newer format."""
    dec = dops.Decomposition(jax.make_mesh((jax.device_count(),), ("x",)), shape=SHAPE)
    u = dec.shard(U)

    def attempt(change: Callable[[], object], read: Callable[[], object]) -> None:
        multihost_utils.sync_global_devices("ready")
        if jax.process_index() == 0:
            change()
        multihost_utils.sync_global_devices("changed")
        try:
            read()
        except (ValueError, OSError) as error:
            say(f"{type(error).__name__}: {error}")

    with io.Checkpoints(folder) as checkpoints:
        checkpoints.save(0, {"u": u})
        np.testing.assert_array_equal(dec.gather(checkpoints.restore({"u": 0 * u})["u"]), U)
        cells, facts = U[-1, -1, -8:].tobytes(), next(folder.glob("0-*/facts/metadata"))
        file = next(file for file in folder.glob("0-*/arrays/**/d/*") if cells in file.read_bytes())
        data = file.read_bytes()
        at = data.index(cells)
        restore = lambda: checkpoints.restore({"u": u})
        attempt(lambda: file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]), restore)
        attempt(lambda: file.write_bytes(data[:at]), restore)  # Only the last process reads this file.
        name = "uv"[jax.process_index()]
        attempt(lambda: file.write_bytes(data), lambda: checkpoints.restore({name: u}))

        def restore_unseen(process: int, *, at_once: bool) -> None:
            """Restore while one process does not find the checkpoint: at the beginning, or only after an error."""
            if jax.process_index() == process:
                checkpoints._names.find_all = lambda folder: iter(())
                if at_once:
                    checkpoints._manager.reload()
            try:
                restore()
            finally:
                vars(checkpoints._names).pop("find_all", None)
                checkpoints._manager.reload()

        attempt(lambda: None, partial(restore_unseen, 1, at_once=True))
        attempt(lambda: file.write_bytes(data[:at]), partial(restore_unseen, 0, at_once=False))
        attempt(lambda: facts.write_text(json.dumps(json.loads(facts.read_text()) | {"format": 3})), restore)
    for suffix, change in ((".zarr", newer_zarr), (".h5", newer_hdf5)):
        path = folder / f"u{suffix}"
        io.write(path, {"u": u}, dec)
        attempt(partial(change, path), partial(io.read, path, dec))


def disagreeing(folder: Path) -> None:
    """Save different checkpoints on each process, or something that only one process refuses."""
    dec = dops.Decomposition(jax.make_mesh((jax.device_count(),), ("x",)), shape=SHAPE)
    u, rank = dec.shard(U), jax.process_index()
    dtype = ("float32", "float64")[rank]
    attempts = (
        (2 + rank, {"u": u}, None),
        (2, {"uv"[rank]: u}, None),
        (2, {"u": u, "a": np.zeros(3, dtype)}, None),
        (2, {"u": u, "a": np.zeros(3 + rank)}, None),
        (2, {"u": u, "t": (1, 1.0)[rank]}, None),
        (2, {"u": (u, U)[rank]}, None),
        (2, {"u": u}, {"rate": rank}),
        (2 - rank, {"u": u}, None),
        (2, {"u": u, "a": np.zeros(3, ("uint8", "object")[rank])}, None),
        (2, {"u": u}, {"rate": (1.0, np.float32(1))[rank]}),
    )
    with io.Checkpoints(folder) as checkpoints:
        checkpoints.save(1, {"u": u})
        for step, tree, description in attempts:
            try:
                checkpoints.save(step, tree, description=description)
            except (ValueError, TypeError) as error:
                say(f"{type(error).__name__}: {error}")
        # Numbers of one type may have different values.
        checkpoints.save(2, {"u": u, "t": 1.0 + rank})
        say(f"steps {checkpoints.steps}, t {checkpoints.restore({'u': u, 't': 0.0})['t']}")
        away = jax.ShapeDtypeStruct(SHAPE, U.dtype, sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0]))
        try:
            checkpoints.restore({"u": away, "t": 0.0})
        except ValueError as error:
            say(f"ValueError: {error}")
        try:
            checkpoints.restore({"u": (u, U)[rank], "t": 0.0})
        except ValueError as error:
            say(f"ValueError: {error}")
    for suffix in (".zarr", ".h5"):
        try:
            io.write(folder / f"u{suffix}", {"u": U.astype("longdouble")}, dec)
        except TypeError as error:
            say(f"TypeError: {error}")
    say([path.name for path in folder.glob("*u*")])


def mistaken(folder: Path) -> None:
    """Pass one wrong argument to a function, first in process 1 and then in process 0."""
    dec = dops.Decomposition(jax.make_mesh((jax.device_count(),), ("x",)), shape=SHAPE)
    u = dec.shard(U)
    good, like = folder / "good.h5", {"u": u}
    io.write(good, like, dec)
    checkpoints, writer = io.Checkpoints(folder / "checkpoints"), io.Writer()
    checkpoints.save(1, like)
    abstract = {"u": jax.ShapeDtypeStruct(u.shape, u.dtype, sharding=u.sharding)}
    attempts = (
        *(
            (partial(io.write, grid=dec), {"path": folder / f"u{suffix}", "arrays": like}, wrong)
            for suffix in (".zarr", ".h5")
            for wrong in (
                {"path": folder / "u.npy"},
                {"arrays": None},
                {"arrays": {"u": U[1:]}},
                {"arrays": {"u": U.astype(object)}},
                {"arrays": {"u": np.ma.masked_array(U, mask=True)}},
                {"units": ["m"]},
                {"time": "late"},
                {"space": "spectrum"},
                {"patience": 0},
            )
        ),
        (partial(writer.write, grid=dec), {"path": folder / "u.zarr", "arrays": like}, {"units": {"q": "m"}}),
        (partial(io.read, grid=dec), {"path": good}, {"path": folder / "u.npy"}),
        (partial(io.read, grid=dec), {"path": good}, {"path": folder / "none.h5"}),
        (partial(io.read, grid=dec), {"path": good}, {"names": "q"}),
        (partial(io.read, grid=dec), {"path": good}, {"names": 5}),
        (partial(io.Samples, grid=dec), {"paths": good}, {"paths": []}),
        (partial(io.Samples, grid=dec), {"paths": good}, {"paths": folder / "none.h5"}),
        (io.Samples(good, dec).batches, {"size": 1}, {"size": 2}),
        (io.Checkpoints, {"folder": folder / "checkpoints"}, {"keep": 0}),
        (io.Checkpoints, {"folder": folder / "checkpoints"}, {"folder": good}),
        (checkpoints.save, {"step": 2, "tree": like}, {"tree": abstract}),
        (checkpoints.save, {"step": 2, "tree": like}, {"structures": 1}),
        (checkpoints.restore, {"like": like}, {"step": 7}),
        (checkpoints.restore, {"like": like}, {"like": [u]}),
        (checkpoints.restore, {"like": like}, {"structures": 1}),
    )
    for process in (1, 0):
        for function, right, wrong in attempts:
            try:
                function(**right | (wrong if jax.process_index() == process else {}))
                say("ended")
            except Exception as error:
                say(f"{type(error).__name__}: {error}")
    writer.write(folder / "after.zarr", like, dec)
    writer.wait()
    say(f"steps {checkpoints.steps}, {sorted(path.name for path in folder.glob('[!.]*'))}")


def blind(folder: Path) -> None:
    """Read what one process cannot look at, as after a fault of its file system: first process 1, then process 0."""
    dec = dops.Decomposition(jax.make_mesh((jax.device_count(),), ("x",)), shape=SHAPE)
    like, path = {"u": dec.shard(U)}, folder / "u.h5"
    io.write(path, like, dec)
    checkpoints = io.Checkpoints(folder)
    checkpoints.save(1, like)
    checkpoints.close()
    found = io.Checkpoints(folder)
    tasks = (
        partial(io.read, path, dec),
        partial(io.Samples, path, dec),
        partial(io.Checkpoints, folder),
        partial(found.restore, like),
        partial(found.contents, 1),
    )
    error = PermissionError("no access")
    for process in (1, 0):
        for task in tasks:
            with ExitStack() as stack:
                if jax.process_index() == process:
                    stack.enter_context(patch.object(Path, "exists", side_effect=error))
                    stack.enter_context(patch("os.listdir", side_effect=error))
                try:
                    task()
                    say("read")
                except OSError as raised:
                    say(f"{type(raised).__name__}: {raised}")


def recovering(folder: Path) -> None:
    """Let process 1 fail to write a checkpoint, as if its disk were full. Then save with new `Checkpoints`."""
    _barrier.SECONDS = 2.0
    dec = dops.Decomposition(jax.make_mesh((jax.device_count(),), ("x",)), shape=SHAPE)
    cells = np.random.default_rng(1).integers(2**32, size=(32, *SHAPE), dtype=np.uint32)
    u = dec.shard(cells)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with io.Checkpoints(folder) as checkpoints:
        for step in (1, 2, 3, 4):
            if jax.process_index() == 1:
                resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, limits[1]) if step == 2 else limits)
            try:
                checkpoints.save(step, {"u": u})
                checkpoints.wait()
            except (OSError, RuntimeError) as error:
                say(f"{type(error).__name__}: {error}")
    with io.Checkpoints(folder) as checkpoints:
        checkpoints.save(2, {"u": u})
        checkpoints.wait()
        found = checkpoints.restore({"u": 0 * u})["u"]
        say(f"steps {checkpoints.steps}, {np.array_equal(dec.gather(found), cells)}")


def replaced(folder: Path) -> None:
    """Replace a snapshot after process 0 has read it, and before process 1 does. Both must read the same snapshot."""
    dec = dops.Decomposition(jax.make_mesh((jax.device_count(),), ("x",)), shape=SHAPE)
    read, find, is_first = _read._read, _read.find, jax.process_index() == 0
    for suffix in (".zarr", ".h5"):
        path, seen, calls = folder / f"u{suffix}", folder / f"seen{suffix}", []
        for time_, name in ((1, "u"), (2, "new")):
            io.write(folder / f"{name}{suffix}", {"u": dec.shard(time_ * U)}, dec, time=time_)

        def read_first(*arguments, seen=seen, calls=calls):
            calls.append(0)
            snapshot = read(*arguments)
            if is_first:
                seen.touch()
            return snapshot

        def find_second(path, seen=seen, calls=calls):
            if not is_first and not calls:
                while not seen.exists():
                    time.sleep(0.01)
                path.rename(path.with_name(f"old{path.suffix}"))
                path.with_name(f"new{path.suffix}").rename(path)
            return find(path)

        _read._read, _read.find = read_first, find_second
        snapshot = io.read(path, dec)
        _read._read, _read.find = read, find
        same = [bool((shard.data == 2 * U[shard.index]).all()) for shard in snapshot.arrays["u"].addressable_shards]
        say(f"{suffix}: time {snapshot.time}, {all(same)}, calls {len(calls)}")


def samples(folder: Path) -> None:
    """Read batches in the background of a computation. Let process 1 differ, and damage one of its blocks."""
    dec = dops.Decomposition(jax.make_mesh((2, jax.device_count() // 2), ("data", "x")), shape=SHAPE, axes="x")
    paths = [folder / f"{i}.zarr" for i in range(4)]
    for i, path in enumerate(paths):
        io.write(path, {"u": U + np.uint32(i)}, dec)
    found = io.Samples(paths, dec)
    first = jax.jit(lambda u: (u - U).max((1, 2, 3)), out_shardings=jax.NamedSharding(dec.mesh, jax.P()))
    with closing(found.batches(2, seed=0, epochs=3)) as batches:
        say(f"order {[np.asarray(first(batch['u'])).tolist() for batch in batches]}")
    rank = jax.process_index()
    for task in (
        lambda: io.Samples(paths[:: 1 - 2 * rank], dec),
        lambda: io.Samples(paths[: 3 + rank], dec),
        lambda: found.batches(2, seed=rank),
        lambda: io.read(paths[rank], dec),
    ):
        try:
            task()
        except (ValueError, RuntimeError) as error:
            say(f"other: {error}")
    multihost_utils.sync_global_devices("read")
    if jax.process_index() == 0:
        for file in (paths[2] / "u" / "c").rglob("*"):
            if file.is_file():
                file.write_bytes(b"damaged")
    multihost_utils.sync_global_devices("damaged")
    try:
        for shard in found[[1, 2]]["u"].addressable_shards:
            np.testing.assert_array_equal(shard.data[0], U[shard.index[1:]] + np.uint32(1))
        say("read")
    except ValueError as error:
        say(f"ValueError: {error}")


def newer_zarr(path: Path) -> None:
    metadata = path / "zarr.json"
    metadata.write_text(metadata.read_text().replace('"decompops_format": 2', '"decompops_format": 3'))


def newer_hdf5(path: Path) -> None:
    with h5py.File(path, "a") as file:
        file.attrs["decompops_format"] = 3


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
