"""Zarr 3, written and read by tensorstore: a folder with one folder for each array. Each chunk has a checksum."""

import json
import math
import os
import stat
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from .._common.ownership import in_the_way, is_of_process, open_regular
from ._contents import Contents, Variable, check_contents, check_format, reading
from ._format import AbstractFile, AbstractFormat, Cells
from ._parts import THREADS, Bounds, slices
from ._storable import OF_TENSORSTORE, check_path


# The file of a group or an array that describes it.
METADATA = "zarr.json"


class Zarr(AbstractFormat):
    """A snapshot is a Zarr group. The file `zarr.json` of the group holds the attributes of the snapshot."""

    suffixes = (".zarr",)
    dtypes = OF_TENSORSTORE

    def check(self, path: Path, contents: Contents) -> None:
        check_path("path", path)
        _tensorstore()  # Without tensorstore, every process raises the error here, before they communicate.

    def paths(self, path: Path, contents: Contents) -> tuple[Path, ...]:
        return (path,)

    def check_own(self, path: Path) -> None:
        while os.path.lexists(path):
            stamp, what, cause = self.stamp(path), "", None
            try:
                if (foreign := next(_foreign(path), None)) is None:
                    return
                what = f"which holds {foreign.relative_to(path)}, which decompops did not write"
            except (OSError, ValueError) as error:
                if is_of_process(error):
                    raise
                cause = error
            # If the stamp is another one, a program has replaced the snapshot, and this look saw parts of both.
            if os.path.lexists(path) and self.stamp(path) == stamp:
                raise in_the_way(path, what) from cause

    def stamp(self, path: Path) -> bytes | None:
        try:
            return _text(path / METADATA)  # It has the identity of the snapshot.
        except OSError:
            return None

    def create(self, path: Path, contents: Contents, chunks: Mapping[str, tuple[int, ...]]) -> None:
        attributes = {"coordinates": "time"} if "time" in contents.coordinates else {}  # xarray needs this attribute.
        for name, variable in contents.variables.items():
            _create(path / name, variable, chunks[name], {**attributes, **_units(contents, name)})
        for name, values in contents.coordinates.items():
            variable = Variable((name,)[: values.ndim], values.shape, values.dtype)
            _finish(_start(_create(path / name, variable, values.shape, _units(contents, name)), values))
        # By a convention of zarr-python, the file of the group repeats the metadata of all arrays. So a reader needs to
        # open only one file.
        members = {file.parent.name: json.loads(file.read_text()) for file in path.glob(f"*/{METADATA}")}
        consolidated = {"kind": "inline", "must_understand": False, "metadata": members}
        group = {"zarr_format": 3, "node_type": "group", "attributes": contents.attributes}
        group["consolidated_metadata"] = consolidated
        with (path / METADATA).open("w") as file:
            file.write(json.dumps(group, indent=2))
            file.flush()
            os.fsync(file.fileno())

    def write(self, path: Path, contents: Contents, parts: Iterable[Cells]) -> None:
        stores = {name: _open(_spec(path / name)) for name in contents.variables}
        pending = deque()
        for name, bounds, cells in parts:
            pending.append(_start(stores[name][slices(bounds)], cells))
            if len(pending) == THREADS:
                _finish(pending.popleft())
        for write in pending:
            _finish(write)

    def open(self, path: Path) -> AbstractFile:
        return _ZarrFile(path)


