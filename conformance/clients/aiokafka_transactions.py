"""Transactions of aiokafka."""

import asyncio
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, ProducerFenced

from conformance.clients.transactor import ABORTED, COMMITTED, UNKNOWN, Consumed, Link, Transactor, Work
from conformance.clients.voice import POLL_MS

STEP_TIMEOUT_S = 60.0
LINK_TIMEOUT_S = 30.0
"""A link whose transaction takes longer ends, and another takes over."""


class AiokafkaTransactor(Transactor):
    """Its event loop outlives commands, as the producer does."""

    def __init__(self, common: dict[str, Any]) -> None:
        self.common = common
        self.runner = asyncio.Runner()
        self.producer: Any = None

    def _run(self, step: Any) -> Any:
        return self.runner.run(asyncio.wait_for(step, STEP_TIMEOUT_S))

    def open(self, id: str, timeout_ms: int) -> None:
        self._run(self._open(id, timeout_ms))

    async def _open(self, id: str, timeout_ms: int) -> None:
        self.producer = AIOKafkaProducer(
            **self.common,
            transactional_id=id,
            transaction_timeout_ms=timeout_ms,
            linger_ms=5,
        )
        await self.producer.start()

    def begin(self) -> None:
        self._run(self.producer.begin_transaction())

    def send(self, topic: str, records: list[tuple[int, bytes]]) -> list[int]:
        offsets: list[int] = self._run(self._send(topic, records))
        return offsets

    async def _send(self, topic: str, records: list[tuple[int, bytes]]) -> list[int]:
        waiting = [await self.producer.send(topic, value, partition=where) for where, value in records]
        done: list[Any] = await asyncio.gather(*waiting, return_exceptions=True)
        for one in done:
            if isinstance(one, BaseException):
                raise one
        return [one.offset for one in done]

    def offsets(self, group: str, topic: str, offsets: dict[int, int]) -> None:
        committed = {TopicPartition(topic, partition): offset for partition, offset in offsets.items()}
        self._run(self.producer.send_offsets_to_transaction(committed, group))

    def commit(self) -> None:
        self._run(self.producer.commit_transaction())

    def abort(self) -> None:
        self._run(self.producer.abort_transaction())

    def close(self) -> None:
        self._run(self.producer.stop())


async def run_link(common: dict[str, Any], link: Link) -> None:
    """Until told to leave, on partitions that are its own.

    aiokafka commits offsets without naming the member, so that the group does not fence it. Its transactional id
    does: whoever takes over the partitions has the same one, and asks where to go on after it has been initialised.
    It takes any refusal of that question (a coordinator that is loading, say) for a group that never committed:
    `_do_fetch_commit_offsets` does not look at the error of the whole answer. With a place to begin at, such as
    "earliest", it would then do again what was done. Without one it ends, and another link asks again.
    """
    assert link.assigned is not None, "aiokafka cannot be fenced by its group"
    producer = AIOKafkaProducer(
        **common,
        transactional_id=link.id,
        transaction_timeout_ms=link.timeout_ms,
        request_timeout_ms=10_000,
        retry_backoff_ms=50,
    )
    await producer.start()
    try:
        consumer = AIOKafkaConsumer(
            **common,
            group_id=link.group,
            enable_auto_commit=False,
            auto_offset_reset="none",
            isolation_level="read_committed",
            fetch_max_wait_ms=POLL_MS,
            request_timeout_ms=10_000,
        )
        consumer.assign([TopicPartition(link.input, partition) for partition in link.assigned])
        await consumer.start()
        try:
            link.ready()
            while not link.told_to_leave:
                polled = await consumer.getmany(timeout_ms=POLL_MS, max_records=link.batch)
                taken = [
                    Consumed(one.partition, one.offset, one.value.decode())
                    for batch in polled.values()
                    for one in batch
                ]
                if taken:
                    work = link.work(taken)
                    await asyncio.wait_for(_transact(producer, consumer, link, work), LINK_TIMEOUT_S)
        finally:
            await consumer.stop()
    finally:
        await producer.stop()


async def _transact(producer: Any, consumer: Any, link: Link, work: Work) -> None:
    """One transaction; after an abort the same records are consumed again."""
    asked = False
    try:
        await producer.begin_transaction()
        waiting = [
            await producer.send(topic, value.encode(), partition=partition)
            for topic, partition, value in work.appends
        ]
        await asyncio.gather(*waiting)
        ends = {TopicPartition(link.input, partition): offset for partition, offset in work.ends.items()}
        await producer.send_offsets_to_transaction(ends, link.group)
        if work.to_abort:
            await producer.abort_transaction()
        else:
            link.asked(work)
            asked = True
            await producer.commit_transaction()
    except ProducerFenced as fenced:
        link.ended(work, UNKNOWN if asked else ABORTED, repr(fenced))
        raise
    except KafkaError as refused:
        if asked:
            link.ended(work, UNKNOWN, repr(refused))
            raise
        await producer.abort_transaction()
        link.ended(work, ABORTED, repr(refused))
    else:
        link.ended(work, ABORTED if work.to_abort else COMMITTED)
        if not work.to_abort:
            return
    for partition, offset in work.starts.items():
        consumer.seek(TopicPartition(link.input, partition), offset)
