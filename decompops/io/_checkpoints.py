"""`Checkpoints` saves the state of a run, so that the run can continue on any mesh."""

import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
import numpy as np

from .._common.check import check_count, check_untraced
from .._common.sharding import no_ambient_mesh
from .._core.layout import Layout
from .._core.structure import Structure
from ._agreement import check_same, of_each_process, of_first_process, raised_by_all
from ._barrier import Barrier, BrokenBarrier
from ._checkpoint_folder import FACTS, CheckpointFolder
from ._checksums import checksum, checksum_of_json
from ._contents import Damaged, check_version, damaged
from ._ending import begin, end
from ._leaves import Leaf, leaves_of, name_of, warn_of_other_boxes
from ._orbax import SAVING, orbax_checkpoint, reader, reading_by_all
from ._storable import as_path, check_path


# The format of checkpoints. Increase this number if older versions of the library would misread new checkpoints, or if
# this version would misread old checkpoints. Checkpoints of format 1 have no checksums.
VERSION = 2


class Checkpoints:
    """Save PyTrees of arrays as numbered checkpoints in a folder, and keep only the newest checkpoints.

    The folder may hold other files: this class finds and removes only checkpoints that carry the mark of this folder.
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

        - `folder`: the folder of the checkpoints, which all processes share. `save` creates it if it does not exist.
            Every process must create its `Checkpoints`, with the same arguments.
        - `keep`: the number of checkpoints to keep. Older checkpoints are removed when a new checkpoint is complete.

        **Raises:** `ValueError` if `keep` is not a positive integer, or if the path of `folder` is not UTF-8, or has a
        backslash, a bracket or another text that orbax would not take literally, or is a URL or begins with `~`;
        `TypeError` if `folder` is no path; `NotADirectoryError` if it is a file; `ImportError` if orbax is not
        installed.
        """
        with raised_by_all():
            orbax = orbax_checkpoint()
            newest = orbax.checkpoint_managers.preservation_policy.LatestN(check_count("keep", keep))
            self.folder = as_path("folder", folder).resolve()  # tensorstore takes "link/.." for the folder of the link.
            check_path("folder", self.folder, ("[", "**"), "orbax")  # orbax reads the path as a pattern of glob.
            if self.folder.exists() and not self.folder.is_dir():
                raise NotADirectoryError(f"`folder` must be a folder; got the file {self.folder}.")
        self._names, self._barrier = CheckpointFolder(self.folder), Barrier(Path(folder))
        options = orbax.CheckpointManagerOptions(
            create=False,
            step_name_format=self._names,
            preservation_policy=newest,
            async_options=orbax.AsyncOptions(barrier_sync_fn=self._barrier),
        )
        with raised_by_all():
            self._manager = orbax.CheckpointManager(self.folder, options=options)
        self._is_closed = False

    @property
    def latest(self) -> int | None:
        """The number of the newest checkpoint, or `None` if the folder has no checkpoint."""
        self._look()
        return self._manager.latest_step()

    @property
    def steps(self) -> list[int]:
        """The numbers of all checkpoints in the folder. The newest checkpoint is last."""
        self._look()
        return sorted(self._manager.all_steps())

    def path(self, step: int) -> Path:
        """Return the folder of a checkpoint."""
        return self.folder / self._names.build_name(step)

    def claim(self) -> None:
        """Check that this program can save in the folder, and keep other programs from saving there until `close`.

        All processes must call this method. `save` calls it first. A long program calls it at its start, so that it
        does not compute for hours before an error.

        **Raises:** `OSError` if this process cannot write to the folder, and `RuntimeError` if another process cannot.
        `BlockingIOError` if another program or thread saves checkpoints in this folder. `FileNotFoundError` if the
        folder has checkpoints, but not the file `.decompops`, without which they are not found. `RuntimeError` after
        `close`.
        """
        if self._is_closed:
            raise RuntimeError(f"`Checkpoints` must not save after `close`; got those of {self.folder}. Make new ones.")
        if self._names.claim():
            self._manager.reload()

    def save(
        self,
        step: int,
        tree: Mapping[str, Any],
        structures: Mapping[str, Structure] | None = None,
        *,
        description: Mapping[str, Any] | None = None,
    ) -> None:
        """Write a checkpoint in the background. All processes must call this method.

        The call first waits until the previous checkpoint is complete. A program without `close` waits at its end.

        **Arguments:**

        - `step`: the number of the checkpoint: an integer of at least 0, larger than all earlier numbers.
        - `tree`: a dictionary of PyTrees by name, such as states, models, optimizer states, random keys and numbers
            (also complex numbers). Leaves that are neither arrays nor numbers, such as functions, are not saved.
            Numbers and arrays without a mesh are those of the first process; `restore` gives them to every process.
        - `structures`: a dictionary that gives the `Structure` of states, such as `solver.in_structure`, by their names
            in `tree`. A structure says which part of an array is padding, and what the numbers of a spectrum mean: the
            bases, the modes, the `norm` and the box.
        - `description`: a dictionary of strings, numbers and lists that says to what the checkpoint belongs. The method
            `description` returns it.

        **Raises:** `ValueError` if `step` is not such an integer, if `structures` has a name that `tree` does not have,
        if an array has no elements, if its mesh lacks devices of a process, or if the processes differ in `step`, in
        `description`, or in the paths, types and shapes of the leaves. `TypeError` if `tree` is not a dictionary, or
        has traced arrays, a `jax.ShapeDtypeStruct` or arrays of dtypes that tensorstore does not store. All processes
        then raise an error of the same type, and write no checkpoint. The errors of `claim`. `OSError` or
        `RuntimeError`, as in `wait`, if the previous checkpoint could not be written. With several processes, each
        later call then raises `RuntimeError`.
        """
        orbax = orbax_checkpoint()
        check_untraced("tree", tree, "save")
        self.claim()
        with raised_by_all():
            step, leaves, description = self._new(step), leaves_of("tree", tree, structures), _as_json(description)
            for name, leaf in leaves.items():
                if isinstance(leaf.leaf, jax.ShapeDtypeStruct):
                    raise TypeError(
                        f"`tree` must have arrays with values; got {leaf.leaf} for {name}. Only `restore` takes a "
                        "`jax.ShapeDtypeStruct`."
                    )
                if 0 in (shape := np.shape(leaf.leaf)):
                    raise ValueError(
                        f"`tree` must have arrays with elements; got shape {shape} for {name}. Leave it out."
                    )
        # The processes may pass different values of a number. The checkpoint gets the value of the first process.
        agreed = {name: leaf.agreed for name, leaf in leaves.items()}
        check_same(
            of_each_process(checksum_of_json([step, agreed, description])),
            "every process must save the same `step` and `description`, and the same paths, types, shapes and "
            "shardings in `tree`",
            f"writes checkpoint {step}",
        )
        arrays = {name: leaf.data for name, leaf in leaves.items() if not leaf.is_number}
        checksums = _checksums(arrays, {name: leaf.layout for name, leaf in leaves.items()})
        known = {
            name: leaf.facts | ({"checksum": checksums[name]} if name in checksums else {})
            for name, leaf in leaves.items()
        }
        facts = {"format": VERSION, "leaves": known, **({} if description is None else {"description": description})}
        facts["checksum"] = _checksum_of_facts(facts)
        parts = {FACTS: orbax.args.JsonSave(facts)}
        if arrays:  # orbax refuses an empty tree.
            parts["arrays"] = orbax.args.PyTreeSave(arrays)
        self.wait()
        self._names.check_free(step)
        begin(self.wait)
        with SAVING:
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

        **Raises:** `FileNotFoundError` if the checkpoint does not exist, or if another program removes it meanwhile.
        `ValueError` if it is damaged, if a different version of decompops wrote it in a different format, or if its
        arrays differ from `like` in number, shape or dtype. `ValueError` if a mesh of `like` lacks devices of a
        process, if a spectrum was saved with other bases or modes than its structure has, or if the processes differ in
        `step`, in `structures`, or in the types and shardings of `like`. Damage is detected by the checksum of every
        array. `OSError` if this process may not open the files, or has too many open files; `MemoryError` if the memory
        is full. If one process fails, every process raises an error of the same type.

        **Warns:** if the box of a state differs from the saved one.
        """
        self.wait()
        step = self._existing(step)
        try:
            return self._restore(self.path(step), like, structures)
        except Damaged as error:
            with raised_by_all():
                before, _ = max(self._manager.all_steps()), self._manager.reload()
                if step not in self.steps or self.steps[-1] > before:
                    raise FileNotFoundError(
                        f"`step` must be a checkpoint that stays while it is read; got {step}, but another program "
                        f"saves in {self.folder} and removes old checkpoints. Read the newest one, {self.latest}."
                    ) from error
            raise

    def contents(self, step: int) -> dict[str, dict[str, Any]]:
        """Return the contents of a checkpoint: a dictionary of descriptions of leaves. A key is the path of a leaf.

        All processes must call this method.

        An example of a path is "model/weight". Every description has the name of the "type" of the leaf. The
        description of an array also has the "shape" without padding and the "checksum"; the description of a number has
        the "value".

        **Raises:** `FileNotFoundError` if the checkpoint does not exist. `ValueError` if it is damaged, or if a
        different version of decompops wrote it in a different format.
        """
        return self._facts(self.path(self._existing(step)))["leaves"]

    def description(self, step: int) -> dict[str, Any] | None:
        """Return the `description` that was passed to `save`; `None` without one. All processes must call this method.

        **Raises:** the errors of `contents`.
        """
        return self._facts(self.path(self._existing(step))).get("description")

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
        finally:
            end(self.wait)

    def close(self) -> None:
        """Wait until the last checkpoint is complete, and release the folder. After it, `save` raises an error.

        **Raises:** the errors of `wait`. The folder is then released, too.
        """
        self._is_closed = True
        with ExitStack() as stack:
            stack.callback(self._names.release)
            stack.callback(self._manager.close)
            self.wait()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _look(self) -> None:
        """Find the checkpoints that another program has saved meanwhile."""
        if not self._names.is_claimed:
            self._names.look()
            self._manager.reload()

    def _new(self, step: int) -> int:
        """Return the number of a new checkpoint. Raises `ValueError` or `RuntimeError` if `save` may not write it."""
        if self._barrier.is_broken:
            raise RuntimeError(
                "`Checkpoints` must not save after a process could not write a checkpoint; got those of "
                f"{self.folder}. Close them, and make new ones."
            )
        step = check_count("step", step, least=0)
        if self.latest is not None and step <= self.latest:
            raise ValueError(f"`step` must be larger than the newest checkpoint, {self.latest}; got {step}.")
        return step

    def _existing(self, step: int | None) -> int:
        """Return the number of a checkpoint that every process finds: `step`, or the newest one of the first process.

        While another program saves, some processes may already have found a checkpoint that others have not.
        """
        with raised_by_all():
            wanted = str(self.latest if step is None else step)
        wanted = of_first_process(wanted)
        with raised_by_all():
            if step is not None and str(step) != wanted:
                raise ValueError(f"`step` must be the same on every process; got {step}, and {wanted} on process 0.")
            if wanted not in map(str, self.steps):
                self._manager.reload()
            if wanted not in map(str, self.steps):
                raise FileNotFoundError(
                    f"`step` must be the number of a checkpoint in {self.folder}, which has {self.steps}; got {wanted}."
                )
        return int(wanted)

    def _restore(self, where: Path, like: Any, structures: Any) -> dict[str, Any]:
        """Read the checkpoint `where`. See `restore`."""
        known = self._facts(where)["leaves"]
        with raised_by_all():
            leaves = leaves_of("like", like, structures)
            if known.keys() != leaves.keys():
                missing, more = sorted(leaves.keys() - known.keys()), sorted(known.keys() - leaves.keys())
                raise ValueError(
                    f"`like` must have the same leaves as the checkpoint {where}; got {missing}, which the checkpoint "
                    f"does not have, and lacks {more}."
                )
            for name, leaf in leaves.items():
                leaf.check(name, known[name], where)
        check_same(
            of_each_process(checksum_of_json({name: leaf.agreed for name, leaf in leaves.items()})),
            "every process must pass the same types and shardings in `like`, and the same `structures`",
            f"restores {where}",
        )
        warn_of_other_boxes(leaves, known, where)
        arrays = self._arrays(where, {name: leaf for name, leaf in leaves.items() if not leaf.is_number}, known)
        checksums = _checksums(arrays, {name: leaves[name].stored(known[name]) for name in arrays})
        with raised_by_all():
            for name, found in checksums.items():
                if found != known[name]["checksum"]:
                    raise damaged(where, f"the checksum of {name} is wrong")
        with no_ambient_mesh():
            values = {name: leaf.value(arrays.get(name), known[name]) for name, leaf in leaves.items()}
        paths, tree = jax.tree_util.tree_flatten_with_path(dict(like))
        return jax.tree.unflatten(tree, [values.get(name_of(path), leaf) for path, leaf in paths])

    def _facts(self, where: Path) -> dict[str, Any]:
        """Return what a checkpoint stores as JSON: the facts of its leaves by their paths, and its description."""
        orbax = orbax_checkpoint()
        with reading_by_all(where):
            facts = reader(orbax.JsonCheckpointHandler()).restore(where / FACTS, args=orbax.args.JsonRestore())
            version = int(facts["format"])
            if version == VERSION and _checksum_of_facts(facts) != facts.get("checksum"):
                raise ValueError("the checksum of its description is wrong")
        check_version("`step` must be a checkpoint", where, version, VERSION)
        return facts

    def _arrays(self, where: Path, leaves: dict[str, "Leaf"], known: dict[str, dict]) -> dict[str, Any]:
        """Return the arrays of a checkpoint, with the padding of this mesh."""
        orbax = orbax_checkpoint()
        options = {name: leaf.options(orbax, known[name]) for name, leaf in leaves.items()}
        if not options:
            return {}
        arrays = orbax.args.PyTreeRestore(item=dict.fromkeys(options, 0), restore_args=options)
        with reading_by_all(where):
            return reader(orbax.PyTreeCheckpointHandler()).restore(where / "arrays", args=arrays)


def _as_json(description: Any) -> Any:
    """Return a description as a checkpoint returns it. Raises `TypeError` if JSON cannot store it."""
    try:
        return json.loads(json.dumps(description))
    except (TypeError, ValueError) as error:  # A list that holds itself raises `ValueError`.
        raise TypeError(f"`description` must have strings, Python numbers and lists; got {description!r}.") from error


def _checksum_of_facts(facts: dict[str, Any]) -> int:
    leaves = facts.get("leaves")
    return checksum_of_json([leaves, facts["description"]] if "description" in facts else leaves)


def _checksums(arrays: Mapping[str, Any], layouts: Mapping[str, Layout | None]) -> dict[str, int]:
    """Return the checksum of each array."""
    # This function waits for each result before it starts the next program. On the CPU devices of one process, XLA can
    # deadlock if more than 32 programs run at the same time (docs/cpu.md).
    with no_ambient_mesh():
        return {name: int(np.asarray(checksum(array, layouts[name]))) for name, array in arrays.items()}
