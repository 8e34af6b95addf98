"""Chooses the address of JAX's coordinator, which rank 0 starts, and tests that all hosts can reach it.

JAX itself waits for minutes, without a message, for a coordinator that it cannot reach.
"""

import contextlib
import os
import socket
import threading
from typing import Any
from urllib.parse import urlsplit


_SECONDS = 30  # A host that needs longer to reach the coordinator is reported. Some name servers take 20 seconds.
_LOOPBACK = "127.0.0.1"
_VARIABLE = "JAX_COORDINATOR_ADDRESS"  # JAX reads this variable where a program does not pass an address.


def addresses(communicator: Any) -> tuple[str, str | None]:
    """Return the address of the coordinator, and the address at which it listens.

    If all ranks run on one host, both are a loopback address, which other hosts cannot reach. Otherwise, the second
    address is `None`, and JAX listens on all networks of the host.

    Raises `RuntimeError` on all ranks if a host cannot reach the coordinator.
    """
    from mpi4py import MPI

    node = communicator.Split_type(MPI.COMM_TYPE_SHARED)
    on_one_host = communicator.allreduce(node.size == communicator.size, MPI.LAND)
    first_of_host = node.rank == 0
    node.Free()
    if on_one_host:
        address, problems = _try(communicator, _LOOPBACK, tests=True)
        if not problems:
            return address, address
        # MPI takes containers of one host for the same host, although each may have a network of its own.
    address, problems = _try(communicator, None, tests=on_one_host or first_of_host)
    if problems:
        raise RuntimeError(
            f"decompops: rank {communicator.rank}: all hosts must be able to reach JAX's coordinator, which rank 0 "
            f"starts at {address!r}: {'; '.join(problems)}. Make the names of the hosts known to all hosts (in DNS or "
            f"/etc/hosts) and let the hosts connect to each other, or set {_VARIABLE}=address:port in the environment "
            "of rank 0, where `address` is one that all hosts can reach, and `port` is free there."
        )
    return address, None


def _try(communicator: Any, loopback: str | None, *, tests: bool) -> tuple[str, list[str]]:
    """Return an address that rank 0 chooses for its coordinator, and what is wrong with it.

    Rank 0 listens at this address for a while, and the ranks that are called with `tests` connect to it. The host is
    `loopback`, or else the host that `JAX_COORDINATOR_ADDRESS` names, or else the name of rank 0's host. Other hosts
    look up this name, because the address that a host itself uses may not be valid on other hosts.
    """
    listener, problem, host, port = None, None, "", 0
    if communicator.rank == 0:
        try:
            host, port = (loopback, 0) if loopback else _chosen()
            listener = _listen(loopback, port, communicator.size)
            port = listener.getsockname()[1]
        except ValueError as error:
            problem = str(error)
        except OSError as error:
            problem = f"it cannot listen at port {port} ({error})"
    host, port, may_work = communicator.bcast((host, port, problem is None))
    if tests and may_work:
        problem = _problem(host, port)
    if problem is not None:
        problem = f"host {socket.gethostname()!r} (rank {communicator.rank}): {problem}"
    problems = [one for one in communicator.allgather(problem) if one is not None]
    if listener is not None:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # This ends `accept` in the other thread, which `close` does not.
        listener.close()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}", _few(problems)


def _chosen() -> tuple[str, int]:
    """Return the host and the port that the user wants, or the name of this host and 0."""
    value = os.environ.get(_VARIABLE, "")
    try:
        wanted = urlsplit(f"//{value}")
        return wanted.hostname or socket.gethostname(), wanted.port or 0
    except ValueError:
        raise ValueError(f"`{_VARIABLE}` must be address:port; got {value!r}") from None


def _listen(loopback: str | None, port: int, connections: int) -> socket.socket:
    if loopback:
        listener = socket.create_server((loopback, port), backlog=connections)
    else:
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        listener = socket.create_server(("", port), family=family, backlog=connections, dualstack_ipv6=both)

    def accept() -> None:  # Linux keeps only some thousands of connections that nobody accepts, or 128.
        with contextlib.suppress(OSError):  # The listener has been closed.
            while True:
                listener.accept()[0].close()

    threading.Thread(target=accept, daemon=True).start()
    return listener


def _problem(host: str, port: int) -> str | None:
    """Return why this process cannot connect to a port of a host, or `None`."""
    found: list[str | None] = []

    def connect() -> None:
        name = socket.gethostname()
        try:
            if host != _LOOPBACK:
                socket.getaddrinfo(name, None)  # XLA's collectives need the address of the name of their own host.
            name = host
            socket.create_connection((host, port), timeout=_SECONDS).close()
            found.append(None)
        except socket.gaierror as error:
            found.append(f"it does not know the name {name!r} ({error.strerror})")
        except (OSError, UnicodeError) as error:
            found.append(f"it cannot connect to {host!r} ({error})")

    # Looking up a name has no time limit of its own.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(_SECONDS)
    return found[0] if found else f"{host!r} does not answer within {_SECONDS} s"


def _few(problems: list[str], most: int = 4) -> list[str]:
    more = len(problems) - most
    return problems if more <= 0 else [*problems[:most], f"{more} more ranks with a problem"]
