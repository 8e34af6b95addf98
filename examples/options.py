"""What the command lines of the examples share: options that are checked in one line, and the devices to run on."""

import argparse
import contextlib
import math
import os
from collections.abc import Callable
from pathlib import Path

import decompops as dops
import jax
from jax.sharding import Mesh


MOST_DEVICES = 64  # virtual ones: each has a thread


class Parser(argparse.ArgumentParser):
    """An argument parser that says what is wrong in one line."""

    def error(self, message: str):
        self.exit(2, f"{self.prog}: error: {message}\n")

    def checked(self, option: str, kind: Callable, text: str):
        """The value of an option whose text is checked only where it counts."""
        try:
            return kind(text)
        except argparse.ArgumentTypeError as error:
            self.error(f"argument {option}: {error}")


def at_least(least: int | float):
    """The type of an option: a finite number of the kind of `least` that is no smaller."""

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
    """The type of an option: "2x4" is (2, 4)."""
    parts = text.lower().split("x")
    if not all(part.isdecimal() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(f"must be positive integers such as 2x4; got {text!r}")
    return tuple(map(int, parts))


def figure(text: str) -> Path:
    """The type of an option: where to write a figure."""
    path = Path(text)
    if path.suffix != ".png" or not os.access(path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"must be a .png file in a folder that can be written; got {text!r}")
    return path


def make_mesh(
    parser: Parser, shape: tuple[int, ...] | None, *, double: bool = True, backend: str | None = None, **default: int
) -> Mesh:
    """The mesh of the `--mesh` option, of GPUs where JAX has them, else of virtual CPU devices.

    `default` has a size for each axis. Call it before anything else starts JAX, because then precision and devices are
    fixed.
    """
    jax.config.update("jax_enable_x64", double)
    names, usual = tuple(default), tuple(default.values())
    if shape and len(shape) != len(names):
        parser.error(f"argument --mesh: must have {len(names)} axes, {', '.join(names)}; got '{_text(shape)}'")
    if backend == "mpi":
        dops.MPI.initialize()
    else:
        with contextlib.suppress(RuntimeError):  # where JAX runs already, its devices are what they are
            jax.config.update("jax_num_cpu_devices", min(math.prod(shape or usual), MOST_DEVICES))
    devices = jax.devices()
    if not shape:
        fits = math.prod(usual) <= len(devices) and jax.process_count() == 1
        shape = usual if fits else (len(devices), *[1] * (len(names) - 1))
    least = jax.process_count()  # each has a device to take part with
    if not least <= math.prod(shape) <= len(devices):
        parser.error(f"argument --mesh: must have {least} to {len(devices)} devices; got '{_text(shape)}'")
    return jax.make_mesh(shape, names, devices=devices[: math.prod(shape)])


def _text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
