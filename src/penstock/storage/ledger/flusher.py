"""Group commit: the flusher writes all batches of one turn of the loop to the write-ahead log in one write.

It begins a flush once per turn (call_soon), and none while as many as the log takes are under way. So an idle
broker writes at once and a busy one batches. It decides offsets and sequences when it begins a flush, in the
order of the flushes, and undoes them if the write fails. Outcomes come in order. No batch is answered or
readable before its outcome.

A producer may set a time-out. A batch that still waits for a flush when its time is over is not written. A
batch whose flush is under way is in doubt: the producer is told so, and the outcome of the flush counts, also
for a producer that sends the batch again. In both cases the answer is REQUEST_TIMED_OUT. If a batch is
dropped or its flush failed, the later batches of the same producer go with it, also those that come later,
until it is sent again (`PartitionLog.undone`). Written without it they would be out of order, or would be
taken for the first of an unknown producer. One coarse timer looks at times, and runs only while a flush is
under way.

This is the hot path, and plainer than the rest: per batch one `stage`, one header slice and one cache entry;
per partition of a flush one extent; per flush one index join, two checksums of a few bytes and one write.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from struct import Struct
from time import perf_counter_ns

from penstock.clock import Clock
from penstock.log.flush import (
    BLOCK_HEADER,
    FLUSH_HEADER_SIZE,
    encode_flush_header,
)
from penstock.log.partition import Duplicate
from penstock.storage.ledger.flush import Flush, Share
from penstock.storage.ledger.flush_times import FlushTimes, Stopwatch
from penstock.storage.partitions.answers import Appended, Done, Readable
from penstock.storage.partitions.partition import Partition, Waiting
from penstock.storage.partitions.settings import LedgerSettings
from penstock.storage.partitions.tail_cache import TailCache
from penstock.storage.partitions.traffic import TopicTraffic
from penstock.storage.wal.files import WalFile
from penstock.storage.wal.port import Durable, Failed, Fenced, Outcome, WalWriter
from penstock.wire.batch import CONTROL, HEADER_SIZE, NO_PRODUCER_ID
from penstock.wire.buffers import Buffer
from penstock.wire.errors import ErrorCode

TELL_FAILURES_SECONDS = 5.0
TICK_SECONDS = 0.25
"""How often it is looked whether a time is over. An answer comes up to twice as much later than it is."""
NEVER = float("inf")
_producer_id_of = Struct(">43xq").unpack_from

logger = logging.getLogger(__name__)


class Flusher:
    def __init__(
        self,
        writer: WalWriter,
        cache: TailCache,
        clock: Clock,
        settings: LedgerSettings,
        traffic: TopicTraffic,
        *,
        file: Callable[[str], WalFile],
        on_full: Callable[[], None],
        on_end: Callable[[str], None],
    ) -> None:
        self._writer = writer
        self._cache = cache
        self._clock = clock
        self._traffic = traffic
        self._bytes_max = settings.flush_bytes_max
        self._batches_max = min(settings.flush_batches_max, writer.batches_max)
        self._find_file = file
        self._file: WalFile | None = None
        self._on_full = on_full
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._failure_told_at = -TELL_FAILURES_SECONDS
        self._dirty: deque[Partition] = deque()
        self._under_way: deque[Flush] = deque()
        self._scheduled = False
        self._now = self._loop.time()
        """The time of the turn in which a flush was last scheduled, or of the last tick."""
        self._ticking: asyncio.TimerHandle | None = None
        self._idle: asyncio.Future[None] | None = None
        self._waiting: list[tuple[int, asyncio.Future[bool]]] = []
        self.ended = False
        """True once this incarnation can write no more."""
        self.next_number = 0
        self.durable_number = 0
        """How many flushes are durable."""
        self.flushes = 0
        self.batches = 0
        self.bytes_written = 0
        self.full_at = 1 << 62
        """When so many bytes are written, `on_full` is called after each flush."""
        self.failures = 0
        self._stopwatch = Stopwatch()

    def watch(self, times: FlushTimes) -> None:
        """Time flushes from now on."""
        self._stopwatch.begin(times, self.next_number)

    def append(
        self, partition: Partition, batch: bytearray | memoryview, done: Done, seconds: float = NEVER
    ) -> None:
        pending = partition.pending
        if not pending:
            self._dirty.append(partition)
        if not self._scheduled and len(self._under_way) < self._writer.depth:
            self._scheduled = True
            self._now = self._loop.time()
            if self.next_number >= self._stopwatch.next_number:
                self._stopwatch.scheduled_ns = perf_counter_ns()
            self._loop.call_soon(self._begin)
        pending.append((batch, done, self._now + seconds))

    async def drain(self) -> None:
        """Wait until everything appended so far has its outcome."""
        while self._dirty or self._under_way or self._scheduled:
            if self._idle is None:
                self._idle = self._loop.create_future()
            await asyncio.shield(self._idle)

    async def reached(self, number: int) -> bool:
        """Wait until the flushes below `number` are durable; False if one of them failed instead."""
        if self.durable_number >= number:
            return True
        if self.ended:
            return False
        future: asyncio.Future[bool] = self._loop.create_future()
        self._waiting.append((number, future))
        return await future

    def _tell_waiting(self, *, failed: bool) -> None:
        still = []
        for number, future in self._waiting:
            if future.done():
                continue
            if failed or self.durable_number >= number:
                future.set_result(not failed)
            else:
                still.append((number, future))
        self._waiting = still

    def refuse(self, partition: Partition, code: ErrorCode) -> None:
        """Answer what waits for a partition that is no longer led here."""
        waiting, partition.pending = partition.pending, []
        _give_up(partition, waiting, code)

    def _tick(self) -> None:
        """Flushes take long: look whose time is over."""
        self._now = now = self._loop.time()
        self._ticking = self._loop.call_later(TICK_SECONDS, self._tick) if self._under_way else None
        over = now - TICK_SECONDS  # Times were set by a clock that may have been late by so much.
        for flush in tuple(self._under_way):
            for share in flush.shares:
                late = [one for one in share.waiting if one[2] <= over]
                if late:
                    share.waiting = [one for one in share.waiting if one[2] > over]
                    _tell(late, ErrorCode.REQUEST_TIMED_OUT)
            late_duplicates = [one for one in flush.duplicates if one[2] <= over]
            if late_duplicates:
                flush.duplicates = [one for one in flush.duplicates if one[2] > over]
                for _partition, (_batch, _placed, done), _until in late_duplicates:
                    done(ErrorCode.REQUEST_TIMED_OUT)
        for partition in tuple(self._dirty):
            self._drop(partition, ErrorCode.REQUEST_TIMED_OUT, over=over)

    def _drop(
        self, partition: Partition, code: ErrorCode, *, over: float = -NEVER, producers: Iterable[int] = ()
    ) -> None:
        """Take out of what waits those whose time is over, and what these producers, and theirs, sent after
        that."""
        gone = set(producers)
        dropped: list[Waiting] = []
        kept: list[Waiting] = []
        for one in partition.pending:
            (producer_id,) = _producer_id_of(one[0])
            if one[2] > over and producer_id not in gone:
                kept.append(one)
                continue
            dropped.append(one)
            if producer_id != NO_PRODUCER_ID:
                gone.add(producer_id)
        if dropped:
            partition.pending = kept
            _give_up(partition, dropped, code)

    def _begin(self) -> None:
        self._scheduled = False
        if self.ended:
            self._refuse_all()
        while self._dirty and len(self._under_way) < self._writer.depth:
            flush = Flush(self.next_number)
            parts = self._stage(flush)
            if not flush.shares:
                self._answer_without_write(flush)
                continue
            self.next_number += 1
            self._under_way.append(flush)
            if flush.number >= self._stopwatch.next_number:
                self._stopwatch.begun(flush)
            outcome = self._writer.write(flush.number, parts, flush.size, self._finish)
            if outcome is not None:
                self._finish(outcome)
                break  # One flush per turn: what these answers bring in shares the next.
            if self._ticking is None:
                self._ticking = self._loop.call_later(TICK_SECONDS, self._tick)
        self._go_on()

    def _go_on(self) -> None:
        if self._dirty:
            if not self._scheduled and len(self._under_way) < self._writer.depth:
                self._scheduled = True
                if self.next_number >= self._stopwatch.next_number:
                    self._stopwatch.scheduled_ns = perf_counter_ns()
                self._loop.call_soon(self._begin)
        elif self._idle is not None and not self._under_way and not self._scheduled:
            self._idle.set_result(None)
            self._idle = None

    def _stage(self, flush: Flush) -> list[Buffer]:
        """Give places to the waiting batches, as many as one flush takes."""
        now_ms = self._clock.time_ms()
        parts: list[Buffer] = [b""]
        index: list[Buffer] = []
        position = FLUSH_HEADER_SIZE
        dirty = self._dirty
        while dirty and len(parts) <= self._batches_max and position < self._bytes_max:
            partition = dirty.popleft()
            waiting = partition.pending
            partition.pending = []
            room = self._batches_max + 1 - len(parts)
            if len(waiting) > room:
                self._put_back(partition, waiting[room:])
                del waiting[room:]
            position = self._stage_partition(flush, partition, waiting, now_ms, parts, index, position)
        blocks = b"".join(index)
        data_size = position - FLUSH_HEADER_SIZE
        parts[0] = encode_flush_header(
            flush.number, self._writer.nonce, data_size, blocks, len(parts) - 1, now_ms
        )
        parts.append(blocks)
        flush.size = position + len(blocks)
        return parts

    def _stage_partition(
        self,
        flush: Flush,
        partition: Partition,
        waiting: list[Waiting],
        now_ms: int,
        parts: list[Buffer],
        index: list[Buffer],
        position: int,
    ) -> int:
        if partition.closed:
            _give_up(partition, waiting, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return position
        share = Share(partition, waiting)
        staged = share.staged
        start = position
        header_at = len(index)
        index.append(b"")
        controls: list[Buffer] = []
        for at, (batch, done, until) in enumerate(waiting):
            if position >= self._bytes_max:
                self._put_back(partition, waiting[at:])
                del waiting[at:]
                break
            verdict = partition.stage(batch, now_ms, share.undo)
            if type(verdict) is tuple:
                staged.append((batch, verdict, done))  # type: ignore[arg-type]  # Never a Duplicate here.
                parts.append(batch)
                index.append(batch[:HEADER_SIZE])
                position += len(batch)
                if batch[22] & CONTROL:
                    controls.append(batch[HEADER_SIZE:])
            elif type(verdict) is Duplicate:
                base, time_ms = verdict
                flush.duplicates.append((partition, (batch, (base, base, time_ms, time_ms), done), until))
            else:
                assert isinstance(verdict, ErrorCode)
                done(verdict)
        if not staged:
            index.pop()
            return position
        controls_size = sum(map(len, controls)) if controls else 0
        index[header_at] = BLOCK_HEADER.pack(
            partition.topic_id, partition.index, start, len(staged), controls_size
        )
        index += controls
        share.end_offset = share.stable_offset = partition.next_offset
        if partition.ongoing:
            share.stable_offset = partition.staged_stable_offset
        flush.shares.append(share)
        return position

    def _put_back(self, partition: Partition, rest: list[Waiting]) -> None:
        if not partition.pending:
            self._dirty.appendleft(partition)
        partition.pending = rest + partition.pending

    def _answer_without_write(self, flush: Flush) -> None:
        """Nothing to write: duplicates are answered at once, or with the flush that they may depend on."""
        if self._under_way:
            self._under_way[-1].duplicates.extend(flush.duplicates)
            return
        for partition, again, _until in flush.duplicates:
            proof = Readable(partition.high_watermark)
            Appended.tell(proof, (again,), partition.log_start_offset, duplicate=True)

    def _finish(self, outcome: Outcome) -> None:
        """The oldest flush under way has its outcome."""
        if type(outcome) is Durable:
            flush = self._under_way.popleft()
            if flush.stands_for:
                self._stopwatch.durable(flush)
            self.durable_number = flush.number + 1
            self._publish(flush, outcome)
        elif isinstance(outcome, Failed) and not outcome.fatal:
            self._fail(outcome)
        elif isinstance(outcome, Fenced):
            self._end("its write-ahead log was sealed")
        else:
            assert isinstance(outcome, Failed)
            self._end(str(outcome.error))
        self._go_on()

    def _publish(self, flush: Flush, place: Durable) -> None:
        file = self._file
        if file is None or file.key is not place.key:
            file = self._file = self._find_file(place.key)
        file.last_flush = flush.number
        file.bytes = place.position + flush.size
        position = place.position + FLUSH_HEADER_SIZE
        for share in flush.shares:
            partition, staged = share.partition, share.staged
            end = partition.unsettled.append_batches(staged, position, file.number)
            self._cache.append_batches(partition.tail, staged)
            partition.size_bytes += end - position
            traffic = partition.traffic
            if traffic is None:
                traffic = partition.traffic = self._traffic.of(partition.topic)
            traffic.bytes_in += end - position
            traffic.records_in += share.end_offset - share.first_offset
            position = end
            partition.publish(share.end_offset, share.stable_offset)
            self.batches += len(staged)
        self.flushes += 1
        self.bytes_written += flush.size
        for share in flush.shares:
            Appended.tell(place, share.staged, share.partition.log_start_offset)
        for partition, again, _until in flush.duplicates:
            Appended.tell(place, (again,), partition.log_start_offset, duplicate=True)
        for share in flush.shares:
            share.partition.wake()
        if self.bytes_written >= self.full_at:
            self._on_full()
        if self._waiting:
            self._tell_waiting(failed=False)

    def _take_back(self) -> list[Flush]:
        """Undo everything under way, newest first."""
        undone = list(self._under_way)
        self._under_way.clear()
        for flush in reversed(undone):
            for share in reversed(flush.shares):
                share.partition.undo(share.first_offset, share.undo)
        self.next_number = self.durable_number
        self._tell_waiting(failed=True)
        return undone

    def _fail(self, outcome: Failed) -> None:
        self.failures += 1
        now = self._loop.time()
        if now - self._failure_told_at >= TELL_FAILURES_SECONDS:
            # Producers try again at once: without a pause a store that is out would fill the log.
            self._failure_told_at = now
            logger.warning("a flush failed and was undone failures=%d error=%s", self.failures, outcome.error)
        for flush in self._take_back():
            for share in flush.shares:
                producers = {_producer_id_of(one[0])[0] for one in share.staged} - {NO_PRODUCER_ID}
                self._drop(share.partition, ErrorCode.KAFKA_STORAGE_ERROR, producers=producers)
            flush.answer(ErrorCode.KAFKA_STORAGE_ERROR)

    def _end(self, reason: str) -> None:
        self.ended = True
        undone = self._take_back()
        for flush in undone:
            flush.answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._refuse_all()
        self._on_end(reason)

    def _refuse_all(self) -> None:
        while self._dirty:
            self.refuse(self._dirty.popleft(), ErrorCode.NOT_LEADER_OR_FOLLOWER)


def _give_up(partition: Partition, waiting: Iterable[Waiting], code: ErrorCode) -> None:
    """They are not written, unless they are sent again."""
    for batch, done, _until in waiting:
        partition.give_up(batch)
        done(code)


def _tell(waiting: Iterable[Waiting], code: ErrorCode) -> None:
    for _batch, done, _until in waiting:
        done(code)
