"""Chooses the address of JAX's coordinator, which rank 0 starts, and tests that all hosts can reach it.

JAX itself waits for minutes, without a message, for a coordinator that it cannot reach.
"""

import os
import socket
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from . import reach
from .reach import Attempts, Listener


_LOOPBACK = "127.0.0.1"
_VARIABLE = "JAX_COORDINATOR_ADDRESS"  # JAX reads this variable where a program does not pass an address.
_SOON = 2.0  # Seconds after which an address that all hosts have reached is taken, although other attempts go on.


def check(given: Any) -> None:
    """Raise an error if `given` is not `None`, "address" or "address:port"."""
    if given is not None:
        if not isinstance(given, str):
            raise TypeError(f'`coordinator` must be a string "address:port"; got {given!r}.')
        _parsed(given, "coordinator")


def addresses(communicator: Any, given: str | None = None) -> tuple[str, str | None]:
    """Return the address of the coordinator, and the address at which it listens.

    If all ranks run on one host, both are a loopback address, which other hosts cannot reach. Otherwise, the second
    address is `None`, and JAX listens on all networks of the host. Then the first address is the one that `given`
    names, or else `JAX_COORDINATOR_ADDRESS`, or else the name of rank 0's host or an address of its interfaces: the
    first one that all hosts reach.

    Raises `RuntimeError` on all ranks if a host cannot reach the coordinator, or if XLA's collectives could not
    connect the hosts.
    """
    from mpi4py import MPI

    node = communicator.Split_type(MPI.COMM_TYPE_SHARED)
    on_one_host = communicator.allreduce(node.size == communicator.size, MPI.LAND)
    first_of_host = node.rank == 0
    node.Free()
    given = communicator.bcast(given)
    if on_one_host and given is None:
        address, problems = _meet(communicator, None, loopback=True, tests=True)
        if not problems:
            _check_names(communicator, first_of_host)
            return address, address
        # MPI takes containers of one host for the same host, although each may have a network of its own.
    tests = on_one_host or first_of_host
    address, problems = _meet(communicator, given, loopback=False, tests=tests)
    if problems:
        raise RuntimeError(
            f"decompops: rank {communicator.rank}: all hosts must be able to reach JAX's coordinator, which rank 0 "
            f"starts at {address}: {'; '.join(problems)}. Let the hosts connect to each other, or pass an address of "
            f'rank 0\'s host that all hosts can reach: `initialize(coordinator="address:port")`, or '
            f"{_VARIABLE}=address:port in the environment of rank 0."
        )
    _check_names(communicator, tests)
    return address, None


def _check_names(communicator: Any, tests: bool) -> None:
    """Raise `RuntimeError` on all ranks if XLA's collectives could not listen at the name of a host, or be reached."""
    if problems := _unreachable_names(communicator, tests):
        raise RuntimeError(
            f"decompops: rank {communicator.rank}: the name of each host must stand for an address of this host that "
            "the other hosts can reach, because XLA's collectives listen there and tell this address to them: "
            f"{'; '.join(problems)}. Correct the address of this name in DNS or in /etc/hosts of the host with this "
            "name; if no other host takes part, 127.0.0.1 will do."
        )


def best(problems: Sequence[Sequence[str | None]]) -> int:
    """Return the number of the address that the most hosts reach; of several, the first.

    `problems[i][j]` is why host i cannot reach address j, or `None` if it can.
    """
    reached = [sum(one is None for one in column) for column in zip(*problems, strict=True)]
    return reached.index(max(reached))


