"""The options of `format("penstock")`: Spark's Kafka source's names where they mean the same.

Everything is checked when the query is planned. A wrong option is an `OptionError` of one sentence.
"""

import json
import os
import re
from collections.abc import Collection, Mapping
from typing import TypeVar

import msgspec

from penstock.arrow.asked import EARLIEST, LATEST, Asked, Bound, Selection, Words
from penstock.arrow.errors import OptionError
from penstock.log.isolation import Isolation
from penstock.settings import SettingsError
from penstock.settings.clients import OPEN_CLIENT, ClientSecurity, client_security
from penstock.spark.option_table import MOOT, READING, REFUSED, WRITING
from penstock.wire.compression import CODEC_NAMES

_T = TypeVar("_T")

SPLIT_BYTES = 128 * 1024 * 1024
"""As Spark takes of files."""


WORDS = Words(
    start="startingOffsets",
    end="endingOffsets",
    start_time="startingOffsetsByTimestamp",
    end_time="endingOffsetsByTimestamp",
    too_late=" Set startingOffsetsByTimestampStrategy to latest to begin at the end.",
    beyond=" Set failOnDataLoss to false to read what there is.",
    unstable=" Read when it has ended, or set isolation.level to read_uncommitted, or failOnDataLoss to false"
    " to read up to there.",
    lost=" Set failOnDataLoss to false to go on without them.",
)


class ReadOptions(Asked, frozen=True, kw_only=True):
    store: str | None
    bootstrap: str | None
    words: Words = WORDS
    include_headers: bool = False
    min_partitions: int = 0
    max_records_per_partition: int = 0
    max_offsets_per_trigger: int = 0
    min_offsets_per_trigger: int = 0
    max_trigger_delay_ms: int = 15 * 60 * 1000
    max_bytes_per_trigger: int = 0
    split_bytes: int = SPLIT_BYTES
    check_crc: bool = True
    group: str | None = None
    security: ClientSecurity = OPEN_CLIENT
    """How brokers are reached. The store is read with its own credentials."""


