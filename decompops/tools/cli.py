"""The command line: `python -m decompops info`, `selftest`, `bench`, `scaling` and `report`."""

import errno
import os
import sys
from collections.abc import Sequence

from .. import __version__
from .commands import bench, info, scaling, selftest
from .commands.arguments import Parser, parse
from .report import command as report


# A shell reports this exit code for a program that the signal SIGPIPE ends.
CLOSED_PIPE = 128 + 13
_FULL = errno.ENOSPC, errno.EDQUOT, errno.EFBIG
COMMANDS = {
    "info": (info.add, "show versions, devices, backends and defaults"),
    "selftest": (selftest.add, "check operators on this machine against NumPy"),
    "bench": (bench.add, "time operators and solvers beside other libraries"),
    "scaling": (scaling.add, "predict the time of a transform on many MPI ranks, from costs measured here"),
    "report": (report.add, "measure this machine: one JSON file, one page, and plots"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns the exit code: 0; 1 if something failed; 2 for bad arguments; 141 if nobody reads stdout any more.
    """
    try:
        try:
            return _run(sys.argv[1:] if arguments is None else arguments)
        finally:
            print(
                end="", flush=True
            )  # unlike `sys.stdout.flush()`, this also works without a stdout (`>&-` in a shell)
    except OSError as error:
        # Python flushes both streams once more at its exit, which must not fail.
        for stream in filter(None, (sys.stdout, sys.stderr)):
            try:
                stream.flush()
            except OSError:
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if isinstance(error, BrokenPipeError):  # This happens in `selftest | head`.
            return CLOSED_PIPE
        if error.errno in _FULL and error.filename is None:  # Errors of other files have a name.
            sys.exit(f"decompops: cannot write to stdout: {error}")
        raise


def _run(arguments: Sequence[str]) -> int:
    parser = Parser(prog="decompops", description="Distributed linear operators on grids for JAX.")
    parser.add_argument("--version", action="version", version=f"decompops {__version__}")
    found = parser.add_subparsers(metavar="command", title="commands")
    commands = {}
    for name, (add, help) in COMMANDS.items():
        commands[name] = found.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.")
        add(commands[name])
    options = parse(parser, commands, arguments)
    if options is None:
        parser.print_help()
        return 0
    return options.run(options)
