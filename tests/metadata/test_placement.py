"""Leaders are spread evenly, over those alive, and moved as little as that takes."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.metadata.commands import AssignLeaders, CreateTopic, FenceBroker, LeaderMove
from penstock.metadata.image import ClusterImage
from penstock.metadata.placement import (
    capped_factor,
    hand_overs,
    imbalance_allowed,
    manual_orders,
    more_partitions,
    place,
    spread,
    successors,
)
from penstock.metadata.refusal import Refusal
from penstock.wire.errors import ErrorCode

from .worlds import cluster, do, leaders, registered, topic_id, with_topic


def evenness(image: ClusterImage) -> int:
    counts = [image.leader_counts.get(info.id, 0) for info in image.live_brokers]
    return max(counts) - min(counts)


def balanced(image: ClusterImage) -> ClusterImage:
    """After every broker handed over what its plan says, each deciding on the same image."""
    plans = {info: hand_overs(image, info.id) for info in image.live_brokers}
    for info, plan in plans.items():
        moves = tuple(
            LeaderMove(p.topic_id, p.partition, p.leader_epoch, p.leader, True, None, p.replicas)
            for p in plan
        )
        if moves:
            image = do(image, AssignLeaders(info.id, info.epoch, moves))
    return image


@given(st.integers(1, 6), st.lists(st.integers(1, 20), max_size=10), st.integers(1, 6))
@settings(derandomize=True, max_examples=50)
def test_new_partitions_are_spread_evenly(brokers: int, sizes: list[int], factor: int) -> None:
    image = cluster(*range(1, brokers + 1))
    for number, size in enumerate(sizes):
        orders = spread(image, size, factor)
        if factor > brokers:
            assert isinstance(orders, Refusal)
            assert orders.code == ErrorCode.INVALID_REPLICATION_FACTOR
            continue
        assert not isinstance(orders, Refusal)
        assert all(len(order) == len(set(order)) == factor for order in orders)
        image = do(image, CreateTopic(topic_id(number), f"t{number}", orders))
        assert evenness(image) <= 1


def test_a_failover_order_prefers_other_racks() -> None:
    image = do(ClusterImage(), *(registered(b, rack) for b, rack in ((1, "a"), (2, "a"), (3, "b"), (4, "b"))))
    orders = spread(image, 4, 4)
    assert orders == ((1, 3, 2, 4), (2, 3, 4, 1), (3, 1, 4, 2), (4, 1, 2, 3))


def test_minus_one_asks_for_the_default() -> None:
    image = cluster(1, 2, 3)
    orders = place(image, -1, -1, defaults=(4, 2))
    assert not isinstance(orders, Refusal)
    assert [len(order) for order in orders] == [2, 2, 2, 2]


def test_internal_topics_are_created_however_few_brokers_there_are() -> None:
    assert capped_factor(cluster(1), 3) == 1
    assert capped_factor(cluster(1, 2, 3, 4), 3) == 3
    assert capped_factor(ClusterImage(), 3) == 1


def test_manual_orders_must_be_complete() -> None:
    image = cluster(1, 2)
    assert manual_orders(image, {1: [2], 0: [1]}) == ((1,), (2,))
    gap = manual_orders(image, {0: [1], 2: [2]})
    assert isinstance(gap, Refusal)
    assert gap.message == "partitions should be a consecutive 0-based integer sequence"


def test_partitions_are_added_by_hand_with_the_same_number_of_replicas() -> None:
    image = with_topic(cluster(1, 2), 1, "t", 2, factor=2)
    topic = image.topics["t"]
    assert more_partitions(image, topic, 3, [[2, 1]]) == ((2, 1),)
    few = more_partitions(image, topic, 5, [[2, 1]])
    assert isinstance(few, Refusal)
    assert (
        few.message == "Attempted to add 3 additional partition(s), but only 1 assignment(s) were specified."
    )
    short = more_partitions(image, topic, 3, [[2]])
    assert isinstance(short, Refusal)
    assert short.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_a_dead_brokers_partitions_do_not_all_fall_to_the_same_one() -> None:
    image = with_topic(cluster(1, 2, 3, 4), 1, "t", 40, factor=3)
    image = do(image, FenceBroker(2, 2, 1), AssignLeaders(1, 1, successors(image, 2)))
    assert evenness(image) <= 1


def test_a_dead_brokers_partitions_go_down_their_failover_orders() -> None:
    image = with_topic(cluster(1, 2, 3), 1, "t", 30, factor=2)
    moves = successors(image, 2)
    image = do(image, FenceBroker(2, 2, 1))
    image = do(image, AssignLeaders(1, 1, moves))
    for partition in image.topics["t"].partitions:
        expected = next(broker for broker in partition.replicas if broker != 2)
        if partition.replicas[0] == 2:
            assert partition.leader == expected


def test_a_dead_brokers_partitions_are_shared_out_if_their_order_is_dead_too() -> None:
    image = with_topic(cluster(1, 2, 3, 4), 1, "t", 40, factor=1)
    image = do(image, FenceBroker(2, 2, 1), AssignLeaders(1, 1, successors(image, 2)))
    assert Counter(leaders(image, "t")) == {1: 14, 3: 13, 4: 13}
    assert all(len(image.shown_replicas(p)) in {1, 2} for p in image.topics["t"].partitions)


def test_nobody_is_left() -> None:
    assert successors(with_topic(cluster(1), 1, "t", 3), 1) == ()


@given(st.lists(st.integers(1, 12), min_size=1, max_size=5), st.integers(1, 3), st.integers(2, 5))
@settings(derandomize=True, max_examples=50)
def test_brokers_that_come_later_get_their_share(sizes: list[int], first: int, then: int) -> None:
    image = cluster(*range(1, first + 1))
    for number, size in enumerate(sizes):
        image = with_topic(image, number, f"t{number}", size, factor=first)
    image = do(image, *(registered(broker) for broker in range(first + 1, first + then + 1)))
    before = image
    image = balanced(image)
    assert evenness(image) <= imbalance_allowed(image.leader_counts)
    moved = sum(
        a.leader != b.leader
        for name in image.topics
        for a, b in zip(before.topics[name].partitions, image.topics[name].partitions, strict=True)
    )
    share = sum(sizes) / (first + then)
    surplus = sum(max(0, count - share) for count in before.leader_counts.values())
    assert moved <= surplus + first + then, "no partition moves that need not"
    assert all(not hand_overs(image, info.id) for info in image.live_brokers), "and then there is rest"
    for topic in image.topics.values():
        assert all(len(p.replicas) == first and p.replicas[0] == p.leader for p in topic.partitions)
