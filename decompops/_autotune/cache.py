"""The cache of `dops.autotune`: a JSON file of choices. A key consists of devices, candidates and programs."""

import hashlib
import json
import os
import re
import warnings
from pathlib import Path
from typing import Any

import equinox as eqx
import jax

from .._backend.xla.backend import XLA
from .._common.agreement import raised_by_all_of
from .._common.ownership import open_regular, replace_file
from .._core.decomposition import Decomposition
from .trial import Operator, Task


_UNKNOWN = -1
# The entry of the file that marks it as one of this library.
_MARK = {"decompops": "choices of autotune"}
Candidates = list[Decomposition]


def known(path: str | os.PathLike, task: Task, candidates: Candidates, operator: Operator) -> tuple[str, int | None]:
    """Return the key of a task, and the choice that the file has for this key, or `None` if it has none.

    If one process cannot use the file, all processes raise an error.
    """
    with raised_by_all_of(task.everywhere):
        key = _key(task, candidates, operator)  # all processes must build the operators
        choice = _choice(path, key, len(candidates)) if task.leads else _UNKNOWN
    choice = task.agreed(choice)
    return key, None if choice == _UNKNOWN else choice


def keep(path: str | os.PathLike, task: Task, key: str, choice: int) -> None:
    """Write a choice to the file. Only the leading process writes."""
    if not task.leads:
        return
    try:
        _write(path, key, choice)
    except (OSError, ValueError) as error:  # an error would stop only this process, and the other processes would wait
        warnings.warn(f"`cache` could not be written, and the choice is not kept: {error}", stacklevel=3)


def _key(task: Task, candidates: Candidates, operator: Operator) -> str:
    kinds = {f"{device.platform} {device.device_kind}" for device in task.devices}
    descriptions = [(tuple(c.mesh.shape.items()), c.shape, c.backend) for c in candidates]
    parts = (
        jax.__version__,
        task.dtype.name,
        sorted(kinds),
        jax.process_count(),
        _programs(task, candidates, operator),
        descriptions,
    )
    return " | ".join(map(str, parts))


def _programs(task: Task, candidates: Candidates, operator: Operator) -> str:
    """Return a hash of the programs to which JAX lowers the operator, on all meshes.

    Programs with compiled kernels contain numbers that differ between runs, and lowering these programs takes memory.
    The hash is therefore made from two other things: for each mesh, one program with XLA's collectives; and for each
    candidate with compiled kernels, the printed operator.
    """
    native = [candidate for candidate in candidates if not isinstance(candidate.backend, XLA)]
    texts = [_printed(operator, candidate) for candidate in native]
    failures = []
    meshes = list(dict.fromkeys(candidate.mesh for candidate in candidates))
    for mesh in meshes:
        dec = Decomposition(mesh, shape=task.shape, pad=task.pad, backend=XLA())
        try:
            field = jax.ShapeDtypeStruct(dec.padded_shape(), task.dtype, sharding=dec.sharding())
            texts.append(jax.jit(operator(dec)).lower(field).as_text())
        except Exception as error:  # an operator that fails with every backend is reported by its trials
            failures.append(f"{type(error).__name__}: {error}")
            texts.append(type(error).__name__)
    if len(failures) == len(meshes):
        raise ValueError(f"`cache` must be None for an operator that fails with XLA's collectives; got {failures[0]}")
    if any(re.search(r"custom_call @\w*callback", text) for text in texts):
        raise ValueError(
            "`cache` must be None for an operator that calls Python (`jax.pure_callback`, `jax.debug.print`): "
            f"a program does not say which function it calls; got {operator!r}."
        )
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def _printed(operator: Operator, candidate: Decomposition) -> str:
    """Return the printed operator without the addresses of functions, which differ between runs."""
    try:
        return re.sub(r" at 0x[0-9a-f]+", "", eqx.tree_pformat(operator(candidate)))
    except Exception as error:  # the candidate's trial reports this error
        return type(error).__name__


def _choice(path: str | os.PathLike, key: str, candidates: int) -> int:
    try:
        choice = _read(path).get(key)
        if choice is None:
            folder = Path(path).absolute().parent
            if not os.access(folder, os.W_OK):  # an error before the trials saves their time
                raise ValueError(f"{folder} is no folder that can be written to")
            return _UNKNOWN
        if type(choice) is not int or not 0 <= choice < candidates:
            raise ValueError(f"it says {choice!r}, of {candidates} candidates")
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(
            f"`cache` must be a JSON file that `autotune` has written, or a new one; got {path!r}: {error}."
        ) from error
    return choice


def _read(path: str | os.PathLike) -> dict[str, Any]:
    try:
        with open_regular(Path(path)) as file:
            choices = json.loads(file.read())
    except FileNotFoundError:
        return dict(_MARK)
    if not isinstance(choices, dict):
        raise ValueError(f"it holds a JSON value of type {type(choices).__name__}, not an object")
    if not _MARK.items() <= choices.items():
        raise ValueError("decompops did not write it")
    return choices


def _is_own(path: Path) -> bool:
    try:
        return bool(_read(path))
    except ValueError:
        return False


def _write(path: str | os.PathLike, key: str, choice: int) -> None:
    # The file is replaced in one step, because another job may be reading.
    replace_file(Path(path), json.dumps(_read(path) | {key: choice}, indent=2).encode(), _is_own)
