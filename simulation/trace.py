"""What happened in one world, in order, and a hash of all of it: two runs of one seed have equal hashes."""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import Callable

LINES_KEPT = 4000
"""The newest lines, for people. The hash is of all of them."""


class Trace:
    def __init__(self, now: Callable[[], float], *, keep: int = LINES_KEPT) -> None:
        self._now = now
        self._hash = hashlib.blake2b(digest_size=16)
        self.lines: deque[str] = deque(maxlen=keep)

    def note(self, who: str, what: str) -> None:
        line = f"{self._now():10.4f}  {who:<10} {what}"
        self._hash.update(line.encode())
        self.lines.append(line)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def last(self, count: int) -> list[str]:
        return list(self.lines)[-count:]


class TraceHandler(logging.Handler):
    """Puts what brokers log into the trace, and tells of what no broker should have to log."""

    def __init__(self, trace: Trace, who: Callable[[], str], on_bug: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self._trace = trace
        self._who = who
        self._on_bug = on_bug

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        self._trace.note(self._who(), f"log {record.levelname.lower()}: {message}")
        if record.exc_info is not None and record.exc_info[1] is not None:
            self._on_bug(f"{message}\n{logging.Formatter().formatException(record.exc_info)}")
