"""The connections that have not shaken hands or not logged in yet.

There is a limit to their number, in all and from one address, and to their time. Who is honest gets through
in a moment, so where there are too many the oldest one is closed and the newest may come in. A crowd that
opens connections and says nothing closes its own, and keeps out nobody.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.server.connection import Connection
    from penstock.server.server import Server

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0


class HalfOpen:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._since: dict[Connection, float] = {}
        """The oldest first."""
        self._hosts: dict[str, dict[Connection, None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._since)

    def add(self, connection: Connection) -> None:
        limits = self._server.limits
        self._since[connection] = self._server.now()
        host = connection.session.peer_host
        of_host = self._hosts.setdefault(host, {})
        of_host[connection] = None
        if len(of_host) > limits.half_open_per_host_max:
            self._end(next(iter(of_host)), "its address has too many that are not logged in")
        elif len(self._since) > limits.half_open_max:
            self._end(next(iter(self._since)), "too many are not logged in")
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def remove(self, connection: Connection) -> None:
        if self._since.pop(connection, None) is None:
            return
        host = connection.session.peer_host
        of_host = self._hosts[host]
        del of_host[connection]
        if not of_host:
            del self._hosts[host]

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """Close those whose time is over."""
        self._timer = None
        limit = self._server.now() - self._server.limits.half_open_timeout_ms / 1000
        for connection, since in list(self._since.items()):
            if since > limit:
                break
            self._end(connection, "its login took too long")
        if self._since:
            self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def _end(self, connection: Connection, why: str) -> None:
        log.info("closed a connection before its login: %s; peer=%s", why, connection.session.peer_host)
        self.remove(connection)
        connection.abort()
