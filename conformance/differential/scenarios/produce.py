"""Produce: acks, formats old and new, sizes, times, idempotence, and batches that are wrong in every part."""

import time
from collections.abc import Iterator
from typing import Any

from conformance.differential.scenario import (
    UNKNOWN_ID,
    Draw,
    Ref,
    Step,
    learned,
    remember,
    scenario,
    topic_id,
)
from conformance.differential.scenarios.base import (
    APPEND,
    COMPACT,
    DATA,
    EMPTY,
    RECOMPRESS,
    SMALL,
    items,
    produce_body,
)
from conformance.differential.scenarios.topics import create, new_topic
from conformance.differential.world import World
from conformance.wire import batches
from conformance.wire.batches import Item, batch, message, message_set, record, zigzag

ZSTD_FROM = 7
V2_FROM = 3
IDS_FROM = 13


def topic(name: str, version: int) -> Any:
    """A topic as this version names it."""
    return topic_id(name) if version >= IDS_FROM else name


def records(draw: Draw, version: int, count: int = 3, **changes: Any) -> bytes:
    """Good records in the newest format that this version may carry."""
    some = items(draw.chance, count, draw.past_ms())
    if version < V2_FROM:
        return message_set(some, magic=1 if version == 2 else 0)
    return batch(some, **changes)


def read_back(name: str, partition: int = 0, offset: int = 0, note: str = "") -> Step:
    """What a consumer now sees there."""
    asked = {"Partition": partition, "FetchOffset": offset, "PartitionMaxBytes": 1 << 20}
    body = {"MaxWaitMs": 0, "MinBytes": 0, "Topics": [{"Topic": name, "Partitions": [asked]}]}
    return Step(body, api="Fetch", version=11, note=note)


def produce(draw: Draw, version: int, name: str, data: bytes | None, note: str, **more: Any) -> Step:
    return Step(produce_body(topic(name, version), more.pop("partition", 0), data, **more), note=note)


@scenario("Produce")
def produce_plain(draw: Draw, version: int) -> Iterator[Step]:
    name = draw.fresh()
    yield create(new_topic(name, 2))
    for acks in (-1, 1):
        yield produce(draw, version, name, records(draw, version), f"acks {acks}", acks=acks)
    yield produce(draw, version, name, records(draw, version), "partition 1", partition=1)
    yield read_back(name)


@scenario("Produce")
def produce_silent(draw: Draw, version: int) -> Iterator[Step]:
    name = draw.fresh()
    yield create(new_topic(name))
    body = produce_body(topic(name, version), 0, records(draw, version), acks=0)
    yield Step(body, answered=False)
    yield read_back(name)
    wrong = produce_body(topic(name, version), 9, records(draw, version), acks=0)
    yield Step(wrong, answered=False, note="no such partition")


@scenario("Produce")
def produce_bad_acks(draw: Draw, version: int) -> Iterator[Step]:
    for acks in (2, -2, 32767):
        yield produce(draw, version, EMPTY, records(draw, version), f"acks {acks}", acks=acks)


@scenario("Produce")
def produce_unknown(draw: Draw, version: int) -> Iterator[Step]:
    yield produce(draw, version, DATA, records(draw, version), "no such partition", partition=99)
    yield produce(draw, version, DATA, records(draw, version), "negative partition", partition=-1)
    if version >= IDS_FROM:
        yield Step(produce_body(UNKNOWN_ID, 0, records(draw, version)), note="unknown id")
        yield Step(produce_body(bytes(16), 0, records(draw, version)), note="zero id")
    else:
        yield Step(produce_body(draw.fresh("absent"), 0, records(draw, version)), note="unknown topic")
        yield Step(produce_body("bad name", 0, records(draw, version)), note="bad name")
        yield Step(produce_body("", 0, records(draw, version)), note="empty name")


