"""XDMF: a text file that describes the contents of an HDF5 file to ParaView."""

import os
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np

from ._contents import Contents, Variable


# The numbers of grid axes that XDMF supports.
DIMENSIONS = (2, 3)


def write_xdmf(path: Path, snapshots: Iterable[tuple[Path, Contents]]) -> None:
    """Write an XDMF file. It describes one HDF5 file of fields as a grid, or several HDF5 files as a time series."""
    root = ET.Element("Xdmf", Version="3.0")
    domain = ET.SubElement(root, "Domain")
    grids = [_grid(os.path.relpath(file, path.parent), contents) for file, contents in snapshots]
    parent = domain
    if len(grids) > 1:
        parent = ET.SubElement(domain, "Grid", Name="series", GridType="Collection", CollectionType="Temporal")
    parent.extend(grids)
    ET.indent(root)
    new = path.with_name(f".{path.name}.partial")
    with new.open("wb") as stream:
        stream.write(ET.tostring(root, encoding="utf-8", xml_declaration=True))
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(new, path)


def _grid(file: str, contents: Contents) -> ET.Element:
    """Return the XDMF element of one snapshot. XDMF lists lengths from the slowest axis (z) to the fastest axis (x)."""
    lengths, ndim = contents.lengths[::-1], len(contents.lengths)
    grid = ET.Element("Grid", Name="grid")
    if "time" in contents.coordinates:
        ET.SubElement(grid, "Time", Value=repr(float(contents.coordinates["time"])))
    ET.SubElement(grid, "Topology", TopologyType=f"{ndim}DRectMesh", Dimensions=_words(lengths))
    geometry = ET.SubElement(grid, "Geometry", GeometryType="VXVYVZ" if ndim == 3 else "VXVY")
    for name, length in zip(("x", "y", "z"), contents.lengths):
        values = contents.coordinates.get(name, np.arange(length))
        ET.SubElement(geometry, "DataItem", Dimensions=str(length), Format="XML", Precision="8").text = _words(values)
    for name, variable in contents.variables.items():
        if variable.dtype.kind == "c":
            continue  # XDMF has no complex numbers.
        for attribute in _attributes(file, name, variable, lengths):
            grid.append(attribute)
    return grid


def _attributes(file: str, name: str, variable: Variable, lengths: tuple[int, ...]) -> Iterable[ET.Element]:
    """Yield the XDMF elements of an array: a vector if it has three components in 3D, else a scalar per component."""
    lead = variable.shape[: -len(lengths)]
    if lead == (3,) and len(lengths) == 3:
        joined = _attribute(name, "Vector")
        item = ET.SubElement(joined, "DataItem", ItemType="Function", Function="JOIN($0, $1, $2)")
        item.set("Dimensions", _words((*lengths, 3)))
        item.extend(_component(file, name, variable, lengths, (i,)) for i in range(3))
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
    if not lead:
        return whole
    slab = ET.Element("DataItem", ItemType="HyperSlab", Dimensions=_words(lengths))
    bounds = ET.SubElement(slab, "DataItem", Dimensions=f"3 {len(lead) + len(lengths)}", Format="XML")
    ones = (1,) * (len(lead) + len(lengths))
    bounds.text = _words((*index, *(0,) * len(lengths), *ones, *(1,) * len(lead), *lengths))
    slab.append(whole)
    return slab


def _words(values: Iterable) -> str:
    return " ".join(repr(float(v)) if isinstance(v, float | np.floating) else str(v) for v in values)
