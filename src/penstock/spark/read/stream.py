"""`spark.readStream.format("penstock")`: follows the log, tail included, from the store.

A reader lives as long as the query, in a process beside the driver. A position is the offset of the next
record of each partition, and carries the id of its topic. A topic that was deleted and created again under
its name is another topic: offsets in the old one mean nothing in the new.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.arrow.errors import MissingTopicError, TopicChangedError
from penstock.spark.errors import OpenTransactionError
from penstock.spark.options import ReadOptions
from penstock.spark.plain import plainly
from penstock.spark.read.batch import Split, locate, read_split, settings_of
from penstock.spark.read.schema import columns_of
from penstock.wire.uuids import uuid_text

if TYPE_CHECKING:
    from penstock.arrow.planning import OffsetRange
    from penstock.arrow.session import ReadSession
    from penstock.metadata.image import PartitionKey
    from penstock.spark.progress import GroupProgress
    from penstock.spark.read.admission import Positions
    from penstock.storage.reader.view import PartitionView

Stored = dict[str, dict[str, int | str]]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, schema: StructType, parallelism: int) -> None:
        self._options = options
        self._schema = schema
        self._parallelism = parallelism
        self._target: Mapping[PartitionKey, int] | None = None
        self._opened: ReadSession | None = None
        self._progress: GroupProgress | None = None
        self._store = ""
        self._triggered: float | None = None
        """When `minOffsetsPerTrigger` last admitted a micro-batch; the first after a start does not wait."""
        columns_of(schema)

    def __getstate__(self) -> dict[str, Any]:
        """What goes to executors, which only read."""
        return {**self.__dict__, "_opened": None, "_progress": None}

    @property
    def _session(self) -> "ReadSession":
        if self._opened is None:
            from penstock.arrow.reading import open_blocking
            from penstock.arrow.session import ReadSession

            self._store = locate(self._options)
            self._opened = ReadSession(open_blocking(self._store), self._options)
        return self._opened

    # Positions.

    @plainly
    def initialOffset(self) -> Stored:
        session = self._session
        session.missing_ok = False
        views = session.refresh()
        return self._stored(views, session.starts(views))

    @plainly
    def prepareForTriggerAvailableNow(self) -> None:
        views = self._look()
        self._target = {key: self._session.end(view) for key, view in views.items()}

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._options
        if options.max_offsets_per_trigger:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    @plainly
    def latestOffset(self, start: Stored, limit: ReadLimit) -> Stored:
        views = self._look()
        # Spark plans a batch when the one before it is done, so `start` is finished work. Its `commit` comes
        # one batch later, and never for the last one of a query that ends.
        self.commit(start)
        ends = {key: self._end(key, view) for key, view in views.items()}
        ranges = self._ranges(start, views, ends)
        if not isinstance(limit, ReadAllAvailable):
            ranges = self._admit(ranges)
        highs = {(one.view.topic_id, one.view.index): one.high for one in ranges}
        stored = self._stored(views, highs)
        if not _same(start, stored):
            return stored
        if self._progress is not None:
            self._progress.flush()  # Nothing else to do, and the query may end here.
        # Equal positions must be equal texts, also where Spark's connector wrote the first one.
        return start

    def reportLatestOffset(self) -> Stored | None:
        if self._opened is None:
            return None
        views = self._opened.views
        return self._stored(views, {key: self._opened.end(view) for key, view in views.items()})

    def _look(self) -> "Mapping[PartitionKey, PartitionView]":
        """The partitions as they are now. A topic that is not there any more is told by `_ranges`."""
        self._session.missing_ok = True
        return self._session.refresh()

    def _end(self, key: "PartitionKey", view: "PartitionView") -> int:
        end = self._session.end(view)
        if self._target is None:
            return end
        # With Trigger.AvailableNow, what came later is for the next run.
        return min(end, self._target.get(key, view.log_start))

    def _stored(
        self, views: "Mapping[PartitionKey, PartitionView]", offsets: "Mapping[PartitionKey, int]"
    ) -> Stored:
        from penstock.spark.read.admission import TopicPosition, encode_positions

        topics: dict[str, dict[int, int]] = {}
        ids = {}
        for key, offset in offsets.items():
            view = views[key]
            topics.setdefault(view.topic, {})[view.index] = offset
            ids[view.topic] = uuid_text(view.topic_id)
        return encode_positions({name: TopicPosition(ids[name], topics[name]) for name in topics})

    # What is between two positions.

    def _ranges(
        self,
        start: Stored,
        views: "Mapping[PartitionKey, PartitionView]",
        ends: "Mapping[PartitionKey, int]",
    ) -> "list[OffsetRange]":
        """From `start` up to `ends`. Topics and partitions that are new are read from their beginning."""
        from penstock.arrow.planning import OffsetRange
        from penstock.spark.read.admission import decode_positions

        positions = decode_positions(start)
        self._require_topics(positions, views)
        ranges = []
        for key, view in views.items():
            if key in ends:
                low = self._low(positions, view)
                ranges.append(OffsetRange(view, low, max(low, ends[key])))
        return ranges

    def _low(self, positions: "Positions", view: "PartitionView") -> int:
        position = positions.get(view.topic)
        low = 0  # If it is new since then, nothing of it was read.
        if position is not None and position.topic_id in ("", uuid_text(view.topic_id)):
            low = position.offsets.get(view.index, 0)
        return self._session.resume(view, low)

    def _require_topics(self, positions: "Positions", views: "Mapping[PartitionKey, PartitionView]") -> None:
        """Where the query has been must still be there, unless losses are allowed."""
        if not self._options.fail_on_data_loss:
            return
        now = {(view.topic, view.index): uuid_text(view.topic_id) for view in views.values()}
        selection = self._options.selection
        for topic in (*selection.names, *(selection.partitions or ())):
            if topic not in positions and not any(topic == name for name, _number in now):
                raise MissingTopicError(f"The topic {topic!r} does not exist.")
        for topic, position in positions.items():
            for number in position.offsets:
                found = now.get((topic, number))
                if found is None:
                    raise TopicChangedError(
                        f"Partition {number} of topic {topic!r} was read before and is not there any more."
                        " Set failOnDataLoss to false to go on without it."
                    )
                if position.topic_id not in ("", found):
                    raise TopicChangedError(
                        f"The topic {topic!r} was deleted and created again since it was read."
                        " Set failOnDataLoss to false to read the new one from its beginning."
                    )

    def _admit(self, ranges: "list[OffsetRange]") -> "list[OffsetRange]":
        from penstock.spark.read.admission import admit_bytes, admit_records

        options = self._options
        if options.min_offsets_per_trigger and self._target is None:
            available = sum(one.high - one.low for one in ranges)
            now = time.monotonic()
            due = self._triggered is None or (now - self._triggered) * 1000 >= options.max_trigger_delay_ms
            if available < options.min_offsets_per_trigger and not due:
                return [one._replace(high=one.low) for one in ranges]
            self._triggered = now
        if options.max_offsets_per_trigger:
            ranges = admit_records(ranges, options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger:
            ranges = admit_bytes(ranges, options.max_bytes_per_trigger)
        return ranges

    # Reading.

    @plainly
    def partitions(self, start: Stored, end: Stored) -> Sequence[InputPartition]:
        from penstock.arrow.planning import Deal, splits

        views = self._session.views
        ends = self._ends_in(end, views)
        if ends is None:
            views = self._look()
            ends = self._ends_in(end, views)
        if ends is None:
            ends = self._ends_within(end, views)
        options = self._options
        deal = Deal(
            options.split_bytes, self._parallelism, options.min_partitions, options.max_records_per_partition
        )
        ranges = self._ranges(start, views, ends)
        settings = settings_of(options, self._store, self._schema)
        return [Split(stretches, settings) for stretches in splits(ranges, deal, options.isolation)]

    def _ends_in(
        self, end: Stored, views: "Mapping[PartitionKey, PartitionView]"
    ) -> "dict[PartitionKey, int] | None":
        """The ends that a position names; None if what is known of the store does not reach that far."""
        from penstock.spark.read.admission import decode_positions

        positions = decode_positions(end)
        ends = {}
        covered = 0
        for key, view, offset in _named(positions, views):
            covered += 1
            if offset > self._session.end(view):
                return None
            ends[key] = offset
        return ends if covered == sum(len(position.offsets) for position in positions.values()) else None

    def _ends_within(
        self, end: Stored, views: "Mapping[PartitionKey, PartitionView]"
    ) -> "dict[PartitionKey, int]":
        """The ends of a micro-batch that is run again, where the store does not reach as far as it did when
        the batch was planned. The next batch begins at those ends, so a batch that stops before them would
        lose records for good: it fails, unless losses are allowed."""
        from penstock.spark.read.admission import decode_positions

        positions = decode_positions(end)
        self._require_topics(positions, views)
        ends = {}
        for key, view, planned in _named(positions, views):
            if planned > view.end:
                self._session.lost(view, view.end, planned - 1, f": the log ends at {view.end} now")
            offset = min(planned, view.end)
            stable = self._session.end(view)
            if offset > stable:
                raise OpenTransactionError(view.topic, view.index, offset, stable)
            ends[key] = offset
        return ends

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_split(partition)

    def commit(self, end: Stored) -> None:
        self._report(end)

    def _report(self, end: Stored) -> None:
        """Report the progress as that of a consumer group, so that lag shows in every Kafka tool."""
        if self._options.group is None:
            return
        from penstock.spark.progress import GroupProgress
        from penstock.spark.read.admission import decode_positions

        if self._progress is None:
            self._progress = GroupProgress(
                self._options.group, self._options.bootstrap, self._options.security
            )
        self._progress.report(decode_positions(end), self._session.image)

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.close()


def _named(
    positions: "Positions", views: "Mapping[PartitionKey, PartitionView]"
) -> "Iterator[tuple[PartitionKey, PartitionView, int]]":
    """The partitions that positions name and that are still those of the same topic, with their offsets."""
    for key, view in views.items():
        position = positions.get(view.topic)
        if position is not None and position.topic_id in ("", uuid_text(view.topic_id)):
            offset = position.offsets.get(view.index)
            if offset is not None:
                yield key, view, offset


def _same(one: Stored, other: Stored) -> bool:
    from penstock.spark.read.admission import decode_positions

    before, after = decode_positions(one), decode_positions(other)
    if before.keys() != after.keys():
        return False
    return all(
        before[topic].offsets == after[topic].offsets
        and before[topic].topic_id in ("", after[topic].topic_id)
        for topic in before
    )
