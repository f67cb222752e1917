"""Thousands of topics: unchanged parts are shared, and nothing is quadratic in practice."""

import time

from penstock.metadata.apply import apply, apply_entry
from penstock.metadata.codec import decode_snapshot, encode_snapshot
from penstock.metadata.commands import AssignLeaders, CreateTopic, FenceBroker
from penstock.metadata.image import ClusterImage, derive
from penstock.metadata.placement import spread, successors
from penstock.metadata.refusal import Refusal

from .worlds import cluster, topic_id, with_topic

TOPICS = 3000


def creation(image: ClusterImage, number: int) -> CreateTopic:
    orders = spread(image, 1, 1)
    assert not isinstance(orders, Refusal)
    return CreateTopic(topic_id(number), f"topic-{number}", orders)


def test_three_thousand_topics_one_entry_each() -> None:
    image = cluster(1, 2, 3)
    started = time.thread_time()
    for number in range(TOPICS):
        image = apply(image, creation(image, number))
    elapsed = time.thread_time() - started
    assert elapsed < 5, "a generous bound: it takes a fraction of a second on an idle machine"
    assert image.leader_counts == {1: 1000, 2: 1000, 3: 1000}
    assert image == derive(image)
    _, restored = decode_snapshot(encode_snapshot(image, 0), 1)
    assert restored == image


def test_what_did_not_change_is_shared() -> None:
    image = with_topic(with_topic(cluster(1), 1, "a", 2), 2, "b", 2)
    after = apply(image, creation(image, 9))
    assert after.topics["a"] is image.topics["a"]
    assert after.brokers is image.brokers
    assert after.configs is image.configs
    assert after.live_brokers is image.live_brokers


def test_moving_ten_thousand_partitions_of_one_topic() -> None:
    image = with_topic(cluster(1, 2, 3), 1, "wide", 9999)
    started = time.thread_time()
    moves = successors(image, 2)
    image = apply_entry(image, (FenceBroker(2, 2, 1), AssignLeaders(1, 1, moves)))
    assert time.thread_time() - started < 5
    assert len(moves) == 3333
    assert sum(image.leader_counts.values()) == 9999
