"""What files can store. tensorstore writes Zarr snapshots and, inside orbax, the arrays of checkpoints."""

import os
import re
from pathlib import Path
from typing import Any

import numpy as np


# The dtypes of numbers that NumPy itself has, up to 64 bits for a real number. Every format stores them.
OF_NUMPY = (
    "bool",
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
# The dtypes that the oldest supported version of tensorstore stores. Newer versions store a few more.
OF_TENSORSTORE = (
    *OF_NUMPY,
    *("int4", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e4m3b11fnuz", "float8_e5m2", "float8_e5m2fnuz"),
)
# tensorstore reads a backslash as a slash, and keeps the other ending for its own files.
SPECIAL = ("\\", ".__lock")


def check_storable(name: str, part: str, dtype: np.dtype, where: str, stored: tuple[str, ...], otherwise: str) -> None:
    """Raise `TypeError` if the array `part` of the argument `name` has a dtype that is not one of those `stored`.

    The error says that `where` stores these dtypes, and what else the user may do, `otherwise`.
    """
    if dtype.name not in stored:
        raise TypeError(
            f"`{name}` must have dtypes that {where} stores, which are {', '.join(stored)}; got {dtype} for {part}. "
            f"Convert it by `astype`, or {otherwise}."
        )


def as_path(name: str, value: Any) -> Path:
    """Return a `Path`. Raises `TypeError` for what is neither a string nor a path.

    Raises `ValueError` for a URL such as "s3://bucket/u.zarr" and for a path such as "~/u.zarr". The system takes both
    literally, for a folder called "s3:" or "~" in the working directory.
    """
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"`{name}` must be a string or a `Path`; got {value!r}.")
    path = Path(value)
    # A `Path` has no double slash.
    if len(path.parts) > 1 and re.fullmatch(r"[A-Za-z][\w+.-]+:", path.parts[0]):
        raise ValueError(
            f"`{name}` must be a path on a disk of this machine, and no URL; got {str(value)!r}. If it is a path, pass "
            f"`Path({str(value)!r}).absolute()`."
        )
    if os.path.expanduser(path) != os.fspath(path):
        raise ValueError(
            f"`{name}` must not begin with ~, which only a shell replaces; got {str(value)!r}. Pass "
            f"`Path({str(value)!r}).expanduser()`."
        )
    return path


def check_path(name: str, path: Path, special: tuple[str, ...] = (), library: str = "tensorstore") -> None:
    """Raise `ValueError` if `library` would not open this path, but another one or none.

    `special` are the texts that the library does not take literally, in addition to those of tensorstore. The error
    calls the path `name`.
    """
    text, special = str(path), (*SPECIAL, *special)
    if any(part in text for part in special) or text.encode(errors="replace").decode() != text:
        raise ValueError(
            f"`{name}` must be UTF-8 without {' or '.join(special)}, which {library} does not take literally; got "
            f"{text!r}. Choose another one."
        )
