"""XDMF: a text file that describes the contents of an HDF5 file to ParaView."""

import os
import warnings
import zlib
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np

from .._common.ownership import open_regular
from ._contents import Contents, Variable


# The numbers of grid axes that XDMF supports.
DIMENSIONS = (2, 3)


def xdmf(path: Path, snapshots: Iterable[tuple[Path, Contents]]) -> bytes:
    """Return the XDMF file for `path`. It describes one HDF5 file of fields, or several HDF5 files as a time series.

    Its last line marks the file as a file of this library that nobody has changed.
    """
    root = ET.Element("Xdmf", Version="3.0")
    domain = ET.SubElement(root, "Domain")
    # The system resolves "..", which `relpath` writes, from the folder that a link leads to.
    folder = path.parent.resolve()
    grids = [_grid(os.path.relpath(file.parent.resolve() / file.name, folder), of) for file, of in snapshots]
    parent = domain
    if len(grids) > 1:
        parent = ET.SubElement(domain, "Grid", Name="series", GridType="Collection", CollectionType="Temporal")
    parent.extend(grids)
    ET.indent(root)
    text = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + _mark(text)


def is_own_xdmf(path: Path) -> bool:
    """Return whether `xdmf` made a file, and nobody has changed it."""
    length = len(_mark(b""))
    with open_regular(path) as file:
        file.seek(max(0, file.seek(0, 2) - length))
        if not file.read().startswith(b"\n<!-- Written by decompops;"):  # The file may be huge.
            return False
        file.seek(0)
        text = file.read()
    return text == text[:-length] + _mark(text[:-length])


def _mark(text: bytes) -> bytes:
    return b"\n<!-- Written by decompops; the CRC-32 of all other lines is %08x. -->\n" % zlib.crc32(text)


def _grid(file: str, contents: Contents) -> ET.Element:
    """Return the XDMF element of one snapshot. XDMF lists lengths from the slowest axis (z) to the fastest axis (x).

    A grid of two axes is shown as a plane at z = 0 in three dimensions, because the library that reads XDMF for
    ParaView makes no vectors on grids of two axes.
    """
    lengths = contents.lengths[::-1]
    grid = ET.Element("Grid", Name="grid")
    if "time" in contents.coordinates:
        ET.SubElement(grid, "Time", Value=repr(float(contents.coordinates["time"])))
    ET.SubElement(grid, "Topology", TopologyType="3DRectMesh", Dimensions=_words(_shown(lengths)))
    geometry = ET.SubElement(grid, "Geometry", GeometryType="VXVYVZ")
    for name, length in zip(("x", "y", "z"), _shown(lengths)[::-1]):
        values = contents.coordinates.get(name, np.arange(length, dtype=float))
        ET.SubElement(geometry, "DataItem", Dimensions=str(length), Format="XML", Precision="8").text = _words(values)
    for name, variable in contents.variables.items():
        if name not in _hidden(contents):
            grid.extend(_attributes(file, name, variable, lengths))
    return grid


def warn_of_hidden(contents: Contents, stacklevel: int) -> None:
    """Warn of arrays that ParaView will not show."""
    if names := _hidden(contents):
        warnings.warn(
            f"ParaView will not show the complex arrays {', '.join(names)}, because XDMF has no complex numbers. Write "
            "their real and imaginary parts as well, or their absolute values.",
            stacklevel=stacklevel + 1,
        )


def _hidden(contents: Contents) -> list[str]:
    """Return the names of the arrays that an XDMF file leaves out."""
    return [name for name, variable in contents.variables.items() if variable.dtype.kind == "c"]


def _shown(lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Return the lengths of a grid in three dimensions."""
    return (1,) * (3 - len(lengths)) + lengths


def _attributes(file: str, name: str, variable: Variable, lengths: tuple[int, ...]) -> Iterable[ET.Element]:
    """Yield the XDMF elements of an array: a vector if it has a component for each axis, else a scalar per component.

    Vectors of ParaView have three components. The third component of a vector in a plane is zero.
    """
    lead = variable.shape[: -len(lengths)]
    if lead == (len(lengths),):
        joined, shown = _attribute(name, "Vector"), _shown(lengths)
        item = ET.SubElement(joined, "DataItem", ItemType="Function", Function="JOIN($0, $1, $2)")
        item.set("Dimensions", _words((*shown, 3)))
        item.extend(_component(file, name, variable, lengths, (i,)) for i in range(len(lengths)))
        if len(lengths) == 2:
            zero = ET.SubElement(item, "DataItem", ItemType="Function", Function="$0 - $0", Dimensions=_words(shown))
            zero.append(_component(file, name, variable, lengths, (0,)))
        yield joined
        return
    for index in product(*map(range, lead)):
        scalar = _attribute("_".join(map(str, (name, *index))), "Scalar")
        scalar.append(_component(file, name, variable, lengths, index))
        yield scalar


def _attribute(name: str, kind: str) -> ET.Element:
    return ET.Element("Attribute", Name=name, AttributeType=kind, Center="Node")


def _component(
    file: str, name: str, variable: Variable, lengths: tuple[int, ...], index: tuple[int, ...]
) -> ET.Element:
    """Return the XDMF element of one component of an array in the file."""
    dtype = variable.dtype
    kinds = {"f": "Float", "i": "Int", "u": "UInt", "b": "Char"}
    whole = ET.Element("DataItem", Format="HDF", NumberType=kinds[dtype.kind], Precision=str(dtype.itemsize))
    lead = variable.shape[: -len(lengths)]
    whole.set("Dimensions", _words((*lead, *lengths)))
    whole.text = f"{file}:/{name}"
    if not lead and len(lengths) == 3:
        return whole
    slab = ET.Element("DataItem", ItemType="HyperSlab", Dimensions=_words(_shown(lengths)))
    bounds = ET.SubElement(slab, "DataItem", Dimensions=f"3 {len(lead) + len(lengths)}", Format="XML")
    ones = (1,) * (len(lead) + len(lengths))
    bounds.text = _words((*index, *(0,) * len(lengths), *ones, *(1,) * len(lead), *lengths))
    slab.append(whole)
    return slab


def _words(values: Iterable) -> str:
    return " ".join(repr(float(v)) if isinstance(v, float | np.floating) else str(v) for v in values)
