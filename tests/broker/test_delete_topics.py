"""DeleteTopics: by name and by id, each topic once, all of a request in one entry."""

from __future__ import annotations

import msgspec
import pytest

from penstock.wire.api.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from penstock.wire.errors import ErrorCode
from penstock.wire.schema import ZERO_UUID
from tests.broker.rig import Rig

BY_NAME = range(6)
SECOND = 1000


async def by_name(
    rig: Rig, *names: str, version: int, timeout_ms: int = SECOND
) -> list[DeletableTopicResult]:
    message = DeleteTopicsRequest(topic_names=list(names), timeout_ms=timeout_ms)
    return (await rig.ask(message, DeleteTopicsResponse, version)).responses


async def by_state(
    rig: Rig, *states: tuple[str | None, bytes]
) -> set[tuple[str | None, bytes, int, str | None]]:
    message = DeleteTopicsRequest(
        topics=[DeleteTopicState(name=name, topic_id=topic_id) for name, topic_id in states],
        timeout_ms=SECOND,
    )
    answer = await rig.ask(message, DeleteTopicsResponse, 6)
    assert len({(r.name, r.topic_id) for r in answer.responses}) == len(answer.responses)
    return {(r.name, r.topic_id, r.error_code, r.error_message) for r in answer.responses}


@pytest.mark.parametrize("version", BY_NAME)
async def test_by_name(rig: Rig, version: int) -> None:
    topic = await rig.topic("orders", 2)
    await rig.topic("bills")
    before = rig.broker.image.version
    results = await by_name(rig, "orders", "nope", "bills", version=version)
    assert {result.name: result.error_code for result in results} == {
        "orders": 0,
        "bills": 0,
        "nope": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    texts = {result.error_message for result in results}
    assert texts == ({None, "This server does not host this topic-partition."} if version == 5 else {None})
    assert not rig.broker.image.topics
    assert rig.broker.image.version == before + 1
    assert rig.broker.ledger.partition(topic.id, 0) is None


@pytest.mark.parametrize("version", BY_NAME)
async def test_a_repeated_name_is_refused_and_kept(rig: Rig, version: int) -> None:
    await rig.topic("orders")
    results = await by_name(rig, "orders", "orders", "orders", version=version)
    assert [(result.name, result.error_code) for result in results] == [("orders", ErrorCode.INVALID_REQUEST)]
    assert "orders" in rig.broker.image.topics


async def test_by_name_and_by_id(rig: Rig) -> None:
    topics = {name: await rig.topic(name) for name in "abcdef"}
    unknown = b"\x01" * 16
    results = await by_state(
        rig,
        ("a", ZERO_UUID),
        (None, topics["b"].id),
        ("c", topics["c"].id),
        (None, ZERO_UUID),
        ("d", ZERO_UUID),
        (None, topics["d"].id),
        (None, topics["e"].id),
        (None, topics["e"].id),
        (None, unknown),
        ("nope", ZERO_UUID),
    )
    wrong = ErrorCode.INVALID_REQUEST
    assert results == {
        ("a", topics["a"].id, 0, None),
        ("b", topics["b"].id, 0, None),
        ("c", topics["c"].id, wrong, "You may not specify both topic name and topic id."),
        (None, ZERO_UUID, wrong, "Neither topic name nor id were specified."),
        ("d", topics["d"].id, wrong, "The provided topic name maps to an ID that was already supplied."),
        (None, topics["e"].id, wrong, "Duplicate topic id."),
        (None, unknown, ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID."),
        (
            "nope",
            ZERO_UUID,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "This server does not host this topic-partition.",
        ),
    }
    assert set(rig.broker.image.topics) == {"c", "d", "e", "f"}


async def test_a_topic_made_again_has_another_id(rig: Rig) -> None:
    old = await rig.topic("orders", retention_ms="5")
    await by_name(rig, "orders", version=5)
    assert rig.broker.image.config(2, "orders") == {}
    results = await by_state(rig, (None, old.id))
    assert {result[2] for result in results} == {ErrorCode.UNKNOWN_TOPIC_ID}


@pytest.mark.parametrize("timeout_ms", [0, -1])
async def test_without_time_nothing_is_done(rig: Rig, timeout_ms: int) -> None:
    await rig.topic("orders")
    (result,) = await by_name(rig, "orders", version=5, timeout_ms=timeout_ms)
    assert (result.name, result.error_code) == ("orders", ErrorCode.REQUEST_TIMED_OUT)
    assert "orders" in rig.broker.image.topics


@pytest.mark.parametrize("version", BY_NAME)
async def test_deletion_can_be_switched_off(rig: Rig, version: int) -> None:
    await rig.topic("orders")
    rig.broker.settings = msgspec.structs.replace(rig.broker.settings, delete_topic_enable=False)
    (result,) = await by_name(rig, "orders", version=version)
    expected = ErrorCode.TOPIC_DELETION_DISABLED if version >= 3 else ErrorCode.INVALID_REQUEST
    assert result.error_code == expected
    assert "orders" in rig.broker.image.topics
