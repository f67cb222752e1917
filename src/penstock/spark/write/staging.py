"""The output of a writing task: encoded batches by partition, in an object of the store.

Readers of topics see nothing of it. A task keeps a bounded part of its output in memory: much becomes several
objects. A few bytes travel to the driver inside the message itself, which saves the object. Objects of a
micro-batch are named by job and batch. So objects that no commit names (of failed attempts, of drivers that
died) can be found and deleted.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from typing import Any

import msgspec

from penstock.storage.stores.blocking import BlockingStore
from penstock.storage.stores.objects import Range
from penstock.wire.buffers import Buffer

STAGE_PREFIX = "spark/stage/"
INLINE_BYTES_MAX = 128 * 1024
"""Less than this goes in the message: an object would cost more."""
OBJECT_BYTES = 64 * 1024 * 1024
"""From this size on an object is written. The driver, which reads a part of one at a time, keeps as much."""


def job_of(query: str, topic: str | None) -> str:
    """What a query does, by name. To Spark, a copy of a checkpoint is the same query. Where it writes to
    another topic, it does something else: what the first one wrote there is no reason to leave rows out."""
    return query if topic is None else f"{query}-{sha256(topic.encode()).hexdigest()[:16]}"


class Traits(msgspec.Struct, frozen=True, array_like=True):
    """What a topic may mind about rows."""

    largest_alone: int = 0
    """The size of the largest batch of one record, which cannot be made smaller."""
    keyless: bool = False
    """Whether some row has no key."""
    times_ms: tuple[int, int] | None = None
    """The oldest and the newest timestamp, if the rows came with some."""

    def __or__(self, other: "Traits") -> "Traits":
        times = self.times_ms or other.times_ms
        if times is not None and other.times_ms is not None:
            times = (min(times[0], other.times_ms[0]), max(times[1], other.times_ms[1]))
        return Traits(max(self.largest_alone, other.largest_alone), self.keyless or other.keyless, times)


class StagedRun(msgspec.Struct, frozen=True, array_like=True):
    """Record batches for one partition, one after the other: `length` bytes from `position` of `key`, or, if
    that is empty, `inline`."""

    topic: str
    partition: int
    records: int
    key: str
    position: int
    length: int
    inline: bytes = b""
    traits: Traits = Traits()


class Stage:
    """The batches of one task, until it ends."""

    def __init__(self, name: str, open_store: Callable[[], BlockingStore]) -> None:
        self._name = name
        self._open_store = open_store
        self._runs: list[StagedRun] = []
        self._clear()

    def _clear(self) -> None:
        self._batches: dict[tuple[str, int], list[bytes]] = {}
        self._records: dict[tuple[str, int], int] = {}
        self._traits: dict[tuple[str, int], Traits] = {}
        self._size = 0

    def add(self, topic: str, partition: int, records: int, batch: bytes, traits: Traits) -> None:
        place = (topic, partition)
        self._traits[place] = self._traits.get(place, traits) | traits
        self._batches.setdefault(place, []).append(batch)
        self._records[place] = self._records.get(place, 0) + records
        self._size += len(batch)
        if self._size >= OBJECT_BYTES:
            self._write()

    def finish(self) -> tuple[StagedRun, ...]:
        """Write what was added; where all of it lies: runs of one partition in the order of their rows."""
        if self._size > INLINE_BYTES_MAX:
            self._write()
        for (topic, partition), data in self._joined():
            records, traits = self._records[topic, partition], self._traits[topic, partition]
            self._runs.append(StagedRun(topic, partition, records, "", 0, len(data), data, traits))
        self._clear()
        return tuple(self._runs)

    def discard(self) -> None:
        """Delete what was written: nobody will hear of it."""
        for key in keys_of(self._runs):
            store = self._open_store()
            store.run(store.store.delete(key))

    def _joined(self) -> Iterator[tuple[tuple[str, int], bytes]]:
        for place in sorted(self._batches):
            yield place, b"".join(self._batches[place])

    def _write(self) -> None:
        """Make an object of what is in memory."""
        key = f"{STAGE_PREFIX}{self._name}/{os.urandom(12).hex()}"
        parts: list[bytes] = []
        position = 0
        for (topic, partition), data in self._joined():
            records, traits = self._records[topic, partition], self._traits[topic, partition]
            self._runs.append(StagedRun(topic, partition, records, key, position, len(data), traits=traits))
            parts.append(data)
            position += len(data)
        self._clear()
        store = self._open_store()
        if not store.run(store.store.create(key, *parts)):
            raise FileExistsError(f"{key} exists, although its name was never used")


def read_runs(store: BlockingStore, runs: Iterable[StagedRun]) -> Iterable[tuple[StagedRun, Buffer]]:
    """Each run with its bytes."""
    for run in runs:
        if not run.key:
            yield run, run.inline
            continue
        yield run, store.read_range(Range(run.key, run.position, run.length))


def keys_of(runs: Iterable[Any]) -> set[str]:
    return {run.key for run in runs if run.key}