class _ZarrFile(AbstractFile):
    def __init__(self, path: Path):
        check_path("path", path)
        self.path = path
        variables, coordinates, units = {}, {}, {}
        with reading(path, "its metadata"):
            group = json.loads(_text(path / METADATA))
            attributes = dict(group["attributes"])
        check_format(attributes, path)
        with reading(path, "its metadata"):
            self.members = dict(group["consolidated_metadata"]["metadata"])
            for name, member in self.members.items():
                self._check_member(name, member)
                dims = tuple(member.get("dimension_names", ()))
                if dims == (name,) or not dims:
                    self._check_chunks(name, tuple((0, n) for n in member["shape"]))
                    coordinates[name] = self._store(name).read().result()
                else:
                    store = self._store(name)
                    variables[name] = Variable(dims, store.shape, store.dtype.numpy_dtype)
                if "units" in member.get("attributes", {}):
                    units[name] = member["attributes"]["units"]
            self.contents = check_contents(Contents(variables, coordinates, units, attributes))

    def read(self, name: str, bounds: Bounds, cells: np.ndarray) -> None:
        with reading(self.path, f"`{name}`"):
            self._check_chunks(name, bounds)
            _tensorstore().array(cells, copy=False, write=True).write(self._store(name)[slices(bounds)]).result()

    def close(self) -> None:
        pass

    def _store(self, name: str) -> Any:
        return _open(_spec(self.path / name))

    def _check_member(self, name: str, member: dict[str, Any]) -> None:
        """Raise `ValueError` if an array is not in this folder, or if `_create` would have stored it differently.

        The name of an array could be the path of another array, and a codec could make gigabytes of a few bytes.
        """
        if not name.isidentifier() or (self.path / name).is_symlink():
            raise ValueError(f"{name!r} is not the name of an array in this folder")
        keys = member["chunk_key_encoding"].get("configuration", {}).get("separator", "/")
        plain = [codec["name"] for codec in member["codecs"]] == ["bytes", "crc32c"]
        if not plain or keys != "/" or member["chunk_grid"]["name"] != "regular" or "storage_transformers" in member:
            raise ValueError(f"`{name}` has other codecs than decompops writes")
        if json.loads(_text(self.path / name / METADATA)) != member:
            raise ValueError(f"the descriptions of `{name}` contradict each other")

    def _check_chunks(self, name: str, bounds: Bounds) -> None:
        """Raise `ValueError` if a chunk within `bounds` is not a file of the right size."""
        member, folder = self.members[name], self.path / name / "c"
        shape = member["chunk_grid"]["configuration"]["chunk_shape"]
        size = math.prod(shape) * self._store(name).dtype.numpy_dtype.itemsize + 4  # The checksum has four bytes.
        for chunk in product(*(range(start // n, -(-stop // n)) for (start, stop), n in zip(bounds, shape))):
            found = os.lstat(folder.joinpath(*map(str, chunk)))
            if not stat.S_ISREG(found.st_mode) or found.st_size != size:
                raise ValueError(f"the chunk {chunk} of `{name}` is not a file of {size} bytes")


def _foreign(path: Path) -> Iterator[Path]:
    """Yield what this library did not write into a snapshot. Raises `OSError` or `ValueError` if it is no snapshot."""
    if path.is_symlink():
        raise ValueError(f"{path} is a link")
    members = _ZarrFile(path).members
    for file in path.iterdir():
        if file.name not in members:
            if file.name != METADATA or file.is_symlink():
                yield file
            continue
        for part in file.iterdir():
            if part.name == "c":
                yield from _foreign_chunks(part)
            elif part.name != METADATA or part.is_symlink():
                yield part


def _foreign_chunks(path: Path) -> Iterator[Path]:
    """Yield what has no name of a chunk. A chunk or a folder of chunks has a number for its name."""
    folders = [] if path.is_file() and not path.is_symlink() else [path]
    while folders:
        folder = folders.pop()
        if folder.is_symlink():
            yield folder
            continue
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.name.isdecimal() or not (
                    entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False)
                ):
                    yield Path(entry.path)
                elif entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))


def _text(file: Path) -> bytes:
    with open_regular(file) as opened:
        return opened.read()


def _spec(folder: Path) -> dict[str, Any]:
    """Return the tensorstore specification of an array. Chunks of zeros are stored, so a missing chunk means damage."""
    store = {"driver": "file", "path": f"{folder}/"}
    missing = {"store_data_equal_to_fill_value": True, "fill_missing_data_reads": False}
    return {"driver": "zarr3", "kvstore": store, "open": True, **missing}


def _open(spec: dict[str, Any]) -> Any:
    return _tensorstore().open(spec).result()


def _tensorstore() -> Any:
    try:
        import tensorstore
    except ImportError as error:
        raise ImportError("Zarr files need tensorstore: pip install tensorstore.") from error
    return tensorstore


def _create(folder: Path, variable: Variable, chunk: tuple[int, ...], attributes: dict[str, Any]) -> Any:
    metadata = {
        "shape": variable.shape,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
        "data_type": variable.dtype.name,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
        "dimension_names": variable.dims,
        "attributes": attributes,
    }
    return _finish(_tensorstore().open({**_spec(folder), "open": False, "create": True, "metadata": metadata}))


def _start(store: Any, values: np.ndarray) -> Any:
    return store.write(values, can_reference_source_data_indefinitely=True)


def _finish(write: Any) -> Any:
    """Wait until an array or its values are on disk. Raises `OSError` if they cannot be written."""
    try:
        return write.result()
    except ValueError as error:
        raise OSError(str(error)) from error


def _units(contents: Contents, name: str) -> dict[str, str]:
    return {"units": contents.units[name]} if name in contents.units else {}
