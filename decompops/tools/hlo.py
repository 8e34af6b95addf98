"""Finds the collectives in the text of a compiled program.

`jax.jit(f).lower(x).compile().as_text()` returns this text: optimised HLO, the program of one device.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np


Groups = tuple[tuple[int, ...], ...]

_KINDS = (
    *("all-gather", "all-reduce", "all-to-all", "collective-broadcast"),
    *("collective-permute", "ragged-all-to-all", "reduce-scatter"),
)
# `%name = shape opcode(operands), attributes`. The shape of an asynchronous `-start` is a tuple of operands, results
# and perhaps buffers. The pattern does not match `-done`, so that each asynchronous collective counts once.
_INSTRUCTION = re.compile(
    rf"^\s*(?:ROOT\s+)?%?[^\s=]+ = (?P<shape>\(.*?\)|\S+) (?P<kind>{'|'.join(_KINDS)})(?P<start>-start)?\("
)
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,<=]*)\]")
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")
_LISTED = re.compile(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(
    r"replica_groups=mesh\[(?P<axes>[^\]]*)\]"
    r"(?:, device_ids=\((?:\[(?P<dims>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?|(?P<ids>[\d,]+))\))?"
    r" \{(?P<grouped>[^}]*)\}"
)
_MESH_AXIS = re.compile(r"'?([^',=]+)'?=(\d+)")
_GROUPED_AXIS = re.compile(r"'?([^',:]+)'?(?::\((\d+)\)(\d+))?(?:,|$)")
# The header of a computation, `%name (parameters) -> results {`, and attributes that name a called computation.
_COMPUTATION = re.compile(r"^(?:ENTRY )?%([\w.\-]+) \(")
_CALLED = re.compile(r"(body|calls|to_apply|\w+_computations?)=\{?(%[\w.\-]+(?:, ?%[\w.\-]+)*)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_DEVICES = re.compile(r"(?:replica_count|num_partitions)=(\d+)")


@dataclass(frozen=True)
class Collective:
    """One collective of a compiled program.

    - `kind`: HLO's name of the collective, such as "all-to-all".
    - `bytes`: the number of bytes that each device sends to others. For a buffer of B bytes and groups of p devices it
        is B (p-1)/p in an all-to-all, an all-gather (B is the result) and a reduce-scatter (B is the operand),
        2 B (p-1)/p in an all-reduce, and B in a permute. A bandwidth-optimal algorithm sends this number.
    - `groups`: the groups of devices that communicate, as positions in the program's device assignment; for a permute
        the pairs (source, target).
    - `times`: how often the collective runs in one run of the program. A loop of unknown length counts once.
    """

    kind: str
    bytes: int
    groups: Groups
    times: int = 1

    @property
    def group_size(self) -> int:
        """The number of devices that communicate with each other; 2 for a permute."""
        return max(map(len, self.groups), default=1)


def collectives(compiled_text: str) -> list[Collective]:
    """Return the collectives of a compiled program, in the order of its text."""
    devices = math.prod(int(count) for count in _DEVICES.findall(compiled_text.partition("\n")[0]))
    times, name, found = _times(compiled_text), "", []
    for line in compiled_text.splitlines():
        if header := _COMPUTATION.match(line):
            name = header[1]
        elif match := _INSTRUCTION.match(line):
            kind, groups = match["kind"], _groups(line, devices)
            size = _result_bytes(match["shape"], asynchronous=bool(match["start"]) and kind != "all-reduce")
            found.append(Collective(kind, _sent(kind, size, groups), groups, times(name)))
    return found


def _times(compiled_text: str) -> Callable[[str], int]:
    """Return a function that counts how often a computation runs. A loop of unknown length counts once."""
    callers: dict[str, tuple[str, int]] = {}  # For each computation: its caller, and its number of runs in one call.
    caller = ""
    for line in compiled_text.splitlines():
        if header := _COMPUTATION.match(line):
            caller = header[1]
        for attribute, names in _CALLED.findall(line):
            trips = _TRIPS.search(line) if attribute == "body" else None
            callers |= {name: (caller, int(trips[1]) if trips else 1) for name in re.findall(r"%([\w.\-]+)", names)}

    def times(name: str) -> int:
        if name not in callers:
            return 1
        caller, calls = callers[name]
        return calls * times(caller)

    return times


def _sent(kind: str, size: int, groups: Groups) -> int:
    """Return the number of bytes that each device sends in a collective whose result has `size` bytes."""
    devices = max(map(len, groups), default=1)
    match kind:
        case "collective-permute":
            return size if any(source != target for source, target in groups) else 0
        case "collective-broadcast":
            return size if devices > 1 else 0
        case "reduce-scatter":
            return size * (devices - 1)
        case "all-reduce":
            return 2 * size * (devices - 1) // devices
    return size * (devices - 1) // devices


def _result_bytes(shape: str, *, asynchronous: bool) -> int:
    if asynchronous:  # (operands, results, buffers ...)
        shape = _elements(shape)[1]
    return sum(_array_bytes(dtype, dims) for dtype, dims in _ARRAY.findall(shape))


def _elements(shape: str) -> list[str]:
    """Return the elements of a tuple's shape."""
    depth, elements = 0, [""]
    for character in shape[1:-1]:
        if character == "," and depth == 0:
            elements.append("")
            continue
        depth += (character in "([{") - (character in ")]}")
        elements[-1] += character
    return elements


