"""Functions that format text for the width of the terminal."""

import importlib.util
import shutil
import textwrap
from collections.abc import Sequence


def width() -> int:
    """Return the number of columns of the terminal, but at least 40.

    The environment variable `COLUMNS` overrides this number. In a pipe or a file, the default is 80.
    """
    return max(shutil.get_terminal_size().columns, 40)


def wrapped(text: str, indent: int = 0, first: str = "") -> str:
    """Wrap a text at words, with `first` before its first line and `indent` spaces before all other lines.

    A word is never broken, so that a long link can still be copied.
    """
    return textwrap.fill(
        text,
        width(),
        initial_indent=first,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def labelled(lines: Sequence[tuple[str, str]], indent: int = 0) -> str:
    """Return two columns: the labels on the left, and their wrapped texts on the right."""
    column = indent + max((len(label) for label, _ in lines), default=0) + 2
    return "\n".join(wrapped(text, column, f"{' ' * indent}{label}".ljust(column)) for label, text in lines)


def plural(number: int, noun: str, many: str = "") -> str:
    """Return a number with its noun, such as "1 process" and "2 processes"."""
    return f"{number} {noun if number == 1 else many or noun + 's'}"


def missing(*packages: str) -> str | None:
    """Say which of some packages are not installed and how to install them, or return `None`."""
    absent = [package for package in packages if importlib.util.find_spec(package) is None]
    if not absent:
        return None
    verb = "is" if len(absent) == 1 else "are"
    return f"{' and '.join(absent)} {verb} not installed; run: pip install {' '.join(absent)}"
