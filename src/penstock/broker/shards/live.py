"""One shard at work: events in, effects carried out.

The shard decides. This module carries answers to the requests that wait, batches to the ledger and results
back, and wakes the shard when it wants to be woken. Everything happens on the broker's loop, one event at a
time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Concatenate, Generic, ParamSpec, TypeVar, cast

from penstock.log.guards import GuardedBatch
from penstock.shards.shard import Batch, Effects, Now, Shard, Ticket
from penstock.wire.batch import Record, build_batch
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.clock import Clock
    from penstock.storage.ledger.ledger import Ledger, Partition
    from penstock.storage.partitions.answers import Appended

log = logging.getLogger(__name__)

_SLEEP_SECONDS_MIN = 0.001
"""Deadlines are whole milliseconds. A shard that woke within the last one before would find nothing due, and
would be woken again at once, until the clock has gone on."""

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=Shard)


class LiveShard(Generic[S]):
    __slots__ = (
        "_alarm",
        "_alarm_at",
        "_clock",
        "_ledger",
        "_next_ticket",
        "_on_broken",
        "_on_errand",
        "_waiting",
        "closed",
        "partition",
        "shard",
    )

    def __init__(
        self,
        shard: S,
        partition: Partition,
        ledger: Ledger,
        clock: Clock,
        on_broken: Callable[[LiveShard[S]], None],
        on_errand: Callable[[LiveShard[S], object], None],
    ) -> None:
        """`on_broken` is called if the shard failed in a way that nobody foresaw: it must be loaded anew.
        `on_errand` is given what the shard wants done elsewhere."""
        self.shard = shard
        self.partition = partition
        self.closed = False
        self._ledger = ledger
        self._clock = clock
        self._on_broken = on_broken
        self._on_errand = on_errand
        self._waiting: dict[Ticket, asyncio.Future[object]] = {}
        self._next_ticket = 0
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0

    @property
    def serves(self) -> bool:
        return not self.closed and not self.partition.closed

    def start(self) -> None:
        """The shard is loaded: serve."""
        self._carry_out(self.shard.loaded(self.now()))

    def now(self) -> Now:
        return Now(int(self._clock.monotonic() * 1000), self._clock.time_ms())

    def ask(
        self,
        event: Callable[Concatenate[S, Now, Ticket, P], Effects],
        *arguments: P.args,
        **options: P.kwargs,
    ) -> object | Awaitable[object]:
        """Send a request to the shard: its answer, or what to wait for. It must serve: nothing that is closed
        is told of a write, and whoever waits for one would wait for ever."""
        assert not self.closed
        self._next_ticket += 1
        ticket = self._next_ticket
        try:
            effects = event(self.shard, self.now(), ticket, *arguments, **options)
        except Exception:
            self._break()
            raise
        answers = effects.answers
        if len(answers) == 1 and answers[0][0] == ticket:
            self._act(effects)
            return answers[0][1]
        future = self._waiting[ticket] = asyncio.get_running_loop().create_future()
        self._carry_out(effects)
        return future

    def tell(self, event: Callable[Concatenate[S, Now, P], Effects], *a: P.args, **o: P.kwargs) -> None:
        """Send an event that nobody waits for."""
        if self.closed:
            return
        try:
            effects = event(self.shard, self.now(), *a, **o)
        except Exception:
            log.exception("a shard failed topic=%s partition=%d", self.partition.topic, self.partition.index)
            self._break()
            return
        self._carry_out(effects)

    def close(self) -> None:
        """Another broker coordinates now: everybody who waits is told so."""
        if self.closed:
            return
        self.closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        try:
            self._answer(self.shard.unload(self.now()))
        finally:
            for future in self._waiting.values():
                future.cancel()
            self._waiting.clear()

    # -- effects -------------------------------------------------------------------------------------

    def _carry_out(self, effects: Effects) -> None:
        self._answer(effects)
        self._act(effects)

    def _answer(self, effects: Effects) -> None:
        for ticket, response in effects.answers:
            future = self._waiting.pop(ticket, None)
            if future is not None and not future.done():
                future.set_result(response)

    def _act(self, effects: Effects) -> None:
        if effects.batch is not None:
            self._append(effects.batch)
        if effects.wake_at is not None and (self._alarm is None or effects.wake_at < self._alarm_at):
            self._set_alarm(effects.wake_at)
        for errand in effects.errands:
            self._on_errand(self, errand)

    def _append(self, batch: Batch) -> None:
        timestamp = self._clock.time_ms()
        records = [
            Record(offset=at, timestamp=timestamp, key=record.key, value=record.value)
            for at, record in enumerate(batch.records)
        ]
        producer = batch.producer
        if producer is None:
            data = build_batch(records)
        else:
            data = build_batch(
                records, producer_id=producer.id, producer_epoch=producer.epoch, transactional=True
            )
            if producer.guard is not None:
                data = GuardedBatch.of(data, producer.guard)
        if self.partition.closed:
            # Its leader is another by now; `close` follows as soon as the image says so.
            loop = asyncio.get_running_loop()
            loop.call_soon(self._appended, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        self._ledger.append(self.partition, data, self._appended)

    def _appended(self, result: Appended | ErrorCode) -> None:
        if isinstance(result, ErrorCode):
            place = self.partition
            log.warning("a write failed topic=%s partition=%d code=%s", place.topic, place.index, result.name)
            self.tell(type(self.shard).failed, result)
        else:
            self.tell(type(self.shard).durable)

    def _set_alarm(self, wake_at: int) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = wake_at
        delay = max(_SLEEP_SECONDS_MIN, wake_at / 1000 - self._clock.monotonic())
        self._alarm = asyncio.get_running_loop().call_later(delay, self._wake)

    def _wake(self) -> None:
        self._alarm = None
        self.tell(type(self.shard).tick)

    def _break(self) -> None:
        """What the shard holds cannot be trusted any more; what is durable can."""
        if not self.closed:
            self.closed = True
            if self._alarm is not None:
                self._alarm.cancel()
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(RuntimeError("the coordinator failed"))
            self._waiting.clear()
            self._on_broken(self)


def answered(response: object, _as: type[R]) -> R:
    """The answer as the type that its event gives."""
    return cast(R, response)
