"""Java's properties files: Kafka's `server.properties` for a broker, and `client.properties` for a client.

A `server.properties` that secures Kafka secures Penstock. Names that mean something to Kafka's own parts only
(`process.roles`, `log.dirs`, `controller.*`) are left alone, and told. A name that neither knows is refused
by `Settings`.
"""

import re
from typing import NamedTuple

from penstock.settings.setting import SettingsError

_SEPARATORS = "=: \t\f"
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
_LINE_END = re.compile(r"\r\n|\r|\n")
"""Java's. Others that Python knows may stand in a password."""
_SAME = {"node.id": "broker.id"}


class FileValues(NamedTuple):
    """What a configuration file says."""

    values: dict[str, str]
    left_alone: tuple[str, ...] = ()
    """Names in a file for Kafka that only its own parts read."""


def parse_properties(text: str) -> dict[str, str]:
    """Values by name, the later ones winning."""
    values: dict[str, str] = {}
    for line in _logical_lines(text):
        at, end = 0, len(line)
        while at < end and line[at] not in _SEPARATORS:
            at += 2 if line[at] == "\\" else 1
        name, rest = line[:at], line[at:].lstrip(" \t\f")
        if rest[:1] in ("=", ":") and rest:
            rest = rest[1:].lstrip(" \t\f")
        values[_unescaped(name)] = _unescaped(rest)
    return values


def kafka_values(text: str) -> FileValues:
    """The settings in a file that was written for Kafka."""
    from penstock.settings.brokers import BROKER_SETTINGS
    from penstock.settings.foreign import left_alone, names_own_class

    values: dict[str, str] = {}
    alone: list[str] = []
    found = parse_properties(text)
    controllers = [one.strip().upper() for one in found.get("controller.listener.names", "").split(",")]
    theirs = tuple(f"listener.name.{one.lower()}." for one in controllers if one)
    for name, value in found.items():
        setting = BROKER_SETTINGS.get(name)
        if name.startswith(theirs) or names_own_class(name, value):
            alone.append(name)
        elif name in _SAME:
            values[_SAME[name]] = value
        elif (setting is not None and setting.moot) or (setting is None and left_alone(name)):
            alone.append(name)
        elif setting is not None and setting.fixed:
            setting.parse(value)  # ValueProblem, unless it is what it has to be.
        else:
            values[name] = value
    if "listeners" in values:
        values["listeners"] = _without(values["listeners"], controllers)
    if values.get("advertised.listeners"):
        values["advertised.listeners"] = _without(values["advertised.listeners"], controllers)
    return FileValues(values, tuple(alone))


def _without(listeners: str, controllers: list[str]) -> str:
    """Listeners of Kafka's controllers have nobody behind them here."""
    kept = [one for one in listeners.split(",") if one.strip().partition("://")[0].upper() not in controllers]
    return ",".join(kept)


def _logical_lines(text: str) -> list[str]:
    """Lines without comments, each joined with those that it goes on in."""
    lines: list[str] = []
    begun: str | None = None
    for raw in _LINE_END.split(text):
        line = raw.lstrip(" \t\f")
        if begun is None and (not line or line[0] in "#!"):
            continue
        whole = line if begun is None else begun + line
        slashes = len(line) - len(line.rstrip("\\"))
        if slashes % 2:
            begun = whole[:-1]
        else:
            lines.append(whole)
            begun = None
    if begun is not None:
        lines.append(begun)
    return lines


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    made: list[str] = []
    at = 0
    while at < len(text):
        if text[at] != "\\" or at + 1 == len(text):
            made.append(text[at])
            at += 1
        elif text[at + 1] == "u":
            digits = text[at + 2 : at + 6]
            try:
                made.append(chr(int(digits, 16)))
            except ValueError:
                raise SettingsError(f"The properties file has a bad escape: \\u{digits}.") from None
            at += 6
        else:
            made.append(_ESCAPED.get(text[at + 1], text[at + 1]))
            at += 2
    return "".join(made)
