"""`Checkpoints` saves the state of a run, so that the run can continue on any mesh."""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.experimental import multihost_utils

from .._check import check_count
from .._layout import Layout
from .._structure import Structure
from ._barrier import Barrier, BrokenBarrier
from ._checksums import checksum, checksum_of_json
from ._contents import check_version, damaged
from ._leaves import Leaf, leaves_of, name_of, warn_of_other_boxes


# The format of checkpoints. Increase this number if older versions of the library would misread new checkpoints, or if
# this version would misread old checkpoints. Checkpoints of format 1 have no checksums.
VERSION = 2


class Checkpoints:
    """Save PyTrees of arrays as numbered checkpoints in a folder, and keep only the newest checkpoints.

    A checkpoint is either complete or absent, even if the program is killed while it writes. A checkpoint does not
    depend on the mesh, the backend or the padding of the run that wrote it. The next run can read it onto a different
    mesh. On the same mesh, the arrays that are read are bitwise equal to the saved arrays. This class needs orbax:
    `pip install orbax-checkpoint`.

    !!! example

        ```python
        with io.Checkpoints("run/checkpoints") as checkpoints:
            state = {"u": u, "t": 0.0, "key": key, "model": model, "optimizer": memory}
            if checkpoints.latest is not None:
                state = checkpoints.restore(state, {"u": solver.in_structure})
            ...
            checkpoints.save(step, state, {"u": solver.in_structure})
        ```
    """

    def __init__(self, folder: str | os.PathLike, *, keep: int = 2):
        """**Arguments:**

        - `folder`: the folder of the checkpoints, which all processes share. It is created if it does not exist.
        - `keep`: the number of checkpoints to keep. Older checkpoints are removed when a new checkpoint is complete.

        **Raises:** `ValueError` if `keep` is not a positive integer; `ImportError` if orbax is not installed.
        """
        orbax = _orbax()
        newest = orbax.checkpoint_managers.preservation_policy.LatestN(check_count("keep", keep))
        self.folder = Path(folder).absolute()
        background = orbax.AsyncOptions(barrier_sync_fn=Barrier(self.folder))
        options = orbax.CheckpointManagerOptions(preservation_policy=newest, async_options=background)
        self._manager = orbax.CheckpointManager(self.folder, options=options)
        self._is_clean = False

    @property
    def latest(self) -> int | None:
        """The number of the newest checkpoint, or `None` if the folder has no checkpoint."""
        return self._manager.latest_step()

    @property
    def steps(self) -> list[int]:
        """The numbers of all checkpoints in the folder. The newest checkpoint is last."""
        return sorted(self._manager.all_steps())

    def save(
        self,
        step: int,
        tree: Mapping[str, Any],
        structures: Mapping[str, Structure] | None = None,
        *,
        description: Mapping[str, Any] | None = None,
    ) -> None:
        """Write a checkpoint in the background. All processes must call this method.

        The call first waits until the previous checkpoint is complete.

        **Arguments:**

        - `step`: the number of the checkpoint, larger than all earlier numbers.
        - `tree`: a dictionary of PyTrees by name, such as states, models, optimizer states, random keys and numbers
            (also complex numbers). Leaves that are neither arrays nor numbers, such as functions, are not saved.
        - `structures`: a dictionary that gives the `Structure` of states, such as `solver.in_structure`, by their names
            in `tree`. A structure says which part of an array is padding, and what the numbers of a spectrum mean: the
            bases, the modes, the `norm` and the box.
        - `description`: a dictionary of strings, numbers and lists that says to what the checkpoint belongs. The method
            `description` returns it.

        **Raises:** `ValueError` if `step` is not larger than all earlier numbers, or if `structures` has a name that
        `tree` does not have. `TypeError` if `tree` is not a dictionary. `OSError` or `RuntimeError`, as in `wait`, if
        the previous checkpoint could not be written.
        """
        orbax = _orbax()
        if self.latest is not None and step <= self.latest:
            raise ValueError(f"`step` must be larger than the newest checkpoint, {self.latest}; got {step}.")
        leaves = leaves_of(tree, structures)
        arrays = {name: leaf.data for name, leaf in leaves.items() if not leaf.is_number}
        checksums = _checksums(arrays, {name: leaf.layout for name, leaf in leaves.items()})
        known = {
            name: leaf.facts | ({"checksum": checksums[name]} if name in checksums else {})
            for name, leaf in leaves.items()
        }
        facts = {"format": VERSION, "leaves": known, **({} if description is None else {"description": description})}
        facts["checksum"] = _checksum_of_facts(facts)
        parts = {"facts": orbax.args.JsonSave(facts)}
        if arrays:  # orbax refuses an empty tree.
            parts["arrays"] = orbax.args.PyTreeSave(arrays)
        self.wait()
        self._clean()
        self._manager.save(step, args=orbax.args.Composite(**parts), force=True)

    def restore(
        self, like: Mapping[str, Any], structures: Mapping[str, Structure] | None = None, step: int | None = None
    ) -> dict[str, Any]:
        """Read a checkpoint onto the devices. All processes must call this method.

        **Arguments:**

        - `like`: a dictionary with the same names and PyTrees as the saved dictionary. Its arrays may be
            `jax.ShapeDtypeStruct`s. Each array of the result has the sharding of the same leaf in `like`. Leaves that
            `save` does not save, such as functions, are taken from `like`.
        - `structures`: a dictionary that gives the `Structure` of states on this mesh, by their names in `like`. If the
            `norm` of a spectrum or the number of its grid points differs from the saved one, the spectrum is rescaled.
        - `step`: the number of the checkpoint. The default is the newest checkpoint.

        **Returns:** a dictionary with the names and the PyTrees of `like`.

        **Raises:** `FileNotFoundError` if the checkpoint does not exist. `ValueError` if it is damaged, if a different
        version of decompops wrote it in a different format, or if its arrays differ from `like` in number, shape or
        dtype. `ValueError` if a spectrum was saved with other bases or modes than its structure has. Damage is detected
        by the checksum of every array.

        **Warns:** if the box of a state differs from the saved one.
        """
        self.wait()
        step = self.latest if step is None else step
        if step is None or step not in self._manager.all_steps():
            raise FileNotFoundError(
                f"`step` must be the number of a checkpoint in {self.folder}, which has {self._manager.all_steps()}; "
                f"got {step}."
            )
        where = self.folder / str(step)
        known, leaves = self._facts(where)["leaves"], leaves_of(like, structures)
        if known.keys() != leaves.keys():
            missing, more = sorted(leaves.keys() - known.keys()), sorted(known.keys() - leaves.keys())
            raise ValueError(
                f"`like` must have the same leaves as the checkpoint {where}; got {missing}, which the checkpoint does "
                f"not have, and lacks {more}."
            )
        for name, leaf in leaves.items():
            leaf.check(name, known[name], where)
        warn_of_other_boxes(leaves, known, where)
        arrays = self._arrays(where, {name: leaf for name, leaf in leaves.items() if not leaf.is_number}, known)
        for name, found in _checksums(arrays, {name: leaves[name].stored(known[name]) for name in arrays}).items():
            if found is not None and found != known[name]["checksum"]:
                raise damaged(where, f"the checksum of {name} is wrong")
        values = {name: leaf.value(arrays.get(name), known[name]) for name, leaf in leaves.items()}
        paths, tree = jax.tree_util.tree_flatten_with_path(dict(like))
        return jax.tree.unflatten(tree, [values.get(name_of(path), leaf) for path, leaf in paths])

    def contents(self, step: int) -> dict[str, dict[str, Any]]:
        """Return the contents of a checkpoint: a dictionary of descriptions of leaves. A key is the path of a leaf.

        All processes must call this method.

        An example of a path is "model/weight". Every description has the name of the "type" of the leaf. The
        description of an array also has the "shape" without padding and the "checksum"; the description of a number has
        the "value".

        **Raises:** `ValueError` if the checkpoint is damaged, or if a newer version of decompops wrote it.
        """
        return self._facts(self.folder / str(step))["leaves"]

    def description(self, step: int) -> dict[str, Any] | None:
        """Return the `description` that was passed to `save`; `None` without one. All processes must call this method.

        **Raises:** the errors of `contents`.
        """
        return self._facts(self.folder / str(step)).get("description")

    def wait(self) -> None:
        """Wait until the last checkpoint is complete.

        **Raises:** `OSError` if this process could not write it, for instance because the disk is full; `RuntimeError`
        if another process failed.
        """
        try:
            self._manager.wait_until_finished()
        except Exception as error:  # The parts of orbax raise errors of many types.
            cause: BaseException | None = error
            while isinstance(cause, BrokenBarrier):
                cause = cause.__context__
            kind, cause = (RuntimeError, error) if cause is None else (OSError, cause)
            line = str(cause).strip().partition("\n")[0]
            raise kind(f"a checkpoint in {self.folder} was not written: {line}") from error

    def close(self) -> None:
        """Wait until the last checkpoint is complete, and release the folder."""
        self._manager.close()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _clean(self) -> None:
        """Before the first checkpoint is saved, remove what a killed program has left unfinished.

        A program that only reads must not remove such files, because another program may be saving at the same time.
        Therefore the removal that orbax offers is not used.
        """
        if not self._is_clean and jax.process_index() == 0:
            for unfinished in self.folder.glob("*.orbax-checkpoint-tmp*"):
                shutil.rmtree(unfinished, ignore_errors=True)
        self._is_clean = True

    def _facts(self, where: Path) -> dict[str, Any]:
        """Return what a checkpoint stores as JSON: the facts of its leaves by their paths, and its description."""
        orbax = _orbax()
        with _reading(where):
            facts = _reader(orbax.JsonCheckpointHandler()).restore(where / "facts", args=orbax.args.JsonRestore())
            version = int(facts["format"])
            if version == VERSION and _checksum_of_facts(facts) != facts.get("checksum"):
                raise ValueError("the checksum of its description is wrong")
        check_version("`step` must be a checkpoint", where, version, VERSION)
        return facts

    def _arrays(self, where: Path, leaves: dict[str, "Leaf"], known: dict[str, dict]) -> dict[str, Any]:
        """Return the arrays of a checkpoint, with the padding of this mesh."""
        orbax = _orbax()
        options = {name: leaf.options(orbax, known[name]) for name, leaf in leaves.items()}
        if not options:
            return {}
        arrays = orbax.args.PyTreeRestore(item=dict.fromkeys(options, 0), restore_args=options)
        with _reading(where):
            return _reader(orbax.PyTreeCheckpointHandler()).restore(where / "arrays", args=arrays)


