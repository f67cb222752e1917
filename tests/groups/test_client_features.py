"""What clients use beyond the plain case: static members, regular expressions, coordinators that move."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from penstock.testing import Broker
from penstock.testing.waiting import until
from tests.groups.clients import committed, produce, produce_more

SETTINGS: dict[str, str | int | bool] = {
    "group.initial.rebalance.delay.ms": 0,
    "group.consumer.heartbeat.interval.ms": 200,
    "group.consumer.assignment.interval.ms": 0,
}
SECONDS_MAX = 120.0


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with Broker(settings=SETTINGS) as broker:
        produce(broker.bootstrap_servers, "t", 4, 40)
        yield broker.bootstrap_servers


def _quick(protocol: str) -> dict[str, str]:
    """The consumer protocol's heartbeat interval is the broker's to choose, the classic one's is not."""
    return {"group.protocol": protocol} | ({"heartbeat.interval.ms": "200"} if protocol == "classic" else {})


class Member:
    """A consumer that remembers how often its partitions changed."""

    def __init__(self, bootstrap: str, group: str, topics: list[str], **options: Any) -> None:
        self.changes = 0
        self.read: list[tuple[str, int, int]] = []
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "topic.metadata.refresh.interval.ms": 500,
                "log_level": 0,
                **options,
            }
        )
        self.consumer.subscribe(topics, on_assign=self._changed, on_revoke=self._changed)

    def _changed(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.changes += 1

    def poll(self) -> None:
        message = self.consumer.poll(0.05)
        if message is not None:
            assert message.error() is None, message.error()
            self.read.append((message.topic() or "", message.partition() or 0, message.offset() or 0))

    @property
    def owned(self) -> set[tuple[str, int]]:
        return {(tp.topic, tp.partition) for tp in self.consumer.assignment()}


def polled_until(members: list[Member], holds: Callable[[], bool]) -> None:
    """Poll everybody until it holds."""

    def look() -> bool:
        if holds():
            return True
        for member in members:
            member.poll()
        return False

    until(look, SECONDS_MAX, "that among the members", every_s=0.0)


def all_owned(members: list[Member], everything: set[tuple[str, int]]) -> bool:
    owned = [member.owned for member in members]
    return all(owned) and set().union(*owned) == everything and sum(map(len, owned)) == len(everything)


EVERYTHING = {("t", p) for p in range(4)}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_static_member_that_restarts_disturbs_nobody(protocol: str, bootstrap: str) -> None:
    group = f"static-{protocol}"
    options = _quick(protocol)
    one = Member(bootstrap, group, ["t"], **options, **{"group.instance.id": "one"})
    two = Member(bootstrap, group, ["t"], **options, **{"group.instance.id": "two"})
    polled_until([one, two], lambda: all_owned([one, two], EVERYTHING))
    before, owned = one.changes, two.owned
    two.consumer.close()
    two = Member(bootstrap, group, ["t"], **options, **{"group.instance.id": "two"})
    polled_until([one, two], lambda: two.owned == owned)
    assert one.changes == before
    one.consumer.close()
    two.consumer.close()


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_members_share_by_their_own_strategy(strategy: str, bootstrap: str) -> None:
    options = {"partition.assignment.strategy": strategy, **_quick("classic")}
    members = [Member(bootstrap, f"by-{strategy}", ["t"], **options)]
    polled_until(members, lambda: all_owned(members, EVERYTHING))
    members.append(Member(bootstrap, f"by-{strategy}", ["t"], **options))
    polled_until(members, lambda: all_owned(members, EVERYTHING))
    assert [len(member.owned) for member in members] == [2, 2]
    members.pop().consumer.close()
    polled_until(members, lambda: all_owned(members, EVERYTHING))
    members.pop().consumer.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_new_topics_that_match_are_read(protocol: str, bootstrap: str) -> None:
    stem = f"regex-{protocol}"
    produce(bootstrap, f"{stem}-1", 1, 3)
    member = Member(bootstrap, stem, [f"^{stem}-[0-9]+"], **_quick(protocol))
    polled_until([member], lambda: len(member.read) == 3)
    produce(bootstrap, f"{stem}-2", 2, 4)
    produce(bootstrap, f"{stem}-other", 1, 1)
    polled_until([member], lambda: len(member.read) == 7)
    assert {topic for topic, _, _ in member.read} == {f"{stem}-1", f"{stem}-2"}
    member.consumer.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_do_not_notice_that_their_coordinator_was_killed(protocol: str) -> None:
    """kill -9 and a restart: same members, same generation, no rebalance, commits go on."""
    with Broker(settings=SETTINGS, process=True) as broker:
        bootstrap = broker.bootstrap_servers
        produce(bootstrap, "t", 4, 40)
        members = [Member(bootstrap, "g", ["t"], **_quick(protocol)) for _ in range(2)]
        polled_until(members, lambda: all_owned(members, EVERYTHING))
        polled_until(members, lambda: sum(len(member.read) for member in members) >= 40)
        before = [member.changes for member in members]
        broker.kill()
        broker.start()
        produce_more(bootstrap, "t", 4, 40)
        polled_until(
            members,
            lambda: {(p, o) for m in members for _, p, o in m.read} >= {(n % 4, n // 4) for n in range(80)},
        )
        for member in members:
            commit_until_taken(member, {p: 20 for _, p in member.owned})
        assert [member.changes for member in members] == before
        assert committed(bootstrap, "g", "t", 4) == dict.fromkeys(range(4), 20)
        for member in members:
            member.consumer.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_outlives_the_moves_of_its_coordinator(protocol: str, tmp_path: Path) -> None:
    """A second broker comes and takes partitions over, and goes again; the consumer reads and commits on."""
    settings = {
        **SETTINGS,
        "offsets.topic.num.partitions": 3,
        "leader.imbalance.check.interval.seconds": 1,
        "broker.session.timeout.ms": 2000,
    }
    with Broker(store=tmp_path, broker_id=1, settings=settings, process=True) as one:
        bootstrap = one.bootstrap_servers
        produce(bootstrap, "t", 4, 0)
        members = [Member(bootstrap, f"moved-{n}", ["t"], **_quick(protocol)) for n in range(3)]
        written = 0

        def read_on() -> None:
            """Everybody reads what is new, and commits it."""
            nonlocal written
            produce_more(bootstrap, "t", 4, 40)
            written += 40
            polled_until(members, lambda: all(len(m.read) >= written for m in members))
            for member in members:
                commit_until_taken(member, {p: o + 1 for _, p, o in member.read})

        read_on()
        with Broker(store=tmp_path, broker_id=2, settings=settings, process=True):
            for _ in range(4):
                read_on()
                pause = time.monotonic() + 0.5
                polled_until(members, lambda pause=pause: time.monotonic() > pause)  # type: ignore[misc]
            polled_until(members, lambda: 2 in coordinators(bootstrap))
            for _ in range(4):
                read_on()
        polled_until(members, lambda: coordinators(bootstrap) == {1})
        read_on()
        for number, member in enumerate(members):
            assert sorted(member.read) == sorted(set(member.read)), "nothing was read twice"
            assert committed(bootstrap, f"moved-{number}", "t", 4) == dict.fromkeys(range(4), written // 4)
            member.consumer.close()


def coordinators(bootstrap: str) -> set[int]:
    from confluent_kafka.admin import AdminClient

    topic = "__consumer_offsets"
    found = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(topic, timeout=60)
    return {partition.leader for partition in found.topics[topic].partitions.values()}


def commit_until_taken(member: Member, offsets: dict[int, int]) -> None:
    from confluent_kafka import KafkaException

    deadline = time.monotonic() + SECONDS_MAX
    while True:
        try:
            member.consumer.commit(
                offsets=[TopicPartition("t", p, o) for p, o in offsets.items()], asynchronous=False
            )
            return
        except KafkaException:
            assert time.monotonic() < deadline
            member.poll()