@scenario("Produce")
def produce_many(draw: Draw, version: int) -> Iterator[Step]:
    name = draw.fresh()
    yield create(new_topic(name, 3))
    data = [{"Index": at, "Records": records(draw, version)} for at in (0, 1, 5)]
    named = {"TopicId": topic_id(name)} if version >= IDS_FROM else {"Name": name}
    other = {"TopicId": UNKNOWN_ID} if version >= IDS_FROM else {"Name": draw.fresh("absent")}
    topics = [
        {**named, "PartitionData": data},
        {**other, "PartitionData": [{"Index": 0, "Records": data[0]["Records"]}]},
    ]
    yield Step(
        {"Acks": -1, "TimeoutMs": 5000, "TopicData": topics}, note="one partition and one topic unknown"
    )
    yield Step({"Acks": -1, "TimeoutMs": 5000, "TopicData": []}, note="nothing")
    yield Step(
        {"Acks": -1, "TimeoutMs": 5000, "TopicData": [{**named, "PartitionData": []}]}, note="no partitions"
    )


@scenario("Produce")
def produce_codecs(draw: Draw, version: int) -> Iterator[Step]:
    for codec in range(5):
        name = draw.fresh()
        yield create(new_topic(name))
        some = items(draw.chance, 8, draw.past_ms())
        if version < V2_FROM:
            magic = 1 if version == 2 else 0
            if codec == batches.ZSTD:
                continue
            data = message_set(some, magic, codec)
        else:
            data = batch(some, codec=codec)
        yield produce(draw, version, name, data, f"codec {codec}")
        yield read_back(name)


@scenario("Produce")
def produce_old_formats(draw: Draw, version: int) -> Iterator[Step]:
    name = draw.fresh()
    some = items(draw.chance, 3, draw.past_ms())
    lonely = message(Item(b"v", None, draw.past_ms()), 1)
    sets = [
        ("magic 0", message_set(some, 0)),
        ("magic 1", message_set(some, 1)),
        ("magic 2", batch(some)),
        ("null parts", lonely + message(Item(None, b"k", draw.past_ms()), 1, offset=1)),
        ("wrong crc of an old message", message(Item(b"v"), 1, crc=1)),
        ("cut short", lonely[:-3]),
        (
            "magic 1 after magic 0",
            message(Item(b"v"), 0) + message(Item(b"v", None, draw.past_ms()), 1, offset=1),
        ),
    ]
    yield create(new_topic(name, len(sets)))
    for at, (note, data) in enumerate(sets):
        yield produce(draw, version, name, data, note, partition=at)
        yield read_back(name, at, note=note)


@scenario("Produce")
def produce_sizes(draw: Draw, version: int) -> Iterator[Step]:
    stamp = draw.past_ms()
    big = [Item(draw.chance.randbytes(3000), b"k", stamp)]
    many = [Item(draw.chance.randbytes(500), b"k", stamp + at) for at in range(10)]
    for some, note in ((big, "one record too large"), (many, "batch too large"), (many[:2], "small enough")):
        data = batch(some) if version >= V2_FROM else message_set(some, 0)
        yield produce(draw, version, SMALL, data, note)
    if version >= V2_FROM:
        packed = [Item(bytes(20_000), b"k", stamp)]
        yield produce(draw, version, SMALL, batch(packed, codec=batches.GZIP), "small only when compressed")


@scenario("Produce")
def produce_times(draw: Draw, version: int) -> Iterator[Step]:
    if version < V2_FROM:
        return
    name = draw.fresh()
    bounded = draw.fresh("bounded")
    bounds: dict[str, Any] = {
        "message_timestamp_before_max_ms": "1000",
        "message_timestamp_after_max_ms": "1000",
    }
    yield create(new_topic(name, 7), new_topic(bounded, 4, **bounds))
    stamps = ((-1, "no timestamp"), (-5, "negative"), (draw.now_ms + 10**9, "far future"), (0, "1970"))
    for at, (stamp, note) in enumerate(stamps):
        yield produce(draw, version, name, batch([Item(b"v", b"k", stamp)]), note, partition=at)
        yield produce(
            draw, version, bounded, batch([Item(b"v", b"k", stamp)]), f"{note}, bounded", partition=at
        )
        yield read_back(name, at, note=note)
    some = items(draw.chance, 3, draw.past_ms())
    for at, (note, changes) in enumerate(
        (
            ("max timestamp too small", {"max_timestamp": 5}),
            ("max timestamp -1", {"max_timestamp": -1}),
            ("producer says append time", {"flags": batches.LOG_APPEND_TIME}),
        ),
        len(stamps),
    ):
        yield produce(draw, version, name, batch(some, **changes), note, partition=at)
        yield read_back(name, at, note=note)
    yield produce(draw, version, APPEND, batch(some), "append time topic")
    # Two batches of one millisecond have the same append time, and each broker has its own milliseconds.
    time.sleep(0.003)
    yield produce(draw, version, APPEND, batch(some, codec=batches.GZIP), "append time topic, compressed")
    yield read_back(APPEND)


