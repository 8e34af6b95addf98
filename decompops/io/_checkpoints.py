"""`Checkpoints` saves the state of a run, so that the run can continue on any mesh."""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding

from .._check import check_count
from .._layout import Layout
from .._structure import Structure
from ._barrier import Barrier, BrokenBarrier
from ._checksums import checksum, checksum_of_json
from ._contents import check_version, damaged


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

    def save(self, step: int, tree: Mapping[str, Any], structures: Mapping[str, Structure] | None = None) -> None:
        """Write a checkpoint in the background. All processes must call this method.

        The call first waits until the previous checkpoint is complete.

        **Arguments:**

        - `step`: the number of the checkpoint, larger than all earlier numbers.
        - `tree`: a dictionary of PyTrees by name, such as states, models, optimizer states, random keys and numbers
            (also complex numbers). Leaves that are neither arrays nor numbers, such as functions, are not saved.
        - `structures`: a dictionary that gives the `Structure` of states, such as `solver.in_structure`, by their names
            in `tree`. A structure says which part of an array is padding.

        **Raises:** `ValueError` if `step` is not larger than all earlier numbers, or if `structures` has a name that
        `tree` does not have. `TypeError` if `tree` is not a dictionary. `OSError` or `RuntimeError`, as in `wait`, if
        the previous checkpoint could not be written.
        """
        orbax = _orbax()
        if self.latest is not None and step <= self.latest:
            raise ValueError(f"`step` must be larger than the newest checkpoint, {self.latest}; got {step}.")
        leaves = _leaves(tree, structures)
        arrays = {name: leaf.data for name, leaf in leaves.items() if not leaf.is_number}
        checksums = _checksums(arrays, {name: leaf.layout for name, leaf in leaves.items()})
        known = {
            name: leaf.facts | ({"checksum": checksums[name]} if name in checksums else {})
            for name, leaf in leaves.items()
        }
        facts = {"format": VERSION, "leaves": known, "checksum": checksum_of_json(known)}
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
        - `structures`: a dictionary that gives the `Structure` of states on this mesh, by their names in `like`.
        - `step`: the number of the checkpoint. The default is the newest checkpoint.

        **Returns:** a dictionary with the names and the PyTrees of `like`.

        **Raises:** `FileNotFoundError` if the checkpoint does not exist. `ValueError` if it is damaged, if a different
        version of decompops wrote it in a different format, or if its arrays differ from `like` in number, shape or
        dtype. Damage is detected by the checksum of every array.
        """
        self.wait()
        step = self.latest if step is None else step
        if step is None or step not in self._manager.all_steps():
            raise FileNotFoundError(
                f"`step` must be the number of a checkpoint in {self.folder}, which has {self._manager.all_steps()}; "
                f"got {step}."
            )
        where = self.folder / str(step)
        known, leaves = self._facts(where), _leaves(like, structures)
        if known.keys() != leaves.keys():
            missing, more = sorted(leaves.keys() - known.keys()), sorted(known.keys() - leaves.keys())
            raise ValueError(
                f"`like` must have the same leaves as the checkpoint {where}; got {missing}, which the checkpoint does "
                f"not have, and lacks {more}."
            )
        for name, leaf in leaves.items():
            if leaf.kind != {key: known[name].get(key) for key in leaf.kind}:
                raise ValueError(
                    f"`like` must have the types and shapes of the checkpoint; got {leaf.kind} for {name}, but {where} "
                    f"has {known[name]}. Pass the structures of states on padded grids as `structures`."
                )
            if leaf.is_too_wide:
                raise ValueError(
                    f"`like` must have types that JAX has without 64-bit mode; got {leaf.kind['type']} for {name}. "
                    'Type `jax.config.update("jax_enable_x64", True)`, or pass a NumPy array.'
                )
        arrays = self._arrays(where, {name: leaf for name, leaf in leaves.items() if not leaf.is_number}, known)
        for name, found in _checksums(arrays, {name: leaves[name].stored(known[name]) for name in arrays}).items():
            if found is not None and found != known[name]["checksum"]:
                raise damaged(where, f"the checksum of {name} is wrong")
        values = {name: leaf.value(arrays.get(name), known[name]) for name, leaf in leaves.items()}
        paths, tree = jax.tree_util.tree_flatten_with_path(dict(like))
        return jax.tree.unflatten(tree, [values.get(_name(path), leaf) for path, leaf in paths])

    def contents(self, step: int) -> dict[str, dict[str, Any]]:
        """Return the contents of a checkpoint: a dictionary of descriptions of leaves. A key is the path of a leaf.

        All processes must call this method.

        An example of a path is "model/weight". Every description has the name of the "type" of the leaf. The
        description of an array also has the "shape" without padding and the "checksum"; the description of a number has
        the "value".

        **Raises:** `ValueError` if the checkpoint is damaged, or if a newer version of decompops wrote it.
        """
        return self._facts(self.folder / str(step))

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

    def _facts(self, where: Path) -> dict[str, dict]:
        """Return the description of each leaf by its path: type and value, or type, shape and axis order."""
        orbax = _orbax()
        with _reading(where):
            facts = _reader(orbax.JsonCheckpointHandler()).restore(where / "facts", args=orbax.args.JsonRestore())
            version = int(facts["format"])
            if version == VERSION and checksum_of_json(facts.get("leaves")) != facts.get("checksum"):
                raise ValueError("the checksum of its description is wrong")
        check_version("`step` must be a checkpoint", where, version, VERSION)
        return facts["leaves"]

    def _arrays(self, where: Path, leaves: dict[str, "_Leaf"], known: dict[str, dict]) -> dict[str, Any]:
        """Return the arrays of a checkpoint, with the padding of this mesh."""
        orbax = _orbax()
        options = {name: leaf.options(orbax, known[name]) for name, leaf in leaves.items()}
        if not options:
            return {}
        arrays = orbax.args.PyTreeRestore(item=dict.fromkeys(options, 0), restore_args=options)
        with _reading(where):
            return _reader(orbax.PyTreeCheckpointHandler()).restore(where / "arrays", args=arrays)


_NUMBERS = bool | int | float | complex


class _Leaf:
    """A leaf that is saved: an array, a random key or a number. A leaf of a state with a `Structure` has a `layout`."""

    def __init__(self, leaf: Any, layout: Layout | None):
        self.leaf, self.layout = leaf, layout
        self.is_number = isinstance(leaf, _NUMBERS)
        self.is_key = not self.is_number and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)

    @property
    def data(self) -> Any:
        """The array to save: the data of a random key, a NumPy copy of an array without a mesh, or the leaf itself."""
        data = self.leaf
        if self.is_key:
            to_data = jax.random.key_data
            data = to_data(data) if isinstance(data, Array) else jax.eval_shape(to_data, data)
        return np.asarray(data) if isinstance(data, Array) and not self.is_sharded else data

    @property
    def is_sharded(self) -> bool:
        """Whether the leaf lies on a mesh. All other arrays lie on the default device of each process."""
        return isinstance(getattr(self.leaf, "sharding", None), NamedSharding)

    @property
    def is_too_wide(self) -> bool:
        """Whether JAX would replace the dtype of the leaf by a dtype with fewer bits, because 64-bit mode is off."""
        on_host = self.is_number or self.is_key or isinstance(self.leaf, np.ndarray | np.generic)
        return not on_host and jax.dtypes.canonicalize_dtype(self.leaf.dtype) != self.leaf.dtype

    @property
    def kind(self) -> dict[str, Any]:
        """The type and the true shape. A saved leaf and the same leaf in `like` must have the same `kind`."""
        if self.is_number:
            return {"type": type(self.leaf).__name__}
        shape = list(np.shape(self.leaf))
        if self.layout is not None:
            shape[-self.layout.blocks.ndim :] = self.layout.true_shape
        return {"type": str(self.leaf.dtype), "shape": shape}

    @property
    def facts(self) -> dict[str, Any]:
        """What a checkpoint stores as JSON: the type, the shape without padding, the storage order and the value."""
        if self.is_number:
            is_complex = isinstance(self.leaf, complex)
            return {**self.kind, "value": [self.leaf.real, self.leaf.imag] if is_complex else self.leaf}
        return {**self.kind, "order": None if self.layout is None else list(self.layout.blocks.order)}

    def stored(self, known: dict) -> Layout | None:
        """Return the layout of the state on this mesh, with the storage order of the checkpoint."""
        if self.layout is None or list(self.layout.blocks.order) == known["order"]:
            return self.layout
        return Layout(self.layout.mesh, replace(self.layout.blocks, order=tuple(known["order"])))

    def options(self, orbax: Any, known: dict) -> Any:
        """Return the arguments with which orbax reads the leaf."""
        if not self.is_sharded:
            return orbax.RestoreArgs(restore_type=np.ndarray)
        shape, sharding, layout = self.data.shape, self.data.sharding, self.stored(known)
        if layout is not None and layout is not self.layout:
            shape = (*shape[: -layout.blocks.ndim], *layout.shape)
            sharding = layout.sharding_of(shape)
        return orbax.ArrayRestoreArgs(sharding=sharding, global_shape=shape, strict=False)

    def value(self, array: Any, known: dict) -> Any:
        """Return the leaf of the result, made from the `array` that was read."""
        if self.is_number:
            return complex(*known["value"]) if isinstance(self.leaf, complex) else known["value"]
        if isinstance(self.leaf, np.ndarray | np.generic):
            return array
        array = jnp.asarray(array)
        if self.is_key:
            return jax.random.wrap_key_data(array, impl=_implementation(self.leaf))
        stored = self.stored(known)
        if self.layout is None or stored is None or stored is self.layout:
            return array
        lead = array.ndim - stored.blocks.ndim
        axes = [lead + stored.blocks.order.index(axis) for axis in self.layout.blocks.order]
        return jax.device_put(array.transpose(*range(lead), *axes), self.leaf.sharding)


def _leaves(tree: Any, structures: Any) -> dict[str, _Leaf]:
    """Return the leaves to save, with their paths as keys."""
    structures = dict(structures or {})
    if not isinstance(tree, Mapping) or not all(isinstance(name, str) for name in tree):
        raise TypeError(f"`tree` must be a dictionary whose keys are strings; got {type(tree).__name__}.")
    if not structures.keys() <= tree.keys() or not all(isinstance(s, Structure) for s in structures.values()):
        raise ValueError(f"`structures` must map some of the names {list(tree)} to a `Structure`; got {structures}.")
    leaves = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(dict(tree))[0]:
        if isinstance(leaf, Array | np.ndarray | np.generic | jax.ShapeDtypeStruct | _NUMBERS):
            structure = structures.get(path[0].key)
            layout = None if structure is None or not structure.layout.holds(leaf) else structure.layout
            leaves[_name(path)] = _Leaf(leaf, layout)
    return leaves


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


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _implementation(key: Any) -> Any:
    """Return the PRNG implementation of a key. The key may be a `jax.ShapeDtypeStruct`."""
    return jax.random.key_impl(key if isinstance(key, Array) else jnp.empty((), key.dtype))


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
