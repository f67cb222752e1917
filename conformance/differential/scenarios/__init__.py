"""What is asked of both brokers, one module a family of APIs; importing this package registers all of it."""

from conformance.differential.scenarios import (
    cluster,
    configs,
    consumer_groups,
    consumer_walks,
    fetch,
    frames,
    group_admin,
    group_changes,
    group_offsets,
    groups,
    leaders,
    logs,
    offsets,
    produce,
    producers,
    topics,
)

__all__ = [
    "cluster",
    "configs",
    "consumer_groups",
    "consumer_walks",
    "fetch",
    "frames",
    "group_admin",
    "group_changes",
    "group_offsets",
    "groups",
    "leaders",
    "logs",
    "offsets",
    "produce",
    "producers",
    "topics",
]
