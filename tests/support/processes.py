"""Helpers that start several processes of one run, and collect their output."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import forks


HERE = Path(__file__).parent


class Rank:
    """A process of the run, its output, and the time at which it ended."""

    def __init__(self, command: list[str], options: list[str], environment: dict[str, str], log: Path):
        self.log = log
        log.write_text("")
        self.process = forks.start(*command, options=options, environment=environment, out=str(log), err=str(log))
        self.ended: float | None = None

    def has_ended(self) -> bool:
        if self.ended is None and self.process.poll() is not None:
            self.ended = time.time()
        return self.ended is not None

    @property
    def code(self) -> int | None:
        return self.process.returncode

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")


@contextmanager
def start(
    folder: Path, commands: list[list], xla_flags: str = "", options: tuple[str, ...] = ()
) -> Iterator[list[Rank]]:
    """Start one rank for each command, with these options of Python. The end of the `with` block stops all ranks."""
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    environment |= {"PYTHONPATH": str(HERE), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags}
    ranks: list[Rank] = []
    try:
        for i, command in enumerate(commands):
            ranks.append(Rank([*map(str, command)], ["-u", *options], environment, folder / f"rank{i}.txt"))
        yield ranks
    finally:
        for rank in ranks:
            rank.process.kill()
            rank.process.wait()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def wait(ranks: list[Rank], limit: float) -> None:
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline and [rank for rank in ranks if not rank.has_ended()]:
        time.sleep(0.05)


def report(ranks: list[Rank]) -> str:
    """Return the output of every rank, for the message of a failed assertion."""
    parts = (f"\n--- {rank.log.stem}, exit status {rank.code} ---\n{rank.output}" for rank in ranks)
    return "".join(parts)


def worker(path: Path, task: str, processes: int, devices: int, *options: object) -> list[list]:
    """Return, for each rank, the command that runs `task` of the script `path`."""
    shared = ["--processes", processes, "--devices", devices, "--port", free_port(), *options]
    return [[path, task, "--rank", rank, *shared] for rank in range(processes)]
