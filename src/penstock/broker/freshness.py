"""How fresh the image must be for a request, and how the broker catches up.

A broker follows the metadata log, so its image lags a little. Rows of `broker.registry` say how fresh an API
needs it; dispatch sees to that before the handler runs. Most requests are answered at once from the image at
hand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from enum import Flag, auto
from typing import TYPE_CHECKING

from penstock.cluster.metadata_log import MetadataUnavailableError

if TYPE_CHECKING:
    from penstock.broker.context import Broker

CATCH_UP_SECONDS_MAX = 1.0
"""How long a request waits for the newest image: many times what a store takes that works."""
_LOOKS = 10
"""Into so many parts that time is cut. A process that sleeps loses one of them, and the store has the rest to
answer in."""


class Fresh(Flag):
    """A condition on the image before a handler runs. AT_HAND asks nothing of it."""

    AT_HAND = 0
    NEWEST = auto()
    """The answer is about the cluster as a whole: the broker catches up first."""
    KNOWN = auto()
    """Another broker may have created it a moment ago: the broker catches up before anything that the message
    names (`named` of the handler) is called unknown."""
    OPEN = auto()
    """Partitions that this broker was just given to lead are waited for, while they are recovered."""
    SURE = auto()
    """A broker that was silent for a session time-out catches up; the permit says whether it may still lead
    what its image gives to it."""
    LED = auto()
    """Likewise; but if it may not, the request is refused with NOT_LEADER_OR_FOLLOWER."""


Named = Iterable[tuple[str | bytes, int]]
"""Topics by name or by id, each with the index of a partition."""


class LeadershipDoubt(Exception):
    """Another broker may lead a partition that this broker leads by its image. Dispatch answers
    NOT_LEADER_OR_FOLLOWER."""


def is_fresh(broker: Broker, named: Named | None, opened: bool, surely: bool) -> bool:
    """Is everything that was named known here; `opened`: and open as far as this broker leads it; `surely`:
    which it does for sure? None names whatever there is."""
    if named is None or (surely and not broker.leads_surely):
        return False
    image = broker.image
    topics = image.topics
    for topic, index in named:
        found = topics.get(topic) if isinstance(topic, str) else image.topic_by_id(topic)
        if found is None or index >= len(found.partitions):
            return False
        if opened and index >= 0 and broker.is_opening(found, index):
            return False
    return True


async def freshen(broker: Broker, fresh: Fresh, named: Callable[[], Named | None]) -> bool:
    """Catch up, and wait for what is being opened: whether this broker surely leads what its image gives to
    it. If the store does not answer, the image at hand must do."""
    sure = await confirmed(broker)
    if Fresh.LED in fresh and not sure:
        raise LeadershipDoubt
    if Fresh.OPEN in fresh and not is_fresh(broker, named(), True, False):
        await broker.opened()
    return sure


async def confirmed(broker: Broker) -> bool:
    """Catch up, for a reader: whether what the image then gives to this broker was its own when this was
    called. If not, somebody else may lead it, and readers should look elsewhere."""
    return await caught_up(broker) or broker.leads_surely


async def caught_up(broker: Broker) -> bool:
    """Catch up with the metadata log. False if the store does not answer. While it is known to be out nobody
    waits for it."""
    if broker.metadata.unavailable_since is not None:
        return False
    loop = asyncio.get_running_loop()
    try:
        # In this task, not in one of its own: who is told by the new image to stop answers before it does.
        async with asyncio.timeout(None) as limit:
            timer = loop.call_later(CATCH_UP_SECONDS_MAX / _LOOKS, lambda: look(_LOOKS - 1))

            def look(left: int) -> None:
                nonlocal timer
                if left:
                    timer = loop.call_later(CATCH_UP_SECONDS_MAX / _LOOKS, look, left - 1)
                else:
                    limit.reschedule(loop.time())

            try:
                await broker.metadata.catch_up()
            finally:
                timer.cancel()
        return True
    except (MetadataUnavailableError, TimeoutError):
        return False
