"""One pass over the partitions of a fetch: the records that each of them has for this consumer now.

Limits, as in Kafka's ReplicaManager.readFromLog: each partition gives at most its own `max_bytes` and the
rest of the whole answer's, in whole batches. Only the first partition that has anything gives at least one
batch, however large it is, so a consumer always gets on.

A read that the ledger cannot answer at once is begun and left to `fetch.cold`: this pass finds nothing in
that partition, a later one does. Until then it takes nothing from the answer's limit. So partitions whose
records are at hand are answered beside it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from penstock.broker.fetch.cold import ColdRead, cold_reads_of, make_cold_reads
from penstock.broker.fetch.results import Result
from penstock.broker.rights import BE_A_BROKER, EVERYTHING, READ_TOPIC
from penstock.storage.partitions.answers import OffsetOutOfRangeError, Slice
from penstock.storage.stores.objects import HurtRangeError, StoreError
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.broker.fetch.sessions import Wanted
    from penstock.broker.rights import Permit
    from penstock.metadata.image import ClusterImage, TopicInfo
    from penstock.storage.ledger.ledger import Partition
    from penstock.wire.buffers import Buffer
    from penstock.wire.exchange import Session

log = logging.getLogger(__name__)

ANY_EPOCH = -1
READ_UNCOMMITTED = 0
READ_COMMITTED = 1
CONSUMER = -1
DEBUGGING = -2
_Found: TypeAlias = "Slice | tuple[Sequence[Buffer], int, int]"
"""Buffers, their size, and the next offset: of a read from the store, or of the tail cache."""
_EMPTY = Slice([], 0, 0)
_STORED_SHARE = 2
"""Reads of the store, with those under way, are so many times what one answer may hold: so that some are at
hand when others take long."""


class Reader(NamedTuple):
    """The client that fetches."""

    broker: Broker
    session: Session
    permit: Permit
    by_id: bool
    committed: bool
    from_replica: bool


class Pass(NamedTuple):
    """The results of one pass, in the order of the partitions asked for."""

    found: list[Result]
    partitions: list[Partition]
    """Those that may have more for this consumer later."""
    size: int
    failed: bool
    """A partition has an error, so there is nothing to wait for."""
    cold: bool
    """Reads for it are under way, or must wait for others that are."""
    taken: Sequence[ColdRead]
    """Complete ones that are in `found`."""


def read_all(reader: Reader, wanted: Sequence[Wanted], max_bytes: int, *, min_one: bool) -> Pass:
    """`min_one`: whether the first batch is given though it exceeds the limits."""
    image = reader.broker.image
    left = max_bytes
    found: list[Result] = []
    partitions: list[Partition] = []
    size = 0
    failed = False
    # Most fetches are answered from memory, and need none of what the others do.
    stored = _StoredReads(reader, max_bytes) if cold_reads_of(reader.session) is not None else None
    for one in wanted:
        partition = _find(reader, image, one)
        if isinstance(partition, Result):
            failed = True
            found.append(partition)
            continue
        partitions.append(partition)
        limit = one.max_bytes if one.max_bytes < left else left
        result = _read_memory(reader, partition, one, limit, min_one)
        if result is None:
            if stored is None:
                stored = _StoredReads(reader, max_bytes)
            result = stored.read(partition, one, limit, min_one, size)
        found.append(result)
        if result.error is not ErrorCode.NONE or result.diverging is not None:
            failed = True
        elif result.size:
            min_one = False
            size += result.size
            left = max(0, left - result.size)
    if stored is None:
        return Pass(found, partitions, size, failed, False, ())
    return Pass(found, partitions, size, failed, stored.finish(size), stored.taken)


async def read_on(reader: Reader, wanted: Wanted, offset: int) -> Result:
    """What one partition has from a later offset on than was asked for."""
    partition = _find(reader, reader.broker.image, wanted)
    if isinstance(partition, Result):
        return partition
    end = partition.last_stable_offset if reader.committed else partition.high_watermark
    if offset >= end:
        return _result(reader, partition, _EMPTY, offset)
    try:
        data = reader.broker.ledger.read(partition, offset, wanted.max_bytes, limit_offset=end)
        found = data if isinstance(data, Slice) else await data
    except (OffsetOutOfRangeError, StoreError) as error:
        return _failure(partition, error)
    return _result(reader, partition, found, offset)


def _find(reader: Reader, image: ClusterImage, wanted: Wanted) -> Partition | Result:
    topic: TopicInfo | None
    permit = reader.permit
    if reader.from_replica:
        # Brokers need no right to the topics.
        if not permit.allows(BE_A_BROKER):
            return _UNAUTHORIZED
        permit = EVERYTHING
    if reader.by_id:
        topic = image.topic_by_id(wanted.topic_id)
        if topic is not None:
            wanted.name = topic.name
        elif not wanted.name:
            return _UNKNOWN_TOPIC_ID
    else:
        topic = image.topics.get(wanted.name)
    broker = reader.broker
    if permit.rules is not None and not permit.allows(READ_TOPIC, wanted.name):
        return _UNAUTHORIZED
    index = wanted.index
    if topic is None or not 0 <= index < len(topic.partitions):
        # By id: it was found before, in this session or this fetch, and has been deleted since.
        again = topic is None and wanted.name in image.topics
        return _INCONSISTENT_TOPIC_ID if again else _UNKNOWN_TOPIC_OR_PARTITION
    partition = broker.ledger.partition(topic.id, index)
    if partition is None or partition.closed or reader.from_replica or not permit.leads:
        return _REFUSED if broker.ledger.refused(topic.id, index) else _NOT_LEADER
    epoch = wanted.leader_epoch
    if epoch not in (ANY_EPOCH, partition.leader_epoch):
        return _FENCED if epoch < partition.leader_epoch else _UNKNOWN_LEADER_EPOCH
    return partition


def _read_memory(
    reader: Reader, partition: Partition, wanted: Wanted, limit_bytes: int, min_one: bool
) -> Result | None:
    """What is known without the store; None if the records must come from there."""
    offset = wanted.offset
    if wanted.last_fetched_epoch >= 0:
        diverging = _diverging(reader, partition, wanted)
        if diverging is not None:
            return diverging
    if not partition.log_start_offset <= offset <= partition.high_watermark:
        return _OUT_OF_RANGE
    end = partition.last_stable_offset if reader.committed else partition.high_watermark
    if offset >= end:
        return _result(reader, partition, _EMPTY, offset)
    if wanted.max_bytes < 0:
        return _NEGATIVE_LIMIT
    tail = partition.tail
    if not 0 <= tail.start <= offset:
        return None
    if limit_bytes <= 0 and not min_one:
        return _result(reader, partition, _EMPTY, offset)
    data = tail.read(offset, limit_bytes, end)
    reader.broker.meters.tail_reads += 1
    return _result(reader, partition, data if min_one or data[1] <= limit_bytes else _EMPTY, offset)


class _StoredReads:
    """The reads of one pass beyond memory."""

    __slots__ = ("_asked", "_max_bytes", "_reader", "_reads", "_waits", "taken")

    def __init__(self, reader: Reader, max_bytes: int) -> None:
        self._reader = reader
        self._max_bytes = max_bytes
        self._reads = cold_reads_of(reader.session)
        self._asked: list[ColdRead] = []
        self._waits = False
        self.taken: list[ColdRead] = []

    def read(
        self, partition: Partition, wanted: Wanted, limit_bytes: int, min_one: bool, found_bytes: int
    ) -> Result:
        """`found_bytes`: what the pass has so far."""
        read = self._reads.find(partition, wanted.offset) if self._reads is not None else None
        if read is None:
            begun = self._begin(partition, wanted.offset, limit_bytes, min_one, self._left(found_bytes))
            if isinstance(begun, Result):
                return begun
            read = begun
        self._asked.append(read)
        if not read.done:
            self._waits = True
            return _result(self._reader, partition, _EMPTY, wanted.offset)
        result = _completed(self._reader, partition, wanted, read, limit_bytes, min_one)
        if result.size or result.error is not ErrorCode.NONE:
            self.taken.append(read)
        return result

    def finish(self, found_bytes: int) -> bool:
        """No other partition is asked for. Whether reads are under way that this pass has to wait for."""
        reads = self._reads
        if reads is None:
            return False
        reads.keep(self._asked)
        return self._waits or (reads.under_way and self._left(found_bytes) <= 0)

    def _left(self, found_bytes: int) -> int:
        under_way_bytes = self._reads.under_way_bytes if self._reads is not None else 0
        return _STORED_SHARE * self._max_bytes - found_bytes - under_way_bytes

    def _begin(
        self, partition: Partition, offset: int, limit_bytes: int, min_one: bool, left: int
    ) -> Result | ColdRead:
        """The records themselves, if the store has them at hand."""
        reader = self._reader
        limit_bytes = max(0, min(limit_bytes, left))
        min_one = min_one and (left > 0 or self._reads is None or not self._reads.under_way)
        if not limit_bytes and not min_one:
            return _result(reader, partition, _EMPTY, offset)
        end = partition.last_stable_offset if reader.committed else partition.high_watermark
        try:
            data = reader.broker.ledger.read(partition, offset, limit_bytes, limit_offset=end)
        except (OffsetOutOfRangeError, StoreError) as error:
            return _failure(partition, error)
        if isinstance(data, Slice):
            fits = min_one or data.size <= limit_bytes
            return _result(reader, partition, data if fits else _EMPTY, offset)
        self._reads = make_cold_reads(reader.session, reader.broker.tasks.spawn)
        return self._reads.begin(partition, offset, limit_bytes, data)


def _completed(
    reader: Reader, partition: Partition, wanted: Wanted, read: ColdRead, limit_bytes: int, min_one: bool
) -> Result:
    """What a read that is complete gives within the limits of now."""
    error = read.error
    if isinstance(error, OffsetOutOfRangeError | StoreError):
        return _failure(partition, error)
    if error is not None:
        raise error
    end = partition.last_stable_offset if reader.committed else partition.high_watermark
    data = read.within(max(limit_bytes, 0), end)
    fits = min_one or data.size <= limit_bytes
    return _result(reader, partition, data if fits else _EMPTY, wanted.offset)


def _result(reader: Reader, partition: Partition, data: _Found, offset: int) -> Result:
    buffers, size, next_offset = data[0], data[1], data[2]
    aborted = None
    if reader.committed:
        aborted = []
        if size:
            among = data.aborted if isinstance(data, Slice) else None
            aborted = [
                (one.producer_id, one.first_offset)
                for one in partition.aborted_transactions(offset, next_offset, among)
            ]
    return Result(
        ErrorCode.NONE,
        partition.high_watermark,
        partition.last_stable_offset,
        partition.log_start_offset,
        aborted,
        buffers,
        size,
        next_offset - offset if size else 0,
    )


def _diverging(reader: Reader, partition: Partition, wanted: Wanted) -> Result | None:
    """Tell a reader that what it fetched last is not in this log (KIP-595); None if it is."""
    end = reader.broker.ledger.end_offset_for_epoch(partition, wanted.last_fetched_epoch)
    if end.end_offset < 0 or end.leader_epoch < 0:
        return _OUT_OF_RANGE
    if end.leader_epoch < wanted.last_fetched_epoch or end.end_offset < wanted.offset:
        return Result(
            ErrorCode.NONE,
            partition.high_watermark,
            partition.last_stable_offset,
            partition.log_start_offset,
            [] if reader.committed else None,
            diverging=(end.leader_epoch, end.end_offset),
        )
    return None


def _failure(partition: Partition, error: Exception) -> Result:
    if isinstance(error, OffsetOutOfRangeError):
        return _OUT_OF_RANGE
    log.warning("a read failed: %s; topic=%s partition=%d", error, partition.topic, partition.index)
    if isinstance(error, HurtRangeError):
        # Consumers stop there and say at which offset; KAFKA_STORAGE_ERROR they try again, for ever.
        return Result(ErrorCode.CORRUPT_MESSAGE)
    return Result(ErrorCode.KAFKA_STORAGE_ERROR)


# Errors that are found before a partition is asked come with an empty list of aborted transactions.
_UNKNOWN_TOPIC_ID = Result(ErrorCode.UNKNOWN_TOPIC_ID, aborted=())
_UNKNOWN_TOPIC_OR_PARTITION = Result(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, aborted=())
_INCONSISTENT_TOPIC_ID = Result(ErrorCode.INCONSISTENT_TOPIC_ID, aborted=())
_UNAUTHORIZED = Result(READ_TOPIC.code, aborted=())
_NOT_LEADER = Result(ErrorCode.NOT_LEADER_OR_FOLLOWER)
_REFUSED = Result(ErrorCode.KAFKA_STORAGE_ERROR)
_FENCED = Result(ErrorCode.FENCED_LEADER_EPOCH)
_UNKNOWN_LEADER_EPOCH = Result(ErrorCode.UNKNOWN_LEADER_EPOCH)
_NEGATIVE_LIMIT = Result(ErrorCode.UNKNOWN_SERVER_ERROR)  # Kafka's word for it
_OUT_OF_RANGE = Result(ErrorCode.OFFSET_OUT_OF_RANGE)
