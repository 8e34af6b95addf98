"""Several processes under `jax.distributed`, with Gloo collectives on loopback. What each of them runs: worker.py."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs" / "multiprocess.md"
TIMEOUT = 4  # of heartbeats, in seconds: what bounds the wait for a dead rank


class Rank:
    """A process of the run, its output, and when it ended."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path):
        self.log = log
        with log.open("w") as file:
            self.process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment)
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
def start(folder: Path, commands: list[list], xla_flags: str = "") -> Iterator[list[Rank]]:
    """Start one rank for each command. None of them outlives the block."""
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    environment |= {"PYTHONPATH": str(HERE.parent), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags}
    ranks: list[Rank] = []
    try:
        for i, command in enumerate(commands):
            ranks.append(Rank([sys.executable, "-u", *map(str, command)], environment, folder / f"rank{i}.txt"))
        yield ranks
    finally:
        for rank in ranks:
            rank.process.kill()
            rank.process.wait()


def worker(task: str, processes: int, devices: int, *options: object) -> list[list]:
    """The command of each rank of `worker.py task`."""
    shared = ["--processes", processes, "--devices", devices, "--port", free_port(), *options]
    return [[HERE / "worker.py", task, "--rank", rank, *shared] for rank in range(processes)]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def wait(ranks: list[Rank], limit: float) -> None:
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline and [rank for rank in ranks if not rank.has_ended()]:
        time.sleep(0.05)


def report(ranks: list[Rank]) -> str:
    """The output of every rank, for the message of a failed assertion."""
    parts = (f"\n--- {rank.log.stem}, exit status {rank.code} ---\n{rank.output}" for rank in ranks)
    return "".join(parts)


def time_of_death(victim: Rank) -> float | None:
    found = re.search(r"victim at (\S+)", victim.output)
    return float(found[1]) if found else None


@pytest.mark.parametrize(("processes", "devices"), [(2, 2), (4, 1)])
def test_operators(tmp_path, processes, devices):
    with start(tmp_path, worker("checks", processes, devices)) as ranks:
        wait(ranks, limit=200)
        assert [rank.code for rank in ranks] == [0] * processes, report(ranks)
        assert all("all checks passed" in rank.output for rank in ranks), report(ranks)


@pytest.mark.parametrize("victim", [0, 1], ids=["coordinator", "other"])
@pytest.mark.parametrize("death", ["exit", "stop"])
def test_survivor_of_a_dead_rank_ends_with_an_error(tmp_path, death, victim):
    """`exit` closes the connections of the dead rank; after `stop` they stay open and only heartbeats are missing."""
    with start(tmp_path, worker("loop", 2, 1, "--timeout", TIMEOUT, "--death", death, "--victim", victim)) as ranks:
        survivor = ranks[1 - victim]
        wait([survivor], limit=100)
        died = time_of_death(ranks[victim])
        assert died is not None, report(ranks)
        assert survivor.code == -signal.SIGABRT, report(ranks)
        assert "This most likely indicates that another task died" in survivor.output, report(ranks)
        assert survivor.ended < died + 4 * TIMEOUT, report(ranks)


def test_rank_that_is_alive_but_stuck(tmp_path):
    """Its heartbeats go on, so that only the time limit of the collectives helps."""
    limit = 2 * TIMEOUT
    commands = worker("loop", 2, 1, "--death", "stuck", "--victim", 1)
    with start(tmp_path, commands, f"--xla_cpu_collective_timeout_seconds={limit}") as ranks:
        wait(ranks, limit=100)
        stuck = time_of_death(ranks[1])
        assert stuck is not None, report(ranks)
        assert re.search(r"Gloo all-to-all failed: .* Timed out waiting", ranks[0].output), report(ranks)
        assert [rank.code for rank in ranks] == [1, -signal.SIGABRT], report(ranks)  # rank 0 was the coordinator
        assert max(rank.ended for rank in ranks) < stuck + 2 * limit, report(ranks)


def test_documented_script(tmp_path):
    script, _, printed = re.search(
        r"```python title=.*?\n(.*?)```(.*?)```text\n(.*?)```", DOCS.read_text(), flags=re.DOTALL
    ).groups()
    path = tmp_path / "script.py"
    path.write_text(script)
    address = f"127.0.0.1:{free_port()}"
    with start(tmp_path, [[path, address, 2, rank] for rank in range(2)]) as ranks:
        wait(ranks, limit=100)
        assert [rank.code for rank in ranks] == [0, 0], report(ranks)
        assert printed in ranks[0].output, report(ranks)
