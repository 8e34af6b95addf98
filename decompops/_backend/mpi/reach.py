"""Tests which addresses of a host other hosts can reach, with plain TCP connections."""

import array
import contextlib
import fcntl
import ipaddress
import secrets
import socket
import struct
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path


LONGEST = 30.0  # A host that needs more seconds to reach another is reported. Some name servers take 20 seconds.
_SIOCGIFCONF = 0x8912


class Listener:
    """Listens at a port until it is closed, and sends each client a token that only this listener knows.

    The token shows the client that it has reached this process. For example, many hosts have an interface with the
    address 172.17.0.1, but each host reaches only its own.

    `address` is the address of one interface, or "" for all of them. A port of 0 stands for any free port.
    """

    def __init__(self, address: str, port: int, connections: int):
        if address:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            self._socket = socket.create_server((address, port), family=family, backlog=connections)
        else:
            both = socket.has_dualstack_ipv6()
            family = socket.AF_INET6 if both else socket.AF_INET
            self._socket = socket.create_server(("", port), family=family, backlog=connections, dualstack_ipv6=both)
        self.port: int = self._socket.getsockname()[1]
        self.token = secrets.token_bytes(16)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection = self._socket.accept()[0]
            except OSError:  # The listener has been closed.
                return
            with connection, contextlib.suppress(OSError):  # The client may have gone.
                connection.sendall(self.token)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # This ends `accept` in the other thread, which `close` does not.
        self._socket.close()


def own_addresses() -> list[str]:
    """Return the addresses of this host's interfaces that other hosts may reach. On systems other than Linux: none."""
    if sys.platform != "linux":
        return []
    found = [ipaddress.ip_address(text) for text in (*_ipv4(), *_ipv6())]
    return [str(one) for one in dict.fromkeys(found) if not (one.is_loopback or one.is_link_local)]


def _ipv4() -> list[str]:
    entries = array.array("B", bytes(40 * 256))  # The kernel fills in one `struct ifreq` of 40 bytes for each address.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("iP", len(entries), entries.buffer_info()[0])
        try:
            used = struct.unpack("iP", fcntl.ioctl(any_socket, _SIOCGIFCONF, request))[0]
        except OSError:
            return []
    return [socket.inet_ntoa(entries[start + 20 : start + 24].tobytes()) for start in range(0, used, 40)]


def _ipv6() -> list[str]:
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        return []
    return [str(ipaddress.IPv6Address(bytes.fromhex(line.split()[0]))) for line in lines]


def address_of_own_name() -> str:
    """Return the address that the name of this host stands for on this host.

    XLA's collectives (Gloo) listen there, and tell this address to the other hosts.

    Raises `OSError` if the name is unknown here, or stands for no address of this host.
    """
    problem = OSError("no address")
    for family, kind, protocol, _, place in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM):
        try:
            with socket.socket(family, kind, protocol) as trial:
                trial.bind(place)
            return str(place[0])
        except OSError as error:
            problem = error
    raise problem


class Attempts:
    """Attempts to reach a process at several addresses, all at the same time.

    `problems` has one entry for each address: why it could not be reached, or `None` if it was reached. Before an
    attempt has ended, its entry says that the address does not answer.
    """

    def __init__(self, addresses: Sequence[str], port: int, token: bytes):
        self.problems: list[str | None] = [f"{one!r} does not answer within {LONGEST:.0f} s" for one in addresses]
        self._end = time.monotonic() + LONGEST

        def attempt(i: int) -> None:
            self.problems[i] = _problem(addresses[i], port, token)

        # Looking up a name has no time limit of its own, so that this process does not wait for these threads.
        self._threads = [threading.Thread(target=attempt, args=(i,), daemon=True) for i in range(len(addresses))]
        for thread in self._threads:
            thread.start()

    def wait(self, seconds: float = LONGEST) -> None:
        """Wait until all attempts have ended, but at most so many seconds, and not beyond the limit of all attempts."""
        end = min(self._end, time.monotonic() + seconds)
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))


def _problem(address: str, port: int, token: bytes) -> str | None:
    """Return why this process cannot connect to a port of an address, or `None`."""
    try:
        connection = socket.create_connection((address, port), timeout=LONGEST)
        with connection, connection.makefile("rb") as received:
            answer = received.read(len(token))
    except socket.gaierror as error:
        return f"it does not know the name {address!r} ({error.strerror})"
    except (OSError, UnicodeError) as error:
        return f"it cannot connect to {address!r} ({error})"
    return None if answer == token else f"another program answers at {address!r}, port {port}"
