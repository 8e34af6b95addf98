"""Several hosts on one Linux machine, for tests: namespaces that are joined by a bridge.

Each host has a name, an address, a `/tmp`, a `/dev/shm` and processes of its own. The hosts need root or user
namespaces, and the programs `ip` and `tc` (iproute2), `unshare` and `nsenter` (util-linux). Nothing leaves the machine.
All namespaces end with their processes, which end when this process does, so that nothing remains after a failure.
"""

import functools
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import mpiexec


HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NETWORK, SWITCH = "10.77.0.0/24", "10.77.0.254"
REQUIRED = "DECOMPOPS_REQUIRE_HOSTS"
_START = 30  # Seconds in which a host must have started.


class Host:
    """A host. Its first process reads a pipe: at the end of the pipe it ends, and with it all processes of the host.

    - `name`, `address`: "host1" and "10.77.0.1", and so on.
    - `folder`: what the host sees as `/tmp`.
    """

    def __init__(self, number: int, folder: Path, switch: "_Namespaces", shared: list[Path]):
        self.name, self.address = f"host{number}", f"10.77.0.{number}"
        self.folder = folder / self.name
        self.names = folder / f"{self.name}.names"
        self._switch, self._link = switch, f"link{number}"
        self.folder.mkdir()
        self.know({})
        (folder / "resolv.conf").write_text("")
        script = [
            f"echo {self.name} > /proc/sys/kernel/hostname",
            "mount -t tmpfs tmpfs /dev/shm",
            f"mount --bind {shlex.quote(str(self.names))} /etc/hosts",
            f"mount --bind {shlex.quote(str(folder / 'resolv.conf'))} /etc/resolv.conf",
        ]
        for path in shared:
            inside = self.folder / path.relative_to("/tmp")
            inside.mkdir(parents=True)
            script.append(f"mount --bind {shlex.quote(str(path))} {shlex.quote(str(inside))}")
        script.append(f"mount --rbind {shlex.quote(str(self.folder))} /tmp")
        self._inside = _Namespaces(
            ["--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"], script, switch
        )
        switch.run(f"ip link add {self._link} type veth peer name eth0 netns {self._inside.process.pid}")
        switch.run(f"ip link set {self._link} master bridge up")
        self.run("ip link set lo up", f"ip addr add {self.address}/24 dev eth0", "ip link set eth0 up")

    def know(self, names: Mapping[str, str]) -> None:
        """Set the names that this host can look up."""
        lines = [f"{address} {name}" for name, address in {"localhost": "127.0.0.1", **names}.items()]
        self.names.write_text("\n".join([*lines, ""]))

    def enter(self, *command: object, from_switch: bool = False) -> list[str]:
        """Return the command that runs `command` on this host, and that this process or the switch may call."""
        return self._inside.enter(*command, from_switch=from_switch)

    def run(self, *commands: str) -> str:
        """Run shell commands on this host, and return their output."""
        return self._inside.run(*commands)

    def limit(self, rate: str) -> None:
        """Limit the link of this host to a rate such as "1gbit", in both directions. "" removes the limit."""
        for run, device in ((self.run, "eth0"), (self._switch.run, self._link)):
            run(
                f"tc qdisc replace dev {device} root tbf rate {rate} burst 512kb latency 500ms"
                if rate
                else f"tc qdisc del dev {device} root"
            )

    def cut(self) -> None:
        """Cut the link of this host."""
        self._switch.run(f"ip link set {self._link} down")

    def join(self) -> None:
        """Join the link again."""
        self._switch.run(f"ip link set {self._link} up")

    def clear(self) -> None:
        """Kill all programs of this host. The host stays."""
        if self._inside.process.poll() is None:
            self.run("kill -9 -1 || true")  # This spares the shell itself and the first process of the host.

    def die(self) -> None:
        """Kill all processes of this host."""
        self._inside.end()


class _Namespaces:
    """New namespaces, inside those of `parent`, and the process that keeps them."""

    def __init__(self, kinds: list[str], script: list[str], parent: "_Namespaces | None"):
        setup = "; ".join(["set -e", *script, "echo ready", "exec cat"])
        command = ["unshare", *kinds, "sh", "-c", setup]
        self._pids = "--pid" in kinds
        self._user = "--user" in kinds or (parent is not None and parent._user)
        self.process = subprocess.Popen(
            parent.enter(*command) if parent else command,
            **dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE),
            text=True,
            start_new_session=True,  # Control-C in a terminal reaches only the tests, which then end the hosts.
        )
        assert self.process.stdout is not None
        if self.process.stdout.readline() != "ready\n":
            self.process.kill()
            raise OSError(f"{shlex.join(command[:6])} ...: {self.process.communicate()[1].strip()}")

    def enter(self, *command: object, from_switch: bool = False) -> list[str]:
        """Return the command that runs `command` in these namespaces."""
        pid = self.process.pid
        names = ["--net", "--mount", *(["--user", "--preserve-credentials"] if self._user and not from_switch else [])]
        if self._pids:
            names += ["--uts", "--ipc", f"--pid=/proc/{pid}/ns/pid_for_children"]
        return ["nsenter", f"--target={pid}", *names, f"--wd={Path.cwd()}", "--", *map(str, command)]

    def run(self, *commands: str) -> str:
        done = subprocess.run(
            self.enter("sh", "-c", "; ".join(["set -e", *commands])), capture_output=True, text=True, timeout=_START
        )
        if done.returncode:
            raise OSError(f"{commands}: {done.stderr.strip()}")
        return done.stdout

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


