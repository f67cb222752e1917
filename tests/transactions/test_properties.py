"""What holds whatever comes: requests in any order, writes that fail, coordinators that die.

Each step is drawn by Hypothesis. A producer is played for each id: it believes what it was told, so that must
hold. Markers reach partitions late, in any order, and again after a restart.
"""

from __future__ import annotations

from collections.abc import Collection

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.transactions.core import Told
from penstock.transactions.ending import Ending
from penstock.transactions.transaction import EPOCH_MAX, Given, Place, State, Transaction
from penstock.wire.errors import ErrorCode
from tests.transactions.world import World

PLACES = [Place("t", index) for index in range(3)]
NAMES = ("a", "b")

STEPS = st.one_of(
    st.tuples(st.just("init"), st.sampled_from(NAMES), st.booleans()),
    st.tuples(st.just("add"), st.sampled_from(NAMES), st.sampled_from(PLACES), st.sampled_from((0, 2))),
    st.tuples(st.just("end"), st.sampled_from(NAMES), st.booleans(), st.booleans()),
    st.tuples(st.just("late end"), st.sampled_from(NAMES), st.booleans(), st.booleans()),
    st.tuples(st.just("mark"), st.integers(0, 5), st.sampled_from(PLACES)),
    st.tuples(st.just("mark all")),
    st.tuples(st.just("flush")),
    st.tuples(st.just("transaction"), st.sampled_from(NAMES), st.booleans(), st.booleans()),
    st.tuples(st.just("fail")),
    st.tuples(st.just("advance"), st.sampled_from((10, 60, 11_000, 61_000))),
    st.tuples(st.just("restart")),
)


