"""The answers of Fetch, in all versions, around record buffers that are not copied.

They are written by hand beside the general codec, because a partition's records are many buffers and the
codec knows one. The tests compare the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import TYPE_CHECKING

from penstock.broker.fetch.results import Result
from penstock.wire.errors import ErrorCode
from penstock.wire.varint import unsigned

if TYPE_CHECKING:
    from penstock.broker.fetch.sessions import Wanted
    from penstock.broker.topics.leaders import Leaders
    from penstock.wire.buffers import Buffer

FLEXIBLE_FROM = 12
TOPIC_IDS_FROM = 13
LEADER_HINTS_FROM = 16
SESSIONS_FROM = 7

_HINTED = frozenset((ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH))

_INT16 = Struct(">h")
_INT32 = Struct(">i")
_V0 = Struct(">ihq").pack
_V4 = Struct(">ihqq").pack
_V5 = Struct(">ihqqq").pack
_TRANSACTION = Struct(">qq").pack
_EPOCH_AND_OFFSET = Struct(">iq").pack
_LEADER = Struct(">ii").pack
_PREFERRED_NONE = _INT32.pack(-1)
_ONE_PARTITION_V12 = Struct(">ihqqqBi").pack
"""A partition without aborted transactions, up to its records: all that tail consumers get."""


def encoded(
    version: int,
    correlation_id: int,
    error: ErrorCode,
    session_id: int,
    partitions: Sequence[tuple[Wanted, Result]],
    leaders: Leaders,
) -> list[Buffer]:
    """The whole answer: small parts joined, records as they are."""
    flexible = version >= FLEXIBLE_FROM
    out: list[Buffer] = []
    part = bytearray(_INT32.pack(correlation_id))
    if flexible:
        part += b"\0"
    if version >= 1:
        part += b"\0\0\0\0"
    if version >= SESSIONS_FROM:
        part += _INT16.pack(error) + _INT32.pack(session_id)
    topics = _by_topic(partitions, version)
    part += _count(len(topics), flexible)
    for topic in topics:
        first = topic[0][0]
        if version >= TOPIC_IDS_FROM:
            part += first.topic_id
        else:
            name = first.name.encode()
            part += unsigned(len(name) + 1) if flexible else _INT16.pack(len(name))
            part += name
        part += _count(len(topic), flexible)
        for wanted, result in topic:
            part = _partition(out, part, version, wanted, result, leaders)
        if flexible:
            part += b"\0"
    if flexible:
        part += _endpoints(leaders) if version >= LEADER_HINTS_FROM else b"\0"
    out.append(bytes(part))
    return out


def _by_topic(partitions: Iterable[tuple[Wanted, Result]], version: int) -> list[list[tuple[Wanted, Result]]]:
    """Partitions of one topic that stand next to each other go together, as Kafka's FetchResponse does."""
    topics: list[list[tuple[Wanted, Result]]] = []
    by_id = version >= TOPIC_IDS_FROM
    last: bytes | str | None = None
    for entry in partitions:
        key = entry[0].topic_id if by_id else entry[0].name
        if key != last:
            topics.append([])
            last = key
        topics[-1].append(entry)
    return topics


def _count(count: int, flexible: bool) -> bytes:
    return unsigned(count + 1) if flexible else _INT32.pack(count)


def _partition(
    out: list[Buffer], part: bytearray, version: int, wanted: Wanted, result: Result, leaders: Leaders
) -> bytearray:
    """Add one partition; the small part that its records, if any, are followed by."""
    error, size = result.error, result.size
    flexible = version >= FLEXIBLE_FROM
    if flexible and result.aborted is None:
        part += _ONE_PARTITION_V12(
            wanted.index, error, result.high_watermark, result.last_stable_offset, result.log_start, 0, -1
        )
    else:
        if version >= 5:
            part += _V5(
                wanted.index, error, result.high_watermark, result.last_stable_offset, result.log_start
            )
        elif version == 4:
            part += _V4(wanted.index, error, result.high_watermark, result.last_stable_offset)
        else:
            part += _V0(wanted.index, error, result.high_watermark)
        if version >= 4:
            _add_aborted(part, result.aborted, flexible)
        if version >= 11:
            part += _PREFERRED_NONE
    part += unsigned(size + 1) if flexible else _INT32.pack(size)
    if size > 0:
        out.append(bytes(part))
        out += result.buffers
        part = bytearray()
    if flexible:
        part += _tags(version, wanted, result, leaders)
    return part


def _add_aborted(part: bytearray, aborted: Sequence[tuple[int, int]] | None, flexible: bool) -> None:
    if aborted is None:
        part += b"\0" if flexible else b"\xff\xff\xff\xff"
        return
    part += _count(len(aborted), flexible)
    for producer_id, first_offset in aborted:
        part += _TRANSACTION(producer_id, first_offset)
        if flexible:
            part += b"\0"


def _tags(version: int, wanted: Wanted, result: Result, leaders: Leaders) -> bytes:
    """Diverging epoch (0) and present leader (1), where there is something to say."""
    tags = []
    if result.diverging is not None:
        tags.append(b"\0\x0d" + _EPOCH_AND_OFFSET(*result.diverging) + b"\0")
    if version >= LEADER_HINTS_FROM and result.error in _HINTED:
        topic = leaders.image.topic_by_id(wanted.topic_id)
        find = leaders.elsewhere if result.error is ErrorCode.NOT_LEADER_OR_FOLLOWER else leaders.of
        leader = find(topic, wanted.index)
        if leader[0] >= 0:
            tags.append(b"\1\x09" + _LEADER(*leader) + b"\0")
    return unsigned(len(tags)) + b"".join(tags) if tags else b"\0"


def _endpoints(leaders: Leaders) -> bytes:
    """The tagged fields of the answer itself: where the leaders are that it names."""
    if not leaders.endpoints:
        return b"\0"
    field = bytearray(unsigned(len(leaders.endpoints) + 1))
    for endpoint in leaders.endpoints.values():
        host = endpoint.host.encode()
        field += _INT32.pack(endpoint.node_id) + unsigned(len(host) + 1) + host + _INT32.pack(endpoint.port)
        if endpoint.rack is None:
            field += b"\0"
        else:
            rack = endpoint.rack.encode()
            field += unsigned(len(rack) + 1) + rack
        field += b"\0"
    return b"\1\0" + unsigned(len(field)) + bytes(field)
