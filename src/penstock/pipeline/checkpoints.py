"""The positions of outputs, read from their checkpoints. This needs no Spark and no running pipeline."""

import json

import msgspec

from penstock.arrow.asked import Bound, Selection
from penstock.arrow.errors import SourceError
from penstock.arrow.reading import open_blocking
from penstock.arrow.session import ReadSession
from penstock.spark.options import ReadOptions
from penstock.spark.tables.position import Stored
from penstock.storage.stores.blocking import BlockingStore
from penstock.storage.stores.objects import StoreError


class Checkpoint(msgspec.Struct):
    batches: int
    """Micro-batches that are done."""
    positions: list[dict[str, dict[str, int]]]
    """For each source, where the next micro-batch starts."""
    begun: bool
    """Whether another one was begun and not finished: it runs first when the output goes on."""


def read_checkpoint(location: str) -> Checkpoint | None:
    """None if there is none, or if it cannot be read from here."""
    url = location.replace("s3a://", "s3://", 1)
    try:
        store = open_blocking(url)
        committed = _numbers(store, "commits/")
        planned = _numbers(store, "offsets/")
        if not committed:
            return Checkpoint(0, [], bool(planned)) if planned else None
        last = max(committed)
        data = store.run(store.store.get(f"offsets/{last}"))
    except (StoreError, SourceError):
        return None
    if data is None:
        return None
    # A version, a line about the micro-batch, and a line for each source.
    lines = data.decode().splitlines()[2:]
    try:
        positions = [_positions(json.loads(line)) for line in lines]
    except ValueError:
        return None
    return Checkpoint(last + 1, positions, bool(planned) and max(planned) > last)


def planned_ends(text: str) -> Stored:
    """Where a micro-batch ends, in each topic, by the file that Spark writes before it runs."""
    lines = [json.loads(line) for line in text.splitlines()[2:]]
    return {topic: offsets for line in lines if isinstance(line, dict) for topic, offsets in line.items()}


def _numbers(store: BlockingStore, prefix: str) -> list[int]:
    async def collect() -> list[str]:
        return [info.key async for info in store.store.list(prefix)]

    names = (key.rpartition("/")[2] for key in store.run(collect()))
    return [int(name) for name in names if name.isdigit()]


def _positions(stored: object) -> dict[str, dict[str, int]]:
    if not isinstance(stored, dict):
        return {}
    return {
        topic: {part: int(at) for part, at in offsets.items() if part.isdigit()}
        for topic, offsets in stored.items()
        if isinstance(offsets, dict)
    }


def lag(store: str, topics: list[str], positions: list[dict[str, dict[str, int]]]) -> int | None:
    """Records between a position and the end of the topics, by the store; None if that cannot be told."""
    options = ReadOptions(
        selection=Selection(names=tuple(topics)), store=store, bootstrap=None, start=Bound(), end=Bound()
    )
    try:
        session = ReadSession(open_blocking(store), options)
        session.missing_ok = True
        views = session.refresh()
    except SourceError:
        return None
    at = {
        (topic, int(part)): offset
        for one in positions
        for topic, offsets in one.items()
        for part, offset in offsets.items()
    }
    behind = 0
    for view in views.values():
        start = max(at.get((view.topic, view.index), 0), view.log_start)
        behind += max(0, session.end(view) - start)
    return behind