@scenario("Produce")
def produce_broken(draw: Draw, version: int) -> Iterator[Step]:
    if version < V2_FROM:
        return
    name = draw.fresh()
    some = items(draw.chance, 3, draw.past_ms())
    good = batch(some)
    wrong: list[tuple[str, bytes | None]] = [
        ("null records", None),
        ("no records", b""),
        ("wrong crc", batch(some, crc=12345)),
        ("flipped byte", good[:-1] + bytes([good[-1] ^ 1])),
        ("two batches", good + good),
        ("a batch and rubbish", good + b"rubbish"),
        ("cut in the header", good[:30]),
        ("cut in the records", good[:-5]),
        ("length too long", batch(some, length=len(good) + 50)),
        ("length too short", batch(some, length=20)),
        ("length negative", batch(some, length=-1)),
        ("count too high", batch(some, count=9)),
        ("count too low", batch(some, count=1)),
        ("count zero", batch(some, count=0)),
        ("count negative", batch(some, count=-1)),
        ("no items", batch([], last_offset_delta=-1)),
        ("last delta too high", batch(some, last_offset_delta=9)),
        ("last delta too low", batch(some, last_offset_delta=1)),
        ("base offset 77", batch(some, base_offset=77)),
        ("leader epoch 5", batch(some, leader_epoch=5)),
        ("magic 3", batch(some, magic=3)),
        ("magic -1", batch(some, magic=-1)),
        ("codec 5", batch(some, records=b"rubbish", codec=5)),
        ("codec 7", batch(some, records=b"rubbish", codec=7)),
        ("gzip that is not", batch(some, records=b"not gzip at all", codec=1)),
        ("zstd that is not", batch(some, records=b"not zstd at all", codec=4)),
        ("records that are not", batch(some, records=b"\xff" * 20)),
        ("unused attribute bits", batch(some, flags=0x0F00)),
        ("control batch", batch(some, flags=batches.CONTROL)),
        ("transactional without id", batch(some, flags=batches.TRANSACTIONAL)),
        ("epoch without id", batch(some, producer_epoch=3)),
        ("sequence without id", batch(some, sequence=3)),
        ("id without epoch", batch(some, producer_id=5, producer_epoch=-1, sequence=0)),
    ]
    if version != 8:
        del wrong[0]  # Kafka never answers it, and waiting for nothing once is enough
    # A partition for each, so that one that is judged differently leaves the offsets of the others alone.
    yield create(new_topic(name, len(wrong)))
    for at, (note, data) in enumerate(wrong):
        yield produce(draw, version, name, data, note, partition=at)
        yield read_back(name, at, note=note)


