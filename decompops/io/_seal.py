"""The seal at the end of an HDF5 file: a checksum of all bytes of the file except the cells.

HDF5 has no checksum of the bytes that describe the arrays. If these bytes are damaged, the HDF5 library may crash or
hang. So the seal is checked before HDF5 opens a file. HDF5 does not read the seal: it ignores bytes after the end of
its own data.
"""

import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import numpy as np


MAGIC = b"dcmpseal"
# A file ends with the bounds of the gaps (the bytes that the seal does not cover), the number of gaps, the checksum and
# the magic bytes. `END` is the format of the last three of these.
END = struct.Struct("<QI8s")
# The number of bytes that are read at once.
READ_BYTES = 2**20


def seal(path: Path, gaps: Iterable[tuple[int, int]]) -> None:
    """Append the seal. `gaps` are the bounds of the bytes that are written later, and that have their own checksums."""
    merged: list[list[int]] = []
    for start, stop in sorted(gaps):
        if merged and start == merged[-1][1]:
            merged[-1][1] = stop
        else:
            merged.append([start, stop])
    bounds = np.array(merged, "<u8").tobytes()
    with path.open("r+b") as file:
        checksum = _checksum(file, bounds, file.seek(0, 2))
        file.seek(0, 2)
        file.write(bounds + END.pack(len(merged), checksum, MAGIC))


def is_intact(file: BinaryIO) -> bool | None:
    """Return whether the bytes of a file have the checksum in its seal, or `None` if the file has no seal."""
    size = file.seek(0, 2)
    if size < END.size:
        return None
    file.seek(size - END.size)
    count, checksum, magic = END.unpack(file.read())
    if magic != MAGIC:
        return None
    first = size - END.size - 16 * count
    if first < 0:
        return False
    file.seek(first)
    bounds = file.read(16 * count)
    ends = np.array([0, *np.frombuffer(bounds, "<u8"), first], "<u8")
    return bool(np.all(ends[:-1] <= ends[1:])) and _checksum(file, bounds, first) == checksum


def _checksum(file: BinaryIO, bounds: bytes, size: int) -> int:
    """Return the checksum of `bounds` and of the first `size` bytes of a file, except the bytes in the gaps."""
    checksum, start = zlib.crc32(bounds), 0
    for stop, after in (*np.frombuffer(bounds, "<u8").reshape(-1, 2).tolist(), (size, size)):
        file.seek(start)
        for first in range(start, stop, READ_BYTES):
            checksum = zlib.crc32(file.read(min(READ_BYTES, stop - first)), checksum)
        start = after
    return checksum
