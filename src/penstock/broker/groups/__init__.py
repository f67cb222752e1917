"""Groups on a running broker: the thin shell around `penstock.groups`.

`attach(broker)` makes a broker coordinate the groups whose partition of `__consumer_offsets` it leads. It is
cheap: nothing of the groups is loaded until the topic exists and this broker leads part of it, or until a
client asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.metadata.image import ClusterImage


def attach(broker: Broker) -> None:
    """Coordinate from now on. Called once, when the broker serves."""

    def follow(old: ClusterImage, new: ClusterImage) -> None:
        if _leads_any(broker.broker_id, new):
            stop()
            broker.spawn(_start(broker))

    if _leads_any(broker.broker_id, broker.image):
        broker.spawn(_start(broker))
    else:
        stop = broker.metadata.subscribe(follow)


async def _start(broker: Broker) -> None:
    # The modules are loaded by a thread: the first records should not have to wait for them.
    import asyncio
    from importlib import import_module

    module = await asyncio.to_thread(import_module, "penstock.broker.groups.coordinator")
    broker.service(module.GroupCoordinator)


def _leads_any(broker_id: int, image: ClusterImage) -> bool:
    from penstock.metadata.image import OFFSETS_TOPIC

    topic = image.topics.get(OFFSETS_TOPIC)
    return topic is not None and any(partition.leader == broker_id for partition in topic.partitions)
