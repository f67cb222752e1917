"""Consume, transform, produce: chains of several kinds of client, under kills, pauses and hand-overs.

A source writes numbered values. Links of librdkafka, franz-go and Java, members of one group, turn each into a
value in two topics; links of aiokafka turn those of the first into values of a third (librdkafka in the short form,
since aiokafka does not ask for stable offsets when it begins anew). Each does so in transactions that hold its
outputs and the offsets of its input, and aborts some of them on purpose. In each round something happens to a broker
(kill -9, SIGSTOP, a controlled stop) or to a link (kill -9, SIGSTOP for longer than its transaction may take, so that
it wakes as a zombie). Both stages must go on.

Every few rounds the chain is drained. Then each input must be in each output exactly once, for several readers;
the last stable offset is the end of each partition; and the whole history is checked by `conformance.histories`:
what the links said, what a reader at read_committed was shown meanwhile and when, what groups were told of their
offsets. A failing run is repeated with its seed, though not to the millisecond.
"""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

from conformance import parts
from conformance.client import BY_NAME, ClientFailed, Session
from conformance.clients.protocol import Record
from conformance.cluster.processes import Member
from conformance.cluster.views import wait_for_brokers
from conformance.histories.checking import check
from conformance.server import ServerFailed, interrupted_cleanly
from conformance.transactions import asking
from conformance.transactions.account import Account, exactly_once
from conformance.transactions.links import Helper, Inquirer, Link, Part, Source, Watcher
from conformance.transactions.places import Place, place_named
from conformance.transactions.reading import read_topic
from penstock.testing.waiting import Late, until

PARTITIONS = 4
TIMEOUT_MS = 6_000
PAUSED_LINK_S = TIMEOUT_MS / 1000 + 2.5
SESSION_TIMEOUT_S = 3.0
BLINK_S = 1.0
EVERY_S = 0.1
"""So often the source writes a value to each partition."""
GO_ON_WITHIN_S = 90.0
"""A link that is killed in a transaction holds its input until that has timed out, and a member its share until
the group has missed it."""
DRAINED_WITHIN_S = 120.0
READ_WITHIN_S = 10.0
STABLE_WITHIN_S = 30.0
ROUNDS_AN_ACT = 20
FINDINGS_SHOWN = 10
LAST = "the last one"

FIRST = ("confluent-kafka", "franz-go", "java")
READERS = ("confluent-kafka", "aiokafka", "franz-go")
SECOND = "aiokafka"
SHORT_FIRST = ("confluent-kafka", "confluent-kafka")
SHORT_SECOND = "confluent-kafka"
SHORT_READERS = ("confluent-kafka", "aiokafka")


