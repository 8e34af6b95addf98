"""The command `python -m decompops bench`."""

import argparse
import contextlib
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

import jax

from ... import XLA, AbstractBackend
from ..bench import targets
from ..bench.run import (
    NUFFTS,
    OPERATORS,
    PARTICLES,
    RESHARD,
    SOLVERS,
    Case,
    cases,
    described,
    make_mesh,
    measure,
    on_paper,
)
from .arguments import Parser, add_backend, count, device_count, mesh, one_of, sizes
from .devices import configured_devices, default_backend, is_quiet, let_the_first_process_print, start
from .info import versions
from .output import labelled, missing, plural, wrapped
from .progress import Progress


# XLA counts bytes in 64-bit integers, which overflow on larger grids.
MOST_CELLS = 2**56


def add(parser: Parser) -> None:
    """Add the options of the command."""
    add = parser.add_argument
    grids = "grids: 256, 256x256x128, 4096x4096 (default: 64)"
    add("--shape", nargs="+", type=sizes, default=[(64,)], metavar="SIZES", help=grids)
    add("--ndim", type=count, default=3, metavar="N", help="number of axes of grids given by one number (default: 3)")
    meshes = "device meshes: 2x4, or 8 for a slab (default: all devices, near square)"
    add("--mesh", nargs="+", type=mesh, metavar="SIZES", help=meshes)
    dtypes = "the real dtype: float32, float64 (default: float32)"
    add("--dtype", nargs="+", type=one_of("float32", "float64"), default=["float32"], metavar="NAME", help=dtypes)
    operators = (
        f"operators: {', '.join(OPERATORS)}; solvers: {', '.join(SOLVERS)}; particles: {', '.join(PARTICLES)}; "
        f"non-uniform FFTs: {', '.join(NUFFTS)}; between groups of devices: {RESHARD} "
        "(default: fft rfft)"
    )
    names = one_of(*OPERATORS, *SOLVERS, *PARTICLES, *NUFFTS, RESHARD)
    add("--operator", nargs="+", type=names, default=["fft", "rfft"], metavar="NAME", help=operators)
    order = (
        "whether operators store spectra in axis-contiguous order: no, yes, both (default: no; with --on-paper: both). "
        "Solvers ignore this option"
    )
    add("--axis-contiguous", nargs="?", type=one_of("no", "yes", "both"), const="yes", metavar="ANSWER", help=order)
    devices = "virtual CPU devices (default: as many as the meshes need, else 8)"
    add("--devices", type=device_count, metavar="N", help=devices)
    add("--repeats", type=count, default=5, metavar="N", help="how often each contestant is timed (default: 5)")
    add_backend(parser)
    overlap = "the number of pieces into which the backend splits exchanges (default: the backend's own)"
    add("--overlap", type=count, metavar="N", help=overlap)
    add("--json", action="store_true", help="print JSON to stdout, and nothing else")
    add("--on-paper", action="store_true", help="compile our programs without running them; no field is allocated")
    kinds = ", ".join(targets.TARGETS)
    target = f"with --on-paper: compile for GPUs of this kind, which the machine need not have ({kinds})"
    add("--target", type=one_of(*targets.TARGETS), metavar="GPU", help=target)
    parser.add_quiet()
    parser.set_defaults(run=lambda options: _run(parser, options))


def _run(parser: Parser, options: argparse.Namespace) -> int:
    if problem := missing(*([] if options.on_paper else ["scipy"]), *([] if options.json else ["rich"])):
        parser.exit(1, f"{parser.prog}: {problem}\n")
    if "float64" in options.dtype:
        jax.config.update("jax_enable_x64", True)
    backend = start(parser, options.backend, options.overlap, on_paper=options.on_paper)
    if options.on_paper and not isinstance(backend, XLA):
        parser.error("--on-paper counts the collectives of XLA; add --backend xla")
    for name in (*PARTICLES, RESHARD) if options.on_paper else ():
        if name in options.operator:
            parser.error(f"--on-paper cannot compile {name} without its data; name other operators")
    if options.target:
        # JAX's CUDA plugin compiles for GPUs that this machine may not have. Without a GPU, it starts only if
        # `jax_platforms` is "cpu".
        jax.config.update("jax_platforms", "cpu")
        if problem := targets.problem() if options.on_paper else "add --on-paper":
            parser.error(f"argument --target: {problem}")
    devices = configured_devices(options.devices, options.mesh, on_paper=options.on_paper, target=options.target)
    let_the_first_process_print()
    if options.backend is None and options.overlap is None and not options.on_paper:
        backend = default_backend(devices)
    selected = _selected(parser, options, devices, backend)
    title = _title(backend, devices)
    with Progress("bench", len(selected), quiet=is_quiet(options)) as progress:
        results = _results(selected, options, devices, backend, progress)
        if options.json:
            with contextlib.redirect_stdout(sys.stderr):
                rows = list(results)
            print(_json(rows, backend, devices))
        else:
            rows = _printed(results, title, progress, on_paper=options.on_paper)
    ours = [row for result in rows for row in result.get("contestants", []) if row["name"] == "decompops"]
    return 1 if any(row["failure"] for row in ours) else 0


