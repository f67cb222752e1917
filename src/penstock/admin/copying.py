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
from penstock.admin.records import ALL, BATCH_BYTES, BATCH_RECORDS, Producer, ReaderPositions, size_of
from penstock.admin.topics import TOPIC, create
from penstock.client import AnswerError, Client, ClientError
from penstock.wire.api.create_topics import CreatableTopicConfig
from penstock.wire.batch import Record
from penstock.wire.errors import ErrorCode


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
        partitions = source.partitions(name)
        unknown = sorted(set(begin) - set(partitions))
        if unknown:
            raise ClientError(f"Topic {name} has no partition {unknown[0]}.")
        ends = {one: list_offset(source, name, one, LATEST, committed=True) for one in partitions}
        for one, at in sorted(begin.items()):
            if at > ends[one]:
                raise ClientError(f"Partition {one} of {name} ends at offset {ends[one]}, before {at}.")
        _prepare_target(source, name, target, target_name, len(partitions))
        self._reader = ReaderPositions(source, name, partitions, "beginning", committed=True)
        self._reader.go_on_at(dict(begin))
        self.positions = self._reader.positions
        """What is before these in the source is in the target."""
        self.total = sum(max(0, ends[one] - at) for one, at in self.positions.items())
        """How many offsets there are to pass."""
        self._producer = Producer(target, target_name, codec, ALL)

    @property
    def records(self) -> int:
        """How many were copied."""
        return self._producer.stored

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
                size += size_of(record)
                if size >= BATCH_BYTES or len(waiting) >= BATCH_RECORDS:
                    self._send(partition, waiting)
                    self.positions[partition] = record.offset + 1
                    waiting, size = [], 0
        except (ClientError, OSError, KeyboardInterrupt) as error:
            reason = "It was interrupted." if isinstance(error, KeyboardInterrupt) else str(error)
            raise CopyStoppedError(reason, self.positions) from error

    def _send(self, partition: int, records: list[Record]) -> None:
        before = self.records
        try:
            if records:
                self._producer.send(partition, records)
        except ClientError:
            # Of a batch that was sent in parts, some may be there.
            if stored := self.records - before:
                self.positions[partition] = records[stored - 1].offset + 1
            raise


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
