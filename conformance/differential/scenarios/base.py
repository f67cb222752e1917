"""The topics that exist on both brokers before anything is compared, and batches that scenarios share."""

import random
import time
from typing import Any

from conformance.differential.world import BARRIER_TOPIC, CREATE_TOPICS, PRODUCE, World
from conformance.groups.offsets import await_coordinators
from conformance.wire import batches
from conformance.wire.batches import Item

EMPTY, DATA, TIMES, APPEND, SMALL, COMPACT, OLD = (
    "base-empty",
    "base-data",
    "base-times",
    "base-append",
    "base-small",
    "base-compact",
    "base-old",
)
RECOMPRESS = "base-gzip"
TOPICS: dict[str, tuple[int, dict[str, str]]] = {
    BARRIER_TOPIC: (1, {}),
    EMPTY: (2, {}),
    DATA: (3, {}),
    TIMES: (3, {}),  # Like the one before. No transaction ends in it: markers have the broker's own time.
    APPEND: (1, {"message.timestamp.type": "LogAppendTime"}),
    SMALL: (1, {"max.message.bytes": "2000"}),
    COMPACT: (1, {"cleanup.policy": "compact"}),
    OLD: (5, {}),
    RECOMPRESS: (1, {"compression.type": "gzip"}),
}
SETUP_SEED = 11
PRODUCER_ID_TRIES = 1_000
MINUTE_MS = 60_000


class SetupFailed(Exception):
    """A broker could not be brought to the common starting point."""


def items(chance: random.Random, count: int, stamp: int, key: bool = True) -> list[Item]:
    return [
        Item(
            value=f"value {at} {chance.getrandbits(32):08x}".encode(),
            key=f"key {at}".encode() if key else None,
            timestamp=stamp + at * 10,
        )
        for at in range(count)
    ]


def produce_body(topic: Any, partition: int, records: Any, acks: int = -1, **more: Any) -> dict[str, Any]:
    """A Produce request for one partition; `topic` is a name, or an id for version 13."""
    named = {"Name": topic} if isinstance(topic, str) else {"TopicId": topic}
    data = {"PartitionData": [{"Index": partition, "Records": records}]}
    return {"Acks": acks, "TimeoutMs": 5000, "TopicData": [{**named, **data}], **more}


def setup(world: World, now_ms: int) -> None:
    """Create the base topics and fill them; the same bytes on every broker."""
    wanted = [
        {
            "Name": name,
            "NumPartitions": partitions,
            "ReplicationFactor": 1,
            "Configs": [{"Name": key, "Value": value} for key, value in settings.items()],
        }
        for name, (partitions, settings) in TOPICS.items()
    ]
    answer = world.connection.call("CreateTopics", CREATE_TOPICS, {"Topics": wanted, "TimeoutMs": 10_000})
    for topic in answer["Topics"]:
        if topic["ErrorCode"] != 0:
            raise SetupFailed(
                f"{world.name} could not create {topic['Name']}: "
                f"error {topic['ErrorCode']}, {topic['ErrorMessage']}"
            )
    world.catch_up()
    # Enough groups that every partition of the topic that keeps them has one.
    await_coordinators(world.server, [f"base-{number}" for number in range(400)])
    # Kafka gives out producer ids only once its transaction coordinator has found its feet.
    for _ in range(PRODUCER_ID_TRIES):
        if (
            world.connection.call("InitProducerId", 1, {"TransactionalId": None, "TransactionTimeoutMs": 1})[
                "ErrorCode"
            ]
            == 0
        ):
            break
        time.sleep(0.1)
    chance = random.Random(SETUP_SEED)
    stamp = now_ms - 120 * MINUTE_MS
    for topic in (DATA, TIMES):
        for at in range(10):
            send(world, topic, 0, batches.batch(items(chance, 5, stamp + at * MINUTE_MS)))
        for codec in range(5):
            send(world, topic, 1, batches.batch(items(chance, 20, stamp + codec * MINUTE_MS), codec=codec))
        # The latest timestamp is not in the last batch, which searches by time must cope with.
        for minute in (5, 9, 2):
            send(world, topic, 2, batches.batch(items(chance, 3, stamp + minute * MINUTE_MS)))
    for at in range(3):
        time.sleep(0.003)  # Each broker has its own milliseconds, and two batches of one have the same time.
        send(world, APPEND, 0, batches.batch(items(chance, 4, stamp + at * MINUTE_MS)))
        send(world, RECOMPRESS, 0, batches.batch(items(chance, 4, stamp + at * MINUTE_MS), codec=at))
        send(world, COMPACT, 0, batches.batch(items(chance, 4, stamp + at * MINUTE_MS)))
    headed = [
        Item(b"v", b"k", stamp, (("name", b"value"), ("null", None))),
        Item(None, b"tombstone", stamp + 7),
    ]
    for codec in range(5):
        send(world, OLD, codec, batches.batch([*headed, *items(chance, 3, stamp + 50)], codec=codec))
        send(world, OLD, codec, batches.batch(items(chance, 6, stamp + 900), codec=codec))


def send(world: World, topic: str, partition: int, records: bytes) -> None:
    answer = world.connection.call("Produce", PRODUCE, produce_body(topic, partition, records))
    code = answer["Responses"][0]["PartitionResponses"][0]["ErrorCode"]
    if code != 0:
        raise SetupFailed(f"{world.name} refused a batch for {topic}-{partition}: error {code}")
