"""Every version of every API that ApiVersions tells of is answered: well formed, as other codecs read it.

The list comes from the registry. Requests are made from the layout of each message: one with as little as it
takes, and one in which each list has several items. What is just outside of a range closes the connection.
"""

from __future__ import annotations

import logging
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.broker.handlers.describe_quorum import METADATA_TOPIC
from penstock.broker.registry import APIS, Api
from penstock.cli.client import Client
from penstock.testing import Broker
from penstock.wire.api.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock.wire.codec import decode, encode
from penstock.wire.errors import ErrorCode
from penstock.wire.headers import parse_response_header, request_header
from penstock.wire.layout import Layout, WireType, layout_of
from penstock.wire.schema import ZERO_UUID, ApiMessage, Message
from tests.broker.rig import batch
from tests.wire.oracles import oracle_for, same

TOPICS = ("first", "second")
SEVERAL = 2
CASES = [(row, version) for row in APIS.values() for version in range(row.min_version, row.max_version + 1)]
OUTSIDE = [
    (row, version)
    for row in APIS.values()
    for version in (row.min_version - 1, row.max_version + 1)
    if row.name != "ApiVersions"  # Which answers any version.
]
NUMBERS: dict[str, int] = {
    "acks": -1,
    "broker_id": 99,
    "config_type": 16,
    "isolation_level": 0,
    "leader_id": -1,
    "match_type": 0,
    "max_bytes": 1_000_000,
    "num_partitions": 1,
    "operation": 2,
    "partition_max_bytes": 1_000_000,
    "permission_type": 3,
    "producer_id": -1,
    "producer_epoch": -1,
    "rebalance_timeout_ms": 10_000,
    "replica_id": -1,
    "replication_factor": 1,
    "resource_type": 2,
    "resource_type_filter": 2,
    "response_partition_limit": 10,
    "session_epoch": -1,
    "session_timeout_ms": 10_000,
    "timeout_ms": 10_000,
    "transaction_timeout_ms": 10_000,
}
"""What is valid where zero is not."""


TIMES_BELOW_ZERO = {"CreateDelegationToken", "RenewDelegationToken", "ExpireDelegationToken"}
"""Who is nobody gets no token, and a time of -1, as in Kafka. The other codec cannot read it."""


class Builder:
    """Requests by their layout, told apart by a number."""

    def __init__(self, topic_ids: dict[str, bytes], several: int) -> None:
        self._topic_ids = topic_ids
        self._several = several

    def build(self, row: Api, version: int) -> Any:
        request_class, _response_class = row.messages()
        return self._structure(layout_of(request_class, version), 0)

    def _structure(self, layout: Layout, at: int) -> Message:
        values = {
            field.name: self._value(field.type, field.name, at)
            for field in layout.fields
            if field.present and field.tag is None
        }
        return layout.cls(**values)

    def _value(self, wire_type: WireType, name: str, at: int) -> Any:
        kind = wire_type.kind
        if kind == "array":
            assert wire_type.element is not None
            if not self._several and wire_type.nullable:
                return None
            count = self._several if self._several else 1 if wire_type.element.kind == "struct" else 0
            return [self._value(wire_type.element, name, item) for item in range(count)]
        if kind == "struct":
            assert wire_type.layout is not None
            return None if wire_type.nullable else self._structure(wire_type.layout, at)
        if kind == "string":
            return None if wire_type.nullable and not self._several else self._string(name, at)
        if kind == "uuid":
            return self._topic_ids[TOPICS[at]] if "topic" in name else ZERO_UUID
        if kind == "records":
            return bytes(batch(b"value %d" % at))
        if kind == "bytes":
            return b""
        if kind == "bool":
            return False
        return NUMBERS.get(name, at if name in ("partition", "partition_index", "index") else 0)

    def _string(self, name: str, at: int) -> str:
        if name == "member_id" and not self._several:
            return ""  # Who joins a group is given one.
        if name == "protocol_type":
            return "consumer"
        if "group" in name or "member" in name or name in ("key", "coordinator_keys"):
            return f"{name}-{at}"
        return TOPICS[at]


