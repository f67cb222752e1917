"""A cluster as one visitor may see it: clients to borrow, and what many pages ask for.

`Client` belongs to one thread at a time. So a page borrows one, and those that are not in use are kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, TypeVar

from penstock.client import AnswerError, Client, ClientError, ClientRefusedError
from penstock.settings.clients import ClientSecurity
from penstock.wire.api.metadata import MetadataResponse

T = TypeVar("T")

PATIENCE_SECONDS = 5.0
"""How long a page waits for a broker that does not answer."""
KEPT_MAX = 8
FRESH_SECONDS = 1.0
"""How long what many pages ask for is remembered."""
REMEMBERED_MAX = 64
SEEN_MAX = 10


class Cluster:
    def __init__(self, bootstrap: str, security: ClientSecurity) -> None:
        self.bootstrap = bootstrap
        self.security = security
        self._kept: list[Client] = []
        self._lock = Lock()
        self._closed = False
        self._remembered: dict[Hashable, _Remembered] = {}
        self._seen: list[str] = []
        """Where brokers were last: those that the console was told may be gone."""

    @property
    def closed(self) -> bool:
        """Its visitor is gone."""
        return self._closed

    @contextmanager
    def client(self, seconds: float = PATIENCE_SECONDS) -> Iterator[Client]:
        """Borrow a client. One that met a broken connection is not lent again."""
        with self._lock:
            client = self._kept.pop() if self._kept and seconds == PATIENCE_SECONDS else None
        if client is None:
            client = Client(",".join([self.bootstrap, *self._seen]), seconds, self.security)
        keeps = False
        try:
            yield client
            keeps = True
        except AnswerError:
            keeps = True
            raise
        finally:
            with self._lock:
                keeps = keeps and not self._closed and len(self._kept) < KEPT_MAX
                if keeps and seconds == PATIENCE_SECONDS:
                    self._kept.append(client)
                else:
                    client.close()

    def ask(self, question: Callable[[Client], T]) -> T:
        """Ask something that changes nothing; once more, with a new client, if the connection broke."""
        try:
            with self.client() as client:
                return question(client)
        except (AnswerError, ClientRefusedError):
            raise
        except ClientError:
            with self._lock:
                stale, self._kept = self._kept, []
            for one in stale:
                one.close()
            with self.client() as client:
                return question(client)

    def remembered(self, key: Hashable, question: Callable[[Client], T], seconds: float = FRESH_SECONDS) -> T:
        """What `question` answered a moment ago. Many who ask at once are one request."""
        with self._lock:
            found = self._remembered.get(key)
            if found is None:
                while len(self._remembered) >= REMEMBERED_MAX:
                    self._remembered.pop(next(iter(self._remembered)))
                found = self._remembered[key] = _Remembered()
        with found.lock:
            if time.monotonic() - found.at > seconds:
                found.value = self.ask(question)
                found.at = time.monotonic()
            value: T = found.value
            return value

    def forget(self) -> None:
        """Something was changed: what is remembered is old."""
        with self._lock:
            self._remembered.clear()

    def metadata(self) -> MetadataResponse:
        """All brokers, topics and partitions that the visitor may see."""
        found = self.remembered("metadata", lambda client: client.metadata())
        self._seen = [f"[{one.host}]:{one.port}" for one in found.brokers[:SEEN_MAX]]
        return found

    def close(self) -> None:
        with self._lock:
            self._closed = True
            kept, self._kept = self._kept, []
        for client in kept:
            client.close()


class _Remembered:
    def __init__(self) -> None:
        self.lock = Lock()
        self.at = float("-inf")
        self.value: Any = None
