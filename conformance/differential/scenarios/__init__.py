"""What is asked of both brokers, one module a family of APIs; importing this package registers all of it."""

from conformance.differential.scenarios import (
    cluster,
    configs,
    fetch,
    frames,
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
    "fetch",
    "frames",
    "leaders",
    "logs",
    "offsets",
    "produce",
    "producers",
    "topics",
]