@scenario("Produce")
def produce_malformed(draw: Draw, version: int) -> Iterator[Step]:
    """The batch is in order, the CRC too; its records are not."""
    if version < V2_FROM:
        return
    name = draw.fresh()
    good = record()
    twice = good + record(delta=zigzag(1))
    blocks: list[tuple[str, int, bytes]] = [
        ("records cut short", 1, good[:-1]),
        ("bytes after the records", 1, good + b"\0\0\0"),
        ("size too high", 1, record(size=zigzag(60))),
        ("size too low", 1, record(size=zigzag(6))),
        ("size zero", 1, record(size=zigzag(0))),
        ("size negative", 1, record(size=zigzag(-1))),
        ("length in five bytes", 1, record(size=b"\x96\x80\x80\x80\x00")),
        ("length in six bytes", 1, record(size=b"\x96\x80\x80\x80\x80\x00")),
        ("key too long", 1, record(key=zigzag(100))),
        ("key one too long", 1, record(key=zigzag(1))),
        ("key of size -2", 1, record(key=zigzag(-2))),
        ("value too long", 1, record(value=zigzag(100) + b"value")),
        ("value one too long", 1, record(value=zigzag(6) + b"value")),
        ("value too short", 1, record(value=zigzag(4) + b"value")),
        ("value of size -2", 1, record(value=zigzag(-2))),
        ("headers negative", 1, record(headers=zigzag(-1))),
        ("headers missing", 1, record(headers=zigzag(1))),
        ("headers too many", 1, record(headers=zigzag(1000))),
        ("header with null key", 1, record(headers=zigzag(1) + zigzag(-1) + zigzag(-1))),
        ("header with null value", 1, record(headers=zigzag(1) + zigzag(1) + b"k" + zigzag(-1))),
        ("header value too long", 1, record(headers=zigzag(1) + zigzag(1) + b"k" + zigzag(9))),
        ("time in ten bytes", 1, record(time=zigzag(-(2**62)))),
        ("time in eleven bytes", 1, record(time=b"\x80" * 10 + b"\0")),
        ("delta in five bytes", 1, record(delta=b"\x80\x80\x80\x80\x00")),
        ("delta in six bytes", 1, record(delta=b"\x80\x80\x80\x80\x80\x00")),
        ("deltas 1", 1, record(delta=zigzag(1))),
        ("deltas -1", 1, record(delta=zigzag(-1))),
        ("deltas 0 and 0", 2, good + good),
        ("deltas 1 and 0", 2, record(delta=zigzag(1)) + good),
        ("deltas 0 and 5", 2, good + record(delta=zigzag(5))),
        ("one record of two", 2, good),
        ("two records of one", 1, twice),
        ("size of the second too high", 2, good + record(delta=zigzag(1), size=zigzag(60))),
        ("second value too long", 2, good + record(delta=zigzag(1), value=zigzag(100) + b"value")),
    ]
    codecs = [batches.GZIP, batches.SNAPPY, batches.LZ4, *([batches.ZSTD] if version >= ZSTD_FROM else [])]
    packed: list[tuple[str, int, int, bytes]] = []
    for codec in codecs:
        label = f"codec {codec}, "
        packed += [
            (label + note, codec, count, batches.compress(codec, block))
            for note, count, block in blocks
            if draw.chance.random() < 0.25 or "delta" in note or "of one" in note or "of two" in note
        ]
        whole = batches.compress(codec, twice)
        packed += [
            (label + "which is not", codec, 1, b"not packed at all"),
            (label + "cut short", codec, 2, whole[:-6]),
            (label + "bytes after", codec, 2, whole + b"\0\0\0\0\0\0"),
            (label + "nothing", codec, 1, b""),
        ]
    cases = [(note, 0, count, block) for note, count, block in blocks] + packed
    yield create(new_topic(name, len(cases)))
    for at, (note, codec, count, block) in enumerate(cases):
        data = batch([Item(b"")] * count, codec=codec, records=block)
        yield produce(draw, version, name, data, note, partition=at)
        yield read_back(name, at, note=note)


@scenario("Produce")
def produce_repeated(draw: Draw, version: int) -> Iterator[Step]:
    name = draw.fresh()
    yield create(new_topic(name))
    named = {"TopicId": topic_id(name)} if version >= IDS_FROM else {"Name": name}
    part = {"Index": 0, "Records": records(draw, version)}
    yield Step(
        {"Acks": -1, "TimeoutMs": 5000, "TopicData": [{**named, "PartitionData": [part, part]}]},
        note="partition",
    )
    twice = {**named, "PartitionData": [part]}
    yield Step({"Acks": -1, "TimeoutMs": 5000, "TopicData": [twice, twice]}, note="topic")


@scenario("Produce")
def produce_compacted(draw: Draw, version: int) -> Iterator[Step]:
    stamp = draw.past_ms()
    for some, note in (
        ([Item(b"v", None, stamp)], "no key"),
        ([Item(b"v", b"k", stamp), Item(b"v", None, stamp), Item(b"v", None, stamp)], "some without key"),
        ([Item(None, b"k", stamp)], "tombstone"),
    ):
        data = batch(some) if version >= V2_FROM else message_set(some, 0)
        yield produce(draw, version, COMPACT, data, note)


