"""A real broker inside a test, in a fraction of a second: no Docker, no JVM.

    from penstock.testing import Broker

    with Broker() as broker:
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)

    async with Broker(settings={"auto.create.topics.enable": "false"}) as broker:
        ...

The broker listens on a free port of 127.0.0.1, and its store is a temporary directory that goes away with
it, unless `store` is given. By default it runs on a thread of this process; with `process=True` it is a
process of its own, which `kill()` ends as `kill -9` does. A pytest plugin offers the fixtures
`penstock_broker` and `penstock_session_broker`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["Broker", "BrokerError"]

if TYPE_CHECKING:
    from penstock.testing.broker import Broker, BrokerError


def __getattr__(name: str) -> object:
    # Nothing is loaded until it is asked for: pytest imports this package in every run.
    if name in __all__:
        from penstock.testing import broker

        return getattr(broker, name)
    raise AttributeError(name)