def _checksum_of_facts(facts: dict[str, Any]) -> int:
    leaves = facts.get("leaves")
    return checksum_of_json([leaves, facts["description"]] if "description" in facts else leaves)


def _checksums(arrays: Mapping[str, Any], layouts: Mapping[str, Layout | None]) -> dict[str, int | None]:
    """Return the checksum of each array, or `None` for an array whose mesh has no devices of this process."""
    # This function waits for each result before it starts the next program. On the CPU devices of one process, XLA can
    # deadlock if more than 32 programs run at the same time (docs/caveats.md).
    return {
        name: None
        if isinstance(array, Array) and not array.addressable_shards
        else int(np.asarray(checksum(array, layouts[name])))
        for name, array in arrays.items()
    }


def _reader(handler: Any) -> Any:
    """Return an orbax checkpointer that does not wait for other processes when it reads, because they may fail."""
    orbax, process = _orbax(), jax.process_index()
    alone = orbax.options.MultiprocessingOptions(primary_host=process, active_processes={process})
    return orbax.Checkpointer(handler, multiprocessing_options=alone)


@contextmanager
def _reading(where: Path) -> Iterator[None]:
    """Raise `Damaged` on every process if reading fails on one process."""
    error = None
    try:
        yield
    except Exception as raised:  # The parts of orbax raise errors of many types.
        error = raised
    failed = np.ravel(multihost_utils.process_allgather(np.array(error is not None)))
    if error is not None:
        raise damaged(where, error) from error
    if failed.any():
        raise damaged(where, f"process {failed.argmax()} cannot read it")


def _orbax() -> Any:
    try:
        import orbax.checkpoint
    except ImportError as error:
        raise ImportError("Checkpoints need orbax: pip install orbax-checkpoint.") from error
    return orbax.checkpoint
