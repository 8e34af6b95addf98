"""The command `python -m decompops report`."""

import argparse
import contextlib
import dataclasses
import os
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from ..._core.config import resolve_backend
from ..commands.arguments import Parser, add_backend, count, file_name, grid, one_of, positive
from ..commands.devices import connect, default_backend, is_launched, is_quiet
from ..commands.progress import Progress
from .files import check_names
from .hardware import cpu, usable_cores
from .page import read, write_page
from .run import Report, end_after
from .scaling import powers_of_two
from .sections import SECTIONS
from .setting import Clock, Setting
from .study import write_study


# Compiling for more virtual devices takes long.
_MOST_DEVICES = 8
# To be fully used, a GPU needs larger grids than a CPU. Some GPUs have caches of more than 64 MiB (2**26 bytes), and
# the largest blocks must not fit into the cache, nor take so short a time that the start of a program counts.
_ON_GPUS = {
    "shapes": ((128,) * 3, (256,) * 3, (512,) * 3),
    "strong": 512,
    "weak": 256,
    "block_bytes": (2**23, 2**26, 2**28, 2**30),
}


def add(parser: Parser) -> None:
    """Add the options of the command."""
    add = parser.add_argument
    add("--out", type=Path, default=Path("."), metavar="FOLDER", help="the folder for the files (default: this folder)")
    add("--name", type=file_name, help="the name of the files (default: a name for the machine)")
    minutes = "the report ends after so many minutes at the latest (default: 10)"
    add("--minutes", type=positive, default=10.0, metavar="TIME", help=minutes)
    sections = f"{', '.join(SECTIONS)} (default: all)"
    add("--sections", nargs="+", type=one_of(*SECTIONS), default=list(SECTIONS), metavar="NAME", help=sections)
    add_backend(parser)
    devices = "CPU cores, and as many virtual devices (default: all cores, 8 devices at most)"
    add("--devices", type=count, metavar="N", help=devices)
    grids = "grids of the benchmarks: 64, 256x256x128 (default: 64 128 256, on GPUs 128 256 512)"
    add("--shape", nargs="+", type=grid, metavar="SIZES", help=grids)
    strong = "cells along each axis of the grid for strong scaling (default: 256, on GPUs 512)"
    add("--strong", type=count, metavar="N", help=strong)
    weak = "cells along each axis of a device's block for weak scaling (default: 128, on GPUs 256)"
    add("--weak", type=count, metavar="N", help=weak)
    add("--repeats", type=count, metavar="N", help="how often each contestant is timed (default: 5)")
    add("--shared", action="store_true", help="others use the machine at the same time; the page shows ratios only")
    add("--note", default="", help="a sentence for the page")
    add("--json", action="store_true", help="print JSON to stdout, and write no files")
    files = "make the page of a JSON file, or a study of several"
    add("--from", nargs="+", type=Path, dest="files", metavar="FILE", help=files)
    parser.add_quiet()
    parser.set_defaults(run=lambda options: _run(parser, options))


def _run(parser: Parser, options: argparse.Namespace) -> int:
    if options.files:
        try:
            return _render(options)
        except (OSError, ValueError) as error:
            parser.error(str(error))
    # The last 7% of the time is reserved for a last case that takes longer than expected, and for writing the page.
    start, clock = time.monotonic(), Clock(0.93 * 60 * options.minutes)
    try:
        if not options.json:
            options.out.mkdir(parents=True, exist_ok=True)
        setting = _setting(options, clock)
    except (OSError, ImportError, RuntimeError, ValueError, TypeError) as error:
        parser.error(str(error))
    name = options.name or default_name(setting)
    file = None if options.json else options.out / f"{name}.json"
    try:
        if file is not None:
            check_names(options.out, name)
    except OSError as error:
        parser.error(str(error))
    report = Report(name, file, shared=options.shared, note=options.note)
    timer = end_after(start + 60 * options.minutes - time.monotonic(), report)
    try:
        return _reported(options, setting, report)
    except BrokenPipeError:
        raise
    except OSError as error:  # A full disk. What was written before is still there.
        parser.exit(1, f"{parser.prog}: the report was not written: {error}\n")
    finally:
        timer.cancel()


def _reported(options: argparse.Namespace, setting: Setting, report: Report) -> int:
    """Run the sections, and write or print their results. Return the exit code."""
    # Other libraries print to stdout while they are timed. With `--json`, stdout must hold nothing but JSON.
    with (
        contextlib.redirect_stdout(sys.stderr),
        Progress("report", len(options.sections), quiet=is_quiet(options)) as progress,
    ):
        setting = dataclasses.replace(setting, on_step=progress.step)
        report.run(setting, options.sections, progress)
    if jax.process_index() == 0:
        if (file := report.file) is None:
            print(report.text(), end="")
        else:
            write_page(read(file), options.out)
            print(f"wrote {file} and {file.with_suffix('.md')}", file=sys.stderr)
    return 1 if report.failed() else 0


def _render(options: argparse.Namespace) -> int:
    reports = [read(file) for file in options.files]
    options.out.mkdir(parents=True, exist_ok=True)
    if len(reports) == 1:
        write_page(reports[0], options.out)
    else:
        write_study(reports, options.out, options.name or "scaling")
    return 0


def _setting(options: argparse.Namespace, clock: Clock) -> Setting:
    """Start JAX in this process, and connect it to the other processes that a launcher has started."""
    # The section "tests" runs pytest in a second process, which needs memory on the same GPU. By default, JAX would
    # reserve this memory for the first process.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax.config.update("jax_enable_x64", True)
    backend = resolve_backend(options.backend)
    if options.devices and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.devices])
    cores = usable_cores()
    backend.start()
    with contextlib.suppress(RuntimeError):  # If JAX has started already, it keeps its devices.
        usual = options.devices or min(cores, _MOST_DEVICES)
        jax.config.update("jax_num_cpu_devices", 1 if is_launched() else usual)
    connect(backend)
    devices = jax.devices()
    if options.backend is None:
        backend = default_backend(devices)
    backend.check(Mesh(np.array(devices), ("x",)))
    alone_on_cpus = devices[0].platform == "cpu" and jax.process_count() == 1
    children = powers_of_two(cores) if alone_on_cpus and options.devices is None else []
    setting = Setting(devices, backend, child_counts=tuple(children), clock=clock)
    given: dict[str, Any] = dict(_ON_GPUS) if devices[0].platform == "gpu" else {}
    given |= {name: getattr(options, name) for name in ("strong", "weak", "repeats") if getattr(options, name)}
    if options.shape:
        shapes = sorted(options.shape, key=np.prod)
        given |= {"shapes": tuple(shapes), "small": shapes[0]}
    return dataclasses.replace(setting, **given)


def default_name(setting: Setting) -> str:
    """Return a file name that describes the machine, such as `amd-epyc-2-cores`."""
    first = setting.devices[0]
    machine = f"{first.device_kind} {len(setting.devices)}"
    if first.platform == "cpu":
        machine = f"{cpu().get('model', 'cpu')} {usable_cores()} cores"
    words = "".join(letter if letter.isalnum() else " " for letter in machine.lower()).split()
    return "-".join(words)
