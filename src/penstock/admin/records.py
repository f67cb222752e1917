"""Records of partitions, read and written through whoever leads them, and where reading begins."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.admin.offsets import EARLIEST, LATEST, list_offset
from penstock.admin.resetting import WayError, datetime_ms, is_number
from penstock.client import AnswerError, Client, ClientError
from penstock.wire.api.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from penstock.wire.api.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.api.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.wire.batch import (
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchHeader,
    Record,
    build_batch,
    iter_batches,
    iter_records,
)
from penstock.wire.buffers import Buffer
from penstock.wire.errors import ErrorCode

FETCH_BYTES = 4 * 1024 * 1024
WAIT_MS = 500
BATCH_BYTES = 512 * 1024
BATCH_RECORDS = 5000
OVERHEAD_BYTES = 20
"""Of a record beside its key, value and headers, roughly."""
ALL = -1
"""Acks: an answer means that it is stored."""
SEQUENCES = 1 << 31
"""They begin again at 0."""
ABORT = b"\0\0"
"""The type in the key of the control record that ends an aborted transaction."""


# -- writing ---------------------------------------------------------------------------------------------


class Sender:
    """Collects records into batches, one per partition, and sends them to the leaders."""

    def __init__(self, client: Client, topic: str, partitions: list[int], codec: int, acks: int) -> None:
        self._producer = Producer(client, topic, codec, acks)
        self._partitions = partitions
        self._waiting: dict[int, list[Record]] = {}
        self._bytes = 0
        self._turn = 0
        self.count = 0
        self.last_offsets: dict[int, int] = {}

    @property
    def stored(self) -> int:
        """How many of the records were acknowledged."""
        return self._producer.stored

    def send(self, record: Record, partition: int | None) -> None:
        if partition is None:
            partition = self._choose(record.key)
        waiting = self._waiting.setdefault(partition, [])
        waiting.append(record)
        self.count += 1
        self._bytes += size_of(record)
        if self._bytes >= BATCH_BYTES or len(waiting) >= BATCH_RECORDS:
            self.flush()

    def flush(self) -> None:
        waiting, self._waiting, self._bytes = self._waiting, {}, 0
        if waiting:
            self._turn += 1
        for partition, records in waiting.items():
            last_offset = self._producer.send(partition, records)
            if last_offset is not None:
                self.last_offsets[partition] = last_offset

    def _choose(self, key: bytes | None) -> int:
        """By key as every Kafka client does; without one, a partition per batch in turn."""
        if key is None:
            return self._partitions[self._turn % len(self._partitions)]
        return self._partitions[(murmur2(key) & 0x7FFFFFFF) % len(self._partitions)]


def size_of(record: Record) -> int:
    """What a record takes in a batch, roughly."""
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers + OVERHEAD_BYTES


class Producer:
    """Sends records to partitions of a topic, one batch at a time.

    With acks=all, batches carry the numbers of an idempotent producer: what is sent again, because its answer
    was lost, is not stored twice. A batch that is larger than the topic takes is sent in halves.
    """

    def __init__(self, client: Client, topic: str, codec: int, acks: int) -> None:
        self._client = client
        self._topic = topic
        self._codec = codec
        self._acks = acks
        self._numbers: tuple[int, int] | None = None
        self._sequences: dict[int, int] = {}
        self.stored = 0
        """Records that were acknowledged."""

    def send(self, partition: int, records: list[Record]) -> int | None:
        """Send records, of which there is at least one; the offset of the last, unless its leader forgot."""
        try:
            base_offset = self._send_batch(partition, records)
        except AnswerError as error:
            if error.code is not ErrorCode.MESSAGE_TOO_LARGE or len(records) == 1:
                raise
            half = len(records) // 2
            self.send(partition, records[:half])
            return self.send(partition, records[half:])
        self.stored += len(records)
        return None if base_offset is None else base_offset + len(records) - 1

    def _send_batch(self, partition: int, records: list[Record]) -> int | None:
        if self._numbers is None:
            self._numbers = self._new_numbers()
        producer_id, epoch = self._numbers
        numbered = producer_id != NO_PRODUCER_ID
        sequence = self._sequences.get(partition, 0)
        batch = build_batch(
            [Record(at, one.timestamp, one.key, one.value, one.headers) for at, one in enumerate(records)],
            codec=self._codec,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence if numbered else NO_SEQUENCE,
        )
        base_offset: int | None = None
        try:
            base_offset = send_batch(self._client, self._topic, partition, bytes(batch), self._acks)
        except AnswerError as error:
            # It is there: an earlier attempt had taken effect, and the leader forgot its offset.
            if not (numbered and error.code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                raise
        self._sequences[partition] = (sequence + len(records)) % SEQUENCES
        return base_offset

    def _new_numbers(self) -> tuple[int, int]:
        """A producer id and its epoch."""
        if self._acks != ALL:
            return NO_PRODUCER_ID, -1

        def attempt() -> tuple[int, int]:
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=2**31 - 1)
            answer = self._client.any().ask(request, InitProducerIdResponse)
            if answer.error_code:
                raise AnswerError(answer.error_code, "The question for a producer id")
            return answer.producer_id, answer.producer_epoch

        return self._client.retry(attempt)


def send_batch(client: Client, topic: str, partition: int, batch: bytes, acks: int) -> int:
    """Send a batch to whoever leads the partition; the offset of its first record."""

    def attempt() -> int:
        leader = client.leader(topic, partition)
        data = TopicProduceData(
            name=topic,
            topic_id=client.topic_id(topic),
            partition_data=[PartitionProduceData(index=partition, records=batch)],
        )
        request = ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=[data])
        answer = leader.ask(request, ProduceResponse)
        (result,) = answer.responses[0].partition_responses
        if result.error_code:
            what = f"Sending to partition {partition} of {topic!r}"
            raise AnswerError(result.error_code, what, result.error_message)
        return result.base_offset

    return client.retry(attempt)


def murmur2(data: bytes) -> int:
    """The hash by which Kafka's own clients choose partitions, so that keys go where they went before."""
    mask = 0xFFFFFFFF
    m = 0x5BD1E995
    h = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        h = h * m & mask ^ (k ^ k >> 24) * m & mask
    rest = data[whole:]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


