"""Starts JAX over the ranks of an MPI communicator."""

import atexit
import ctypes
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh

from ..._common.say import say
from ..native import caller
from ..native.library import OVER_MPI
from . import signals
from .coordinator import addresses, check as check_coordinator
from .differences import announce, check_options, check_versions
from .ending import end_together


@dataclass(frozen=True)
class Communicator:
    """A registered communicator: its number in the kernels, its mpi4py handle, and the rank of each JAX process."""

    number: int
    handle: Any
    ranks: dict[int, int]


known: dict[str, Communicator] = {}


@dataclass(frozen=True)
class Limits:
    """The time limits of ranks that wait for other ranks, in seconds.

    - `timeout`: after this time, a waiting rank prints a message.
    - `limit`: after this time, a waiting rank raises an error; `None` for no limit.
    - `heartbeat`: after this time without contact from a process, JAX considers the process dead.
    """

    timeout: float
    limit: float | None
    heartbeat: float

    def __post_init__(self):
        for name in ("timeout", "limit", "heartbeat"):
            value = getattr(self, name)
            if name == "limit" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ValueError(f"`{name}` must be a positive number of seconds; got {value!r}.")


def initialize(
    communicator: Any,
    key: str,
    limits: Limits,
    *,
    coordinator: str | None,
    reuse_memory: bool,
    share_memory: bool,
    traces: bool,
) -> None:
    """Do what `MPI.initialize` promises."""
    OVER_MPI.load()
    first = not known

    def watch(communicator: Any) -> Callable[[], None]:
        return end_together(communicator, OVER_MPI, traces)

    def make_known(communicator: Any) -> int:
        check_options(communicator, share_memory=share_memory)
        OVER_MPI.call("add_communicator", len(known), communicator.py2f(), int(share_memory))
        if first:
            OVER_MPI.register()
            OVER_MPI.call("set_limits", limits.timeout, limits.limit or 0.0)
            signals.watch(OVER_MPI)
            if not traces:
                OVER_MPI.call("shorten_jax_errors")
            if reuse_memory:
                _reuse_memory()
            caller.adopt_main_thread()
        return len(known)

    # Programs must run one after the other, because kernels cannot distinguish two simultaneous runs of one program.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    start(communicator, key, "cpu", limits, watch, make_known, coordinator)


def start(
    communicator: Any,
    key: str,
    platform: str,
    limits: Limits,
    watch: Callable[[Any], Callable[[], None]],
    make_known: Callable[[Any], int],
    coordinator: str | None,
    choose_device: Callable[[Any], int | None] = lambda _: None,
) -> None:
    """Check and register a communicator. If it is the first communicator, also start JAX on its ranks.

    - `watch`: installs the handlers of uncaught errors, and returns the function to call at the end of the process.
    - `make_known`: registers the communicator with the kernels, and returns its number.
    - `coordinator`: the address of JAX's coordinator; `None` to choose it.
    - `choose_device`: returns the number of this rank's device on its host.
    """
    from mpi4py import MPI

    if communicator is None:
        communicator = known[key].handle if key in known else MPI.COMM_WORLD
    if key in known:
        if MPI.Comm.Compare(known[key].handle, communicator) != MPI.IDENT:
            raise ValueError(f"`key` must not name another communicator; {key!r} does. Pass another `key`.")
        return
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise RuntimeError(
            f"MPI must be initialised with thread level MPI_THREAD_MULTIPLE; got level {MPI.Query_thread()}. Leave "
            '`mpi4py.rc.thread_level` at its default, "multiple".'
        )
    check_coordinator(coordinator)
    first = not known
    at_exit = watch(communicator) if first else None
    _meet(communicator, limits)
    check_versions(communicator)
    if platform == "cpu":
        announce(communicator)
    if first:
        _start_jax(communicator, platform, limits, coordinator, choose_device(communicator))
    if jax.local_device_count() != 1 or jax.local_devices()[0].platform != _DEVICES[platform]:
        hint = "" if platform == "cpu" else ' Install JAX with CUDA: pip install "jax[cuda13]".'
        raise RuntimeError(
            f"`initialize()` needs one {_DEVICES[platform].upper()} device in each process; got "
            f"{jax.local_device_count()} of platform {jax.default_backend()!r}. Call it before any JAX computation."
            f"{hint}"
        )
    indices = communicator.allgather(jax.process_index())
    if first and indices != list(range(communicator.size)):
        raise RuntimeError(
            f"the ranks of `communicator` must be JAX's processes, in the same order; got the processes {indices}."
        )
    number = make_known(communicator)
    if at_exit is not None:
        atexit.register(at_exit)
    known[key] = Communicator(number, communicator, {index: rank for rank, index in enumerate(indices)})


