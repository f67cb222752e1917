"""The parts of one running incarnation of a broker, which every handler is given."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from penstock.audit import Audit
from penstock.broker.access import follow_quotas, follow_rules
from penstock.broker.freshness import confirmed
from penstock.broker.metering import Meters
from penstock.broker.services import Services
from penstock.broker.tasks import Tasks
from penstock.entropy import SYSTEM

if TYPE_CHECKING:
    from penstock.broker.rights import Rules
    from penstock.broker.security.quotas import ClientQuotas
    from penstock.clock import Clock
    from penstock.cluster.membership import Membership
    from penstock.cluster.metadata_log import MetadataLog
    from penstock.entropy import Entropy
    from penstock.metadata.image import ClusterImage, TopicInfo
    from penstock.settings import Settings
    from penstock.storage.ledger.ledger import Ledger


OPEN_WAIT_SECONDS = 5.0
"""How long a request waits for a partition that this broker was just given to lead."""


class Broker:
    """One incarnation of one broker. Built by `penstock.node`; handlers read it and never replace its parts.

    All of it lives on one event loop. `image` is the newest ClusterImage that this broker has seen: take
    it once at the start of a request, so that everything in one answer comes from one image.
    """

    __slots__ = (
        "__dict__",
        "audit",
        "broker_epoch",
        "broker_id",
        "clock",
        "entropy",
        "ledger",
        "membership",
        "metadata",
        "meters",
        "quotas",
        "rules",
        "services",
        "settings",
        "tasks",
    )

    def __init__(
        self,
        *,
        settings: Settings,
        clock: Clock,
        metadata: MetadataLog,
        ledger: Ledger,
        broker_id: int,
        broker_epoch: int,
        membership: Membership | None = None,
        entropy: Entropy = SYSTEM,
        meters: Meters | None = None,
    ) -> None:
        """`membership` is None in tests of handlers that do not need it. `meters`: those of the process."""
        self.settings = settings
        self.clock = clock
        self.entropy = entropy
        self.metadata = metadata
        self.ledger = ledger
        self.broker_id = broker_id
        self.broker_epoch = broker_epoch
        self.membership = membership
        self.meters = meters if meters is not None else Meters()
        self.rules: Rules | None = None
        """Who may do what; None: everybody everything. Other rules are another object."""
        self.tasks = Tasks()
        """What requests began. Services have tasks of their own."""
        self.services = Services(self)
        self.audit = Audit(clock)
        """Who was refused what, and who changed who may do what."""
        self.quotas: ClientQuotas | None = None
        """What clients may use; None: as much as they like."""
        follow_rules(self)
        follow_quotas(self)

    @property
    def image(self) -> ClusterImage:
        return self.metadata.image

    def is_opening(self, topic: TopicInfo, index: int) -> bool:
        """Was this broker given a partition to lead that its ledger is still recovering?"""
        return (
            topic.partitions[index].leader == self.broker_id
            and self.ledger.partition(topic.id, index) is None
            and self.ledger.damaged(topic.id, index) is None
        )

    async def opened(self, seconds: float = OPEN_WAIT_SECONDS) -> None:
        """Wait until every partition that the newest image gives to this broker is open, or time is over.

        A client that was just told that this broker leads a partition is not told the contrary.
        """
        with contextlib.suppress(TimeoutError):
            # Python 3.11's `wait_for` forgets that it was cancelled if what it waits for is done by then.
            async with asyncio.timeout(seconds):
                await self.ledger.update(self.image)

    async def confirmed(self) -> bool:
        """Catch up, for a reader: whether what the image then gives to this broker was its own when this was
        called. If not, somebody else may lead it, and readers should look elsewhere."""
        return await confirmed(self)

    @property
    def leads_surely(self) -> bool:
        """Whether nobody else can lead what the image gives to this broker.

        Writes are safe without this: the write-ahead log of a broker that was replaced is sealed. It keeps a
        broker that slept, or was cut off, from telling readers of an end of a log that has moved on.
        """
        membership = self.membership
        return membership is None or self.clock.monotonic() < membership.heartbeats.lease_until

    async def stop(self) -> None:
        """End what requests began, then the services. Nothing is answered any more."""
        await self.tasks.stop()
        await self.services.stop()