def with_metadata_topic(request: Any) -> Any:
    """DescribeQuorum knows one topic only."""
    request.topics[0].topic_name = METADATA_TOPIC
    return request


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {"group.initial.rebalance.delay.ms": 0, "num.partitions": 2}
    with Broker(settings=settings) as running:
        yield running


@pytest.fixture(scope="module")
def topic_ids(broker: Broker) -> dict[str, bytes]:
    with Client(broker.bootstrap_servers) as client:
        for name in TOPICS:
            client.partitions(name, create=True)
        asked = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in TOPICS])
        answer = client.any().ask(asked, MetadataResponse)
        return {str(topic.name): bytes(topic.topic_id) for topic in answer.topics}


def exchange(broker: Broker, key: int, version: int, correlation_id: int, body: bytes) -> bytes | None:
    """The answer's frame; None if the connection was closed."""
    message = request_header(key, version, correlation_id, "versions") + body
    with socket.create_connection((broker.host, broker.port), 20) as connection:
        connection.sendall(struct.pack(">i", len(message)) + message)
        frame = connection.makefile("rb")
        size = frame.read(4)
        return frame.read(struct.unpack(">i", size)[0]) if size else None


def codes(message: Message, layout: Layout) -> Iterator[int]:
    """All error codes in an answer, wherever they are."""
    for field in layout.fields:
        if field.present:
            value = getattr(message, field.name)
            if field.name.endswith("error_code") and isinstance(value, int):
                yield value
            yield from _codes_within(value, field.type)


def _codes_within(value: Any, wire_type: WireType) -> Iterator[int]:
    if value is not None and wire_type.kind == "struct":
        assert wire_type.layout is not None
        yield from codes(value, wire_type.layout)
    elif value is not None and wire_type.kind == "array":
        assert wire_type.element is not None
        for item in value:
            yield from _codes_within(item, wire_type.element)


def name_of(case: object) -> str | None:
    return case.name if isinstance(case, Api) else None


@pytest.mark.parametrize("several", [0, SEVERAL], ids=["least", "several"])
@pytest.mark.parametrize(("row", "version"), CASES, ids=name_of)
def test_every_version_is_answered(
    broker: Broker,
    topic_ids: dict[str, bytes],
    caplog: pytest.LogCaptureFixture,
    row: Api,
    version: int,
    several: int,
) -> None:
    request = Builder(topic_ids, several).build(row, version)
    if row.name == "DescribeQuorum":
        request = with_metadata_topic(request)
    correlation_id = row.key * 1000 + version
    frame = exchange(broker, row.key, version, correlation_id, encode(request, version))
    assert frame is not None, f"the connection was closed: {request}"
    found_id, at = parse_response_header(row.key, version, memoryview(frame))
    assert found_id == correlation_id
    response_class: type[ApiMessage] = row.messages()[1]
    answer, end = decode(response_class, version, memoryview(frame), at)
    assert end == len(frame)
    oracle = oracle_for(response_class, version)
    assert oracle is not None
    if row.name not in TIMES_BELOW_ZERO:
        assert same(answer, oracle.decode(frame[at:]), version)
    assert ErrorCode.UNKNOWN_SERVER_ERROR not in list(codes(answer, layout_of(response_class, version)))
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize(("row", "version"), OUTSIDE, ids=name_of)
def test_a_version_outside_of_the_range_closes_the_connection(broker: Broker, row: Api, version: int) -> None:
    assert exchange(broker, row.key, version, 1, b"\0" * 64) is None


@pytest.mark.parametrize("version", [APIS[18].max_version + 1, 30_000])
def test_api_versions_says_which_versions_there_are(broker: Broker, version: int) -> None:
    frame = exchange(broker, 18, version, 7, b"")
    assert frame is not None
    correlation_id, code, count = struct.unpack_from(">ihi", frame)
    assert (correlation_id, code) == (7, ErrorCode.UNSUPPORTED_VERSION)
    told = {row[0]: row[1:] for row in struct.iter_unpack(">hhh", frame[10 : 10 + 6 * count])}
    assert told[18] == (APIS[18].min_version, APIS[18].max_version)
