"""A shard of transactional ids without a broker: its log, its clock, and the partitions that get markers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from penstock.shards.shard import Batch, Effects, Now, Record
from penstock.transactions.core import Codes, Marking, Told
from penstock.transactions.shard import TransactionShard
from penstock.transactions.timeouts import Timing
from penstock.transactions.transaction import Given, Place
from penstock.wire.errors import ErrorCode

TIMING = Timing(overdue_check_ms=10_000, expiry_check_ms=3_600_000, expiration_ms=604_800_000)


class World:
    """`prompt`: what is written is durable at once."""

    def __init__(self, *, prompt: bool = True, timing: Timing = TIMING) -> None:
        self.prompt = prompt
        self.timing = timing
        self.log: list[Record] = []
        self.in_flight: Batch | None = None
        self.answers: dict[int, Any] = {}
        self.errands: list[Marking] = []
        self.wake_at: int | None = None
        self.now = Now(1_000, 1_700_000_000_000)
        self.epoch = 3
        self.ids_at_hand = True
        self._ids = count(1)
        self._tickets = count(1)
        self.shard = self._new_shard()
        self.take(self.shard.loaded(self.now))

    def _new_shard(self) -> TransactionShard:
        return TransactionShard(
            self.epoch, self.timing, lambda: next(self._ids) if self.ids_at_hand else None
        )

    # -- events --------------------------------------------------------------------------------------

    def ask(self, event: Callable[..., Effects], *arguments: object, **options: object) -> int:
        ticket = next(self._tickets)
        self.take(event(self.now, ticket, *arguments, **options))
        return ticket

    def init(self, name: str = "x", given: Given | None = None, timeout_ms: int = 60_000) -> int:
        return self.ask(self.shard.init_producer_id, name, timeout_ms, given)

    def add(
        self, given: Given, *places: Place, name: str = "x", verify_only: bool = False, version: int = 0
    ) -> int:
        return self.ask(
            self.shard.add_partitions, name, given, places, verify_only=verify_only, client_version=version
        )

    def end(self, given: Given, *, commit: bool, bump: bool, name: str = "x") -> int:
        return self.ask(self.shard.end, name, given, commit=commit, bump=bump)

    def told(self, ticket: int) -> Told:
        told = self.answers.pop(ticket)
        assert isinstance(told, Told)
        return told

    def codes(self, ticket: int) -> Codes:
        codes: Codes = self.answers.pop(ticket)
        assert isinstance(codes, dict)
        return codes

    def mark_all(self) -> None:
        """Every partition that waits for a marker gets it."""
        while self.errands:
            self.marked(self.errands.pop(0))

    def marked(self, marking: Marking, *places: Place) -> None:
        written = places or marking.places
        self.take(self.shard.markers_written(self.now, marking.transactional_id, marking.ending, written))

    # -- storage -------------------------------------------------------------------------------------

    def flush(self) -> None:
        assert self.in_flight is not None, "nothing is being written"
        self.log.extend(self.in_flight.records)
        self.in_flight = None
        self.take(self.shard.durable(self.now))

    def fail(self, code: ErrorCode = ErrorCode.NOT_ENOUGH_REPLICAS) -> None:
        assert self.in_flight is not None, "nothing is being written"
        self.in_flight = None
        self.take(self.shard.failed(self.now, code))

    def restart(self) -> None:
        """Another broker loads what is durable."""
        self.epoch += 1
        self.in_flight = None
        self.errands.clear()
        self.shard = self._new_shard()
        for record in self.log:
            self.shard.load(record.key, record.value)
        self.take(self.shard.loaded(self.now))

    # -- time ----------------------------------------------------------------------------------------

    def advance(self, ms: int) -> None:
        until = self.now.ms + ms
        while self.wake_at is not None and self.wake_at <= until:
            self._move(max(self.wake_at, self.now.ms))
            self.take(self.shard.tick(self.now))
        self._move(until)

    def _move(self, ms: int) -> None:
        self.now = Now(ms, self.now.wall_ms + ms - self.now.ms)

    def take(self, effects: Effects) -> None:
        for ticket, answer in effects.answers:
            assert ticket not in self.answers, "answered twice"
            self.answers[ticket] = answer
        for errand in effects.errands:
            assert isinstance(errand, Marking)
            self.errands.append(errand)
        self.wake_at = effects.wake_at
        if effects.batch is not None:
            assert self.in_flight is None, "two batches at once"
            assert effects.batch.records, "an empty batch"
            self.in_flight = effects.batch
            if self.prompt:
                self.flush()