class Play:
    """Producers that believe what they are told, and what may then never be otherwise."""

    def __init__(self) -> None:
        self.world = World(prompt=False)
        self.producers: dict[str, Given] = {}
        self.begun: dict[str, set[Given]] = {name: set() for name in NAMES}
        self.asked: dict[int, tuple[str, ...]] = {}
        self.open: dict[str, set[Place]] = {name: set() for name in NAMES}
        """By id, the partitions that a producer was told are part of its open transaction."""
        self.marks: dict[tuple[str, int, int], bool] = {}
        """By id, producer id and epoch of its markers: how the transaction ended."""
        self.markings: list[tuple[str, Ending, frozenset[Place]]] = []
        self.written: dict[tuple[str, Ending], set[Place]] = {}
        """The markers that the shard was told of, the late ones of former coordinators too."""
        self.prepared: dict[str, Transaction] = {}
        """The decisions that storage has, and that are not carried out."""
        for name in NAMES:
            self.do_init(name, False)
            self.do_flush()
        self._look()

    # -- steps ---------------------------------------------------------------------------------------

    def step(self, kind: str, *values: object) -> None:
        getattr(self, "do_" + kind.replace(" ", "_"))(*values)
        self._look()

    def do_init(self, name: str, goes_on: bool) -> None:
        given = self.producers.get(name) if goes_on else None
        self.asked[self.world.init(name, given)] = ("init", name)

    def do_add(self, name: str, place: Place, version: int) -> None:
        given = self.producers.get(name)
        if given is not None:
            self.asked[self.world.add(given, place, name=name, version=version)] = ("add", name)

    def do_end(self, name: str, commit: bool, bump: bool) -> None:
        given = self.producers.get(name)
        if given is not None:
            ticket = self.world.end(given, commit=commit, bump=bump, name=name)
            self.asked[ticket] = ("end", name, "bump" if bump else "")

    def do_transaction(self, name: str, commit: bool, bump: bool) -> None:
        """Without a fault up to its end. Its markers, and what follows, may be late."""
        self.do_flush()
        self.do_flush()
        self.do_add(name, PLACES[0], 2 if bump else 0)
        self.do_add(name, PLACES[1], 2 if bump else 0)
        self.do_flush()
        self.do_flush()
        self.do_end(name, commit, bump)
        self.do_flush()

    def do_late_end(self, name: str, commit: bool, bump: bool) -> None:
        """A request of somebody who had the epoch before."""
        given = self.producers.get(name)
        if given is not None and given.epoch > 0:
            before = Given(given.producer_id, given.epoch - 1)
            self.asked[self.world.end(before, commit=commit, bump=bump, name=name)] = ("late", name)

    def do_mark(self, number: int, place: Place) -> None:
        if self.markings:
            name, ending, _ = self.markings[number % len(self.markings)]
            self._tell(name, ending, [place])

    def do_mark_all(self) -> None:
        for name, ending, places in self.markings:
            self._tell(name, ending, places)
            self._look()

    def _tell(self, name: str, ending: Ending, places: Collection[Place]) -> None:
        self.written.setdefault((name, ending), set()).update(places)
        self.world.take(self.world.shard.markers_written(self.world.now, name, ending, places))

    def do_flush(self) -> None:
        if self.world.in_flight is not None:
            self.world.flush()

    def do_fail(self) -> None:
        if self.world.in_flight is not None:
            self.world.fail()

    def do_advance(self, ms: int) -> None:
        self.world.advance(ms)

    def do_restart(self) -> None:
        before = dict(self.world.shard.listed())
        self.asked.clear()
        self.world.restart()
        # What was shown is what storage has: nothing else is there when it is loaded.
        found = {name: known for name, known in self.world.shard.listed() if name in before}
        assert {name: known.with_changes(last_epoch=-1) for name, known in before.items()} == found
        # Its own completions may be under way already; what it sends is of its own epoch.
        assert all(one.ending.coordinator_epoch == self.world.epoch for one in self.world.errands)

    # -- what must hold ------------------------------------------------------------------------------

    def _look(self) -> None:
        world = self.world
        for ticket, answer in list(world.answers.items()):
            del world.answers[ticket]
            asked = self.asked.pop(ticket, None)
            if asked is not None and isinstance(answer, Told):
                self._told(asked, answer)
            elif asked is not None:
                self.open[asked[1]] |= {place for place, code in answer.items() if code is ErrorCode.NONE}
        for marking in world.errands:
            assert marking.places >= self.open[marking.transactional_id], "all that was added is ended"
            self.open[marking.transactional_id].clear()
            self._sent(marking.transactional_id, marking.ending)
            self.markings.append((marking.transactional_id, marking.ending, marking.places))
        world.errands.clear()
        for name, known in world.shard.listed():
            if known.is_prepared:
                self.prepared[name] = known
            elif name in self.prepared:
                self._carried_out(name, self.prepared.pop(name))

    def _carried_out(self, name: str, prepared: Transaction) -> None:
        """A decision is complete: some coordinator had all its markers written."""
        assert any(
            places == prepared.places <= self.written.get((name, ending), set())
            and (ending.producer_id, ending.producer_epoch) == (prepared.producer_id, prepared.epoch)
            for marked, ending, places in self.markings
            if marked == name
        ), "complete without its markers"

    def _told(self, asked: tuple[str, ...], told: Told) -> None:
        kind, name = asked[:2]
        if told.code is not ErrorCode.NONE:
            return
        stored = self.world.shard.described(name)
        assert stored is not None, "what was told is durable"
        if kind == "init":
            assert 0 <= told.producer.epoch < EPOCH_MAX
            assert told.producer not in self.begun[name] or told.producer == self.producers[name]
            self.begun[name].add(told.producer)
            self.producers[name] = told.producer
        elif kind == "end" and asked[2]:
            self.producers[name] = told.producer
            self.begun[name].add(told.producer)

    def _sent(self, name: str, ending: Ending) -> None:
        stored = self.world.shard.described(name)
        assert stored is not None
        assert stored.is_prepared, "no marker without a durable decision"
        assert (stored.state is State.PREPARE_COMMIT) == ending.committed
        assert (stored.producer_id, stored.epoch) == (ending.producer_id, ending.producer_epoch)
        if ending.version >= 2:
            # Each end has an epoch of its own, so it is never told both ways.
            key = (name, ending.producer_id, ending.producer_epoch)
            assert self.marks.setdefault(key, ending.committed) == ending.committed

    def finish(self) -> None:
        """When storage works again, everybody is answered and every decision is carried out."""
        for _ in range(20):
            while self.world.in_flight is not None:
                self.world.flush()
                self._look()
            self.do_mark_all()
            self.world.advance(100)
            self._look()
        assert not self.asked, "somebody waits for ever"
        for _name, known in self.world.shard.listed():
            assert not known.is_prepared


@settings(max_examples=300, deadline=None)
@given(st.lists(STEPS, min_size=5, max_size=40))
def test_what_was_told_holds(steps: list[tuple[object, ...]]) -> None:
    play = Play()
    for kind, *values in steps:
        play.step(str(kind), *values)
    play.finish()
