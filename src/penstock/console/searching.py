"""A search through a topic: by key, by text, by a field of JSON.

Batches are looked through as bytes first. Only those in which the wanted bytes occur are taken apart, so that
a million records take seconds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import NamedTuple

from penstock.admin.filters import found_at, same, steps_of
from penstock.admin.records import fetch
from penstock.client import Client, ClientError
from penstock.console.reading import Bounds, Found, states_of
from penstock.wire.batch import Record, iter_batches, iter_records, open_block

FOUND_MAX = 500
FETCH_BYTES = 1024 * 1024
"""Small, so that the brokers serve others in between."""


class WrongSearchError(ClientError):
    """Nothing can be searched for like this. The message is one sentence."""


class Search(NamedTuple):
    """What is wanted."""

    in_block: Callable[[bytes], bool]
    """Whether a record in these bytes could match."""
    matches: Callable[[Record], bool]


class Progress(NamedTuple):
    read: int
    """Offsets that were passed."""
    total: int
    found: int
    bytes: int


def search_for(by: str, text: str) -> Search:
    """`by`: key, text or json (PATH=VALUE, or a PATH that must be there)."""
    if not text:
        raise WrongSearchError("A search needs something to look for.")
    wanted = text.encode()
    if by == "key":
        return Search(lambda block: wanted in block, lambda record: record.key == wanted)
    if by == "text":
        small = wanted.lower()

        def has(record: Record) -> bool:
            return small in (record.value or b"").lower() or small in (record.key or b"").lower()

        return Search(lambda block: small in block.lower(), has)
    if by == "json":
        return _by_field(text)
    raise WrongSearchError(f"A search is by key, text or json, not by {by!r}.")


def _by_field(text: str) -> Search:
    path, equals, value = (part.strip() for part in text.partition("="))
    steps = steps_of(path)
    if not steps:
        raise WrongSearchError("A search in JSON is PATH=VALUE, such as customer.id=7 or $.items[*].sku=A1.")
    names = [step.encode() for step in steps if step != "*" and not step.isdigit()]

    def could(block: bytes) -> bool:
        # A name may be written with escapes, which look like nothing that one would search for.
        return b"\\u" in block or (
            all(name in block for name in names) and (not value.isalnum() or value.encode() in block)
        )

    def matches(record: Record) -> bool:
        if not could(record.value or b""):
            return False
        try:
            document = json.loads(record.value or b"null")
        except (ValueError, RecursionError):
            return False
        found = found_at(document, steps)
        return any(same(one, value) for one in found) if equals else next(found, found) is not found

    return Search(could, matches)


def searched(client: Client, topic: str, limits: Bounds, search: Search) -> Iterator[Found | Progress]:
    """What is found as it is found, and how far the search is, after each request."""
    total = sum(end - limits.starts.get(one, 0) for one, end in limits.ends.items())
    passed = found = size = 0
    yield Progress(0, total, 0, 0)
    for partition, end in limits.ends.items():
        position = limits.starts.get(partition, 0)
        while position < end:
            at = position
            data = client.retry(
                lambda at=at, one=partition: fetch(client, topic, one, at, 0, bytes_max=FETCH_BYTES)  # type: ignore[misc]
            )
            records = data.records or b""
            states: dict[int, str] | None = None
            for pos, header in iter_batches(records):
                if not header.is_control and search.in_block(bytes(open_block(records, pos, header))):
                    for record in iter_records(records, pos):
                        if position <= record.offset < end and search.matches(record):
                            if states is None:
                                states = states_of(client, topic, partition, at, data)
                            found += 1
                            yield Found(partition, record, states.get(header.base_offset, ""))
                            if found >= FOUND_MAX:
                                yield Progress(passed, total, found, size)
                                return
                position = max(position, header.last_offset + 1)
            if position == at:
                position = end  # nothing came, and nothing will
            size += len(records)
            passed += min(position, end) - at
            yield Progress(passed, total, found, size)
