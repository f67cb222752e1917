"""The shell around shards, with a small one of its own: totals by name, kept in the topic `__totals`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import cast

import pytest

from penstock.broker.shards.coordinator import Coordinator
from penstock.broker.shards.live import LiveShard
from penstock.log.replaying import LOST_OFFSETS_MAX
from penstock.metadata.commands import DeleteTopic
from penstock.metadata.image import ClusterImage
from penstock.shards.journal import Journal
from penstock.shards.shard import Effects, Now, Record, Ticket, error_after_append
from penstock.shards.timers import Timers
from penstock.storage.ledger.ledger import Ledger, Partition
from penstock.storage.stores.objects import HurtRangeError, ObjectMissingError
from penstock.testing.waiting import eventually
from penstock.wire.api.heartbeat import HeartbeatResponse
from penstock.wire.errors import ErrorCode
from penstock.wire.schema import ApiMessage
from tests.broker.rig import Rig
from tests.clocks import HandClock

TOPIC = "__totals"


class Totals:
    """A shard that adds up. A name that was not added to for a while is forgotten."""

    def __init__(self, leader_epoch: int, image: ClusterImage) -> None:
        self.leader_epoch = leader_epoch
        self.image = image
        self.totals: dict[str, int] = {}
        self._journal: Journal[int] = Journal(1000)
        self._timers = Timers()
        self._answers: list[tuple[Ticket, ApiMessage]] = []
        self._errands: list[str] = []
        """Hundreds are to be celebrated elsewhere."""
        self.celebrated: list[str] = []

    def was_celebrated(self, now: Now, name: str) -> Effects:
        self.celebrated.append(name)
        return self._effects()

    def add(self, now: Now, ticket: Ticket, name: str, count: int) -> Effects:
        total = self.totals.get(name, 0) + count

        def durable() -> None:
            self.totals[name] = total
            if total % 100 == 0:
                self._errands.append(name)
            self._answers.append((ticket, HeartbeatResponse(throttle_time_ms=total)))

        def failed(code: ErrorCode) -> None:
            self._answers.append((ticket, HeartbeatResponse(error_code=error_after_append(code))))

        record = Record(name.encode(), json.dumps(total).encode())
        self._journal.append([record], durable, failed)
        self._timers.schedule(name, now.ms + 20, lambda: self._forget(name))
        return self._effects()

    def _forget(self, name: str) -> None:
        def durable() -> None:
            del self.totals[name]

        self._journal.append([Record(name.encode(), None)], durable, lambda _: None)

    def load(self, key: bytes, value: bytes | None, producer_id: int) -> None:
        if value is None:
            self.totals.pop(key.decode(), None)
        else:
            self.totals[key.decode()] = json.loads(value)

    def load_marker(self, producer_id: int, *, committed: bool) -> None:
        raise AssertionError("nobody writes transactions here")

    def loaded(self, now: Now) -> Effects:
        return self._effects()

    def durable(self, now: Now) -> Effects:
        for done, _ in self._journal.finish():
            done()
        return self._effects()

    def failed(self, now: Now, code: ErrorCode) -> Effects:
        for _, failed in self._journal.fail()[1]:
            failed(code)
        return self._effects()

    def tick(self, now: Now) -> Effects:
        while (action := self._timers.pop_due(now.ms)) is not None:
            action()
        return self._effects()

    def unload(self, now: Now) -> Effects:
        for _, failed in self._journal.fail()[1]:
            failed(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return Effects(self._taken(), None, None)

    def _effects(self) -> Effects:
        errands, self._errands = self._errands, []
        return Effects(self._taken(), self._journal.take(), self._timers.next_deadline(), errands)

    def _taken(self) -> list[tuple[Ticket, ApiMessage]]:
        answers, self._answers = self._answers, []
        return answers


class TotalsCoordinator(Coordinator[Totals]):
    def new_shard(self, partition: Partition, image: ClusterImage) -> Totals:
        return Totals(partition.leader_epoch, image)

    def bring_up_to_date(self, shard: Totals, image: ClusterImage) -> None:
        shard.image = image

    def image_changed(self, image: ClusterImage) -> None:
        for live in self.live_shards():
            live.shard.image = image

    def run_errand(self, live: LiveShard[Totals], errand: object) -> None:
        assert isinstance(errand, str)
        asyncio.get_running_loop().call_soon(live.tell, Totals.was_celebrated, errand)

    async def added(self, name: str, count: int) -> HeartbeatResponse:
        answer = self.call(name, HeartbeatResponse, refused, Totals.add, name, count)
        return answer if isinstance(answer, HeartbeatResponse) else await answer


def refused(code: ErrorCode) -> HeartbeatResponse:
    return HeartbeatResponse(error_code=code)


def started(rig: Rig) -> TotalsCoordinator:
    coordinator = TotalsCoordinator(TOPIC, rig.broker)
    coordinator.start()
    return coordinator


async def test_what_was_answered_is_there_when_the_shard_is_loaded_again(rig: Rig) -> None:
    await rig.topic(TOPIC, 3)
    coordinator = started(rig)
    answers = await asyncio.gather(*(coordinator.added(f"n{number % 7}", 1) for number in range(70)))
    assert {answer.error_code for answer in answers} == {ErrorCode.NONE}
    # Those that gathered behind a write see the total before it: the last one to be durable counts.
    before = {name: total for live in coordinator.live_shards() for name, total in live.shard.totals.items()}
    await coordinator.stop()
    again = started(rig)
    for name, total in before.items():
        found = await again.found(name)
        assert isinstance(found, LiveShard)
        assert found.shard.totals[name] == total
    await again.stop()


async def test_without_its_topic_nobody_coordinates(rig: Rig) -> None:
    coordinator = started(rig)
    assert (await coordinator.added("n", 1)).error_code == ErrorCode.NOT_COORDINATOR
    await coordinator.stop()


async def test_a_topic_that_comes_later_is_coordinated_at_once(rig: Rig) -> None:
    coordinator = started(rig)
    await rig.topic(TOPIC)
    assert (await coordinator.added("n", 1)).throttle_time_ms == 1
    await coordinator.stop()


async def test_who_waits_when_the_partition_goes_is_told(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = await rig.topic(TOPIC)
    coordinator = started(rig)
    live = next(coordinator.live_shards())
    monkeypatch.setattr(rig.broker.ledger, "append", lambda *_: None)  # A write that takes for ever.
    waiting = asyncio.ensure_future(coordinator.added("n", 1))
    await asyncio.sleep(0)
    await rig.propose(DeleteTopic(topic.id))
    assert (await waiting).error_code == ErrorCode.NOT_COORDINATOR
    assert not live.serves
    assert (await coordinator.added("n", 1)).error_code == ErrorCode.NOT_COORDINATOR
    await coordinator.stop()


async def test_a_write_that_failed_is_an_error_and_the_shard_goes_on(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.topic(TOPIC)
    coordinator = started(rig)
    await coordinator.added("n", 1)

    def fail(_partition: Partition, _batch: bytearray, done: Callable[[ErrorCode], None]) -> None:
        asyncio.get_running_loop().call_soon(done, ErrorCode.REQUEST_TIMED_OUT)

    monkeypatch.setattr(rig.broker.ledger, "append", fail)
    assert (await coordinator.added("n", 1)).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    monkeypatch.undo()
    assert (await coordinator.added("n", 1)).throttle_time_ms == 2
    await coordinator.stop()


async def test_what_the_store_does_not_give_is_not_in_progress(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.topic(TOPIC)
    coordinator = started(rig)
    await coordinator.added("n", 1)
    await coordinator.stop()

    async def fail(*_: object) -> int:
        raise ObjectMissingError("a segment is not there")

    monkeypatch.setattr("penstock.broker.shards.coordinator.load", fail)
    again = started(rig)
    await eventually(lambda: again.shard("n") is ErrorCode.COORDINATOR_NOT_AVAILABLE, "a refusal")
    monkeypatch.undo()
    await eventually(lambda: isinstance(again.shard("n"), LiveShard), "the segment")
    assert (await again.added("n", 1)).throttle_time_ms == 2
    await again.stop()


@pytest.mark.parametrize("end, loads", [(2, False), (1 + LOST_OFFSETS_MAX, True)])
async def test_records_that_are_known_to_be_lost_are_waited_for(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, end: int, loads: bool
) -> None:
    """Those that may never have been are not."""
    await rig.topic(TOPIC)
    coordinator = started(rig)
    await coordinator.added("n", 1)
    await coordinator.added("n", 1)
    await coordinator.stop()
    read = rig.broker.ledger.read

    def hurt(partition: Partition, offset: int, *arguments: int, limit_offset: int) -> object:
        if offset == 1:
            raise HurtRangeError(TOPIC, partition.index, 1, end, "lost")
        return read(partition, offset, *arguments, limit_offset=min(limit_offset, 1))

    monkeypatch.setattr(rig.broker.ledger, "read", hurt)
    again = started(rig)
    if loads:
        await eventually(lambda: isinstance(again.shard("n"), LiveShard), "the rest")
        assert (await again.added("n", 1)).throttle_time_ms == 2
    else:
        await eventually(lambda: again.shard("n") is ErrorCode.COORDINATOR_NOT_AVAILABLE, "a refusal")
        monkeypatch.undo()
        await eventually(lambda: isinstance(again.shard("n"), LiveShard), "the record")
        assert (await again.added("n", 1)).throttle_time_ms == 3
    await again.stop()


async def test_a_shard_is_woken_when_it_wants_to_be(rig: Rig) -> None:
    await rig.topic(TOPIC)
    coordinator = started(rig)
    await coordinator.added("n", 1)
    live = next(coordinator.live_shards())
    await eventually(lambda: not live.shard.totals, "its time")
    await coordinator.stop()
    again = started(rig)
    found = await again.found("n")
    assert isinstance(found, LiveShard) and found.shard.totals == {}
    await again.stop()


async def test_what_a_shard_wants_done_elsewhere_is_done_and_told(rig: Rig) -> None:
    await rig.topic(TOPIC)
    coordinator = started(rig)
    await coordinator.added("n", 99)
    live = next(coordinator.live_shards())
    assert live.shard.celebrated == []
    await coordinator.added("n", 1)
    await asyncio.sleep(0)
    assert live.shard.celebrated == ["n"]
    await coordinator.stop()


async def test_a_shard_knows_in_which_epoch_it_leads(rig: Rig) -> None:
    await rig.topic(TOPIC)
    coordinator = started(rig)
    live = next(coordinator.live_shards())
    assert live.shard.leader_epoch == live.partition.leader_epoch
    await coordinator.stop()


async def test_stopping_ends_what_is_being_loaded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    await rig.topic(TOPIC)
    coordinator = started(rig)
    await coordinator.added("n", 1)
    await coordinator.stop()
    reading = asyncio.Event()

    async def never(*_: object) -> int:
        reading.set()
        await asyncio.Event().wait()
        return 0

    monkeypatch.setattr("penstock.broker.shards.coordinator.load", never)
    again = started(rig)
    await reading.wait()
    await again.stop()
    assert not again._loads
    assert again._follow not in rig.broker.metadata._subscribers


async def test_a_shard_is_not_woken_again_and_again_within_the_millisecond_before_its_deadline() -> None:
    clock = HandClock()
    clock.seconds = 266235.57799999997
    live: LiveShard[Totals] = LiveShard(
        Totals(0, ClusterImage()),
        cast(Partition, None),
        cast(Ledger, None),
        clock,
        lambda _: None,
        lambda *_: None,
    )
    assert live.now().ms == 266235577
    before = asyncio.get_running_loop().time()
    live._set_alarm(266235578)
    assert live._alarm is not None
    assert live._alarm.when() >= before + 0.001
    live._alarm.cancel()
