"""Zarr 3, written and read by tensorstore: a folder with one folder for each array. Each chunk has a checksum."""

import json
import os
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ._contents import FORMAT, Contents, Variable, check_contents, check_format, reading
from ._format import AbstractFile, AbstractFormat, Cells
from ._parts import THREADS, Bounds, slices


class Zarr(AbstractFormat):
    """A snapshot is a Zarr group. The file `zarr.json` of the group holds the attributes of the snapshot."""

    suffixes = (".zarr",)

    def check(self, path: Path, contents: Contents) -> None:
        pass

    def may_replace(self, path: Path) -> bool:
        metadata = path / "zarr.json"
        return metadata.is_file() and FORMAT.encode() in metadata.read_bytes()

    def create(self, path: Path, contents: Contents, chunks: Mapping[str, tuple[int, ...]]) -> None:
        attributes = {"coordinates": "time"} if "time" in contents.coordinates else {}  # xarray needs this attribute.
        for name, variable in contents.variables.items():
            _create(path / name, variable, chunks[name], {**attributes, **_units(contents, name)})
        for name, values in contents.coordinates.items():
            variable = Variable((name,)[: values.ndim], values.shape, values.dtype)
            _finish(_start(_create(path / name, variable, values.shape, _units(contents, name)), values))
        # By a convention of zarr-python, the file of the group repeats the metadata of all arrays. So a reader needs to
        # open only one file.
        members = {file.parent.name: json.loads(file.read_text()) for file in path.glob("*/zarr.json")}
        consolidated = {"kind": "inline", "must_understand": False, "metadata": members}
        group = {"zarr_format": 3, "node_type": "group", "attributes": contents.attributes}
        group["consolidated_metadata"] = consolidated
        with (path / "zarr.json").open("w") as file:
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
        self.path = path
        variables, coordinates, units = {}, {}, {}
        with reading(path, "its metadata"):
            group = json.loads((path / "zarr.json").read_text())
            attributes = dict(group["attributes"])
        check_format(attributes, path)
        with reading(path, "its metadata"):
            for name, member in group["consolidated_metadata"]["metadata"].items():
                dims = tuple(member.get("dimension_names", ()))
                if dims == (name,) or not dims:
                    coordinates[name] = self._store(name).read().result()
                else:
                    store = self._store(name)
                    variables[name] = Variable(dims, store.shape, store.dtype.numpy_dtype)
                if unit := member.get("attributes", {}).get("units"):
                    units[name] = unit
            self.contents = check_contents(Contents(variables, coordinates, units, attributes))

    def read(self, name: str, bounds: Bounds, cells: np.ndarray) -> None:
        with reading(self.path, f"`{name}`"):
            _tensorstore().array(cells, copy=False, write=True).write(self._store(name)[slices(bounds)]).result()

    def _store(self, name: str) -> Any:
        return _open(_spec(self.path / name))


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
