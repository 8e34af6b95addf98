"""The command `python -m decompops selftest`."""

import argparse

import jax
import numpy as np
from jax.sharding import Mesh

from ... import AbstractBackend
from ..._core.registry import all_backends
from .. import selftest
from .arguments import Parser, add_backend, device_count
from .devices import configured_devices, default_backend, is_quiet, let_the_first_process_print, start
from .output import plural, width, wrapped
from .progress import Progress


def add(parser: Parser) -> None:
    """Add the options of the command."""
    parser.add_argument("--devices", type=device_count, metavar="N", help="virtual CPU devices (default: 8)")
    add_backend(parser)
    parser.add_quiet()
    parser.set_defaults(run=lambda options: _run(parser, options))


def _run(parser: Parser, options: argparse.Namespace) -> int:
    backend = start(parser, options.backend)
    devices = configured_devices(options.devices)
    let_the_first_process_print()
    if options.backend is None:
        backend = default_backend(devices)
    try:
        backend.check(Mesh(np.array(devices), ("x",)))
    except (ValueError, ImportError, RuntimeError) as error:
        parser.error(str(error))
    failed = passed = 0
    with Progress("selftest", selftest.count(devices), quiet=is_quiet(options)) as progress:
        for outcome in selftest.run(backend, devices, progress.part):
            progress.clear()
            print(_line(outcome), flush=True)
            passed, failed = passed + outcome.passed, failed + (not outcome.passed)
    processes = plural(jax.process_count(), "process", "processes")
    print(wrapped(f"{backend} on {len(devices)} x {devices[0].platform}, {processes}:"))
    print(f"{passed} passed, {failed} failed")
    _print_not_run(backend, devices)
    return 1 if failed else 0


def _line(outcome: selftest.Outcome) -> str:
    word = "passed" if outcome.passed else "FAILED"
    mesh = "x".join(map(str, outcome.mesh))
    error = "" if outcome.raised else f"{outcome.error:.1e}"
    column = max(width() - 25, 30)
    first = f"{word}  {outcome.check:{column}} {mesh:7} {error}".rstrip()
    return f"{first}\n{wrapped(outcome.raised, 8, ' ' * 8)}" if outcome.raised else first


def _print_not_run(backend: AbstractBackend, devices: list) -> None:
    """Say which backends and which kinds of devices were not tested, and how to test them."""
    for name, found in all_backends():
        if isinstance(found, str):
            print(wrapped(f"not run: backend {name}: {found}", 2))
        elif type(found) is not type(backend):
            command = f"{found.launcher} python -m decompops selftest --backend {name}".lstrip()
            print(wrapped(f"not run: backend {name}: {command}", 2))
    if devices[0].platform == "cpu":
        print("not run: GPUs: JAX has none here")