@dataclass(slots=True)
class Act:
    """Fresh topics, fresh links, some rounds, and the check of it all."""

    number: int
    place: Place
    chance: random.Random
    account: Account = field(default_factory=Account)
    links: list[Link] = field(default_factory=list)
    helpers: list[Helper] = field(default_factory=list)

    def topic(self, name: str) -> str:
        return f"{name}-{self.number}"

    @property
    def outputs(self) -> list[str]:
        return [self.topic(name) for name in ("middle", "side", "output")]

    def begin(self, first: Sequence[str], second: str) -> Source:
        for name in ("input", "middle", "side", "output"):
            self.place.create(self.topic(name), PARTITIONS)
        input, middle, side, output = (self.topic(name) for name in ("input", "middle", "side", "output"))
        chosen = [
            Part(
                client, self.topic("first"), f"{client}-{self.number}-{at}", input, (middle, side), PARTITIONS
            )
            for at, client in enumerate(first)
        ]
        half = PARTITIONS // 2
        for at, assigned in enumerate((tuple(range(half)), tuple(range(half, PARTITIONS)))):
            id = f"second-{second}-{self.number}-{at}"
            chosen.append(Part(second, self.topic("second"), id, middle, (output,), PARTITIONS, assigned))
        self.links = [Link(part, self.place, self.account) for part in chosen]
        source = Source(self.place, input, PARTITIONS, EVERY_S, self.account)
        lanes = [(self.topic("first"), input), (self.topic("second"), middle)]
        self.helpers = [
            source,
            Watcher(self.place, self.outputs, PARTITIONS, self.account),
            Inquirer(self.place, lanes, PARTITIONS, 0.2, self.account),
        ]
        for helper in self.helpers:
            helper.start()
        return source

    def tend(self) -> None:
        for link in self.links:
            link.tend()

    def go_on(self) -> float:
        """Wait until both groups have committed something more; seconds that took."""
        groups = [self.topic("first"), self.topic("second")]
        before = {group: self.account.committed_by(group) for group in groups}

        def gone_on() -> bool:
            self.tend()
            return all(self.account.committed_by(group) > before[group] for group in groups)

        return until(gone_on, GO_ON_WITHIN_S, f"a commit of {' and of '.join(groups)}", every_s=0.1)

    def drain(self, source: Source) -> None:
        """The input ends, and everything of it comes through."""
        source.end()
        if source.failure is not None:
            raise Late(str(source.failure))
        wanted = set(source.values)

        def through() -> bool:
            self.tend()
            return all(wanted <= self.account.values("watcher", topic) for topic in self.outputs)

        try:
            until(through, DRAINED_WITHIN_S, "it", every_s=0.3)
        except Late:
            lacking = {
                topic: sorted(wanted - self.account.values("watcher", topic))[:3] for topic in self.outputs
            }
            raise Late(f"after {DRAINED_WITHIN_S:.0f} s these did not come through: {lacking}") from None

    def close(self) -> None:
        for link in self.links:
            link.leave()
        for link in self.links:
            link.close()
        for helper in self.helpers:
            helper.end()

    def read(self, readers: Sequence[str]) -> list[str]:
        """Every partition by every reader, at both levels; what could not be read."""
        failures = []
        for topic in self.outputs:
            try:
                asking.await_stable(self.place, topic, PARTITIONS, STABLE_WITHIN_S)
            except Late as why:
                failures.append(str(why))
            for partition, read in read_topic(self.place, topic, PARTITIONS, committed=False).items():
                where, end = f"{topic}-{partition}", asking.ends(self.place, topic, partition)[1]
                values = [(offset, value.decode()) for offset, value in read]
                self.account.read_whole("librdkafka", where, end, values, committed=False)
        self._write_last()
        for name in readers:
            with closing(Session(BY_NAME[name], self.place.bootstrap)) as session:
                for topic in self.outputs:
                    for partition in range(PARTITIONS):
                        try:
                            self._read(name, session, topic, partition)
                        except ClientFailed as why:
                            failures.append(str(why))
        return failures

    def _write_last(self) -> None:
        """One more value in each partition, outside of transactions: who reads it has read all."""
        with closing(Session(BY_NAME["confluent-kafka"], self.place.bootstrap)) as session:
            for topic in self.outputs:
                for partition in range(PARTITIONS):
                    session.produce(topic, partition, "none", [Record(None, LAST.encode())])

    def _read(self, name: str, session: Session, topic: str, partition: int) -> None:
        """The whole partition at read_committed: as many as the watcher saw, the last one, and none between."""
        where = f"{topic}-{partition}"
        watched = self.account.readings.get(("watcher", where))
        got = session.consume(
            topic, partition, 0, 1 + (len(watched.records) if watched else 0), READ_WITHIN_S, True
        )
        while got and got[-1].value != LAST.encode():
            more = session.consume(topic, partition, got[-1].offset + 1, 100, 1.0, True)
            if not more:
                raise ClientFailed(f"{name} did not come to the end of {where}")
            got += more
        values = [(record.offset, (record.value or b"").decode()) for record in got[:-1]]
        self.account.read_whole(name, where, got[-1].offset if got else 0, values, committed=True)


# What happens in a round.


