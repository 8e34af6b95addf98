"""The devices and the backend that a command runs on."""

import argparse
import contextlib
import dataclasses
import importlib.util
import math
import os
import sys

import jax
import numpy as np
from jax.sharding import Mesh

from ... import AbstractBackend
from ..._core.config import resolve_backend
from ..bench import targets
from .arguments import Parser


# Launchers tell each process the number of processes in one of these environment variables.
_LAUNCHED = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


def is_launched() -> bool:
    """Return whether a launcher, such as `mpiexec` or `srun`, runs this program in several processes.

    Raises `ValueError` if a variable of the launcher is not a number.
    """
    sizes = {name: os.environ.get(name) or "1" for name in _LAUNCHED}
    for name, size in sizes.items():
        if not size.isdecimal():
            raise ValueError(f"`{name}` must be the number of processes; got {size!r}. Unset it.")
    return max(map(int, sizes.values())) > 1


def connect(backend: AbstractBackend) -> None:
    """Connect the processes that a launcher has started, unless the backend has done so.

    The processes need the address of process 0, from Slurm or, without Slurm, from MPI.
    """
    if is_launched() and not backend.launcher:
        method = None if "SLURM_STEP_NUM_TASKS" in os.environ or not importlib.util.find_spec("mpi4py") else "mpi4py"
        jax.distributed.initialize(cluster_detection_method=method)


def start(parser: Parser, name: str | None, overlap: int | None = None, *, on_paper: bool = False) -> AbstractBackend:
    """Return the backend called `name`, ready for use. Connect the processes, unless programs are only compiled."""
    try:
        backend = resolve_backend(name)
        if overlap is not None:
            # Every backend is a dataclass, but the type checker cannot know this from the abstract class.
            backend = dataclasses.replace(backend, overlap=overlap)  # pyright: ignore[reportArgumentType]
        backend.start()
        if not on_paper:
            connect(backend)
    except (ValueError, TypeError, ImportError, RuntimeError) as error:
        parser.error(str(error))
    return backend


def let_the_first_process_print() -> None:
    """Discard the stdout of all processes except the first one. This starts JAX, which then keeps its devices."""
    if jax.process_index() > 0:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115


def default_backend(devices: list) -> AbstractBackend:
    """Return the backend that operators on these devices use if the user names no backend."""
    return resolve_backend(None, Mesh(np.array(devices), ("x",)))


def configured_devices(
    count: int | None,
    meshes: list[tuple[int, ...]] | None = None,
    *,
    on_paper: bool = False,
    target: str | None = None,
) -> list:
    """Return the devices of JAX.

    On CPUs, first ask JAX for `count` virtual devices, or for as many as the meshes need; in each of several processes,
    for `count` or one. With `on_paper`, programs are only compiled, so virtual CPU devices replace GPUs if the machine
    has too few GPUs. With a `target`, return descriptions of GPUs of this kind, which the machine need not have.
    """
    needed = max(map(math.prod, meshes or []), default=0)
    if target:
        return targets.devices(target, count or needed or 1)
    chosen = "JAX_NUM_CPU_DEVICES" in os.environ or "device_count" in os.environ.get("XLA_FLAGS", "")
    if count or not chosen:
        with contextlib.suppress(RuntimeError):  # If JAX has started already, it keeps its devices.
            several = is_launched() and not on_paper
            jax.config.update("jax_num_cpu_devices", count or (1 if several else needed or 8))
    devices = jax_devices()
    if on_paper and len(devices) < max(needed, count or 0):
        devices = jax_devices("cpu")
    return devices


def jax_devices(platform: str | None = None) -> list:
    """Return JAX's devices, or end the program with one line if JAX cannot start."""
    try:
        return jax.devices(platform)
    except Exception as error:  # For a platform that does not start, JAX raises RuntimeError, AssertionError or others.
        chosen = platform or os.environ.get("JAX_PLATFORMS")
        # Without the package for CUDA, JAX raises an `AssertionError` that says nothing.
        absent = f"{error!r}. Install JAX for this platform: https://docs.jax.dev/en/latest/installation.html"
        reason = str(error).strip().partition("\n")[0] or absent
        sys.exit(f"decompops: JAX cannot start{f' on {chosen!r}' if chosen else ''}: {reason}")


def is_quiet(options: argparse.Namespace) -> bool:
    """Return whether this process shows no progress. If there are several processes, only the first shows progress."""
    return options.quiet or jax.process_index() > 0
