"""Small clusters to start tests from, and what must hold of every image."""

from penstock.metadata.apply import apply
from penstock.metadata.commands import AnyCommand, CreateTopic, RegisterBroker
from penstock.metadata.image import NO_LEADER, ClusterImage, Listener, WalRef, derive
from penstock.metadata.placement import spread
from penstock.metadata.preconditions import check
from penstock.metadata.refusal import Refusal


def topic_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


def registered(broker: int, rack: str | None = None, **more: int) -> RegisterBroker:
    listeners = (Listener("PLAINTEXT", f"host-{broker}", 9090 + broker),)
    return RegisterBroker(broker, listeners, rack, f"process-{broker}", **more)


def do(image: ClusterImage, *commands: AnyCommand) -> ClusterImage:
    """Each command in an entry of its own; all must be allowed."""
    for command in commands:
        refusal = check(image, command)
        assert refusal is None, refusal
        image = apply(image, command)
    return image


def cluster(*brokers: int) -> ClusterImage:
    return do(ClusterImage(cluster_id="test"), *(registered(broker) for broker in brokers))


def with_topic(image: ClusterImage, number: int, name: str, partitions: int, factor: int = 1) -> ClusterImage:
    orders = spread(image, partitions, factor)
    assert not isinstance(orders, Refusal)
    return do(image, CreateTopic(topic_id(number), name, orders))


def leaders(image: ClusterImage, name: str) -> list[int]:
    return [partition.leader for partition in image.topics[name].partitions]


def check_image(image: ClusterImage) -> None:
    """What holds of every image, whatever happened before."""
    assert image == derive(image), "derived fields must be what a fresh derivation gives"
    listed = {info.id for info in image.live_brokers}
    assert listed == {info.id for info in image.brokers.values() if not info.fenced}
    assert image.controller_id in listed or (not listed and image.controller_id == -1)
    named: set[WalRef] = set()
    for topic in image.topics.values():
        assert image.topic_by_id(topic.id) is topic
        assert topic.partitions
        for partition in topic.partitions:
            # One image: a leader that is named is a live, listed broker.
            assert partition.leader == NO_LEADER or partition.leader in listed
            assert set(image.isr(partition)) <= listed
            assert partition.leader == NO_LEADER or partition.leader in image.isr(partition)
            if partition.leader != NO_LEADER:
                assert partition.wals[-1] == image.brokers[partition.leader].wal
            for wal in partition.wals[: len(partition.wals) - (partition.leader != NO_LEADER)]:
                assert wal in image.sealed, "only the leader's own log may be open"
            assert len(set(partition.wals)) == len(partition.wals)
            named.update(partition.wals)
    for (identity, index), move in image.moves.items():
        asked = image.partition(identity, index)
        assert asked is not None and asked.leader in listed, "only a live leader can be asked to hand over"
        assert (move.leader == NO_LEADER) == bool(move.former)
        assert asked.leader not in (asked.replicas if move.former else (move.leader,))
        assert move.former or move.leader in listed
    assert set(image.sealed) <= named, "a sealed log that nobody needs is forgotten"
    for wal in image.wal_starts:
        assert wal in named or image.is_current(wal.broker, wal.epoch)