def read_options(raw: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """The checked options of a batch or streaming read."""
    options = {key.lower(): value for key, value in raw.items()}
    _known(raw, READING)
    store, bootstrap = options.get("store"), options.get("kafka.bootstrap.servers")
    if not store and not bootstrap:
        raise OptionError("Set the option 'store' (a directory or URL), or 'kafka.bootstrap.servers'.")
    given = options.get("startingoffsetsbytimestampstrategy", "error")
    strategy = given.lower()
    if strategy not in ("error", "latest"):
        raise OptionError(f"startingOffsetsByTimestampStrategy is 'error' or 'latest', not {given!r}.")
    most, least = _count(options, "maxOffsetsPerTrigger"), _count(options, "minOffsetsPerTrigger")
    if most and least > most:
        raise OptionError(
            f"minOffsetsPerTrigger is {least}, which is more than maxOffsetsPerTrigger, {most}."
        )
    group = options.get("group.id") or options.get("kafka.group.id")
    # A job that reads the store and reports to nobody asks no broker, whatever it was told of them.
    asks_brokers = not store or group
    return ReadOptions(
        selection=_selection(options),
        store=_location(store),
        bootstrap=bootstrap,
        start=_bound(options, "starting", default=LATEST if streaming else EARLIEST, streaming=streaming),
        end=_ending(options, streaming=streaming),
        timestamp_without_match=strategy,
        fail_on_data_loss=_flag(options, "failOnDataLoss", default=True),
        include_headers=_flag(options, "includeHeaders", default=False),
        min_partitions=_count(options, "minPartitions"),
        max_records_per_partition=_count(options, "maxRecordsPerPartition"),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=_duration_ms(options, "maxTriggerDelay", "15m"),
        max_bytes_per_trigger=_count(options, "maxBytesPerTrigger"),
        split_bytes=_count(options, "splitBytes") or SPLIT_BYTES,
        isolation=_isolation(options),
        check_crc=_flag(options, "checkCrc", default=True),
        group=group,
        security=_security(options) if asks_brokers else OPEN_CLIENT,
    )


class WriteOptions(msgspec.Struct, frozen=True, kw_only=True):
    topic: str | None
    store: str | None
    bootstrap: str | None
    codec: str = "none"
    security: ClientSecurity = OPEN_CLIENT


def write_options(raw: Mapping[str, str]) -> WriteOptions:
    """The checked options of a write."""
    options = {key.lower(): value for key, value in raw.items()}
    _known(raw, WRITING)
    store, bootstrap = options.get("store"), options.get("kafka.bootstrap.servers")
    if not store and not bootstrap:
        raise OptionError("Set the option 'kafka.bootstrap.servers', or 'store' (a directory or URL).")
    codec = options.get("kafka.compression.type", "none")
    if codec not in CODEC_NAMES:
        raise OptionError(f"kafka.compression.type is one of {', '.join(CODEC_NAMES)}, not {codec!r}.")
    _flag(options, "includeHeaders", default=True)
    return WriteOptions(
        topic=options["topic"].strip() if "topic" in options else None,
        store=_location(store),
        bootstrap=bootstrap,
        codec=codec,
        security=_security(options),
    )


def _security(options: Mapping[str, str]) -> ClientSecurity:
    """From options that Spark's own connector hands to Kafka's clients, such as kafka.security.protocol."""
    given = {name.removeprefix("kafka."): text for name, text in options.items() if name.startswith("kafka.")}
    try:
        return client_security(given)
    except SettingsError as error:
        raise OptionError(f"{str(error).rstrip('.')} (each with 'kafka.' before it).") from None


def _known(raw: Mapping[str, str], names: Collection[str]) -> None:
    """Refuse what nothing here reads: an option that is ignored silently is a trap.

    Settings of Kafka's clients (`kafka.`) are let through: they say how to reach brokers, and a job that
    reads the log itself keeps them from the day when it used Spark's connector. But some ask for other rows.
    """
    from difflib import get_close_matches

    if "provider" in raw:
        raise OptionError(
            "A table of format('penstock') cannot be created: Spark hands its options to no reader."
            " Create a view, CREATE TEMPORARY VIEW name USING penstock OPTIONS (...)."
        )
    for name in raw:
        instead = REFUSED.get(name.lower())
        if instead is not None:
            raise OptionError(f"The option {name!r} is not taken: {instead}.")
    known = {name.lower() for name in (*names, *MOOT)}
    for name in raw:
        if name.lower() not in known and not name.lower().startswith("kafka."):
            near = get_close_matches(name.lower(), known, 1)
            proper = [one for one in names if near and one.lower() == near[0]]
            hint = f" Did you mean '{proper[0]}'?" if proper else ""
            raise OptionError(f"The option {name!r} is not one of format('penstock').{hint}")


def _isolation(options: Mapping[str, str]) -> Isolation:
    """By its own name, or as Spark's connector hands it to its consumer."""
    given = {name: options[name] for name in ("isolation.level", "kafka.isolation.level") if name in options}
    for name, text in given.items():
        if text not in tuple(Isolation):
            raise OptionError(f"{name} is 'read_committed' or 'read_uncommitted', not {text!r}.")
    if len(set(given.values())) > 1:
        raise OptionError("The options 'isolation.level' and 'kafka.isolation.level' contradict each other.")
    return Isolation(next(iter(given.values()), Isolation.READ_COMMITTED))


def _location(store: str | None) -> str | None:
    """A directory by its whole path, because workers may run in another one."""
    return store if not store or "://" in store else os.path.abspath(store)


def _selection(options: Mapping[str, str]) -> Selection:
    given = [name for name in ("subscribe", "subscribePattern", "assign") if name.lower() in options]
    if len(given) != 1:
        raise OptionError("Set exactly one of the options 'subscribe', 'subscribePattern' and 'assign'.")
    text = options[given[0].lower()]
    match given[0]:
        case "subscribe":
            names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
            if not names:
                raise OptionError("The option 'subscribe' names no topic.")
            return Selection(names=names)
        case "subscribePattern":
            text = text.strip()
            if not text:
                raise OptionError("The option 'subscribePattern' is empty.")
            try:
                re.compile(text)
            except re.error as error:
                raise OptionError(
                    f"subscribePattern {text!r} is not a regular expression: {error}."
                ) from None
            return Selection(pattern=text)
    partitions = {
        topic: tuple(sorted(set(indexes)))
        for topic, indexes in _json(text, "assign", dict[str, list[int]]).items()
    }
    if not any(partitions.values()):
        raise OptionError("The option 'assign' names no partition.")
    return Selection(partitions=partitions)


def _bound(options: Mapping[str, str], side: str, *, default: int, streaming: bool) -> Bound:
    """The starting or ending bound: one timestamp, timestamps by partition, offsets; the first that is given,
    as in Spark's connector."""
    by_timestamp, timestamp, offsets = (
        f"{side}OffsetsByTimestamp", f"{side}Timestamp", f"{side}Offsets",
    )  # fmt: skip
    if timestamp.lower() in options:
        return Bound(everywhere=_whole(options[timestamp.lower()], timestamp), by_timestamp=True)
    if by_timestamp.lower() in options:
        return Bound(
            partitions=_by_partition(options[by_timestamp.lower()], by_timestamp, least=0), by_timestamp=True
        )
    text = options.get(offsets.lower())
    if text is None:
        return Bound(everywhere=default)
    word = text.strip().lower()
    if word == "earliest":
        if side == "ending":
            raise OptionError("endingOffsets is 'latest' or JSON with an offset for each partition.")
        return Bound(everywhere=EARLIEST)
    if word == "latest":
        if side == "starting" and not streaming:
            raise OptionError("A batch read starts at 'earliest' or at given offsets, never at 'latest'.")
        return Bound(everywhere=LATEST)
    least = LATEST if side == "ending" else EARLIEST
    partitions = _by_partition(text, offsets, least=least)
    if side == "starting" and not streaming:
        for topic, indexes in partitions.items():
            if LATEST in indexes.values():
                raise OptionError(
                    f"A batch read cannot start at 'latest' (-1), as startingOffsets asks of {topic!r}."
                )
    return Bound(partitions=partitions)


def _ending(options: Mapping[str, str], *, streaming: bool) -> Bound:
    given = [
        n for n in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp") if n.lower() in options
    ]
    if streaming and given:
        raise OptionError(f"A streaming read has no end, so the option '{given[0]}' makes no sense there.")
    return _bound(options, "ending", default=LATEST, streaming=streaming)


def _by_partition(text: str, name: str, *, least: int) -> dict[str, dict[int, int]]:
    found = _json(text, name, dict[str, dict[str, int]])
    result: dict[str, dict[int, int]] = {}
    for topic, entries in found.items():
        for index, value in entries.items():
            if not (index.isascii() and index.isdigit()) or value < least:
                raise OptionError(f"The option '{name}' has a bad entry for {topic!r}: {index!r}: {value}.")
            result.setdefault(topic, {})[int(index)] = value
    if not result:
        raise OptionError(f"The option '{name}' names no partition.")
    return result


def _json(text: str, name: str, kind: type[_T]) -> _T:
    try:
        return msgspec.convert(json.loads(text), kind)
    except (ValueError, msgspec.ValidationError):
        example = '{"topic": [0, 1]}' if name == "assign" else '{"topic": {"0": 23, "1": -2}}'
        raise OptionError(f"The option '{name}' is JSON such as {example}, not {text!r}.") from None


def _flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name.lower(), str(default)).strip().lower()
    if text not in ("true", "false"):
        raise OptionError(f"The option '{name}' is 'true' or 'false', not {text!r}.")
    return text == "true"


def _count(options: Mapping[str, str], name: str) -> int:
    """How many; 0 if it is not given."""
    text = options.get(name.lower())
    if text is None:
        return 0
    count = _whole(text, name)
    if not count:
        raise OptionError(f"The option '{name}' is a whole number from 1 on, not {text!r}.")
    return count


def _whole(text: str, name: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdigit()):
        raise OptionError(f"The option '{name}' is a whole number, not {text!r}.")
    return int(text)


_UNITS_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def _duration_ms(options: Mapping[str, str], name: str, default: str) -> int:
    """As Spark reads times: a number with a unit, milliseconds if there is none."""
    text = options.get(name.lower(), default).strip().lower()
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = text[len(number) :]
    if not (number.isascii() and number.isdigit()) or unit not in _UNITS_MS:
        raise OptionError(f"The option '{name}' is a time such as '30s' or '15m', not {text!r}.")
    return int(number) * _UNITS_MS[unit]
