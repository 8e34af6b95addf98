"""The parser of the command line, and the types of its arguments."""

import argparse
import difflib
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from ..._core.registry import backend_names


# The largest number of virtual devices for which XLA compiles in reasonable time.
MOST_DEVICES = 4096


class _Help(argparse.HelpFormatter):
    """A formatter for help texts. It never breaks a name such as `fft-gradient` at its hyphen."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_long_words=False, break_on_hyphens=False)


class Parser(argparse.ArgumentParser):
    """A parser that reports a mistake in one line, and suggests the option that was probably meant."""

    def __init__(self, **options: Any):
        self._names: list[str] = []
        super().__init__(formatter_class=_Help, **options)

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Add an argument, and remember its name for suggestions."""
        self._names += [name for name in names if name.startswith("--")]
        return super().add_argument(*names, **options)

    def error(self, message: str) -> NoReturn:
        """Print the message, and end the program with the exit code 2. Unlike argparse, print no usage."""
        self.exit(2, f"{self.prog}: {message}\n")

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """End the program because of arguments that it does not know."""
        first = next((one for one in unknown if one.startswith("-")), unknown[0]).partition("=")[0]
        kind = "option" if first.startswith("-") else "argument"
        self.error(f"unknown {kind} {first} (see {self.prog} --help){did_you_mean(first, self._names)}")

    def add_quiet(self) -> None:
        """Add the option `--quiet`, for commands that take long."""
        self.add_argument("--quiet", action="store_true", help="print no progress to stderr")


def parse(parser: Parser, commands: Mapping[str, Parser], arguments: Sequence[str]) -> argparse.Namespace | None:
    """Parse the arguments of a command. Return `None` if they name no command."""
    word = next((one for one in arguments if not one.startswith("-")), None)
    if word is not None and word not in commands:
        parser.error(f"the command must be one of {', '.join(commands)}; got {word!r}{did_you_mean(word, commands)}")
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        (commands[word] if word else parser).refuse(unknown)
    return options if word else None


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return a question that names the most similar name, or an empty text if no name is similar."""
    similar = difflib.get_close_matches(word.lower(), list(names), n=1)
    return f"; did you mean {similar[0]}?" if similar else ""


def one_of(*names: str) -> Callable[[str], str]:
    """Return a type for `add_argument` that accepts only these names."""

    def parsed(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(
                f"must be one of {', '.join(names)}; got {text!r}{did_you_mean(text, names)}"
            )
        return text

    return parsed


def backend_name(text: str) -> str:
    """Parse the name of a backend, without loading the backend."""
    return one_of(*backend_names())(text.lower())


def add_backend(parser: Parser) -> None:
    """Add the option `--backend`."""
    help = "a backend that `info` lists (default: the backend of `dops.config`)"
    parser.add_argument("--backend", type=backend_name, metavar="NAME", help=help)


def mesh(text: str) -> tuple[int, ...]:
    """Parse the sizes of a mesh, such as 2x4."""
    parsed = sizes(text)
    _check_devices(math.prod(parsed), text)
    return parsed


def sizes(text: str) -> tuple[int, ...]:
    """Parse the sizes of a grid or a block, such as 128x128x64."""
    parts = text.lower().split("x")
    if not all(map(_is_positive, parts)):
        raise argparse.ArgumentTypeError(f"must be positive integers separated by x; got {text!r}")
    return tuple(map(int, parts))


def grid(text: str) -> tuple[int, int, int]:
    """Parse the sizes of a grid or a block of three axes. A single number is the size of all three axes."""
    parsed = sizes(text)
    if len(parsed) not in (1, 3):
        raise argparse.ArgumentTypeError(f"must be one size or three; got {text!r}")
    return (parsed[0], parsed[0], parsed[0]) if len(parsed) == 1 else (parsed[0], parsed[1], parsed[2])


def device_count(text: str) -> int:
    """Parse a number of virtual devices."""
    parsed = count(text)
    _check_devices(parsed, text)
    return parsed


def count(text: str) -> int:
    """Parse a positive integer."""
    if not _is_positive(text):
        raise argparse.ArgumentTypeError(f"must be a positive integer; got {text!r}")
    return int(text)


def positive(text: str) -> float:
    """Parse a positive, finite number."""
    try:
        parsed = float(text)
    except ValueError:
        parsed = math.nan
    if not 0 < parsed < math.inf:
        raise argparse.ArgumentTypeError(f"must be a positive number; got {text!r}")
    return parsed


def is_file_name(text: str) -> bool:
    """Return whether a text is a file name that `file_name` accepts."""
    return re.fullmatch(r"[^\W_][\w.-]*", text) is not None


def file_name(text: str) -> str:
    """Parse a file name without a folder. The name has no spaces or brackets, which would break links in Markdown."""
    if not is_file_name(text):
        rule = "must be a file name without a folder, which starts with a letter or a digit and has only letters, "
        raise argparse.ArgumentTypeError(f"{rule}digits, '_', '.' and '-'; got {text!r}")
    return text


def _check_devices(devices: int, text: str) -> None:
    if devices > MOST_DEVICES:
        raise argparse.ArgumentTypeError(f"must be at most {MOST_DEVICES} devices; got {text!r}")


def _is_positive(text: str) -> bool:
    """Return whether a text is a positive integer in the digits 0 to 9. `int` also accepts digits of other scripts."""
    return text.isascii() and text.isdecimal() and int(text) > 0
