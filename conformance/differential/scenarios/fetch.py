"""Fetch: offsets, limits, long polls, sessions, epochs, ids, and records turned back into old formats."""

from collections.abc import Iterator
from typing import Any

from conformance.differential.scenario import UNKNOWN_ID, Draw, Step, learned, remember, scenario, topic_id
from conformance.differential.scenarios.base import APPEND, DATA, EMPTY, OLD, RECOMPRESS

IDS_FROM = 13
SESSIONS_FROM = 7
EPOCHS_FROM = 9


def part(partition: int, offset: int, **more: Any) -> dict[str, Any]:
    return {"Partition": partition, "FetchOffset": offset, "PartitionMaxBytes": 1 << 20, **more}


def topic(version: int, name: str, *partitions: dict[str, Any]) -> dict[str, Any]:
    named = {"TopicId": topic_id(name)} if version >= IDS_FROM else {"Topic": name}
    return {**named, "Partitions": list(partitions)}


def fetch(*topics: dict[str, Any], note: str = "", **more: Any) -> Step:
    learn = more.pop("learn", None)
    wait = {"MaxWaitMs": 10, "MinBytes": 0, "MaxBytes": 10 << 20}
    return Step({**wait, "Topics": list(topics), **more}, note=note, learn=learn)


@scenario("Fetch")
def fetch_offsets(draw: Draw, version: int) -> Iterator[Step]:
    for offset in (0, 7, 49, 50, 51, -1, 1 << 40):
        yield fetch(topic(version, DATA, part(0, offset)), note=f"offset {offset}")
    yield fetch(topic(version, DATA, part(1, draw.chance.randrange(100))), note="inside compressed batches")
    yield fetch(topic(version, EMPTY, part(0, 0)), note="empty")
    yield fetch(topic(version, EMPTY, part(0, 1)), note="beyond the end of an empty one")


@scenario("Fetch")
def fetch_kinds(draw: Draw, version: int) -> Iterator[Step]:
    for name in (APPEND, RECOMPRESS):
        yield fetch(topic(version, name, part(0, 0)), note=name)
    for codec in range(5):
        yield fetch(topic(version, OLD, part(codec, 0)), note=f"codec {codec}, headers, tombstones")
        yield fetch(topic(version, OLD, part(codec, 7)), note=f"codec {codec}, from the middle")


@scenario("Fetch")
def fetch_several(draw: Draw, version: int) -> Iterator[Step]:
    absent = {"TopicId": UNKNOWN_ID} if version >= IDS_FROM else {"Topic": draw.fresh("absent")}
    yield fetch(topic(version, DATA, part(0, 3), part(2, 0), part(9, 0)), topic(version, EMPTY, part(1, 0)))
    yield fetch(
        topic(version, DATA, part(0, 45)), {**absent, "Partitions": [part(0, 0)]}, note="one topic unknown"
    )
    yield fetch(topic(version, DATA, part(-1, 0)), note="partition -1")
    yield fetch(topic(version, DATA, part(0, 48), part(0, 49)), note="partition repeated")
    yield fetch(note="nothing")
    if version < IDS_FROM:
        yield fetch({"Topic": "bad name", "Partitions": [part(0, 0)]}, note="bad name")


@scenario("Fetch")
def fetch_limits(draw: Draw, version: int) -> Iterator[Step]:
    for limit in (0, 1, 200, 1000):
        small = part(0, 2) | {"PartitionMaxBytes": limit}
        yield fetch(topic(version, DATA, small), note=f"partition limit {limit}")
        if version >= 3:
            yield fetch(topic(version, DATA, part(0, 2), part(1, 0)), MaxBytes=limit, note=f"limit {limit}")
            yield fetch(topic(version, DATA, small, part(1, 0)), MaxBytes=500, note=f"limits {limit} and 500")
    negative = part(0, 2) | {"PartitionMaxBytes": -1}
    yield fetch(topic(version, DATA, negative), note="partition limit -1")
    yield fetch(topic(version, DATA, part(0, 0)), MinBytes=1 << 20, note="more wanted than there is")
    yield fetch(
        topic(version, DATA, part(0, 0), part(77, 0)),
        MinBytes=1 << 20,
        MaxWaitMs=300,
        note="an error ends the wait",
    )


@scenario("Fetch")
def fetch_sessions(draw: Draw, version: int) -> Iterator[Step]:
    if version < SESSIONS_FROM:
        return
    slot = f"session {draw.fresh()}"
    learn = remember(SessionId=slot)
    ours = learned(slot, 0)
    wanted = topic(version, DATA, part(0, 45), part(2, 0), part(77, 0))
    yield fetch(wanted, SessionId=0, SessionEpoch=0, learn=learn, note="new session")
    yield fetch(SessionId=ours, SessionEpoch=1, note="nothing new but what has not been read")
    yield fetch(topic(version, DATA, part(0, 50)), SessionId=ours, SessionEpoch=2, note="one moved")
    yield fetch(topic(version, EMPTY, part(0, 0)), SessionId=ours, SessionEpoch=3, note="one added")
    gone = {"TopicId": topic_id(DATA)} if version >= IDS_FROM else {"Topic": DATA}
    forget = [{**gone, "Partitions": [2]}]
    yield fetch(SessionId=ours, SessionEpoch=4, ForgottenTopicsData=forget, note="one forgotten")
    yield fetch(SessionId=ours, SessionEpoch=9, note="wrong epoch")
    yield fetch(SessionId=ours, SessionEpoch=5, note="the right epoch after a wrong one")
    yield fetch(SessionId=123456, SessionEpoch=1, note="no such session")
    yield fetch(wanted, SessionId=ours, SessionEpoch=-1, note="closed")
    yield fetch(SessionId=ours, SessionEpoch=6, note="after closing")
    yield fetch(wanted, SessionId=0, SessionEpoch=-1, note="sessionless")
    yield fetch(SessionId=0, SessionEpoch=0, note="new and empty")
    yield fetch(SessionId=0, SessionEpoch=5, note="epoch without a session")


@scenario("Fetch")
def fetch_epochs(draw: Draw, version: int) -> Iterator[Step]:
    if version >= EPOCHS_FROM:
        for epoch in (-1, 0, 1, 99):
            yield fetch(
                topic(version, DATA, part(0, 40, CurrentLeaderEpoch=epoch)), note=f"current epoch {epoch}"
            )
    if version >= 12:
        for epoch in (-1, 0, 5):
            stale = part(0, 40, LastFetchedEpoch=epoch)
            yield fetch(topic(version, DATA, stale), note=f"last fetched epoch {epoch}")


@scenario("Fetch")
def fetch_odd(draw: Draw, version: int) -> Iterator[Step]:
    if version >= 4:
        yield fetch(topic(version, DATA, part(0, 45)), IsolationLevel=1, note="read committed")
        yield fetch(topic(version, DATA, part(0, 45)), IsolationLevel=7, note="no such isolation")
    if version >= 5:
        yield fetch(topic(version, DATA, part(0, 45, LogStartOffset=3)), note="log start from a consumer")
    if version >= 11:
        yield fetch(topic(version, DATA, part(0, 45)), RackId="r1", note="a rack")
    if version < 15:
        yield fetch(topic(version, DATA, part(0, 45)), ReplicaId=-2, note="debugging consumer")
    if version >= IDS_FROM:
        yield fetch({"TopicId": bytes(16), "Partitions": [part(0, 0)]}, note="zero id")
