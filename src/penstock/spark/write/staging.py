"""The output of a writing task: encoded batches by partition, in an object of the store.

Readers of topics see nothing of it. A few bytes travel to the driver inside the message itself, which saves
the object. Objects of a micro-batch are named by query and batch. So objects that no commit names (of failed
attempts, of drivers that died) can be found and deleted.
"""

import os
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from penstock.storage.stores.blocking import BlockingStore
from penstock.storage.stores.objects import Range
from penstock.wire.buffers import Buffer

STAGE_PREFIX = "spark/stage/"
INLINE_BYTES_MAX = 128 * 1024
"""Less than this goes in the message: an object would cost more."""


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

    def __init__(self, name: str) -> None:
        self._key = f"{STAGE_PREFIX}{name}/{os.urandom(12).hex()}"
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

    def finish(self, open_store: Callable[[], BlockingStore]) -> tuple[StagedRun, ...]:
        """Write what was added; where it lies, by topic and partition."""
        inline = self._size <= INLINE_BYTES_MAX
        runs = []
        parts: list[bytes] = []
        position = 0
        for (topic, partition), batches in sorted(self._batches.items()):
            data = b"".join(batches)
            records, traits = self._records[topic, partition], self._traits[topic, partition]
            if inline:
                runs.append(StagedRun(topic, partition, records, "", 0, len(data), data, traits))
                continue
            runs.append(StagedRun(topic, partition, records, self._key, position, len(data), traits=traits))
            parts.append(data)
            position += len(data)
        if parts:
            store = open_store()
            if not store.run(store.store.create(self._key, *parts)):
                raise FileExistsError(f"{self._key} exists, although its name was never used")
        return tuple(runs)


def read_runs(store: BlockingStore, runs: Iterable[StagedRun]) -> Iterable[tuple[StagedRun, Buffer]]:
    """Each run with its bytes."""
    for run in runs:
        if not run.key:
            yield run, run.inline
            continue
        yield run, store.read_range(Range(run.key, run.position, run.length))


def keys_of(runs: Iterable[Any]) -> set[str]:
    return {run.key for run in runs if run.key}
