"""`penstock top`: what it shows of two looks, and one run of it against a broker."""

from __future__ import annotations

from penstock.cli.top import Look, _drawn, view
from penstock.testing import Broker
from penstock.wire.api.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tests.cli.test_commands import run, run_json


def test_rates_lags_and_order() -> None:
    metadata = MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=2, host="b", port=2),
            MetadataResponseBroker(node_id=1, host="a", port=1),
        ],
        controller_id=2,
        topics=[
            MetadataResponseTopic(name=name, partitions=[
                MetadataResponsePartition(partition_index=0, leader_id=1),
                MetadataResponsePartition(partition_index=1, leader_id=leader),
            ])
            for name, leader in (("quiet", 2), ("busy", -1))
        ],
    )  # fmt: skip
    ends = {("quiet", 0): 5, ("quiet", 1): 5, ("busy", 0): 100}
    committed = {("busy", 0): 80, ("gone", 0): 3}
    before = Look(10.0, metadata, ends, {"g": ("Stable", committed)}, 0)
    now = Look(
        12.0, metadata, ends | {("busy", 0): 160, ("quiet", 1): 6},
        {"g": ("Stable", {("busy", 0): 120, ("gone", 0): 3}), "h": ("Empty", {("quiet", 0): 0})}, 4,
    )  # fmt: skip
    found = view(before, now)
    assert found["brokers"] == [
        {"broker": 1, "address": "a:1", "controller": False, "leads": 2, "rate": 30.0},
        {"broker": 2, "address": "b:2", "controller": True, "leads": 1, "rate": 0.5},
    ]
    assert [(row["topic"], row["rate"], row["records"], row["leaderless"]) for row in found["topics"]] == [
        ("busy", 30.0, 160, 1), ("quiet", 0.5, 11, 0),
    ]  # fmt: skip
    assert [(row["group"], row["state"], row["lag"], row["rate"]) for row in found["groups"]] == [
        ("g", "Stable", 40, 20.0), ("h", "Empty", 5, 0.0),
    ]  # fmt: skip
    assert found["groups_not_shown"] == 4
    assert _drawn(found, 1) is not None


def test_a_running_broker() -> None:
    with Broker(settings={"group.initial.rebalance.delay.ms": 0}) as broker:
        run_json(broker, "produce", "t", text="a\nb\nc\n")
        assert run(broker, "consume", "t", "--group", "g", "--max", "1").exit_code == 0
        found = run_json(broker, "top", "--every", "0.2")
        assert [one["broker"] for one in found["brokers"]] == [1]
        assert {row["topic"]: row["records"] for row in found["topics"]}["t"] == 3
        assert [(row["group"], row["lag"]) for row in found["groups"]] == [("g", 2)]