def _array_bytes(dtype: str, dims: str) -> int:
    # The first number in a dtype is its bits: f32, bf16, s4, c64, f8e4m3fn. `token` and `opaque` have no contents.
    bits = re.search(r"\d+", dtype)
    width = int(bits[0]) if bits else 8 if dtype == "pred" else 0
    return -(-math.prod(_integers(dims.replace("<=", ""))) * width // 8)


def _groups(line: str, devices: int) -> Groups:
    if match := _PAIRS.search(line) or _LISTED.search(line):
        groups = [_integers(group) for group in re.findall(r"\{([\d,]*)\}", match[1])]
        return tuple(groups) if groups or "source_target_pairs" in match[0] else (tuple(range(devices)),)
    if match := _IOTA.search(line):
        return _rows(_iota(match[2], match[3]).reshape(_integers(match[1])))
    if match := _MESH.search(line):
        return _mesh_groups(match)
    if "replica_groups=" in line:
        raise ValueError(f"`compiled_text` has replica groups in an unknown format: {line.strip()!r}.")
    return (tuple(range(devices)),)


def _mesh_groups(match: re.Match[str]) -> Groups:
    """Return the groups of devices that HLO describes by axes of a mesh or by parts of axes.

    For example, the axis x has 8 devices. If x is reshaped to two axes of 2 and 4 devices, `x:(2)4` is the second axis.
    """
    sizes = {name: int(size) for name, size in _MESH_AXIS.findall(match["axes"])}
    parts = [
        (name, int(before or 1), int(size or sizes[name]))
        for name, before, size in _GROUPED_AXIS.findall(match["grouped"])
    ]
    shape: list[int] = []
    places: dict[tuple[str, int], int] = {}
    for axis, length in sizes.items():
        bounds = {bound for name, before, size in parts if name == axis for bound in (before, before * size)}
        for start, stop in pairwise(sorted({1, length, *bounds})):
            places[axis, start] = len(shape)
            shape.append(stop // start)
    grouped = [
        place
        for name, before, size in parts
        for (axis, start), place in places.items()
        if axis == name and before <= start < before * size
    ]
    if match["ids"]:
        devices = np.array(_integers(match["ids"]))
    else:
        devices = _iota(match["dims"] or str(math.prod(sizes.values())), match["order"])
    others = [place for place in range(len(shape)) if place not in grouped]
    rows = devices.reshape(shape).transpose(*others, *grouped)
    return _rows(rows.reshape(-1, math.prod(shape[place] for place in grouped)))


def _iota(dims: str, order: str | None) -> np.ndarray:
    shape = _integers(dims)
    devices = np.arange(math.prod(shape)).reshape(shape)
    return (devices.transpose(_integers(order)) if order else devices).reshape(-1)


def _rows(groups: np.ndarray) -> Groups:
    return tuple(tuple(int(device) for device in group) for group in groups)


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(",") if n)
