"""Ports that stay free for the servers that will listen on them.

A port that was free a moment ago may be taken when it is used, by another test in another process. So this
module holds it, with a socket that has its address and does not listen. A process that asks for any port is
given another one. A server that wants this very port, and says SO_REUSEADDR as servers do, can listen on it.
Linux does it like this. Elsewhere a held port may not be possible, and `hold` says so.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator

HOST = "127.0.0.1"
_LOWEST, _HIGHEST = 20_000, 32_000
"""Below those that the system gives to whoever asks for any."""
_ATTEMPTS_MAX = 1_000


def hold(port: int = 0) -> socket.socket | None:
    """Hold a port of the loopback address, or any; closing the socket lets it go. None: this system knows
    no such thing. Raises OSError if somebody has the port."""
    held = socket.socket()
    try:
        held.bind((HOST, port))
        # Only now: with it, two could hold the same port.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    except OSError:
        held.close()
        raise
    try:
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(held.getsockname())
            server.listen()
    except OSError:
        held.close()
        return None
    return held


@contextlib.contextmanager
def consecutive(count: int) -> Iterator[int]:
    """The first of so many ports in a row, which are held meanwhile."""
    for _ in range(_ATTEMPTS_MAX):
        first = random.randrange(_LOWEST, _HIGHEST - count)
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    held = hold(port)
                    if held is not None:
                        stack.enter_context(held)
            except OSError:
                continue
            yield first
            return
    raise OSError(f"There are no {count} free ports in a row.")
