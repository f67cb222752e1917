"""Who is logged in. A session lives here alone; the browser has its random name in a cookie.

A session ends when its user logs out, after a time without a visit, after a day at most, and with the
process. Pages that renew themselves are no visits. There are so many sessions at most; the one that was
visited longest ago makes room.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from threading import Lock

from penstock.console.cluster import Cluster

IDLE_SECONDS = 30 * 60.0
LIFE_SECONDS = 12 * 3600.0
SESSIONS_MAX = 200
"""Each has connections to the cluster."""


class Session:
    def __init__(self, cluster: Cluster, user: str, now: float) -> None:
        self.cluster = cluster
        self.user = user
        self.begun_at = now
        self.visited_at = now


class Sessions:
    """By the hash of the name in the cookie, so that what is in memory opens nothing."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._sessions: dict[bytes, Session] = {}
        self._lock = Lock()

    def open(self, cluster: Cluster, user: str) -> str:
        """Begin a session; its name."""
        name = self.new_name()
        now = self._monotonic()
        with self._lock:
            self._end_old(now)
            while len(self._sessions) >= SESSIONS_MAX:
                oldest = min(self._sessions, key=lambda key: self._sessions[key].visited_at)
                self._sessions.pop(oldest).cluster.close()
            self._sessions[_key(name)] = Session(cluster, user, now)
        return name

    @staticmethod
    def new_name() -> str:
        return secrets.token_urlsafe(32)

    def find(self, name: str, *, visits: bool) -> Session | None:
        """`visits`: a person is there, so the session lasts longer."""
        now = self._monotonic()
        with self._lock:
            self._end_old(now)
            session = self._sessions.get(_key(name))
            if session is not None and visits:
                session.visited_at = now
            return session

    def end(self, name: str) -> None:
        with self._lock:
            session = self._sessions.pop(_key(name), None)
        if session is not None:
            session.cluster.close()

    def close(self) -> None:
        with self._lock:
            sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            session.cluster.close()

    def _end_old(self, now: float) -> None:
        for key, one in list(self._sessions.items()):
            if now - one.visited_at > IDLE_SECONDS or now - one.begun_at > LIFE_SECONDS:
                self._sessions.pop(key).cluster.close()


class Tokens:
    """What a form must bring along, so that no other site can send it: bound to the visitor's cookie."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    def of(self, name: str) -> str:
        return hmac.new(self._secret, name.encode(), hashlib.sha256).hexdigest()

    def fits(self, token: str, name: str) -> bool:
        return bool(name) and hmac.compare_digest(token.encode(), self.of(name).encode())


def _key(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()
