"""An act of a chain: its topics, links and helpers, from the first value to the last look of every reader."""

import contextlib
import random
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaException, TopicPartition

from conformance.client import BY_NAME, ClientFailed, Session
from conformance.clients.protocol import Record
from conformance.cluster.streams import QUIET
from conformance.transactions import asking
from conformance.transactions.account import Account
from conformance.transactions.links import Helper, Inquirer, Link, Part, Source, Watcher
from conformance.transactions.places import Place
from conformance.transactions.reading import read_topic
from penstock.testing.waiting import Late, until

PARTITIONS = 4
EVERY_S = 0.1
"""So often the source writes a value to each partition."""
GO_ON_WITHIN_S = 90.0
"""A link that is killed in a transaction holds its input until that has timed out, and a member its share until
the group has missed it."""
DRAINED_WITHIN_S = 120.0
READ_WITHIN_S = 10.0
STABLE_WITHIN_S = 30.0
LAST = "the last one"


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
        for group, consumed in ((self.topic("first"), input), (self.topic("second"), middle)):
            begin_at_zero(self.place, group, consumed)
            self.account.placed(group, [f"{consumed}-{at}" for at in range(PARTITIONS)])
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


def begin_at_zero(place: Place, group: str, topic: str) -> None:
    """The group of links that are yet to come goes on at the start of each partition."""
    offsets = [TopicPartition(topic, at, 0) for at in range(PARTITIONS)]
    consumer = Consumer({"bootstrap.servers": place.bootstrap, "group.id": group, **QUIET})

    def committed() -> bool:
        with contextlib.suppress(KafkaException):
            consumer.commit(offsets=offsets, asynchronous=False)
            return True
        return False

    try:
        until(committed, GO_ON_WITHIN_S, f"an offset of {group}", every_s=0.2)
    finally:
        consumer.close()
