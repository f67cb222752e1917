"""What a broker logs to standard error, for people (text) or for machines (JSON): one event, one line.

Lines of code say `log.info("closed a connection: %s; peer=%s", why, host)`. In JSON a value that stands
behind a name is a field of its own, with its type:

    {"time": "2026-01-31T12:00:00.123Z", "level": "info", "logger": "penstock.server.connection",
     "message": "closed a connection: a frame of ...; peer=10.0.0.1", "fields": {"peer": "10.0.0.1"}}

A bug has a traceback, in the field `traceback` of the same line. What a peer or the network did has none: the
event loop logs broken connections with one, and it is taken away here.

Lines are limited by their place in the code: after `BURST` within `WINDOW_SECONDS` further ones are dropped.
The next line from there after that says how many. So a peer that makes a broker log cannot fill a disk. The
audit limits itself: a change of who may do what is always told.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any, TextIO

from penstock.audit import LOGGER as AUDIT

if TYPE_CHECKING:
    from types import TracebackType

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
FORMATS = ("text", "json")
BURST = 20
WINDOW_SECONDS = 10.0
_PLACES_MAX = 10_000
"""Places in the code are few; messages of libraries may be built from what they saw."""

_PLACEHOLDER = re.compile(r"(?:(\w+)=)?(%(?:[-#0 +]*\d*(?:\.\d+)?[a-zA-Z]|%))")


def set_up(level: str, form: str) -> None:
    """Log from now on. Both are among LEVELS and FORMATS."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Json() if form == "json" else Text())
    if form == "json":
        # What ends the process or a thread is an event like others.
        sys.excepthook = _unexpected
        threading.excepthook = lambda ended: _unexpected(ended.exc_type, ended.exc_value, ended.exc_traceback)
    handler.addFilter(without_peers_tracebacks)
    handler.addFilter(Limit(time.monotonic))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(LEVELS[level])


def tell(sentence: str) -> None:
    """Tell whoever started the broker: an event where a machine reads them, else a plain sentence."""
    if any(isinstance(one.formatter, Json) for one in logging.getLogger().handlers):
        logging.getLogger("penstock").error("%s", sentence)
        return
    # One write: brokers of one supervisor share its output, and lines must not run together.
    sys.stderr.write(f"penstock: {sentence}\n")
    sys.stderr.flush()


def _unexpected(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    if error is None or issubclass(kind, SystemExit | KeyboardInterrupt):
        return
    logging.getLogger("penstock").critical("ended unexpectedly: %s", error, exc_info=(kind, error, trace))


def without_peers_tracebacks(record: logging.LogRecord) -> bool:
    """What the network did is no bug: one line says it, and no traceback."""
    error = record.exc_info[1] if record.exc_info else None
    if record.name == "asyncio" and isinstance(error, OSError):
        record.msg = f"{str(record.getMessage()).splitlines()[0]}: {error}"
        record.args = ()
        record.exc_info = None
    return True


class Limit:
    """Lets so many lines from one place in the code pass in a while."""

    def __init__(self, now: Any) -> None:
        self._now = now
        self._places: dict[tuple[str, str], list[float]] = {}
        """By logger and message: when the window began, how many passed, how many did not."""

    def __call__(self, record: logging.LogRecord) -> bool:
        if record.name == AUDIT:
            return True
        key = (record.name, str(record.msg)[:200])
        now = self._now()
        place = self._places.get(key)
        if place is None or now - place[0] >= WINDOW_SECONDS:
            dropped = int(place[2]) if place is not None else 0
            if len(self._places) >= _PLACES_MAX:
                self._places.clear()
            self._places[key] = [now, 1, 0]
            record.dropped = dropped
            return True
        if place[1] < BURST:
            place[1] += 1
            record.dropped = 0
            return True
        place[2] += 1
        return False


class Text(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        # What a peer sent may hold the end of a line.
        line = super().formatMessage(record).replace("\r", "\\r").replace("\n", "\\n")
        dropped = getattr(record, "dropped", 0)
        return f"{line} (and {dropped} more like it)" if dropped else line


class Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        seconds, fraction = divmod(record.created, 1)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
        event: dict[str, Any] = {
            "time": f"{stamp}.{int(fraction * 1000):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields = fields_of(record)
        if fields:
            event["fields"] = fields
        dropped = getattr(record, "dropped", 0)
        if dropped:
            event["dropped"] = dropped
        if record.exc_info and record.exc_info[1] is not None:
            event["traceback"] = "".join(traceback.format_exception(record.exc_info[1]))
        # What output has no letter for would be escaped there as Python does it, which is no JSON.
        return json.dumps(event, ensure_ascii=not _writes_all(sys.stderr), default=str)


def _writes_all(stream: TextIO) -> bool:
    return (getattr(stream, "encoding", None) or "").lower() in ("utf-8", "utf8")


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """The values of a message that stand behind a name: `peer=%s`."""
    if not isinstance(record.args, tuple) or not record.args:
        return {}
    found: dict[str, Any] = {}
    number = 0
    for name, placeholder in _PLACEHOLDER.findall(str(record.msg)):
        if placeholder == "%%":
            continue
        if number >= len(record.args):
            break
        if name:
            value = record.args[number]
            found[name] = (
                value if isinstance(value, bool | int | float | str) or value is None else str(value)
            )
        number += 1
    return found