def _meet(communicator: Any, given: str | None, *, loopback: bool, tests: bool) -> tuple[str, list[str]]:
    """Return an address of rank 0 for its coordinator, and why some hosts cannot reach it.

    Rank 0 listens for a while, and the ranks that are called with `tests` connect to all addresses that it may have.
    """
    listener, problem, hosts, port, token = None, None, [""], 0, b""
    if communicator.rank == 0:
        try:
            hosts, port = ([_LOOPBACK], 0) if loopback else _candidates(given)
            listener = Listener(_LOOPBACK if loopback else "", port, communicator.size)
            port, token = listener.port, listener.token
        except ValueError as error:
            problem = str(error)
        except OSError as error:
            problem = f"it cannot listen at port {port} ({error})"
    hosts, port, token, may_work = communicator.bcast((hosts, port, token, problem is None))
    if may_work:
        chosen, problem = _choose(communicator, hosts, port, token, tests)
    else:
        chosen = 0
    if listener is not None:
        listener.close()
    host = f"[{hosts[chosen]}]" if ":" in hosts[chosen] else hosts[chosen]
    return f"{host}:{port}", told(communicator, problem)


def _choose(communicator: Any, hosts: list[str], port: int, token: bytes, tests: bool) -> tuple[int, str | None]:
    """Return the number of the first address that all hosts reach, or of the best one and why this host cannot."""
    from mpi4py import MPI

    attempts = Attempts(hosts if tests else [], port, token)
    for seconds in (_SOON, reach.LONGEST):
        attempts.wait(seconds)
        reached = sum(1 << i for i, problem in enumerate(attempts.problems) if problem is None) if tests else -1
        if common := communicator.allreduce(reached & (1 << len(hosts)) - 1, MPI.BAND):
            return (common & -common).bit_length() - 1, None
    mine = list(attempts.problems) if tests else None
    chosen = best([one for one in communicator.allgather(mine) if one is not None])
    problem = mine[chosen] if mine else None
    if problem and len(hosts) > 1:
        others = [one for i, one in enumerate(hosts) if i != chosen]
        problem = f"{problem}, and no other address of rank 0's host is reached by all hosts ({', '.join(others)})"
    return chosen, problem


def _candidates(given: str | None) -> tuple[list[str], int]:
    """Return the addresses that the coordinator may have, and its port, or 0 for any port."""
    name, value = ("coordinator", given) if given is not None else (_VARIABLE, os.environ.get(_VARIABLE, ""))
    host, port = _parsed(value, name)
    return [host] if host else [socket.gethostname(), *reach.own_addresses()], port


def _parsed(value: str, name: str) -> tuple[str, int]:
    try:
        wanted = urlsplit(f"//{value}")
        return wanted.hostname or "", wanted.port or 0
    except ValueError:
        raise ValueError(f"`{name}` must be address:port; got {value!r}") from None


def _unreachable_names(communicator: Any, tests: bool) -> list[str]:
    """Return which hosts have a name that stands for an address that another host cannot reach.

    XLA's collectives (Gloo) listen at this address. Each host tests the next host only: in most clusters, all hosts or
    none reach an address.
    """
    listener, problem, here = None, None, None
    name = socket.gethostname()
    if tests:
        try:
            address = reach.address_of_own_name()
            listener = Listener(address, 0, communicator.size)
            here = (name, address, listener.port, listener.token)
        except socket.gaierror as error:
            problem = f"it does not know its own name {name!r} ({error.strerror})"
        except OSError as error:
            problem = f"its own name {name!r} does not stand for an address of this host ({error})"
    places = communicator.allgather(here)
    hosts = [rank for rank, place in enumerate(places) if place is not None]
    if here is not None and len(hosts) > 1:
        other, address, port, token = places[hosts[(hosts.index(communicator.rank) + 1) % len(hosts)]]
        attempts = Attempts([address], port, token)
        attempts.wait()
        if attempts.problems[0]:
            problem = f"{attempts.problems[0]}, which the name {other!r} stands for on host {other!r}"
    problems = told(communicator, problem)  # All ranks have ended their attempts.
    if listener is not None:
        listener.close()
    return problems


def told(communicator: Any, problem: str | None, most: int = 4) -> list[str]:
    """Return the problems of all ranks on every rank, at most `most` of them."""
    if problem is not None:
        problem = f"host {socket.gethostname()!r} (rank {communicator.rank}): {problem}"
    problems = [one for one in communicator.allgather(problem) if one is not None]
    more = len(problems) - most
    return problems if more <= 0 else [*problems[:most], f"and {more} more"]
