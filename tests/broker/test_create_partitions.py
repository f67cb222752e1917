"""CreatePartitions: more partitions, never fewer."""

from __future__ import annotations

import pytest

from penstock.wire.api.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from penstock.wire.errors import ErrorCode
from tests.broker.rig import Rig

VERSIONS = range(4)
Wanted = tuple[str, int, list[list[int]] | None]


async def ask(
    rig: Rig, *wanted: Wanted, version: int = 3, timeout_ms: int = 1000, validate_only: bool = False
) -> list[tuple[str, int, str | None]]:
    topics = [
        CreatePartitionsTopic(
            name=name,
            count=count,
            assignments=None
            if assignments is None
            else [CreatePartitionsAssignment(broker_ids=brokers) for brokers in assignments],
        )
        for name, count, assignments in wanted
    ]
    message = CreatePartitionsRequest(topics=topics, timeout_ms=timeout_ms, validate_only=validate_only)
    answer = await rig.ask(message, CreatePartitionsResponse, version)
    return [(result.name, result.error_code, result.error_message) for result in answer.results]


def count(rig: Rig, name: str) -> int:
    return len(rig.broker.image.topics[name].partitions)


@pytest.mark.parametrize("version", VERSIONS)
async def test_new_partitions_can_be_written_at_once(rig: Rig, version: int) -> None:
    await rig.topic("orders", 1)
    await rig.topic("bills", 1)
    before = rig.broker.image.version
    results = await ask(rig, ("orders", 3, None), ("nope", 2, None), ("bills", 2, [[1]]), version=version)
    assert results == [
        ("orders", 0, None),
        ("nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None),
        ("bills", 0, None),
    ]
    assert (count(rig, "orders"), count(rig, "bills")) == (3, 2)
    assert rig.broker.image.version == before + 1
    topic = rig.broker.image.topics["orders"]
    assert all(rig.broker.ledger.partition(topic.id, index) is not None for index in range(3))


REFUSED: list[tuple[int, list[list[int]] | None, int, str]] = [
    (2, None, 37, "Topic already has 2 partition(s)."),
    (1, None, 37, "The topic orders currently has 2 partition(s); 1 would not be an increase."),
    (-1, None, 37, "The topic orders currently has 2 partition(s); -1 would not be an increase."),
    (
        3,
        [[1], [1]],
        39,
        "Attempted to add 1 additional partition(s), but only 2 assignment(s) were specified.",
    ),
    (3, [], 39, "Attempted to add 1 additional partition(s), but only 0 assignment(s) were specified."),
    (3, [[5]], 39, "The manual partition assignment includes broker 5, but no such broker is registered."),
    (3, [[1, 1]], 39, "The manual partition assignment includes the broker 1 more than once."),
    (3, [[]], 39, "The manual partition assignment includes an empty replica list."),
    (10_003, None, 44, "Excessively large number of partitions per request."),
]


@pytest.mark.parametrize(("wanted", "assignments", "code", "message"), REFUSED)
async def test_refused(
    rig: Rig, wanted: int, assignments: list[list[int]] | None, code: int, message: str
) -> None:
    await rig.topic("orders", 2)
    assert await ask(rig, ("orders", wanted, assignments)) == [("orders", code, message)]
    assert count(rig, "orders") == 2


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
@pytest.mark.parametrize("validate_only", [False, True])
async def test_topics_of_coordinators_keep_the_number_by_which_groups_and_ids_are_found(
    rig: Rig, name: str, validate_only: bool
) -> None:
    await rig.topic(name, 4)
    ((told, code, message),) = await ask(rig, (name, 8, None), validate_only=validate_only)
    assert (told, code) == (name, ErrorCode.INVALID_PARTITIONS)
    assert message == (
        f"The number of partitions of {name} cannot change: it says where each group or transactional id is "
        "coordinated."
    )
    assert count(rig, name) == 4


async def test_a_topic_that_is_named_twice_is_refused_once(rig: Rig) -> None:
    await rig.topic("orders", 1)
    results = await ask(rig, ("orders", 2, None), ("orders", 3, None))
    assert results == [("orders", ErrorCode.INVALID_REQUEST, "Duplicate topic name.")]
    assert count(rig, "orders") == 1


async def test_validate_only_and_no_time_change_nothing(rig: Rig) -> None:
    await rig.topic("orders", 1)
    assert await ask(rig, ("orders", 2, None), validate_only=True) == [("orders", 0, None)]
    assert await ask(rig, ("orders", 2, None), timeout_ms=0) == [
        ("orders", ErrorCode.REQUEST_TIMED_OUT, None)
    ]
    assert count(rig, "orders") == 1