# -- reading ---------------------------------------------------------------------------------------------


class ReaderPositions:
    """Reads partitions from given positions, without a group."""

    def __init__(
        self, client: Client, topic: str, partitions: list[int], start: str, committed: bool
    ) -> None:
        self._client = client
        self._topic = topic
        self._committed = committed
        self._positions = {
            one: position(client, topic, one, start, committed=committed) for one in partitions
        }
        self._ends: dict[int, int] = {}
        if not partitions:
            raise ClientError(f"Topic {topic} has no partitions.")

    @property
    def positions(self) -> dict[int, int]:
        """The offsets at which reading goes on. They have passed markers and what is left out, too."""
        return dict(self._positions)

    def go_on_at(self, positions: dict[int, int]) -> None:
        """Start at these offsets instead, in the partitions named."""
        self._positions.update(positions)

    def records(self, *, follow: bool, pauses: bool = False) -> Iterator[tuple[int, Record] | None]:
        """The records as they come; with `pauses`, None after each request, to do something else then."""
        if not follow:
            self._ends = {
                one: list_offset(self._client, self._topic, one, LATEST, committed=self._committed)
                for one in self._positions
            }
        while follow or any(self._positions[one] < self._ends[one] for one in self._positions):
            for partition in list(self._positions):
                if follow or self._positions[partition] < self._ends[partition]:
                    yield from self._fetch(partition, WAIT_MS // len(self._positions) if follow else 0)
                    if pauses:
                        yield None

    def _fetch(self, partition: int, wait_ms: int) -> Iterator[tuple[int, Record]]:
        data = self._client.retry(lambda: self._ask(partition, wait_ms))
        position = self._positions[partition]
        aborted = Aborted(data)
        records = data.records or b""
        for at, header in iter_batches(records):
            if not aborted.skips(header, records, at):
                for record in iter_records(records, at):
                    if record.offset >= position:
                        self._positions[partition] = record.offset + 1
                        yield partition, record
            self._positions[partition] = max(self._positions[partition], header.last_offset + 1)

    def _ask(self, partition: int, wait_ms: int) -> PartitionData:
        position = self._positions[partition]
        return fetch(self._client, self._topic, partition, position, wait_ms, committed=self._committed)


class Aborted:
    """Which batches of one answer belong to aborted transactions, read in order."""

    def __init__(self, data: PartitionData) -> None:
        self._coming = sorted(
            ((one.first_offset, one.producer_id) for one in data.aborted_transactions or ()), reverse=True
        )
        self._open: set[int] = set()

    def skips(self, header: BatchHeader, data: Buffer, at: int) -> bool:
        """Is there nothing for a consumer in the batch at `at`?"""
        while self._coming and self._coming[-1][0] <= header.last_offset:
            self._open.add(self._coming.pop()[1])
        if header.is_control:
            for record in iter_records(data, at):
                if record.key is not None and record.key[2:4] == ABORT:
                    self._open.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._open


def fetch(
    client: Client,
    topic: str,
    partition: int,
    position: int,
    wait_ms: int,
    *,
    committed: bool = False,
    bytes_max: int = FETCH_BYTES,
) -> PartitionData:
    """Ask whoever leads the partition for what is there from `position` on."""
    leader = client.leader(topic, partition)
    wanted = FetchPartition(partition=partition, fetch_offset=position, partition_max_bytes=bytes_max)
    request = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=bytes_max,
        isolation_level=int(committed),
        topics=[FetchTopic(topic=topic, topic_id=client.topic_id(topic), partitions=[wanted])],
    )
    answer = leader.ask(request, FetchResponse)
    data = answer.responses[0].partitions[0]
    if answer.error_code or data.error_code:
        code = answer.error_code or data.error_code
        raise AnswerError(code, f"Reading partition {partition} of {topic!r}")
    return data


def position(client: Client, topic: str, partition: int, start: str, *, committed: bool) -> int:
    """The offset at which one partition is read first."""

    def ask(when: int) -> int:
        return list_offset(client, topic, partition, when, committed=committed)

    if start == "beginning":
        return ask(EARLIEST)
    if start == "end":
        return ask(LATEST)
    if is_number(start):
        return int(start)
    if start[:1] == "-" and is_number(start[1:]):
        return max(ask(EARLIEST), ask(LATEST) - int(start[1:]))
    if start[:1] == "@" and is_number(start[1:]):
        time_ms = int(start[1:])
    else:
        try:
            time_ms = datetime_ms(start)
        except WayError:
            raise WayError(
                "Reading begins at beginning, end, an offset, -N (the last N of each partition), "
                f"@MILLISECONDS or a date and time, not at {start!r}."
            ) from None
    found = ask(time_ms)
    return ask(LATEST) if found < 0 else found
