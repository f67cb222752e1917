"""Reads the batches of stretches from the store and gives Arrow record batches: for a task, and for a scan.

The plan says where records lay when it was made. Since then a broker may have settled a write-ahead
log, or merged segments, and deleted the objects that they replace. A reader that misses an object looks at
the store again, from the offset that it has reached, and goes on. Offsets count; places are hints.
"""

import logging
import os
from collections.abc import Generator, Iterable, Iterator
from typing import Any

import msgspec

from penstock.arrow.errors import CorruptLogError, LostRecordsError, StoreAccessError, TopicChangedError
from penstock.arrow.session import reach
from penstock.cluster.reading import view_of
from penstock.log.checking import Facts
from penstock.log.isolation import Isolation
from penstock.metadata.image import ClusterImage, PartitionKey
from penstock.storage.reader.stretches import (
    HurtIndexError,
    Stretch,
    Window,
    stretch_of,
    verified,
    windows,
)
from penstock.storage.reader.view import Chosen
from penstock.storage.stores.blocking import BlockingStore
from penstock.storage.stores.objects import ObjectMissingError, StoreError
from penstock.storage.stores.opening import shown
from penstock.wire.buffers import Buffer

logger = logging.getLogger(__name__)

REPLANS_MAX = 8
"""Looks at the store without having read anything since the last one."""


class ReadSettings(msgspec.Struct, frozen=True):
    """How stretches are read."""

    store: str
    columns: tuple[str, ...]
    isolation: Isolation
    check_crc: bool
    fail_on_data_loss: bool
    advice: str = ""
    """What to do if records are gone: a sentence with a space before it."""


_stores: dict[tuple[int, str], BlockingStore] = {}


def open_blocking(location: str) -> BlockingStore:
    """The store, opened once per process: Spark keeps its workers from task to task."""
    key = (os.getpid(), location)
    store = _stores.get(key)
    if store is None:
        store = _stores[key] = open_anew(location)
    return store


def open_anew(location: str) -> BlockingStore:
    """The store, for a caller who closes it."""
    try:
        return BlockingStore(location)
    except StoreError as error:
        raise StoreAccessError(f"The store {shown(location)} cannot be opened: {error}.") from None


def read_stretches(
    stretches: Iterable[Stretch], settings: ReadSettings, store: BlockingStore | None = None
) -> Generator[Any]:
    """The records of the stretches in order, as Arrow record batches. `store`: if it is open already."""
    if store is None:
        store = open_blocking(settings.store)
    for stretch in stretches:
        yield from _StretchReader(store, stretch, settings).read()


class _StretchReader:
    def __init__(self, store: BlockingStore, stretch: Stretch, settings: ReadSettings) -> None:
        from penstock.arrow.decode import AbortedRange, Decoder

        self._store = store
        self._stretch = stretch
        self._settings = settings
        self._next_offset = stretch.low
        self._decoder = Decoder(
            stretch.topic,
            stretch.partition,
            settings.columns,
            low=stretch.low,
            high=stretch.high,
            aborted=[AbortedRange(*one) for one in stretch.aborted],
            check_crc=settings.check_crc,
        )

    def read(self) -> Iterator[Any]:
        from penstock.arrow.memory import room

        plan = self._stretch
        if plan.lost:
            self._lose(plan.low, plan.high - 1, f": {plan.lost}")
            return
        replans = 0
        while True:
            try:
                wanted_windows = windows(self._store, plan, self._next_offset)
                for wanted, data in self._store.read(wanted_windows, room):
                    window = wanted.about
                    yield from self._decode(data, window, plan.facts)
                    # The decoder has all of it now, also what it has not given yet.
                    self._next_offset = self._decoder.low = max(self._next_offset, window.end_offset)
                    replans = 0
                break
            except HurtIndexError as error:
                segment = error.segment
                last = min(segment.end_offset, plan.high) - 1
                self._lose(max(self._next_offset, segment.base_offset), last, f": {error}")
                self._next_offset = self._decoder.low = segment.end_offset
            except ObjectMissingError as error:
                replans += 1
                if replans > REPLANS_MAX:
                    raise self._unreadable(error) from None
                plan = self._replan(plan, error)
            except StoreError as error:
                raise self._unreadable(error) from None
            if plan.low >= plan.high:
                break
        yield from self._decoder.finish()

    def _decode(self, data: Buffer, window: Window, facts: Facts) -> Iterator[Any]:
        try:
            span = (window.extents[0].base_offset, window.end_offset)
            table = self._decoder.scan(data, window.pieces, span)
        except CorruptLogError:
            yield from self._decode_around(data, window, facts)
        else:
            yield from self._decoder.decode(data, table)

    def _decode_around(self, data: Buffer, window: Window, facts: Facts) -> Iterator[Any]:
        """Some batches are not as they were written: tell which, or pass over them."""
        verification = verified(data, window, facts)
        for start, end, reason in verification.lost:
            first, last = max(start, self._next_offset), min(end, self._stretch.high) - 1
            if first <= last:
                self._lose(first, last, f": {reason}")
        for run in verification.runs:
            yield from self._decoder.decode(run)

    # When what was planned is not there any more.

    def _replan(self, failed: Stretch, missing: ObjectMissingError) -> Stretch:
        stretch = self._stretch
        key = (stretch.topic_id, stretch.partition)

        def choose(image: ClusterImage) -> dict[PartitionKey, Chosen]:
            topic = image.topic_by_id(stretch.topic_id)
            if topic is None:
                raise TopicChangedError(f"The topic {stretch.topic!r} was deleted while it was read.")
            return {key: Chosen(topic, stretch.partition, topic.partitions[stretch.partition])}

        try:
            looking = view_of(self._store.store, choose).refresh()
            view = reach(self._store.location, lambda: self._store.run(looking))[key]
        except TopicChangedError:
            if self._settings.fail_on_data_loss:
                raise
            return self._nothing()
        if view.log_start > self._next_offset:
            last = min(view.log_start, stretch.high) - 1
            self._lose(self._next_offset, last, f": the log begins at {view.log_start} now")
            self._next_offset = view.log_start
        else:
            segment = next((one for one in view.segments if one.end_offset > self._next_offset), None)
            if segment is not None and segment in failed.segments:
                # The newest manifest names the very object that was missed.
                last = min(segment.end_offset, stretch.high) - 1
                self._lose(self._next_offset, last, f": {missing}")
                self._next_offset = segment.end_offset
        logger.info(
            "planned anew topic=%s partition=%d offset=%d: %s",
            stretch.topic, stretch.partition, self._next_offset, missing,
        )  # fmt: skip
        self._decoder.low = self._next_offset
        # Which records are to be seen was known when the query was planned, and nothing changes it.
        high = max(stretch.high, self._next_offset)
        return stretch_of(view, self._next_offset, high, self._settings.isolation)

    def _lose(self, first: int, last: int, reason: str) -> None:
        stretch = self._stretch
        error = LostRecordsError(stretch.topic, stretch.partition, first, last, reason, self._settings.advice)
        if self._settings.fail_on_data_loss:
            raise error
        logger.warning("went on without lost records: %s", error)

    def _nothing(self) -> Stretch:
        return msgspec.structs.replace(self._stretch, low=self._stretch.high, segments=(), tail=())

    def _unreadable(self, error: StoreError) -> StoreAccessError:
        stretch = self._stretch
        return StoreAccessError(
            f"Records from offset {self._next_offset} of topic {stretch.topic!r} partition"
            f" {stretch.partition} cannot be read from {self._store.location}: {error}."
        )