def kill_broker(act: Act) -> None:
    cluster = act.place.cluster
    if cluster is None:
        assert act.place.server is not None
        act.place.server.kill()
        act.place.server.start()
        return
    victim = _broker(act)
    victim.kill()
    if act.chance.random() < 0.5:
        wait_for_brokers(cluster.running, (), [one.broker for one in cluster.running], 15)
    victim.start()


def stop_broker(act: Act) -> None:
    if act.place.cluster is None:
        assert act.place.server is not None
        act.place.server.stop()
        act.place.server.start()
        return
    victim = _broker(act)
    victim.stop()
    victim.start()


def pause_broker(act: Act) -> None:
    victim = _broker(act)
    victim.pause()
    time.sleep(SESSION_TIMEOUT_S + act.chance.uniform(-0.5, 1.0))
    victim.resume()


def blink_broker(act: Act) -> None:
    victim = _broker(act)
    victim.pause()
    time.sleep(BLINK_S)
    victim.resume()


def kill_all(act: Act) -> None:
    assert act.place.cluster is not None
    act.place.cluster.kill()
    act.place.cluster.start()


def kill_link(act: Act) -> None:
    act.chance.choice(act.links).kill()


def pause_link(act: Act) -> None:
    """It wakes when its transaction has timed out, and others may have its share."""
    victim = act.chance.choice(act.links)
    victim.pause()
    time.sleep(PAUSED_LINK_S)
    victim.resume()


def kill_both(act: Act) -> None:
    kill_link(act)
    kill_broker(act)


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    act: Callable[[Act], None]
    weight: int
    cluster: bool = False
    """It needs several brokers."""


FAULTS = (
    Fault("kill a broker", kill_broker, 5),
    Fault("stop a broker", stop_broker, 2),
    Fault("pause a broker", pause_broker, 3, cluster=True),
    Fault("blink", blink_broker, 2, cluster=True),
    Fault("kill all brokers", kill_all, 1, cluster=True),
    Fault("kill a link", kill_link, 5),
    Fault("pause a link", pause_link, 2),
    Fault("kill a link and a broker", kill_both, 2),
)
SHORT_FAULTS = ("kill a broker", "kill a link", "pause a link", "stop a broker")


def _broker(act: Act) -> Member:
    assert act.place.cluster is not None
    return act.chance.choice(act.place.cluster.running)


def come_to_rest(act: Act) -> None:
    cluster = act.place.cluster
    if cluster is not None:
        wait_for_brokers(cluster.running, (), cluster.members, 30, patient=True)


@dataclass(slots=True)
class Totals:
    rounds: Counter[str] = field(default_factory=Counter)
    pauses: list[float] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    clients: Counter[str] = field(default_factory=Counter)
    inputs: int = 0
    readings: int = 0
    offsets: int = 0
    why: Counter[str] = field(default_factory=Counter)
    ended: list[str] = field(default_factory=list)
    hung: list[str] = field(default_factory=list)


def play(act: Act, faults: Sequence[Fault], options: argparse.Namespace, totals: Totals) -> list[str]:
    """What is wrong."""
    problems: list[str] = []
    source = act.begin(options.first, options.second)
    try:
        act.go_on()
        for fault in faults:
            fault.act(act)
            act.tend()
            come_to_rest(act)
            took = act.go_on()
            totals.rounds[fault.name] += 1
            totals.pauses.append(took)
            number = sum(totals.rounds.values())
            done = act.account.counts()
            print(
                f"round {number}: {fault.name}, both stages went on after {took:.1f} s, {dict(done)}",
                flush=True,
            )
        act.drain(source)
    except Late as why:
        problems.append(str(why))
    finally:
        act.close()
    problems += act.read(options.readers)
    history = act.account.history()
    problems += map(str, check(history))
    problems += map(str, exactly_once(history, act.outputs, source.values))
    for helper in act.helpers:
        if helper.failure is not None:
            problems.append(f"{helper.name}: {helper.failure!r}")
    totals.outcomes += act.account.counts()
    totals.clients += act.account.by_client()
    totals.inputs += len(source.values)
    totals.readings += len(history.readings)
    totals.offsets += len(history.offsets)
    totals.why += act.account.why
    totals.ended += [why for link in act.links for why in link.failures]
    totals.hung += [name for link in act.links for name in link.hung]
    return problems


