"""The handshakes of TLS, done in turns.

- In each turn of the loop handshakes are done for a few milliseconds, so that a crowd at the door does not
  hold up those inside.
- A handshake that was begun goes on before another is begun. Of those that wait to begin, each address has
  one in its turn, so that a crowd from one address does not hold up the others.
- One that was begun costs tens of kilobytes. Who is honest goes on with it as soon as our answer has arrived,
  so where there are too many the oldest one is closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.server.tls import TlsTransport

log = logging.getLogger(__name__)

TURN_SECONDS: Final = 0.003
"""How long handshakes are done in one turn of the loop."""


class Handshakes:
    """Those of one server."""

    def __init__(self, loop: asyncio.AbstractEventLoop, unfinished_max: int) -> None:
        self._loop = loop
        self._unfinished_max = unfinished_max
        self._going: deque[TlsTransport] = deque()
        self._waiting: dict[str, deque[TlsTransport]] = {}
        """By address. The one whose turn it is comes first."""
        self._unfinished: dict[TlsTransport, None] = {}
        """The oldest first."""
        self._working = False

    def __len__(self) -> int:
        """How many were begun and are not finished."""
        return len(self._unfinished)

    def add(self, transport: TlsTransport) -> None:
        """It has something to go on with."""
        if transport in self._unfinished:
            self._going.append(transport)
        else:
            self._waiting.setdefault(transport.peer_host, deque()).append(transport)
        if not self._working:
            self._working = True
            self._loop.call_soon(self._work)

    def begun(self, transport: TlsTransport) -> None:
        self._unfinished[transport] = None
        if len(self._unfinished) > self._unfinished_max:
            oldest = next(iter(self._unfinished))
            del self._unfinished[oldest]
            log.info("closed a handshake: too many are unfinished; peer=%s", oldest.peer_host)
            oldest.abort()

    def ended(self, transport: TlsTransport) -> None:
        """It is finished, or the connection is gone."""
        self._unfinished.pop(transport, None)

    def _next(self) -> TlsTransport | None:
        if self._going:
            return self._going.popleft()
        if not self._waiting:
            return None
        host = next(iter(self._waiting))
        of_host = self._waiting.pop(host)
        found = of_host.popleft()
        if of_host:
            self._waiting[host] = of_host
        return found

    def _work(self) -> None:
        ends = perf_counter() + TURN_SECONDS
        while perf_counter() < ends:
            found = self._next()
            if found is None:
                self._working = False
                return
            found.shake()
        self._loop.call_soon(self._work)
