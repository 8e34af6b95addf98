"""The devices and the backend that a command runs on."""

import argparse
import contextlib
import dataclasses
import math
import os
import sys

import jax
import numpy as np
from jax.sharding import Mesh

from .._backend.base import AbstractBackend
from .._bench import targets
from .._config import resolve_backend
from .arguments import Parser


def start(parser: Parser, name: str | None, overlap: int | None = None) -> AbstractBackend:
    """Make the backend of that name ready for use. Of several processes, only the first prints to stdout."""
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


def default_backend(devices: list) -> AbstractBackend:
    """Return the backend that operators on these devices get if none is named."""
    return resolve_backend(None, Mesh(np.array(devices), ("x",)))


def configured_devices(
    count: int | None,
    meshes: list[tuple[int, ...]] | None = None,
    *,
    on_paper: bool = False,
    target: str | None = None,
) -> list:
    """Return the devices of JAX. On CPUs, first ask JAX for `count` virtual ones, or for as many as the meshes need.

    If there are too few devices for `on_paper` programs, the result has virtual CPU devices instead, because these
    programs are only compiled. A `target` is a kind of GPU that need not be here.
    """
    needed = max(map(math.prod, meshes or []), default=0)
    if target:
        return targets.devices(target, count or needed or 1)
    chosen = "JAX_NUM_CPU_DEVICES" in os.environ or "device_count" in os.environ.get("XLA_FLAGS", "")
    if count or not chosen:
        with contextlib.suppress(RuntimeError):  # JAX has started already, and keeps its devices
            jax.config.update("jax_num_cpu_devices", count or needed or 8)
    devices = jax_devices()
    if on_paper and len(devices) < max(needed, count or 0):
        devices = jax_devices("cpu")
    return devices


def jax_devices(platform: str | None = None) -> list:
    """Return JAX's devices, or end the program with one line if JAX cannot start."""
    try:
        return jax.devices(platform)
    except Exception as error:  # JAX raises RuntimeError, AssertionError and others for platforms that do not start
        chosen = platform or os.environ.get("JAX_PLATFORMS")
        reason = str(error).strip().partition("\n")[0] or repr(error)
        sys.exit(f"decompops: JAX cannot start{f' on {chosen!r}' if chosen else ''}: {reason}")


def is_quiet(options: argparse.Namespace) -> bool:
    """Return whether this process shows no progress. Of several processes, only the first one shows it."""
    return options.quiet or jax.process_index() > 0
