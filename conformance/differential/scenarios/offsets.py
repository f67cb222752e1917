"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords."""

from collections.abc import Iterator
from typing import Any

from conformance.differential.scenario import Draw, Step, scenario
from conformance.differential.scenarios.base import APPEND, COMPACT, DATA, EMPTY, MINUTE_MS, TIMES
from conformance.differential.scenarios.produce import produce, read_back, records
from conformance.differential.scenarios.topics import create, new_topic

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = -1, -2, -3, -4, -5, -6


def at(name: str, *partitions: tuple[int, int], **more: Any) -> dict[str, Any]:
    asked = [{"PartitionIndex": index, "Timestamp": stamp, **more} for index, stamp in partitions]
    return {"Name": name, "Partitions": asked}


def look(*topics: dict[str, Any], note: str = "", **more: Any) -> Step:
    return Step({"ReplicaId": -1, "Topics": list(topics), **more}, note=note)


@scenario("ListOffsets")
def offsets_special(draw: Draw, version: int) -> Iterator[Step]:
    for stamp in (LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING, -7):
        yield look(at(TIMES, (0, stamp), (1, stamp), (2, stamp)), note=str(stamp))
        yield look(at(EMPTY, (0, stamp)), note=f"{stamp}, empty")
        yield look(at(APPEND, (0, stamp)), note=f"{stamp}, append time")
        yield look(at(TIMES, (0, stamp)), IsolationLevel=1, note=f"{stamp}, read committed")


@scenario("ListOffsets")
def offsets_by_time(draw: Draw, version: int) -> Iterator[Step]:
    base = draw.now_ms - 120 * MINUTE_MS
    stamps = [0, base, base + 1, base + 10, base + 35, base + 5 * MINUTE_MS + 15, base + 9 * MINUTE_MS + 40]
    stamps += [base + 9 * MINUTE_MS + 41, draw.now_ms + 10**8, base + draw.chance.randrange(10 * MINUTE_MS)]
    for stamp in stamps:
        yield look(at(TIMES, (0, stamp), (1, stamp), (2, stamp)), note=f"base+{stamp - base}")
    yield look(at(APPEND, (0, base)), note="append time")
    yield look(at(EMPTY, (0, base)), note="empty")


@scenario("ListOffsets")
def offsets_wrong(draw: Draw, version: int) -> Iterator[Step]:
    yield look(at(draw.fresh("absent"), (0, LATEST)), at(DATA, (0, LATEST), (88, LATEST), (-1, LATEST)))
    yield look(at(DATA, (0, LATEST), (0, EARLIEST)), note="partition repeated")
    yield look(at("bad name", (0, LATEST)), note="bad name")
    yield look(note="nothing")
    yield look(at(DATA, (0, LATEST)), ReplicaId=-2, note="debugging consumer")
    if version >= 4:
        for epoch in (0, 1, 50):
            yield look(at(DATA, (0, LATEST), CurrentLeaderEpoch=epoch), note=f"epoch {epoch}")


@scenario("OffsetForLeaderEpoch")
def epochs(draw: Draw, version: int) -> Iterator[Step]:
    def asked(name: str, partition: int, epoch: int, current: int = -1) -> dict[str, Any]:
        inner = {"Partition": partition, "LeaderEpoch": epoch, "CurrentLeaderEpoch": current}
        return {"Topic": name, "Partitions": [inner]}

    for epoch in (-1, 0, 1, 7):
        yield Step({"ReplicaId": -1, "Topics": [asked(DATA, 0, epoch)]}, note=f"epoch {epoch}")
        yield Step({"ReplicaId": -1, "Topics": [asked(EMPTY, 0, epoch)]}, note=f"epoch {epoch}, empty")
    if version >= 2:
        for current in (0, 5):
            yield Step(
                {"ReplicaId": -1, "Topics": [asked(DATA, 0, 0, current)]}, note=f"current epoch {current}"
            )
    unknown = [asked(draw.fresh("absent"), 0, 0), asked(DATA, 55, 0), asked(DATA, -1, 0)]
    yield Step({"ReplicaId": -1, "Topics": unknown}, note="unknown")
    yield Step({"ReplicaId": -1, "Topics": []}, note="nothing")


@scenario("DeleteRecords")
def delete_records(draw: Draw, version: int) -> Iterator[Step]:
    name = draw.fresh()
    yield create(new_topic(name))

    def delete(offset: int, topic: str = name, partition: int = 0, note: str = "") -> Step:
        inner = {"PartitionIndex": partition, "Offset": offset}
        asked = {"Topics": [{"Name": topic, "Partitions": [inner]}], "TimeoutMs": 5000}
        return Step(asked, note=note or f"offset {offset}")

    yield delete(0, note="empty log")
    for _ in range(4):
        yield Step(produce(draw, 8, name, records(draw, 8), "").body, api="Produce", version=8)
    for offset in (3, 4, 2, 13, -2, 0):
        yield delete(offset)
        starts = at(name, (0, EARLIEST))
        yield Step({"ReplicaId": -1, "Topics": [starts]}, api="ListOffsets", version=2)
    yield read_back(name, offset=4)
    yield read_back(name, offset=3)
    yield delete(-1, note="to the high watermark")
    yield read_back(name, offset=12)
    yield delete(1, topic=draw.fresh("absent"), note="absent")
    yield delete(1, topic="bad name", note="bad name")
    yield delete(0, partition=7, note="no such partition")
    yield delete(0, partition=-1, note="negative partition")
    yield delete(1, topic=COMPACT, note="compacted only")
    yield Step({"Topics": [], "TimeoutMs": 5000}, note="nothing")