def _selected(parser: Parser, options: argparse.Namespace, devices: list, backend: AbstractBackend) -> list[Case]:
    """Return the cases that the options select. If one of them cannot run, end the program with a message."""
    shapes = [shape * options.ndim if len(shape) == 1 else shape for shape in options.shape]
    for shape in shapes:
        if math.prod(shape) > MOST_CELLS:
            parser.error(f"argument --shape: must be at most {MOST_CELLS} cells; got {'x'.join(map(str, shape))}")
    default = [(shape, _default_mesh(len(devices), len(shape))) for shape in shapes]
    grids = list(product(shapes, options.mesh)) if options.mesh else default
    for _, parts in grids:
        size = "x".join(map(str, parts))
        if math.prod(parts) > len(devices):
            problem = f"{size} needs {math.prod(parts)} devices; JAX has {len(devices)} (see --devices)"
            parser.error(f"argument --mesh: {problem}")
        if jax.process_count() > 1 and math.prod(parts) != len(devices):
            parser.error(f"argument --mesh: must use the devices of all {len(devices)} processes; got {size}")
    contiguous = options.axis_contiguous or ("both" if options.on_paper else "no")
    orders = {"no": [False], "yes": [True], "both": [False, True]}[contiguous]
    try:
        backend.check(make_mesh(grids[0][1], devices))
        return cases(options.operator, grids, options.dtype, orders)
    except (ValueError, ImportError, RuntimeError) as error:
        parser.error(str(error))


def _default_mesh(devices: int, ndim: int) -> tuple[int, ...]:
    """Return the sizes of a mesh for a grid of `ndim` axes.

    A mesh for a grid of three axes or more is as square as possible, and has all devices. A grid of two axes has a mesh
    with all devices along one axis. A grid of one axis is never sharded.
    """
    if ndim < 3:
        return (devices if ndim == 2 else 1,)
    rows = max(n for n in range(1, math.isqrt(devices) + 1) if devices % n == 0)
    return rows, devices // rows


def _results(
    selected: list[Case], options: argparse.Namespace, devices: list, backend: AbstractBackend, progress: Progress
) -> Iterator[dict[str, Any]]:
    """Run the cases one after the other."""
    for case in selected:
        progress.part(described(case))
        if options.on_paper:
            yield on_paper(case, devices, backend)
        else:
            yield measure(case, devices, backend, options.repeats, progress.step)


def _printed(
    results: Iterable[dict[str, Any]], title: str, progress: Progress, *, on_paper: bool
) -> list[dict[str, Any]]:
    """Print each result as soon as its case has run, and return all results."""
    from ..bench.tables import LEGEND, failure_lines, print_times, program_lines, title_of

    rows = []
    for result in results:
        progress.clear()
        if not rows:
            print(wrapped(title), end="\n\n")
        print(wrapped(title_of(result)))
        if not on_paper:
            print_times(result)
            print(*(wrapped(line, 2) for line in (*failure_lines(result), LEGEND)), sep="\n")
        print(labelled(program_lines(result["program"]), 2), flush=True, end="\n\n")
        rows.append(result)
    return rows


def _title(backend: AbstractBackend, devices: list) -> str:
    processes = f" in {plural(jax.process_count(), 'process', 'processes')}" if jax.process_count() > 1 else ""
    return f"{backend} on {len(devices)} x {devices[0].device_kind}{processes}"


def _json(rows: list[dict[str, Any]], backend: AbstractBackend, devices: list) -> str:
    about = {"platform": devices[0].platform, "devices": len(devices), "processes": jax.process_count()}
    about["cpu_count"] = os.cpu_count()
    return json.dumps({"versions": versions(), **about, "backend": str(backend), "cases": rows}, indent=2)
