"""Produces to brokers as one idempotent producer, in order within each partition.

A queue per partition holds batches that carry their sequence numbers already. A request takes the first batch
of every partition that a broker leads. A batch leaves its queue when it was acknowledged, or when the
partition says that it has it. So each batch is in the log once, however often a request fails and is retried.
One that is larger than its topic takes becomes two.
"""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from struct import Struct

import msgspec

from penstock.arrow.errors import SourceError
from penstock.client import AnswerError, Client, ClientError, error_code
from penstock.wire.api.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from penstock.wire.api.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.api.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.wire.batch import Record, build_batch, check_batch, iter_records, read_header, refresh_crc
from penstock.wire.buffers import Buffer
from penstock.wire.errors import BatchError, ErrorCode

REQUEST_SECONDS = 30.0
DELIVERY_SECONDS = 120.0
"""As Kafka's producers: delivery.timeout.ms."""
RETRY_SECONDS = 0.1
PRODUCE_VERSION_MAX = 12
"""The last one that names topics by name."""
REQUEST_BYTES_MAX = 16 * 1024 * 1024
QUEUED_BYTES_MAX = 64 * 1024 * 1024
SEQUENCES = 1 << 31
_IDENTITY = Struct(">qhi")
_IDENTITY_AT = 43
"""Where a batch header has producer id, producer epoch and base sequence."""

Place = tuple[str, int]


class WriteError(SourceError):
    """Records could not be written. One sentence for a person."""


def new_producer_id(client: Client) -> tuple[int, int]:
    """A producer id that nobody else has, and its epoch."""

    def attempt() -> tuple[int, int]:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
        answer = client.any().ask(request, InitProducerIdResponse, newest=4)
        if answer.error_code:
            raise AnswerError(answer.error_code, "The question for a producer id")
        return answer.producer_id, answer.producer_epoch

    return client.retry(attempt)


def last_sequences(client: Client, producer_id: int, places: Sequence[Place]) -> dict[Place, int]:
    """The last sequence number that each partition has of the producer; partitions that know none are left
    out."""
    found: dict[Place, int] = {}

    def attempt(place: Place) -> None:
        topic, partition = place
        request = DescribeProducersRequest(topics=[TopicRequest(name=topic, partition_indexes=[partition])])
        answer = client.leader(topic, partition).ask(request, DescribeProducersResponse)
        (state,) = answer.topics[0].partitions
        if state.error_code:
            raise AnswerError(
                state.error_code, f"The question for producers of {topic!r}", state.error_message
            )
        for producer in state.active_producers:
            if producer.producer_id == producer_id:
                found[place] = producer.last_sequence

    for place in places:
        client.retry(lambda place=place: attempt(place))  # type: ignore[misc]
    return found