class Cluster:
    """Hosts on one network, and a switch that joins them. `mpiexec` on the switch starts ranks on the hosts."""

    def __init__(self, hosts: list[Host], switch: _Namespaces, agent: Path):
        self.hosts, self._switch, self._agent = hosts, switch, agent

    def __getitem__(self, number: int) -> Host:
        return self.hosts[number]

    def know(self, **addresses: str) -> None:
        """Tell all hosts the names of all hosts, some of them with other addresses. An empty address hides a name."""
        names = {host.name: host.address for host in self.hosts} | addresses
        for host in self.hosts:
            host.know({name: address for name, address in names.items() if address})

    def mpiexec(self, *command: object, ranks: int = 1, **variables: str) -> "Job":
        """Start a Python program with `ranks` ranks on each host."""
        places = ",".join(f"{host.address}:{ranks}" for host in self.hosts)
        parts = ["mpiexec", "--host", places, "-n", ranks * len(self.hosts), "--map-by", f"ppr:{ranks}:node"]
        parts += ["--bind-to", "none", "--mca", "btl_tcp_if_include", NETWORK]
        for option in (("agent", self._agent), ("no_tree_spawn", 1)):
            parts += ["--prtemca", f"plm_ssh_{option[0]}", option[1]]
        parts += ["--prtemca", "prte_if_include", NETWORK]
        return Job(self, self._switch.enter(*parts, sys.executable, *command), variables)

    def python(self, host: Host, *command: object, **variables: str) -> "Job":
        """Start a Python program on a host."""
        return Job(self, host.enter(sys.executable, *command), variables)


class Job:
    """A running program. At the end of its `with` block, all programs on the hosts are killed."""

    def __init__(self, cluster: Cluster, command: list[str], variables: Mapping[str, str]):
        self._cluster = cluster
        self._output: list[str] = []
        self.process = subprocess.Popen(
            command,
            env=mpiexec.environment(**variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            self._output.extend(lines)

    @property
    def output(self) -> str:
        return "".join(self._output)

    def wait(self, limit: float) -> int | None:
        """Wait for the end of the program, and return its exit status, or `None` if it runs longer than `limit`."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(limit)
            self._reader.join(1)  # Programs on the hosts may keep the pipe open.
        return self.process.poll()

    def wait_for(self, text: str, limit: float = 100) -> None:
        """Wait until the program prints a text."""
        deadline = time.monotonic() + limit
        while text not in self.output:
            assert self.process.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.02)

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for host in self._cluster.hosts:
            host.clear()
        self._reader.join()


@contextmanager
def cluster(number: int, *shared: Path) -> Iterator[Cluster]:
    """Make hosts that see the same folders `shared`, and end them and their processes at the end of the block."""
    root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    made: list[_Namespaces] = []
    hosts: list[Host] = []
    with tempfile.TemporaryDirectory(prefix="decompops-hosts-") as name:
        folder = Path(name)
        # Open MPI's daemons on the hosts test whether the agent exists, although only `mpiexec` uses it.
        agent = folder / "agent" / "agent"
        agent.parent.mkdir()
        seen = {path.resolve() for path in (ROOT, Path(sys.prefix), Path(sys.base_prefix), agent.parent, *shared)}
        inside = [path for path in seen if path.is_relative_to("/tmp") and not seen & set(path.parents)]
        try:
            switch = _Namespaces([*root, "--net", "--mount"], [], None)
            made.append(switch)
            switch.run("ip link set lo up", "ip link add bridge type bridge", "ip link set bridge up")
            switch.run(f"ip addr add {SWITCH}/24 dev bridge")
            for i in range(1, number + 1):
                hosts.append(Host(i, folder, switch, inside))
            found = Cluster(hosts, switch, agent)
            found.know()
            _write_agent(agent, hosts)
            yield found
        finally:
            for host in hosts:
                host.die()
            for one in made:
                one.end()


def _write_agent(agent: Path, hosts: list[Host]) -> None:
    """Write the program that `mpiexec` calls in place of `ssh`: `agent ADDRESS COMMAND...`."""
    cases = [f'{host.address}) exec {shlex.join(host.enter("sh", "-c", from_switch=True))} "$*" ;;' for host in hosts]
    agent.write_text("\n".join(["#!/bin/sh", "host=$1; shift", "case $host in", *cases, "esac", ""]))
    agent.chmod(0o700)


@functools.cache
def problem() -> str | None:
    """Return why this machine cannot make hosts, or `None`."""
    missing = [name for name in ("ip", "tc", "unshare", "nsenter") if shutil.which(name) is None]
    if missing:
        return f"there is no `{missing[0]}` (install iproute2 and util-linux)"
    try:
        with cluster(1) as found:
            found[0].limit("1gbit")
    except OSError as error:
        return f"this machine does not allow namespaces ({error})"
    return None


def need() -> None:
    """Skip the test if there can be no hosts, or let it fail if they are required."""
    if reason := problem():
        (pytest.fail if REQUIRED in os.environ else pytest.skip)(reason)


if __name__ == "__main__":
    sys.exit(problem())
