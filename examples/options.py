"""What the examples share: options with checked values, the mesh of devices, progress, and stable simulations."""

import argparse
import contextlib
import importlib.util
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import decompops as dops
import jax
from decompops.pde import NotFinite, Simulation, simulate
from jax.sharding import Mesh


DATA = Path(__file__).parent / "data"  # This also works for a notebook, which imports this file from its own folder.
MOST_DEVICES = 64  # The limit for virtual devices. Each virtual device has a thread.
SECONDS_BETWEEN_LINES = 5.0


class Parser(argparse.ArgumentParser):
    """An argument parser that reports an error in one line.

    The first line of `description`, usually the docstring of the example, is the description in the help text.
    """

    def __init__(self, description: str | None = None):
        super().__init__(description=(description or "").partition("\n")[0])

    def error(self, message: str):
        self.exit(2, f"{self.prog}: error: {message}\n")

    def checked(self, option: str, kind: Callable, text: str):
        """Convert the `text` of an option by `kind`, or end the program with the error in one line."""
        try:
            return kind(text)
        except argparse.ArgumentTypeError as error:
            self.error(f"argument {option}: {error}")


def at_least(least: int | float):
    """Return the type of an option: a finite number that is at least `least`, and has the type of `least`."""

    def convert(text: str) -> int | float:
        try:
            value = type(least)(text)
        except ValueError:
            value = math.nan
        if not least <= value < math.inf:
            raise argparse.ArgumentTypeError(f"must be at least {least} ({type(least).__name__}); got {text!r}")
        return value

    return convert


def positive(text: str) -> float:
    """The type of an option: a positive, finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a positive number; got {text!r}")
    return value


def mesh_shape(text: str) -> tuple[int, ...]:
    """The type of an option: "2x4" becomes (2, 4)."""
    parts = text.lower().split("x")
    if not all(part.isdecimal() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(f"must be positive integers such as 2x4; got {text!r}")
    return tuple(map(int, parts))


def figure(text: str) -> Path:
    """The type of an option: the file of a figure."""
    path = Path(text)
    if path.suffix != ".png" or not os.access(path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"must be a .png file in a folder where you may write; got {text!r}")
    return path


def writable_folder(text: str) -> Path:
    """The type of an option: a folder to write to, which need not exist."""
    path = Path(text)
    existing = next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise argparse.ArgumentTypeError(f"must be a folder where you may write; got {text!r}")
    return path


def make_mesh(
    parser: Parser, shape: tuple[int, ...] | None, *, double: bool = True, backend: str | None = None, **default: int
) -> Mesh:
    """Make the mesh of the `--mesh` option, with GPUs where JAX finds them, otherwise with virtual CPU devices.

    `default` gives the name and the size of each axis. A program calls this function before anything else starts JAX,
    because JAX cannot change its devices later. If JAX already runs, as in a notebook, the mesh has JAX's devices.
    """
    jax.config.update("jax_enable_x64", double)
    names, usual = tuple(default), tuple(default.values())
    if shape and len(shape) != len(names):
        parser.error(f"argument --mesh: must have {len(names)} axes, {', '.join(names)}; got '{_text(shape)}'")
    if backend == "mpi":
        dops.MPI.initialize()
    else:
        with contextlib.suppress(RuntimeError):  # JAX raises this error if it already runs.
            jax.config.update("jax_num_cpu_devices", min(math.prod(shape or usual), MOST_DEVICES))
    devices = jax.devices()
    if not shape:
        fits = math.prod(usual) <= len(devices) and jax.process_count() == 1
        shape = usual if fits else (len(devices), *[1] * (len(names) - 1))
    least = jax.process_count()  # Each process needs a device in the mesh.
    if not least <= math.prod(shape) <= len(devices):
        parser.error(f"argument --mesh: must have {least} to {len(devices)} devices; got '{_text(shape)}'")
    return jax.make_mesh(shape, names, devices=devices[: math.prod(shape)])


def check_divides(parser: Parser, mesh: Mesh, n: int) -> None:
    """End the program with one line unless the mesh divides a grid of `n` cells along each axis."""
    if any(n % parts for parts in mesh.axis_sizes):
        axes = " and ".join(mesh.axis_names)
        parser.error(f"argument --n: must be a multiple of the devices along {axes}, {mesh.axis_sizes}; got '{n}'")


def _text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def stable(solver: Any, u: Any, t_end: float, **options: Any) -> Simulation:
    """Call `simulate`, which shows progress. If the state becomes infinite or NaN, end the program with one line."""
    try:
        return simulate(solver, u, t_end, **options)
    except NotFinite as error:
        raise SystemExit(f"The run became unstable after t = {error.t:.4g}; use a smaller --dt.") from None


@contextlib.contextmanager
def progress(text: str, total: int) -> Iterator[Callable[[Any], None]]:
    """Show on stderr how many of the `total` parts of a task are done. Only the first process shows anything.

    This context manager yields a function. The task calls this function with the number of parts that are done.
    On a terminal, progress is a bar if rich is installed. Otherwise, it is a line every five seconds.
    """
    if jax.process_index() > 0:
        yield lambda done: None
    elif sys.stderr.isatty() and importlib.util.find_spec("rich"):
        with _bar(text, total) as report:
            yield report
    else:
        with _lines(text, total) as report:
            yield report


@contextlib.contextmanager
def _bar(text: str, total: int) -> Iterator[Callable[[Any], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    # If the user has redirected stdout to a file, rich must not print the output of the program to stderr instead.
    options = {"console": Console(stderr=True), "redirect_stdout": sys.stdout.isatty(), "transient": True}
    with Progress(*columns, **options) as bar:
        task = bar.add_task(text, total=total)
        yield lambda done: bar.update(task, completed=int(done))


@contextlib.contextmanager
def _lines(text: str, total: int) -> Iterator[Callable[[Any], None]]:
    start, finished, reached = time.monotonic(), threading.Event(), 0

    def report(done: Any) -> None:
        nonlocal reached
        reached = int(done)

    def show() -> None:
        while not finished.wait(SECONDS_BETWEEN_LINES):
            seconds = time.monotonic() - start
            print(f"{text}: {reached} of {total} done after {seconds:.0f} s", file=sys.stderr, flush=True)

    thread = threading.Thread(target=show, daemon=True)  # A separate thread can report while XLA compiles.
    thread.start()
    try:
        yield report
    finally:
        finished.set()
        thread.join()