@scenario("Produce")
def produce_recompressed(draw: Draw, version: int) -> Iterator[Step]:
    if version >= ZSTD_FROM:
        for codec in range(5):
            some = items(draw.chance, 4, draw.past_ms())
            yield produce(draw, version, RECOMPRESS, batch(some, codec=codec), f"codec {codec}")
        yield read_back(RECOMPRESS)


def idempotent(
    draw: Draw, name: str, version: int, slot: str, sequence: int, note: str, **changes: Any
) -> Step:
    """A batch of three whose producer is the one that each broker gave out."""
    some = items(draw.chance, 3, draw.past_ms())
    epoch = changes.pop("producer_epoch", None)

    def build(world: World) -> bytes:
        chosen = world.learned.get(f"{slot} epoch", 0) if epoch is None else epoch
        ours = {"producer_id": world.learned.get(slot, 0), "producer_epoch": chosen, "sequence": sequence}
        return batch(some, **{**ours, **changes})

    return Step(
        produce_body(topic(name, version), 0, Ref(f"batch of {slot} at {sequence}", build)), note=note
    )


@scenario("Produce")
def produce_idempotent(draw: Draw, version: int) -> Iterator[Step]:
    if version < V2_FROM:
        return
    name, slot = draw.fresh(), draw.fresh("producer")
    slot = f"producer {slot}"
    yield create(new_topic(name))
    learn = remember(ProducerId=slot, ProducerEpoch=f"{slot} epoch")
    yield Step(
        {"TransactionalId": None, "TransactionTimeoutMs": 1000}, api="InitProducerId", version=1, learn=learn
    )
    first = idempotent(draw, name, version, slot, 0, "first")
    yield first
    yield Step(first.body, note="first again")
    for sequence in (3, 6, 9, 12, 15):
        yield idempotent(draw, name, version, slot, sequence, f"at {sequence}")
    yield Step(first.body, note="first again, five later")
    yield idempotent(draw, name, version, slot, 15, "last again with other bytes")
    yield idempotent(draw, name, version, slot, 30, "a gap")
    yield idempotent(draw, name, version, slot, 4, "an overlap")
    yield idempotent(draw, name, version, slot, 18, "epoch ahead", producer_epoch=9)
    yield idempotent(draw, name, version, slot, 0, "epoch ahead from 0", producer_epoch=9)
    yield idempotent(draw, name, version, slot, 3, "epoch behind", producer_epoch=1)
    yield idempotent(draw, name, version, slot, 3, "goes on at epoch 9", producer_epoch=9)
    yield read_back(name)
    yield idempotent(
        draw, name, version, "producer nobody", 5, "unknown producer, not from 0", producer_id=987654321
    )
    yield idempotent(
        draw, name, version, "producer nobody", 0, "unknown producer from 0", producer_id=987654322
    )


@scenario("Produce")
def produce_wrapping(draw: Draw, version: int) -> Iterator[Step]:
    """Sequences wrap at 2^31."""
    if version < V2_FROM:
        return
    name, slot = draw.fresh(), f"producer {draw.fresh('wrap')}"
    yield create(new_topic(name))
    yield idempotent(draw, name, version, slot, 2147483645, "up to the end", producer_id=55_000_001)
    yield idempotent(draw, name, version, slot, 0, "around", producer_id=55_000_001)
    yield idempotent(draw, name, version, slot, 2147483646, "crosses the end", producer_id=55_000_002)
    yield idempotent(draw, name, version, slot, 1, "after the end", producer_id=55_000_002)
    yield learned_epoch(draw, name, version)


def learned_epoch(draw: Draw, name: str, version: int) -> Step:
    """A transactional id on a request whose batch is not transactional."""
    body = produce_body(topic(name, version), 0, records(draw, version))
    return Step({**body, "TransactionalId": "nobody"}, note="transactional id, plain batch")


__all__ = ["idempotent", "learned", "read_back", "records", "topic"]
