"""The events of one world, in order, and a hash of all of them: two runs of one seed have equal hashes."""

from __future__ import annotations

import hashlib
import logging
from array import array
from collections.abc import Callable

LINES_KEPT = 4000
"""The newest lines, for people. The hash is of all of them."""


class Trace:
    """Only what is kept is ever put into words, and at the end."""

    def __init__(self, now: Callable[[], float], *, keep: int = LINES_KEPT) -> None:
        self._now = now
        self._keep = keep
        self._times = array("d")
        self._words: list[str] = []
        """Who and what, by turns."""

    def note(self, who: str, what: str) -> None:
        self._times.append(self._now())
        self._words += (who, what)

    @property
    def digest(self) -> str:
        whole = hashlib.blake2b(self._times.tobytes(), digest_size=16)
        whole.update("\0".join(self._words).encode())
        return whole.hexdigest()

    @property
    def lines(self) -> list[str]:
        first = max(0, len(self._times) - self._keep)
        return [
            f"{self._times[at]:10.4f}  {self._words[2 * at]:<10} {self._words[2 * at + 1]}"
            for at in range(first, len(self._times))
        ]


class TraceHandler(logging.Handler):
    """Puts the log lines of brokers into the trace, and reports lines that no broker should have to log."""

    def __init__(self, trace: Trace, who: Callable[[], str], on_bug: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self._trace = trace
        self._who = who
        self._on_bug = on_bug

    def handle(self, record: logging.LogRecord) -> bool:
        # There are no threads, and no filters: what the class does around `emit` is for those.
        self.emit(record)
        return True

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        self._trace.note(self._who(), f"log {record.levelname.lower()}: {message}")
        if record.exc_info is not None and record.exc_info[1] is not None:
            self._on_bug(f"{message}\n{logging.Formatter().formatException(record.exc_info)}")
