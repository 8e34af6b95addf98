"""Compares the ranks of a job.

Versions and options must be equal. Other differences of hosts, which change rounding, are announced.
"""

import importlib.metadata
import os
import platform
import re
import socket
import sys
from pathlib import Path
from typing import Any

import jax

from ..._common.say import say
from ..native import library
from .coordinator import told


_FFT, _CPU, _LIMIT = "FFT library", "CPU", "--xla_cpu_max_isa"
_FEATURES = ("sse4_2", "avx", "avx2", "fma", "avx512f", "sve", "sve2")  # The features that change rounding.
_WHAT_TO_DO = {
    _FFT: "Install the same FFT library on all hosts, or set DECOMPOPS_FFT=ducc for all ranks.",
    _CPU: (
        "XLA's programs may round differently, so a loop that ends at a computed number may take different numbers "
        "of steps on the hosts; start all ranks with XLA_FLAGS=--xla_cpu_max_isa=AVX2, or what else all CPUs have."
    ),
    _LIMIT: "Start all ranks with the same XLA_FLAGS.",
}


def check_versions(communicator: Any) -> None:
    """Raise an error on all ranks if they run different versions of Python, JAX or this library."""
    version = importlib.metadata.version("decompops")
    mine = {"Python": sys.version.split()[0], "JAX": jax.__version__, "decompops": version}
    problems = told(communicator, difference(communicator.bcast(mine), mine))
    if problems:
        raise RuntimeError(
            f"decompops: rank {communicator.rank}: all hosts must have the versions of rank 0's host: "
            f"{'; '.join(problems)}. Install the same versions on all hosts, or start the same environment on all."
        )


def check_options(communicator: Any, **options: Any) -> None:
    """Raise an error on all ranks if they pass other `options` to `initialize()`: they would wait in other calls."""
    mine = {f"`{name}`": str(value) for name, value in options.items()}
    if problems := told(communicator, difference(communicator.bcast(mine), mine)):
        raise ValueError(
            f"decompops: rank {communicator.rank}: all ranks must pass the options of rank 0 to `initialize()`: "
            f"{'; '.join(problems)}. Write the same value for all ranks."
        )


def announce(communicator: Any) -> None:
    """Print a line on rank 0 if the CPU or the FFT library of a host differs from rank 0's."""
    mine = _facts()
    first = communicator.bcast(mine)
    hosts = communicator.allgather(socket.gethostname())
    first_of_host = hosts.index(hosts[communicator.rank]) == communicator.rank
    problems = told(communicator, difference(first, mine) if first_of_host else None)
    if problems and communicator.rank == 0:
        text = "; ".join(problems)
        what_to_do = " ".join(advice for name, advice in _WHAT_TO_DO.items() if f" {name} " in text)
        say(f"decompops: rank 0: hosts differ: {text}. Results agree up to rounding. {what_to_do}")


def difference(first: dict[str, str], other: dict[str, str]) -> str | None:
    """Return how the facts of a rank differ from rank 0's, or `None` if they agree.

    CPUs with different features agree if XLA uses the same subset of their features.
    """
    limited = first.get(_LIMIT, "none") == other.get(_LIMIT, "none") != "none"
    names = [name for name in first if first[name] != other[name] and not (name == _CPU and limited)]
    return f"it has {', '.join(f'{one} {other[one]} instead of {first[one]}' for one in names)}" if names else None


def cpu(text: str) -> str:
    """Return the architecture and the features that change rounding, from the text of `/proc/cpuinfo`."""
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    have = found[1].split() if found else []
    return " ".join([platform.machine(), *(one for one in _FEATURES if one in have)])


def _facts() -> dict[str, str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:  # Only Linux has this file.
        text = ""
    limits = re.findall(r"--xla_cpu_max_isa=(\S+)", os.environ.get("XLA_FLAGS", ""))
    return {_FFT: library.fft_version() or "none", _CPU: cpu(text), _LIMIT: limits[-1].upper() if limits else "none"}