_DEVICES = {"cpu": "cpu", "cuda": "gpu"}  # JAX's platform names, and the names in `Device.platform`


def find(key: str, backend: Any) -> Communicator:
    """Return the communicator that is registered under `key`. Raises `RuntimeError` if there is none."""
    if key not in known:
        raise RuntimeError(
            f"`{type(backend).__name__}.initialize()` must be called before an operator is built with "
            f"`backend={backend}`; registered communicators: {tuple(known)}."
        )
    return known[key]


def ranks_of(mesh: Any, key: str, platform: str, backend: Any) -> list[int]:
    """Return the rank of each device, in mesh order. Raises `ValueError` if `backend` cannot use the mesh."""
    ranks = find(key, backend).ranks
    if not isinstance(mesh, Mesh):
        raise ValueError(f"`mesh` must have devices, one for each rank, for `backend={backend}`; got {mesh}.")
    devices = list(mesh.devices.flat)
    indices = [device.process_index for device in devices]
    if any(device.platform != platform for device in devices) or not set(indices) <= ranks.keys():
        raise ValueError(
            f"`mesh` must consist of {platform.upper()} devices of the ranks of communicator `{key}`; got {mesh}."
        )
    return [ranks[index] for index in indices]


def _meet(communicator: Any, limits: Limits) -> None:
    """Wait until all ranks have called `initialize()`. Raise an error after the limit: MPI's barrier has no limit."""
    request, start, told = communicator.Ibarrier(), time.monotonic(), False
    limit = limits.limit or _LATEST
    while not request.Test():
        seconds = time.monotonic() - start
        if seconds > limits.timeout and not told:
            told = True
            where = f"decompops: rank {communicator.rank} has waited {seconds:.0f} s in `initialize()` for other ranks"
            say(where)
        if seconds > limit:
            raise RuntimeError(
                f"decompops: rank {communicator.rank}: `initialize()` must be called by all {communicator.size} ranks, "
                f"and some have not come for {seconds:.0f} s; look for their errors, or pass a larger `limit`"
            )
        time.sleep(0.001)


_LATEST = 300  # The default limit of `initialize()` in seconds, and of `jax.distributed.initialize`.


def _start_jax(communicator: Any, platform: str, limits: Limits, coordinator: str | None, device: int | None) -> None:
    """Start JAX with one device in each rank."""
    several = communicator.size > 1 or platform == "cuda"
    if several and jax.distributed.is_initialized():
        raise RuntimeError(
            "`initialize()` must be the only call that starts `jax.distributed`, but the program has started it "
            "before. Remove the call of `jax.distributed.initialize`."
        )
    jax.config.update("jax_platforms", platform if platform == "cpu" else f"{platform},cpu")
    try:
        jax.config.update("jax_num_cpu_devices", 1)
    except RuntimeError as error:  # JAX is in use. A single rank may continue if JAX has one device (see `_start`).
        if communicator.size > 1:
            raise RuntimeError(
                "`initialize()` must be called before any JAX computation. Call it right after the imports."
            ) from error
    # JAX's preemption service catches SIGTERM and only logs it. A batch system could then not end the job.
    if "JAX_ENABLE_PREEMPTION_SERVICE" not in os.environ:
        jax.config.update("jax_enable_preemption_service", False)
    if several:
        address, bound = addresses(communicator, coordinator)
        jax.distributed.initialize(
            coordinator_address=address,
            num_processes=communicator.size,
            process_id=communicator.rank,
            local_device_ids=device,
            heartbeat_timeout_seconds=math.ceil(limits.heartbeat),
            coordinator_bind_address=bound,
        )


def _reuse_memory() -> None:
    """Make glibc keep freed memory: no `mmap` for large blocks, and no trimming of the heap. See docs/cluster.md."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mmap_max, trim_threshold = -4, -1
        mallopt(mmap_max, 0)
        mallopt(trim_threshold, -1)
