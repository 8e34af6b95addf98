"""The files of reports. A report replaces only files of other reports."""

import re
from pathlib import Path

from ..._common.ownership import check_own, open_regular, replace_file


CREATOR = "python -m decompops report"
# What each kind of file begins with, as a regular expression.
_BEGINNINGS = {
    ".json": rb'\{\n "schema": [0-9]+,\n "name": "',
    ".md": rb"# (Report|Scaling study): [^\n]*\n(?s:.*)`" + CREATOR.encode(),
    ".svg": rb"<\?xml(?s:.*)<dc:title>" + CREATOR.encode(),
}


def write_own(path: Path, content: bytes) -> None:
    """Write a file of a report. Raises `FileExistsError` if it would replace a file that is none."""
    replace_file(path, content, _is_own)


def check_names(folder: Path, name: str) -> None:
    """Raise `FileExistsError` if a file of a report would replace a file that is none."""
    for end in (".json", ".md", "-scaling.svg", "-benchmarks.svg"):
        check_own(folder / f"{name}{end}", _is_own)


def _is_own(path: Path) -> bool:
    with open_regular(path) as file:
        return re.match(_BEGINNINGS[path.suffix], file.read(4000)) is not None