def run(place: Place, options: argparse.Namespace, totals: Totals) -> list[str]:
    chance = random.Random(options.seed)
    usable = [fault for fault in FAULTS if place.cluster is not None or not fault.cluster]
    if options.only:
        usable = [fault for fault in usable if fault.name == options.only]
    if options.short:
        plan = [next(fault for fault in usable if fault.name == name) for name in SHORT_FAULTS]
    else:
        plan = chance.choices(usable, [fault.weight for fault in usable], k=options.rounds)
    problems: list[str] = []
    for number, start in enumerate(range(0, len(plan), ROUNDS_AN_ACT), 1):
        act = Act(number, place, chance)
        problems += play(act, plan[start : start + ROUNDS_AN_ACT], options, totals)
        if problems:
            break
    return problems + place.problems()


def report(totals: Totals) -> None:
    print("  " + ", ".join(f"{count} {what}" for what, count in sorted(totals.clients.items())))
    for why, count in totals.why.most_common(8):
        print(f"  {count} times {why}")
    for why in totals.ended[:8]:
        print(f"  a link ended by itself: {why[:200]}")
    if totals.hung:
        print(
            f"  {len(totals.hung)} times a link hung in a transaction and was killed: {', '.join(totals.hung[:5])}"
        )
    totals.pauses.sort()
    if totals.pauses:
        middle, last = totals.pauses[len(totals.pauses) // 2], totals.pauses[-1]
        print(f"both stages went on within {middle:.1f} s in the median, {last:.1f} s at most")
    kinds = ", ".join(f"{count} x {name}" for name, count in totals.rounds.items())
    print(
        f"{sum(totals.rounds.values())} rounds ({kinds}): {totals.inputs} inputs, transactions "
        f"{dict(totals.outcomes)}, {totals.readings} readings of partitions, {totals.offsets} offsets told"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    summary = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m conformance.transactions.chains", description=summary)
    parser.add_argument(
        "--against", default="penstock", metavar="BROKERS", help="penstock or kafka (%(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=1000)
    names = [fault.name for fault in FAULTS]
    parser.add_argument("--only", choices=names, metavar="FAULT", help=f"one of: {', '.join(names)}")
    parser.add_argument(
        "--first", nargs="+", choices=FIRST, default=None, metavar="CLIENT", help="links in front"
    )
    parser.add_argument(
        "--second", choices=(SECOND, SHORT_SECOND), metavar="CLIENT", help="links behind them"
    )
    parser.add_argument("--readers", nargs="+", choices=READERS, default=None, metavar="CLIENT")
    parser.add_argument("--short", action="store_true", help="a few rounds of clients in Python: for CI")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    options.first = options.first or (SHORT_FIRST if options.short else FIRST)
    options.second = options.second or (SHORT_SECOND if options.short else SECOND)
    options.readers = options.readers or (SHORT_READERS if options.short else READERS)
    totals = Totals()
    try:
        for name in {*options.first, options.second, *options.readers}:
            BY_NAME[name].program()
        with interrupted_cleanly(), ExitStack() as stack:
            place = stack.enter_context(place_named(options.against))
            problems = run(place, options, totals)
    except parts.PartMissing as why:
        return parts.not_run(why)
    except (AssertionError, ServerFailed) as why:
        problems = [str(why)]
    report(totals)
    for problem in problems[:FINDINGS_SHOWN]:
        print(f"FAILED with seed {options.seed}: {problem}")
    if not problems:
        print("each input exactly once in all outputs, no transaction in part, nothing aborted seen")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
