"""A topic copied into another one, of the same cluster or of another.

Keys, values, headers, timestamps and partitions stay as they are; offsets do not, because transactions'
markers and aborted records are left out. The target is created like the source if it is not there. Batches
carry the numbers of an idempotent producer, so that one whose answer was lost is not stored twice. What was
copied is known as positions in the source: a copy that was stopped goes on from those.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.admin.configs import describe_configs
from penstock.admin.offsets import LATEST, list_offset
from penstock.admin.records import BATCH_BYTES, BATCH_RECORDS, ReaderPositions, send_batch
from penstock.admin.topics import TOPIC, create
from penstock.client import AnswerError, Client, ClientError
from penstock.wire.api.create_topics import CreatableTopicConfig
from penstock.wire.api.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.batch import Record, build_batch
from penstock.wire.errors import ErrorCode

OVERHEAD_BYTES = 40
"""Of a record beside its key and value, roughly."""
ALL = -1
"""Acks: an answer means that it is stored."""
SEQUENCES = 1 << 31
"""They begin again at 0."""


class CopyStoppedError(ClientError):
    """The rest was not copied. `positions` are where to go on."""

    def __init__(self, reason: str, positions: Mapping[int, int]) -> None:
        super().__init__(reason)
        self.positions = dict(positions)


class Copy:
    """One run from where it begins to the end that the source had then."""

    def __init__(
        self,
        source: Client,
        name: str,
        target: Client,
        target_name: str,
        codec: int,
        begin: Mapping[int, int],
    ) -> None:
        """`begin`: positions of the source; partitions that are not named are copied from their beginning."""
        self._target = target
        self._target_name = target_name
        self._codec = codec
        partitions = source.partitions(name)
        unknown = sorted(set(begin) - set(partitions))
        if unknown:
            raise ClientError(f"Topic {name} has no partition {unknown[0]}.")
        _prepare_target(source, name, target, target_name, len(partitions))
        self._reader = ReaderPositions(source, name, partitions, "beginning", committed=True)
        self._reader.go_on_at(dict(begin))
        self.positions = self._reader.positions
        """What is before these in the source is in the target."""
        ends = {one: list_offset(source, name, one, LATEST, committed=True) for one in partitions}
        self.total = sum(max(0, ends[one] - at) for one, at in self.positions.items())
        """How many offsets there are to pass."""
        self.records = 0
        self._producer = _producer_id(target)
        self._sequences: dict[int, int] = {}

    def run(self) -> Iterator[int]:
        """Copy; how many offsets were passed, after each answer of the source. CopyStoppedError if it cannot
        go on."""
        begun = sum(self.positions.values())
        waiting: list[Record] = []
        size = 0
        partition = -1
        try:
            for found in self._reader.records(follow=False, pauses=True):
                if found is None:
                    self._send(partition, waiting)
                    waiting, size = [], 0
                    self.positions = self._reader.positions
                    yield sum(self.positions.values()) - begun
                    continue
                partition, record = found
                waiting.append(record)
                size += len(record.key or b"") + len(record.value or b"") + OVERHEAD_BYTES
                if size >= BATCH_BYTES or len(waiting) >= BATCH_RECORDS:
                    self._send(partition, waiting)
                    self.positions[partition] = record.offset + 1
                    waiting, size = [], 0
        except (ClientError, OSError, KeyboardInterrupt) as error:
            reason = "It was interrupted." if isinstance(error, KeyboardInterrupt) else str(error)
            raise CopyStoppedError(reason, self.positions) from error

    def _send(self, partition: int, records: list[Record]) -> None:
        if not records:
            return
        producer_id, epoch = self._producer
        sequence = self._sequences.get(partition, 0)
        numbered = [
            Record(at, one.timestamp, one.key, one.value, one.headers) for at, one in enumerate(records)
        ]
        batch = build_batch(
            numbered,
            codec=self._codec,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        try:
            send_batch(self._target, self._target_name, partition, bytes(batch), ALL)
        except AnswerError as error:
            # It is there: an earlier attempt had taken effect, and the leader forgot its offset.
            if error.code is not ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                raise
        self._sequences[partition] = (sequence + len(records)) % SEQUENCES
        self.records += len(records)


def _prepare_target(source: Client, name: str, target: Client, target_name: str, partitions: int) -> None:
    """Create the target like the source, or see that it has room for all partitions."""
    (found,) = target.metadata([target_name]).topics
    if found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        own = [
            CreatableTopicConfig(name=one.name, value=one.value)
            for one in describe_configs(source, TOPIC, name)
            if one.own and not one.sensitive
        ]
        create(target, target_name, partitions=partitions, configs=own)
        target.partitions(target_name)
        return
    if found.error_code:
        raise AnswerError(found.error_code, f"The question for topic {target_name!r}")
    if len(found.partitions) < partitions:
        raise ClientError(
            f"Topic {target_name} has {len(found.partitions)} partitions, and {name} has {partitions}: "
            f"records keep their partition, so give it more (penstock topics alter {target_name} "
            f"--partitions {partitions}), or copy to a topic that is not there yet."
        )


def _producer_id(client: Client) -> tuple[int, int]:
    def attempt() -> tuple[int, int]:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=2**31 - 1)
        answer = client.any().ask(request, InitProducerIdResponse)
        if answer.error_code:
            raise AnswerError(answer.error_code, "The question for a producer id")
        return answer.producer_id, answer.producer_epoch

    return client.retry(attempt)
