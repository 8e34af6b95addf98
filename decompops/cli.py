"""The command line: `python -m decompops info`, `selftest` and `bench`."""

import argparse
import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import json
import math
import os
import platform
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import jax
import numpy as np
from jax.sharding import Mesh

from . import __version__, _selftest as selftest
from ._backend.base import AbstractBackend
from ._backend.mpi import MPI
from ._backend.xla import XLA
from ._bench import targets
from ._bench.run import OPERATORS, RESHARD, SOLVERS, Case, cases, make_mesh, measure, on_paper
from ._bench.scaling import report_scaling
from ._config import config, resolve_backend
from ._registry import all_backends
from ._report.command import add_report


# What XLA's 64-bit sizes hold, and how many virtual devices it compiles for in reasonable time.
MOST_CELLS = 2**56
MOST_DEVICES = 4096
# The exit code in a shell of a program that SIGPIPE ends.
CLOSED_PIPE = 128 + 13
_BACKEND_HELP = "the name of a backend, as `info` lists them (default: that of `dops.config`)"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, where argparse would print its usage first."""
        self.exit(2, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0, 1 (something failed), 2 (bad arguments) or 141 (nobody reads stdout)."""
    try:
        try:
            return _run(arguments)
        finally:
            print(end="", flush=True)  # unlike `sys.stdout.flush()`, also where there is no stdout (`>&-` in a shell)
    except BrokenPipeError:  # of `selftest | head`
        # Python flushes stdout once more at its exit, and must not fail there.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE


def _run(arguments: Sequence[str] | None) -> int:
    parser = _Parser(prog="decompops", description="Distributed linear operators on grids for JAX.")
    parser.add_argument("--version", action="version", version=f"decompops {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    info = commands.add_parser("info", help="versions, devices, backends and defaults")
    info.set_defaults(run=lambda _: _info())
    selftest = commands.add_parser("selftest", help="whether operators are right on this machine")
    selftest.add_argument("--devices", type=_device_count, help="virtual CPU devices (default: 8)")
    selftest.add_argument("--backend", help=_BACKEND_HELP)
    selftest.set_defaults(run=lambda options: _selftest(selftest, options), mesh=None, on_paper=False)
    bench = commands.add_parser("bench", help="time operators and solvers against their peers and their FFTs alone")
    _add_bench_arguments(bench)
    bench.set_defaults(run=lambda options: _bench(bench, options))
    scaling = commands.add_parser("scaling", help="what the order of calls costs on many ranks, by a model")
    scaling.add_argument("--block", type=_sizes, default=(64,), help="what each rank has: 64, 128x128x64 (default: 64)")
    scaling.add_argument("--ranks", nargs="+", type=_count, default=[64, 1024, 16384], help="(default: 64 1024 16384)")
    scaling.add_argument("--latency", type=float, help="microseconds from rank to rank (default: as measured here)")
    scaling.set_defaults(run=lambda options: _scaling(scaling, options))
    add_report(commands, _sizes, _count)
    options = parser.parse_args(arguments)
    return options.run(options)


def _versions() -> dict[str, str]:
    versions = {package: importlib.metadata.version(package) for package in ("jax", "jaxlib")}
    return {"decompops": __version__, **versions, "python": platform.python_version()}


def _info() -> int:
    devices = _jax_devices()
    kinds = ", ".join(sorted({device.device_kind for device in devices}))
    lines = [*_versions().items()]
    lines.append(("platform", f"{jax.default_backend()}, {jax.process_count()} process(es)"))
    lines.append(("devices", f"{len(devices)} ({kinds})"))
    for name, found in all_backends():
        if isinstance(found, str):
            works = f"not available: {found}"
        else:
            works = ", ".join(filter(None, ("available", found.missing_features())))
        lines.append((f"backend {name}", works))
    try:
        lines.append(("defaults", repr(config)))
    except (ValueError, ImportError) as error:  # the environment names no backend, or one that cannot be loaded
        lines.append(("defaults", f"invalid: {error}"))
    width = max(len(name) for name, _ in lines)
    print(*(f"{name:{width}}  {value}" for name, value in lines), sep="\n")
    return 0


def _selftest(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    backend = _start(parser, options.backend)
    devices = _devices(options)
    if options.backend is None:
        backend = resolve_backend(None, Mesh(np.array(devices), ("x",)))
    failed = passed = 0
    for outcome in selftest.run(backend, devices):
        mesh = "x".join(map(str, outcome.mesh))
        found = outcome.raised or f"{outcome.error:.1e}"
        print(f"{'passed' if outcome.passed else 'FAILED'}  {outcome.check:65} {mesh:7} {found}", flush=True)
        passed, failed = passed + outcome.passed, failed + (not outcome.passed)
    print(f"{backend} on {len(devices)} x {devices[0].platform}, {jax.process_count()} process(es):")
    print(f"{passed} passed, {failed} failed")
    for name, found in all_backends():
        if isinstance(found, str):
            print(f"not run: backend {name}: {found}")
        elif type(found) is not type(backend):
            command = f"python -m decompops selftest --backend {name}"
            print(f"not run: backend {name}: {f'{found.launcher} {command}'.lstrip()}")
    if devices[0].platform == "cpu":
        print("not run: GPUs: there are none that JAX uses")
    return 1 if failed else 0


def _scaling(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    shape = options.block * 3 if len(options.block) == 1 else options.block
    if len(shape) != 3:
        parser.error(f"--block must have three sizes or one; got {options.block}")
    try:
        MPI.initialize(share_memory=False)  # messages, as between nodes
        if jax.process_count() < 2:
            raise RuntimeError("scaling needs two ranks or more: mpiexec -n 2 python -m decompops scaling")
    except (ImportError, RuntimeError) as error:
        parser.error(str(error))
    lines = report_scaling(shape, options.ranks, options.latency)
    if jax.process_index() == 0:
        print(*lines, sep="\n")
    return 0


def _start(parser: argparse.ArgumentParser, name: str | None, overlap: int | None = None) -> AbstractBackend:
    """The backend of that name, ready for use. The first of several processes speaks for all."""
    try:
        backend = resolve_backend(name)
        if overlap is not None:
            # Backends are dataclasses, which the type of their abstract class cannot say.
            backend = dataclasses.replace(backend, overlap=overlap)  # pyright: ignore[reportArgumentType]
        backend.start()
    except (ValueError, TypeError, ImportError, RuntimeError) as error:
        parser.error(str(error))
    if backend.launcher and jax.process_index() > 0:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    return backend


def _add_bench_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--shape", nargs="+", type=_sizes, default=[(64,)], help="grids: 256, 256x256x128, 4096x4096 (default: 64)")
    add("--ndim", type=_count, default=3, help="of how many axes a grid is that is given by one number (default: 3)")
    add("--mesh", nargs="+", type=_mesh, help="device meshes: 2x4, or 8 for a slab (default: all devices, near square)")
    add("--dtype", nargs="+", choices=("float32", "float64"), default=["float32"], help="the real dtype")
    names = f"{', '.join(OPERATORS)}; of the solvers {', '.join(SOLVERS)}; between groups of devices {RESHARD} "
    names += "(default: fft rfft)"
    choices = (*OPERATORS, *SOLVERS, RESHARD)
    add("--operator", nargs="+", choices=choices, default=["fft", "rfft"], metavar="NAME", help=names)
    add(
        "--axis-contiguous",
        nargs="?",
        choices=("no", "yes", "both"),
        const="yes",
        help="storage of the spectrum: natural, axis-contiguous, or one after the other (default: no; on paper: both); "
        "solvers choose it themselves",
    )
    add("--devices", type=_device_count, help="virtual CPU devices (default: as many as the meshes need, else 8)")
    add("--repeats", type=_count, default=5, help="how often each contestant is timed (default: 5)")
    add("--backend", help=_BACKEND_HELP)
    add("--overlap", type=_count, help="into how many pieces the backend splits exchanges (default: as it does itself)")
    add("--json", action="store_true", help="print JSON to stdout, and nothing else")
    add("--on-paper", action="store_true", help="compile our programs without running them; no field is allocated")
    kinds = ", ".join(targets.TARGETS)
    add("--target", choices=targets.TARGETS, metavar="GPU", help=f"with --on-paper: for GPUs not here ({kinds})")


def _bench(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    for package in ([] if options.on_paper else ["scipy"]) + ([] if options.json else ["rich"]):
        if importlib.util.find_spec(package) is None:
            parser.exit(1, f'{parser.prog}: {package} is not installed; run: pip install "decompops[bench]"\n')
    if "float64" in options.dtype:
        jax.config.update("jax_enable_x64", True)
    backend = _start(parser, options.backend, options.overlap)
    if options.on_paper and not isinstance(backend, XLA):
        parser.error("what is on paper are XLA's collectives; it needs --backend xla")
    if options.on_paper and RESHARD in options.operator:
        parser.error(f"what is on paper are compiled programs; {RESHARD} is several")
    if options.target:
        jax.config.update("jax_platforms", "cpu")  # JAX's plugin starts without a GPU only if none is asked for
        if found := targets.problem() if options.on_paper else "it goes with --on-paper":
            parser.error(f"argument --target: {found}")
    devices = _devices(options)
    if options.backend is None and options.overlap is None and not options.on_paper:
        backend = resolve_backend(None, Mesh(np.array(devices), ("x",)))
    shapes = [shape * options.ndim if len(shape) == 1 else shape for shape in options.shape]
    for shape in shapes:
        if math.prod(shape) > MOST_CELLS:
            parser.error(f"argument --shape: must be at most {MOST_CELLS} cells; got {'x'.join(map(str, shape))}")
    grids = [(shape, mesh) for shape in shapes for mesh in options.mesh or [_default_mesh(len(devices), len(shape))]]
    for _, mesh in grids:
        if math.prod(mesh) > len(devices):
            size = "x".join(map(str, mesh))
            parser.error(
                f"argument --mesh: {size} needs {math.prod(mesh)} devices; there are {len(devices)} (see --devices)"
            )
        if jax.process_count() > 1 and math.prod(mesh) != len(devices):
            parser.error(f"argument --mesh: must use the devices of all {len(devices)} processes; got {mesh}")
    contiguous = options.axis_contiguous or ("both" if options.on_paper else "no")
    orders = {"no": [False], "yes": [True], "both": [False, True]}[contiguous]
    try:
        backend.check(make_mesh(grids[0][1], devices))
        selected = cases(options.operator, grids, options.dtype, orders)
    except (ValueError, ImportError, RuntimeError) as error:
        parser.error(str(error))

    def run(case: Case) -> dict[str, Any]:
        if options.on_paper:
            return on_paper(case, devices, backend)
        return measure(case, devices, backend, options.repeats)

    if options.json:
        with contextlib.redirect_stdout(sys.stderr):
            results = [run(case) for case in selected]
        about = {"platform": devices[0].platform, "devices": len(devices), "processes": jax.process_count()}
        about["cpu_count"] = os.cpu_count()
        print(json.dumps({"versions": _versions(), **about, "backend": str(backend), "cases": results}, indent=2))
    else:
        from ._bench.tables import print_measured, print_on_paper

        processes = f" in {jax.process_count()} processes" if jax.process_count() > 1 else ""
        title = f"{backend} on {len(devices)} x {devices[0].device_kind}{processes}"
        if options.on_paper:
            results = print_on_paper(title, map(run, selected))
        else:
            results = print_measured(title, map(run, selected))
    ours = [row for result in results for row in result.get("contestants", []) if row["name"] == "decompops"]
    return 1 if any(row["failure"] for row in ours) else 0


def _devices(options: argparse.Namespace) -> list:
    needed = max(map(math.prod, options.mesh or []), default=0)
    if getattr(options, "target", None):
        return targets.devices(options.target, options.devices or needed or 1)
    asked = "JAX_NUM_CPU_DEVICES" in os.environ or "device_count" in os.environ.get("XLA_FLAGS", "")
    if options.devices or not asked:
        with contextlib.suppress(RuntimeError):  # JAX is in use already, and has the devices that it has
            jax.config.update("jax_num_cpu_devices", options.devices or needed or 8)
    devices = _jax_devices()
    if options.on_paper and len(devices) < max(needed, options.devices or 0):
        devices = _jax_devices("cpu")
    return devices


def _jax_devices(platform: str | None = None) -> list:
    try:
        return jax.devices(platform)
    except Exception as error:  # JAX raises RuntimeError, AssertionError and others for platforms that do not start
        chosen = platform or os.environ.get("JAX_PLATFORMS")
        reason = str(error).strip().partition("\n")[0] or repr(error)
        sys.exit(f"decompops: JAX cannot start{f' on {chosen!r}' if chosen else ''}: {reason}")


def _default_mesh(devices: int, ndim: int) -> tuple[int, ...]:
    """All devices for a grid of `ndim` axes, near square; one for a grid of one axis, which is not divided."""
    if ndim < 3:
        return (devices if ndim == 2 else 1,)
    rows = max(n for n in range(1, math.isqrt(devices) + 1) if devices % n == 0)
    return rows, devices // rows


def _mesh(text: str) -> tuple[int, ...]:
    sizes = _sizes(text)
    _devices_at_most(math.prod(sizes), text)
    return sizes


def _sizes(text: str) -> tuple[int, ...]:
    parts = text.lower().split("x")
    if not all(map(_is_positive, parts)):
        raise argparse.ArgumentTypeError(f"must be positive integers separated by x; got {text!r}")
    return tuple(map(int, parts))


def _device_count(text: str) -> int:
    count = _count(text)
    _devices_at_most(count, text)
    return count


def _devices_at_most(count: int, text: str) -> None:
    if count > MOST_DEVICES:
        raise argparse.ArgumentTypeError(f"must be at most {MOST_DEVICES} devices; got {text!r}")


def _count(text: str) -> int:
    if not _is_positive(text):
        raise argparse.ArgumentTypeError(f"must be a positive integer; got {text!r}")
    return int(text)


def _is_positive(text: str) -> bool:
    """Whether a text is a positive integer, in digits from 0 to 9: `int` takes those of other scripts, too."""
    return text.isascii() and text.isdecimal() and int(text) > 0
