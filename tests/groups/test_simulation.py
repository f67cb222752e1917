"""Consumers that come, go and die, a store that fails, coordinators that are replaced: what always holds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.groups.shard import GroupShard
from penstock.settings.groups import GroupSettings
from tests.groups.simulation import (
    SESSION_MS,
    ClassicConsumer,
    Committer,
    ModernConsumer,
    Partition,
)
from tests.groups.world import World

SETTINGS = GroupSettings(
    group_initial_rebalance_delay_ms=100,
    group_consumer_session_timeout_ms=SESSION_MS,
    group_consumer_assignment_interval_ms=0,
    offsets_batch_bytes_max=200,
)

Event = tuple[str, int]
_events: st.SearchStrategy[list[Event]] = st.lists(
    st.tuples(
        st.sampled_from(
            ["step"] * 8
            + ["come", "leave", "die", "commit", "commit", "flush", "flush", "flush"]
            + ["fail", "advance", "wait", "restart", "compact", "grow"]
        ),
        st.integers(0, 3),
    ),
    max_size=120,
)


class Simulation:
    def __init__(self, kinds: list[type[ClassicConsumer] | type[ModernConsumer]]) -> None:
        self.world = World({"t": 4}, settings=SETTINGS, prompt=False)
        self.kinds = kinds
        self.consumers: list[ClassicConsumer | ModernConsumer] = []
        self.committer = Committer(self.world)
        self.names = 0

    def come(self) -> None:
        if len(self.live) < 4:
            self.names += 1
            kind = self.kinds[self.names % len(self.kinds)]
            self.consumers.append(kind(self.world, f"c{self.names}", ["t"]))

    @property
    def live(self) -> list[ClassicConsumer | ModernConsumer]:
        return [consumer for consumer in self.consumers if consumer.alive]

    def apply(self, what: str, which: int) -> None:
        world = self.world
        consumer = self.live[which % len(self.live)] if self.live else None
        match what:
            case "come":
                self.come()
            case "step" if consumer:
                consumer.step()
            case "leave" if consumer:
                consumer.leave()
            case "die" if consumer:
                consumer.die()
            case "commit" if consumer:
                self.committer.commit(consumer)
            case "flush" if world.in_flight is not None:
                world.flush()
            case "fail" if world.in_flight is not None:
                world.fail()
            case "advance":
                self.advance(700)
            case "wait":
                self.advance(4_000)
            case "restart":
                world.restart()
                world.answers.clear()
                self.committer.waiting.clear()
                for each in self.live:
                    each.forget_request()
            case "compact":
                world.compact()
            case "grow":
                world.set_topics({"t": 6})
        self.check()

    def advance(self, ms: int) -> None:
        # Consumers watch their sessions by the same clock that the coordinator does, and stop first.
        for consumer in self.live:
            if self.world.ms + ms - consumer.heard_ms >= SESSION_MS:
                consumer.lose_everything()
        self.world.advance(ms)

    def check(self) -> None:
        owners: dict[Partition, str] = {}
        for consumer in self.live:
            consumer_owned = consumer.owned
            for partition in consumer_owned:
                assert partition not in owners, f"{partition} owned by {owners[partition]}, {consumer.name}"
                owners[partition] = consumer.name
        self.committer.collect()
        self.committer.check()

    def check_log(self) -> None:
        """With nothing on its way, the log says all there is to say about groups that are their records."""
        world = self.world
        if world.in_flight is not None:
            return
        other = GroupShard(SETTINGS, world.image, lambda: "unused")
        world.load_into(other)
        loaded, live = other.describe_consumer_group("g"), world.shard.describe_consumer_group("g")
        for described in (loaded, live):
            described.error_message = None
            described.members.sort(key=lambda member: member.member_id)
        assert loaded == live

    def come_to_rest(self) -> None:
        """From any state, with a store that works and members that respond, the group comes to rest."""
        self.come()
        for _ in range(200):
            while self.world.in_flight is not None:
                self.world.flush()
            for consumer in self.live:
                consumer.step()
                self.check()
            self.advance(300)
            if self.at_rest():
                break
        assert self.at_rest(), "the group did not come to rest"

    def at_rest(self) -> bool:
        everything = {("t", p) for p in range(len(self.world.image.topics["t"].partitions))}
        owned = {partition for consumer in self.live for partition in consumer.owned}
        return owned == everything and self.world.in_flight is None


KINDS: dict[str, list[type[ClassicConsumer] | type[ModernConsumer]]] = {
    "classic": [ClassicConsumer],
    "consumer": [ModernConsumer],
    "mixed": [ClassicConsumer, ModernConsumer],
}


@pytest.mark.parametrize("kinds", KINDS)
@settings(max_examples=120, derandomize=True, deadline=None)
@given(events=_events)
def test_whatever_happens(kinds: str, events: list[Event]) -> None:
    simulation = Simulation(KINDS[kinds])
    for event in events:
        simulation.apply(*event)
        if event[0] in ("flush", "fail"):
            simulation.check_log()
    simulation.come_to_rest()
    simulation.check_log()


@pytest.mark.parametrize("kinds", KINDS)
def test_a_rebalance_of_responsive_members_waits_for_no_timer(kinds: str) -> None:
    """Ten members, no time passes at all, everybody gets something."""
    simulation = Simulation(KINDS[kinds])
    simulation.world.set_topics({"t": 20})
    simulation.come_to_rest()
    before = simulation.world.ms
    for _ in range(9):
        simulation.names += 1
        kind = simulation.kinds[simulation.names % len(simulation.kinds)]
        simulation.consumers.append(kind(simulation.world, f"c{simulation.names}", ["t"]))
    for _ in range(60):
        while simulation.world.in_flight is not None:
            simulation.world.flush()
        for consumer in simulation.live:
            consumer.step()
    assert simulation.at_rest()
    assert all(len(consumer.owned) == 2 for consumer in simulation.live)
    assert simulation.world.ms == before


def test_heartbeats_write_nothing() -> None:
    for kinds in KINDS.values():
        simulation = Simulation(kinds)
        for _ in range(3):
            simulation.come()
        simulation.come_to_rest()
        for _ in range(20):
            for consumer in simulation.live:
                consumer.step()
            while simulation.world.in_flight is not None:
                simulation.world.flush()
        written = len(simulation.world.log)
        for _ in range(1_000):
            for consumer in simulation.live:
                consumer.step()
            simulation.advance(100)
        assert len(simulation.world.log) == written
