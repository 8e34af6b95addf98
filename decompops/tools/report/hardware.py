"""The section on the machine. It needs no special rights, and reads no user names."""

import os
import platform
import re
import socket
import subprocess
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from .setting import Setting, gathered_numbers


# The labels that `lscpu` prints, with the names that the report uses.
_CPU = {
    "Architecture": "architecture",
    "Model name": "model",
    "Socket(s)": "sockets",
    "Core(s) per socket": "cores per socket",
    "Thread(s) per core": "threads per core",
    "L1d cache": "L1 data cache",
    "L2 cache": "L2 cache",
    "L3 cache": "L3 cache",
    "NUMA node(s)": "NUMA nodes",
    "Hypervisor vendor": "hypervisor",
}
_GPU = ("name", "memory.total", "driver_version", "compute_cap", "clocks.max.sm", "power.limit", "pcie.link.gen.max")


def hardware(setting: Setting, _: dict[str, Any]) -> dict[str, Any]:
    """Describe the CPUs, memory, GPUs and network of the machine, and count the processes and nodes of the run."""
    model = zlib.crc32(cpu().get("model", "").encode())
    hosts, models = (set(column) for column in gathered_numbers(_host(), model).T.tolist())
    return {
        "cpu": cpu(),
        "cores": os.cpu_count(),
        "usable cores": usable_cores(),
        "memory": memory(),
        "gpus": gpus(),
        "network": network(),
        "devices": len(setting.devices),
        "device_kind": setting.devices[0].device_kind,
        "device_platform": setting.devices[0].platform,
        "processes": jax.process_count(),
        "nodes": len(hosts),
        "kinds_of_cpus": len(models),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def cpu() -> dict[str, str]:
    """Describe the CPU by `lscpu`, or by Python where `lscpu` is missing."""
    lines = (line.partition(":") for line in output_of("lscpu").splitlines())
    found = {label.strip(): value.strip() for label, _, value in lines}
    if not found:
        return {"architecture": platform.machine(), "model": platform.processor() or "unknown"}
    return {name: found[label] for label, name in _CPU.items() if found.get(label)}


def usable_cores() -> int:
    """The number of CPU cores on which this process may run."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory() -> dict[str, str]:
    """The memory of the machine, and the memory limit of the container if the process runs in one."""
    return {name: f"{count / 2**30:.1f} GiB" for name, count in _memory_bytes().items()}


def least_memory_of_a_process() -> float:
    """Return the smallest memory that a process has, in bytes: the memory of its node divided by the node's processes.

    All processes must call this function.
    """
    numbers = gathered_numbers(_host(), min(_memory_bytes().values(), default=8 * 2**30))
    hosts = numbers[:, 0].tolist()
    return min(count / hosts.count(host) for host, count in numbers.tolist())


def _memory_bytes() -> dict[str, int]:
    found = {}
    if total := re.search(r"MemTotal:\s+(\d+) kB", text_of("/proc/meminfo")):
        found["total"] = int(total[1]) * 1024
    if (limit := text_of("/sys/fs/cgroup/memory.max").strip()).isdecimal():
        found["limit of the container"] = int(limit)
    return found


def gpus() -> dict[str, Any]:
    """Describe the GPUs that `nvidia-smi` lists, and their connections. Return `{}` if `nvidia-smi` lists no GPU."""
    table = output_of("nvidia-smi", f"--query-gpu={','.join(_GPU)}", "--format=csv,noheader")
    rows = [dict(zip(_GPU, map(str.strip, line.split(",")))) for line in table.splitlines() if line.count(",") > 1]
    if not rows:
        return {}
    topology = output_of("nvidia-smi", "topo", "-m").partition("Legend:")[0]
    # `nvidia-smi` underlines the head of the table with escape sequences, which are removed here.
    return {"list": rows, "topology": re.sub(r"\x1b\[[\d;]*m", "", topology).rstrip()}


def network() -> list[str]:
    """List InfiniBand ports and Ethernet links with their rates."""
    found = []
    for port in sorted(Path("/sys/class/infiniband").glob("*/ports/*")):
        if rate := text_of(port / "rate").strip():
            found.append(f"{text_of(port / 'link_layer').strip() or 'InfiniBand'} port: {rate}")
    for link in sorted(Path("/sys/class/net").glob("*")):
        speed = text_of(link / "speed").strip()
        if (link / "device").exists() and speed.isdecimal():
            found.append(f"Ethernet link: {speed} Mb/s")
    return found


def output_of(*command: str) -> str:
    """Return the output of a program, or an empty text if the program is missing or fails."""
    try:
        # In some locales, programs would print translated labels.
        environment = {**os.environ, "LC_ALL": "C"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False, env=environment)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def text_of(path: str | Path) -> str:
    """Return the text of a file, or an empty text if the file cannot be read."""
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def private_names() -> Sequence[str]:
    """The names of the host, which must not appear in a report."""
    full = socket.gethostname()
    return [name for name in (full, full.partition(".")[0]) if len(name) > 3 and name != "localhost"]


def _host() -> int:
    """Return a checksum of the host name, which distinguishes hosts without revealing their names."""
    return zlib.crc32(socket.gethostname().encode())