class Sender:
    def __init__(self, client: Client, producer_id: int, producer_epoch: int) -> None:
        self._client = client
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._queues: dict[Place, deque[bytes]] = {}
        self._queued_bytes = 0

    def add(self, topic: str, partition: int, run: Buffer, base_sequence: int, skip: int) -> None:
        """Queue the batches of a run whose first record has this sequence number. The first `skip` records
        are in the partition already. Raises WriteError."""
        queue = self._queues.setdefault((topic, partition), deque())
        view = memoryview(run)
        at = done = 0
        while at < len(view):
            try:
                # It gets another checksum: what was hurt meanwhile must not pass for what was written.
                header = check_batch(view, at)
            except BatchError as error:
                raise WriteError(
                    f"Rows for topic {topic!r} partition {partition} are damaged where they wait in the store"
                    f" to be written: {error}."
                ) from None
            if done + header.record_count > skip:
                batch = self._own(view[at : at + header.size], (base_sequence + done) % SEQUENCES)
                if done < skip:
                    batch = _parted(batch, skip - done)[1]  # It had been parted, and this is what is left.
                queue.append(batch)
                self._queued_bytes += len(batch)
            done += header.record_count
            at += header.size

    def _own(self, batch: Buffer, sequence: int) -> bytes:
        """The batch under this producer's identity."""
        owned = bytearray(batch)
        _IDENTITY.pack_into(owned, _IDENTITY_AT, self._producer_id, self._producer_epoch, sequence)
        refresh_crc(owned)
        return bytes(owned)

    def send_beyond(self) -> None:
        """Send if much is queued, so that memory stays bounded."""
        if self._queued_bytes > QUEUED_BYTES_MAX:
            self.send()

    def send(self) -> None:
        """Send everything that is queued. Raises WriteError."""
        deadline = time.monotonic() + DELIVERY_SECONDS
        while any(self._queues.values()):
            progress = False
            failure: ClientError | None = None
            try:
                for leader, places in self._by_leader().items():
                    progress |= self._request(leader, places)
            except ClientError as error:
                failure = error
            if progress:
                deadline = time.monotonic() + DELIVERY_SECONDS
                continue
            if time.monotonic() > deadline:
                raise WriteError(
                    f"Records could not be written within {DELIVERY_SECONDS:.0f} s: {failure or 'no leader'}"
                )
            time.sleep(RETRY_SECONDS)
            self._client.refresh()

    def _by_leader(self) -> Mapping[int, list[Place]]:
        leaders: dict[int, list[Place]] = {}
        for place, queue in self._queues.items():
            if queue:
                leaders.setdefault(self._client.leader_id(*place), []).append(place)
        return leaders

    def _request(self, leader: int, places: Sequence[Place]) -> bool:
        """One request: the first batch of each partition, as far as they fit. True if one was written."""
        topics: dict[str, list[PartitionProduceData]] = {}
        size = 0
        for topic, partition in places:
            batch = self._queues[topic, partition][0]
            if size and size + len(batch) > REQUEST_BYTES_MAX:
                break
            size += len(batch)
            topics.setdefault(topic, []).append(PartitionProduceData(index=partition, records=batch))
        request = ProduceRequest(
            acks=-1,
            timeout_ms=int(REQUEST_SECONDS * 1000),
            topic_data=[TopicProduceData(name=name, partition_data=data) for name, data in topics.items()],
        )
        answer = self._client.broker(leader).ask(
            request, ProduceResponse, seconds=REQUEST_SECONDS, newest=PRODUCE_VERSION_MAX
        )
        progress = False
        for topic_answer in answer.responses:
            for one in topic_answer.partition_responses:
                place = (topic_answer.name, one.index)
                code = error_code(one.error_code)
                if code is ErrorCode.MESSAGE_TOO_LARGE and self._part_first(place):
                    progress = True
                elif self._is_written(place, code, one.error_message):
                    self._queued_bytes -= len(self._queues[place].popleft())
                    progress = True
        return progress

    def _is_written(self, place: Place, code: ErrorCode, message: str | None) -> bool:
        if code is ErrorCode.NONE or code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            return True
        if code.retriable:
            return False
        topic, partition = place
        detail = f": {message}" if message else ""
        raise WriteError(f"Topic {topic!r} partition {partition} refused records: {code.name}{detail}.")

    def _part_first(self, place: Place) -> bool:
        """Make two of a batch that is larger than its topic takes; whether that is possible."""
        queue = self._queues[place]
        count = read_header(queue[0]).record_count
        if count == 1:
            return False
        whole = queue.popleft()
        parts = _parted(whole, count // 2)
        queue.extendleft(reversed(parts))
        self._queued_bytes += sum(map(len, parts)) - len(whole)
        return True


def _parted(batch: bytes, first: int) -> tuple[bytes, bytes]:
    """A batch as two: its first records, and the others, with their sequence numbers."""
    header = read_header(batch)
    records = list(iter_records(batch))

    def part(some: Sequence[Record], sequence: int) -> bytes:
        return bytes(
            build_batch(
                [msgspec.structs.replace(record, offset=at) for at, record in enumerate(some)],
                codec=header.codec,
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                base_sequence=sequence % SEQUENCES,
            )
        )

    sequence = header.base_sequence
    return part(records[:first], sequence), part(records[first:], sequence + first)
