"""Starts JAX over the ranks of an MPI communicator with one GPU each, for `CuDecomp.initialize()`."""

from collections.abc import Callable
from typing import Any

from ..mpi.ending import end_together
from ..mpi.launch import Limits, known, start
from . import grids


def initialize(communicator: Any, key: str, limits: Limits, device: int | None, coordinator: str | None) -> None:
    """Do what `CuDecomp.initialize` promises."""
    platform = "cpu" if grids.platform() == "cpu" else "cuda"

    def watch(communicator: Any) -> Callable[[], None]:
        return end_together(communicator, None, traces=False)

    def choose(communicator: Any) -> int:
        from mpi4py import MPI

        node = communicator.Split_type(MPI.COMM_TYPE_SHARED)
        rank = node.rank
        node.Free()
        return grids.use_device(-1 - rank if device is None else device)

    def make_known(communicator: Any) -> int:
        if not known:
            grids.register()
        return len(known)

    start(communicator, key, platform, limits, watch, make_known, coordinator, choose)
