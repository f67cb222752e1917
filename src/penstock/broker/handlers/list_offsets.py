"""ListOffsets 0-11: offsets by time, and the special ones.

- `timestamp` >= 0: the first record at or after it, with its offset, time and leader epoch; -1 for each if
  there is none. Negative values are special, each from the version that brought it, before that
  UNSUPPORTED_VERSION: -1 latest and -2 earliest (0), -3 the record with the largest timestamp (7, KIP-734),
  -4 earliest local (8), -5 latest tiered (9), -6 earliest pending upload (11). Penstock has no second tier:
  everything is local, so -4 equals -2, and -5 and -6 answer -1, as Kafka does without tiered storage.
- Latest is the high watermark, or the last stable offset for a consumer that reads committed records
  (isolation level 1, from version 2); nothing at or beyond it is found by time either. Replicas and
  debuggers (`replica_id` other than -1) are not held back by open transactions.
- From version 4 the client says which leader epoch it believes in: FENCED_LEADER_EPOCH or
  UNKNOWN_LEADER_EPOCH.
- A partition that is named twice is INVALID_REQUEST, answered once.
- Version 0 answers a list of at most `max_num_offsets` offsets, newest first, at which segments modified
  before the timestamp begin. A partition counts as one segment that was modified when its newest record
  was written, followed by its end. Repetition is allowed there.
- `timeout_ms` (10) bounds a look-up in remote storage on Kafka; look-ups here are bounded by the store's
  own limits.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from penstock.broker.rights import DESCRIBE_TOPIC
from penstock.broker.topics.partitions import epoch_at, led_partition
from penstock.storage.stores.objects import StoreError
from penstock.wire.api.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.broker.freshness import Named
    from penstock.broker.rights import Permit
    from penstock.storage.ledger.ledger import Partition
    from penstock.storage.partitions.answers import TimestampOffset
    from penstock.wire.exchange import Request

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

_SPECIAL_SINCE = {
    LATEST: 0,
    EARLIEST: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
CONSUMER = -1
READ_UNCOMMITTED = 0
READ_COMMITTED = 1

Answer = ListOffsetsPartitionResponse


def handle(
    broker: Broker, request: Request, message: ListOffsetsRequest, permit: Permit
) -> ListOffsetsResponse | Awaitable[ListOffsetsResponse]:
    listing = _Listing(broker, permit, request, message)
    easy = all(
        p.timestamp < 0 and p.timestamp != MAX_TIMESTAMP for topic in message.topics for p in topic.partitions
    )
    return listing.answer_at_once() if easy and request.api_version > 0 else listing.answer()


def named(_broker: Broker, message: ListOffsetsRequest, _version: int) -> Named:
    return ((topic.name, wanted.partition_index) for topic in message.topics for wanted in topic.partitions)


def refused(message: ListOffsetsRequest, code: ErrorCode) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    Answer(partition_index=p.partition_index, error_code=code) for p in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )


class _Listing:
    """One request on its way to its answer."""

    def __init__(self, broker: Broker, permit: Permit, request: Request, message: ListOffsetsRequest) -> None:
        self.broker = broker
        self.image = broker.image
        self.permit = permit
        self.version = request.api_version
        self.message = message
        self.committed = message.replica_id == CONSUMER and message.isolation_level == READ_COMMITTED
        self.repeated = self._repeated() if self.version > 0 else frozenset()

    def _repeated(self) -> frozenset[tuple[str, int]]:
        seen: set[tuple[str, int]] = set()
        twice: set[tuple[str, int]] = set()
        for topic in self.message.topics:
            for wanted in topic.partitions:
                key = (topic.name, wanted.partition_index)
                (twice if key in seen else seen).add(key)
        return frozenset(twice)

    def answer_at_once(self) -> ListOffsetsResponse:
        """For requests that need no look-up by time."""
        return self._assemble(
            [
                (topic.name, self._refuse(topic.name, wanted) or self._special(topic.name, wanted))
                for topic in self.message.topics
                for wanted in topic.partitions
            ]
        )

    async def answer(self) -> ListOffsetsResponse:
        found = []
        for topic in self.message.topics:
            for wanted in topic.partitions:
                answer = self._refuse(topic.name, wanted)
                if answer is None:
                    answer = await self._find(topic.name, wanted)
                found.append((topic.name, answer))
        return self._assemble(found)

    def _assemble(self, found: list[tuple[str, Answer]]) -> ListOffsetsResponse:
        """Topics in the order of the request; a partition that was named twice is answered once."""
        topics: dict[str, ListOffsetsTopicResponse] = {
            topic.name: ListOffsetsTopicResponse(name=topic.name, partitions=[])
            for topic in self.message.topics
        }
        done: set[tuple[str, int]] = set()
        for name, answer in found:
            key = (name, answer.partition_index)
            if key in self.repeated:
                if key in done:
                    continue
                done.add(key)
            topics[name].partitions.append(answer)
        return ListOffsetsResponse(topics=list(topics.values()))

    def _refuse(self, topic: str, wanted: ListOffsetsPartition) -> Answer | None:
        """Why not even to look."""
        code = None
        if not self.permit.allows(DESCRIBE_TOPIC, topic):
            code = DESCRIBE_TOPIC.code
        elif (topic, wanted.partition_index) in self.repeated:
            code = ErrorCode.INVALID_REQUEST
        elif wanted.timestamp < 0 and self.version < _SPECIAL_SINCE.get(wanted.timestamp, 1 << 15):
            code = ErrorCode.UNSUPPORTED_VERSION
        elif self.message.isolation_level not in {READ_UNCOMMITTED, READ_COMMITTED}:
            code = ErrorCode.INVALID_REQUEST
        return None if code is None else _error(wanted, code)

    def _partition(self, topic: str, wanted: ListOffsetsPartition) -> Partition | ErrorCode:
        epoch = wanted.current_leader_epoch
        return led_partition(self.broker, self.image, topic, wanted.partition_index, epoch)

    def _limit(self, partition: Partition) -> int:
        return partition.last_stable_offset if self.committed else partition.high_watermark

    def _special(self, topic: str, wanted: ListOffsetsPartition) -> Answer:
        partition = self._partition(topic, wanted)
        if isinstance(partition, ErrorCode):
            return _error(wanted, partition)
        if wanted.timestamp == LATEST:
            offset, epoch = self._limit(partition), partition.leader_epoch
        elif wanted.timestamp in {EARLIEST, EARLIEST_LOCAL}:
            offset = partition.log_start_offset
            epoch = epoch_at(self.broker, partition, offset)
        else:
            offset = epoch = -1
        return self._found(wanted, offset, -1, epoch)

    async def _find(self, topic: str, wanted: ListOffsetsPartition) -> Answer:
        partition = self._partition(topic, wanted)
        if isinstance(partition, ErrorCode):
            return _error(wanted, partition)
        try:
            if self.version == 0:
                return await self._old_style(partition, wanted)
            if wanted.timestamp < 0 and wanted.timestamp != MAX_TIMESTAMP:
                return self._special(topic, wanted)
            record = await self._record(partition, wanted.timestamp)
        except StoreError:
            return _error(wanted, ErrorCode.KAFKA_STORAGE_ERROR)
        if record is None:
            return Answer(partition_index=wanted.partition_index)
        return self._found(wanted, record.offset, record.timestamp, record.leader_epoch)

    async def _record(self, partition: Partition, timestamp: int) -> TimestampOffset | None:
        limit = self._limit(partition)
        ledger = self.broker.ledger
        if timestamp != MAX_TIMESTAMP:
            return await ledger.offset_for_timestamp(partition, timestamp, limit_offset=limit)
        record = await ledger.max_timestamp(partition)
        return None if record is None or record.offset >= limit else record

    def _found(self, wanted: ListOffsetsPartition, offset: int, timestamp: int, epoch: int) -> Answer:
        return Answer(
            partition_index=wanted.partition_index,
            offset=offset,
            timestamp=timestamp,
            leader_epoch=epoch if self.version >= 4 else -1,
        )

    async def _old_style(self, partition: Partition, wanted: ListOffsetsPartition) -> Answer:
        start, end = partition.log_start_offset, partition.high_watermark
        offsets = [start] if start == end else [end, start]
        if wanted.timestamp == EARLIEST:
            offsets = [start]
        elif wanted.timestamp >= 0 and wanted.timestamp < self.broker.clock.time_ms():
            newest = await self.broker.ledger.max_timestamp(partition)
            offsets = [start] if newest is not None and newest.timestamp <= wanted.timestamp else []
        if wanted.max_num_offsets < 0:
            return _error(wanted, ErrorCode.INVALID_REQUEST)
        return Answer(
            partition_index=wanted.partition_index, old_style_offsets=offsets[: wanted.max_num_offsets]
        )


def _error(wanted: ListOffsetsPartition, code: ErrorCode) -> Answer:
    return Answer(partition_index=wanted.partition_index, error_code=code)
