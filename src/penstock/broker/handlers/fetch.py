"""Fetch 0-18: read record batches of many partitions at once.

- A long poll over all partitions together: the answer comes when `min_bytes` are there, when a partition
  has an error, or when `max_wait_ms` are over. Appends wake it once per flush.
- A partition whose records must be read from a store that takes its time holds up no other. It is answered
  empty, without an error, and its read goes on for the fetch that follows (`broker.fetch.cold`). Only if
  nothing at all is at hand the answer waits for it, for half a second if `max_wait_ms` is less (Kafka's
  remote.fetch.max.wait.ms).
- The memory of answers that clients have not taken yet is bounded over all connections: the less of it is
  left, the smaller answers are, and while none is left nothing is read.
- Whole batches from the one that holds the offset asked for, as producers sent them. `max_bytes` (from
  version 3) and each partition's limit hold, except that the first batch is always given. Versions 0 to 2
  give it too, where Kafka cut it short.
- Incremental sessions from version 7 (KIP-227) are in `broker.fetch.sessions`; in one, partitions that
  had data go to the end of the order. Without one the consumer's own order counts. A topic that was deleted
  since its session found it by id is UNKNOWN_TOPIC_OR_PARTITION; if its name is back, INCONSISTENT_TOPIC_ID.
- read_committed from version 4: up to the last stable offset, with the aborted transactions.
- Leader epochs from version 9 (KIP-320), diverging epochs from version 12 (KIP-595), topic ids from
  version 13 (KIP-516), the present leader and its address from version 16 (KIP-951).
- Older readers get records in a form that they can read: `broker.fetch.conversion`. If a batch holds nothing
  for them (a control batch, or one that compaction emptied), they get the next one.
- There are no followers here: brokers share the store. A fetch in the name of a replica is answered
  NOT_LEADER_OR_FOLLOWER; a preferred read replica is never named.
- Topics that are not known are looked for in the newest image before the answer says so.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from penstock.broker.fetch.answers import encoded
from penstock.broker.fetch.cold import cold_reads_of
from penstock.broker.fetch.conversion import (
    BATCHES_FROM,
    CONVERTED_BYTES,
    ZSTD_FROM,
    downconverted,
    nothing_of,
    with_records,
)
from penstock.broker.fetch.conversion import (
    refused as refused_to_old,
)
from penstock.broker.fetch.reading import (
    CONSUMER,
    DEBUGGING,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Pass,
    Reader,
    read_all,
    read_on,
)
from penstock.broker.fetch.results import Result
from penstock.broker.fetch.sessions import NO_SESSION, TOPIC_IDS_FROM, Context, Sessions, Wanted
from penstock.broker.topics.leaders import Leaders
from penstock.wire.api.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from penstock.wire.compression import ZSTD
from penstock.wire.errors import ErrorCode
from penstock.wire.exchange import Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.broker.context import Broker
    from penstock.broker.freshness import Named
    from penstock.broker.rights import Permit
    from penstock.wire.exchange import Request

log = logging.getLogger(__name__)

FETCH = 1

ANSWER_BYTES_FLOOR = 1_048_576
"""What a fetch may be answered with however little memory is left: a batch of the usual greatest size."""

ANSWER_SHARE = 16
"""One answer gets this part of the memory that is left: 8 MiB of the usual 128, enough for any reader."""

COLD_WAIT_SECONDS = 0.5
"""How long an answer waits for reads under way if it has nothing else to say, though the client's time is
over."""

NO_MEMORY_PAUSE_SECONDS = 0.05
"""How soon it is looked again whether there is memory for an answer."""


def handle(broker: Broker, request: Request, message: FetchRequest, permit: Permit) -> Fetch:
    version = request.api_version
    sessions = broker.services.fetch_sessions
    context = sessions.begin(message, version, broker.clock.time_ms())
    fetch = Fetch(broker, request, message, context, sessions, permit)
    if context.error is not ErrorCode.NONE:
        fetch.answer(context.error, NO_SESSION, ())
    elif message.isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
        fetch.refuse(ErrorCode.UNKNOWN_SERVER_ERROR)  # Kafka's word for it
    else:
        fetch.attempt()
    return fetch


def named(broker: Broker, message: FetchRequest, version: int) -> Named:
    return broker.services.fetch_sessions.named(message, version)


def refused(message: FetchRequest, code: ErrorCode) -> FetchResponse:
    """The answer that refuses all with one code: of the whole from version 7, of each partition too for
    clients that look there; those who use topic ids do not."""
    topics = [
        FetchableTopicResponse(
            topic=topic.topic,
            topic_id=topic.topic_id,
            partitions=[
                PartitionData(partition_index=one.partition, error_code=code, high_watermark=-1, records=b"")
                for one in topic.partitions
            ],
        )
        for topic in message.topics
        if topic.topic
    ]
    return FetchResponse(error_code=code, responses=topics)


class Fetch(Reply):
    """One fetch, from its first look to its answer."""

    __slots__ = (
        "_abandoned",
        "_broker",
        "_cold_until",
        "_context",
        "_converting",
        "_correlation_id",
        "_deadline",
        "_expired",
        "_loop",
        "_max_bytes",
        "_max_wait_ms",
        "_min_bytes",
        "_scheduled",
        "_sessions",
        "_timer",
        "_unwatch",
        "_version",
        "_watches_reads",
        "reader",
    )

    def __init__(
        self,
        broker: Broker,
        request: Request,
        message: FetchRequest,
        context: Context,
        sessions: Sessions,
        permit: Permit,
    ) -> None:
        Reply.__init__(self)
        version = request.api_version
        self._broker = broker
        self._context = context
        self._sessions = sessions
        self._correlation_id = request.correlation_id
        self._version = version
        self._max_bytes = max(0, min(message.max_bytes, broker.settings.fetch_max_bytes))
        self._min_bytes = message.min_bytes
        self._max_wait_ms = message.max_wait_ms
        self._expired = message.max_wait_ms <= 0 or not context.wanted
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._scheduled = self._watches_reads = False
        self._unwatch: list[Callable[[], None]] = []
        self._deadline: float | None = None
        self._cold_until: float | None = None
        """When the answer no longer waits for reads under way."""
        self._converting = self._abandoned = False
        if version < BATCHES_FROM:
            for one in context.wanted:
                one.max_bytes = min(one.max_bytes, CONVERTED_BYTES)
        replica = message.replica_id if message.replica_id != CONSUMER else message.replica_state.replica_id
        self.reader = Reader(
            broker,
            request.session,
            permit,
            version >= TOPIC_IDS_FROM,
            message.isolation_level == READ_COMMITTED,
            replica not in (CONSUMER, DEBUGGING),
        )
        self.on_abandon = self._abandon
        self.on_hurry = self._expire

    # -- reading and waiting --------------------------------------------------------------------------

    def attempt(self) -> None:
        """Answer if there is enough, or an error, or no more time; else wait for more."""
        self._scheduled = False
        if self.done or self._converting:
            return
        max_bytes = self._max_bytes
        rules = self._broker.rules
        if rules is not self.reader.permit.rules:
            # It waited, and somebody took rights away meanwhile.
            self.reader = self.reader._replace(permit=self.reader.permit.of_now(rules))
        memory = self.reader.session.memory
        exhausted = False
        if memory is not None:
            # Answers that slow readers do not take fill memory too: the fuller it is, the smaller they are,
            # so that a few dozen cannot fill it.
            share = (memory.limit - memory.used) // ANSWER_SHARE
            if share < ANSWER_BYTES_FLOOR:
                max_bytes = min(max_bytes, ANSWER_BYTES_FLOOR)
                exhausted = memory.exhausted
            elif share < max_bytes:
                max_bytes = share
        found = read_all(
            self.reader, self._context.wanted, 0 if exhausted else max_bytes, min_one=not exhausted
        )
        size = found.size
        enough = size >= self._min_bytes or size >= max_bytes or self._expired
        if found.failed or (enough and (size or not found.cold or self._patience_is_over())):
            self._finish(found)
        else:
            if not self._unwatch or found.cold:
                self._wait(found)
            if exhausted:
                self._scheduled = True
                self._loop.call_later(NO_MEMORY_PAUSE_SECONDS, self._attempt_later)

    def _wait(self, found: Pass) -> None:
        if not self._unwatch:
            wake = self._wake
            self._unwatch = [partition.watch(wake) for partition in found.partitions]
        if found.cold and not self._watches_reads:
            reads = cold_reads_of(self.reader.session)
            assert reads is not None
            self._unwatch.append(reads.watch(self._wake))
            self._watches_reads = True
        if self._timer is None and not self._expired:
            if self._deadline is None:
                self._deadline = self._loop.time() + self._max_wait_ms / 1000
            self._timer = self._loop.call_at(self._deadline, self._expire)

    def _patience_is_over(self) -> bool:
        """Time is over and nothing is there but reads under way: they are waited for a little longer."""
        now = self._loop.time()
        if self._cold_until is None:
            began = self._deadline - self._max_wait_ms / 1000 if self._deadline is not None else now
            self._cold_until = began + COLD_WAIT_SECONDS
            if now < self._cold_until:
                self._timer = self._loop.call_at(self._cold_until, self._attempt_later)
        return now >= self._cold_until

    def _wake(self) -> None:
        """A partition has more, or is no longer led here. All that one flush brings is looked at once."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._attempt_later)

    def _expire(self) -> None:
        self._expired = True
        self._attempt_later()

    def _attempt_later(self) -> None:
        """`attempt`, called by the loop and not by dispatch, which would close the connection on a bug."""
        try:
            self.attempt()
        except Exception:
            self._fail()

    def _abandon(self) -> None:
        self._abandoned = True
        self._stop_waiting()
        reads = cold_reads_of(self.reader.session)
        if reads is not None:
            reads.keep(())

    def _stop_waiting(self) -> None:
        for unwatch in self._unwatch:
            unwatch()
        self._unwatch.clear()
        self._watches_reads = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- answering ------------------------------------------------------------------------------------

    def _finish(self, found: Pass) -> None:
        """Answer with what was found."""
        self._stop_waiting()
        if found.taken:
            reads = cold_reads_of(self.reader.session)
            assert reads is not None
            reads.take(found.taken)
        told = list(zip(self._context.wanted, found.found, strict=True))
        error, session_id, told_now = self._sessions.finish(
            self._context, self._version, told, self._broker.clock.time_ms()
        )
        if self._version < ZSTD_FROM:
            told_now = [(wanted, self._refused_to_old(wanted, result)) for wanted, result in told_now]
            if self._version < BATCHES_FROM and any(result.size > 0 for _wanted, result in told_now):
                self._broker.tasks.spawn(self._convert(told_now, found))
                return
        self.answer(error, session_id, told_now)

    def _refused_to_old(self, wanted: Wanted, result: Result) -> Result:
        image = self._broker.image
        zstd_topic = (
            wanted.name in image.topics
            and self._broker.services.topic_demands.of(image, wanted.name).codec == ZSTD
        )
        return refused_to_old(result, self._version, zstd_topic=zstd_topic)

    async def _convert(self, told: Sequence[tuple[Wanted, Result]], found: Pass) -> None:
        """Answer with message sets, if there is anything in them; else wait for more, while there is time."""
        self._converting = True
        memory = self.reader.session.memory
        held = found.size
        if memory is not None:
            memory.hold(held)
        try:
            converted = []
            size, size_max = 0, max(found.size, CONVERTED_BYTES)
            for wanted, result in told:
                # Records expand: beyond what may be held, the rest of the partitions is for the next fetch.
                one = await self._down(wanted, result) if size < size_max else nothing_of(result)
                converted.append((wanted, one))
                size += max(one.size, 0)
                if memory is not None:
                    memory.hold(max(one.size, 0))
                    held += max(one.size, 0)
            self._converting = False
            if self._expired or any(
                one.size or one.error is not ErrorCode.NONE for _wanted, one in converted
            ):
                self.answer(ErrorCode.NONE, NO_SESSION, converted)
            elif not self._abandoned:
                self._wait(found)
        except asyncio.CancelledError:
            self.close()
            raise
        except Exception:
            self._fail()
        finally:
            if memory is not None:
                memory.free(held)

    async def _down(self, wanted: Wanted, result: Result) -> Result:
        """One partition's records as a message set: of the first batches that have any for this reader."""
        while result.size > 0 and not self._abandoned:
            work = partial(downconverted, result.buffers, self._version, wanted.offset)
            found = await self._broker.ledger.expanders.run(work)
            if found.size or found.error is not ErrorCode.NONE:
                return with_records(result, found)
            result = self._refused_to_old(wanted, await read_on(self.reader, wanted, found.next_offset))
        return result

    def _fail(self) -> None:
        """A bug: say so to all that was asked for."""
        log.exception("a waiting fetch failed; version=%d", self._version)
        self._stop_waiting()
        self.refuse(ErrorCode.UNKNOWN_SERVER_ERROR)

    def refuse(self, code: ErrorCode) -> None:
        """Refuse the whole request, and each partition for clients that look there."""
        told = [] if self.reader.by_id else [(one, Result(code, aborted=())) for one in self._context.wanted]
        self.answer(code, NO_SESSION, told)

    def answer(self, error: ErrorCode, session_id: int, told: Sequence[tuple[Wanted, Result]]) -> None:
        broker = self._broker
        for wanted, result in told:
            if result.size > 0:
                traffic = broker.ledger.traffic.of(wanted.name)
                traffic.records_out += result.records
                traffic.bytes_out += result.size
            elif result.error:
                broker.meters.error(FETCH, result.error)
        leaders = Leaders(broker.image, self.reader.session.listener, broker.broker_id)
        self.complete(encoded(self._version, self._correlation_id, error, session_id, told, leaders))
