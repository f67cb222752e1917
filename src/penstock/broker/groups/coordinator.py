"""All groups that this broker coordinates: those whose partition of `__consumer_offsets` it leads."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.broker.groups.topic_changes import TopicChanges
from penstock.broker.shards.coordinator import Coordinator, LeadingBroker
from penstock.entropy import Entropy, uuid4
from penstock.groups.memory import MEMBERS_BYTES_MAX, MemberMemory
from penstock.groups.shard import GroupShard
from penstock.metadata.image import OFFSETS_TOPIC

if TYPE_CHECKING:
    from penstock.metadata.image import ClusterImage
    from penstock.settings.groups import GroupSettings
    from penstock.storage.ledger.ledger import Partition


log = logging.getLogger(__name__)

FULL_SAID_AGAIN_SECONDS = 60.0
"""How often it is said that hardly any more members are let in."""


class GroupCoordinator(Coordinator[GroupShard]):
    def __init__(
        self,
        broker: LeadingBroker,
        settings: Callable[[], GroupSettings],
        topic_bytes_max: Callable[[ClusterImage], int],
        entropy: Entropy,
    ) -> None:
        """`settings`: those in force, as of the newest image. `topic_bytes_max`: what the offsets topic takes
        in one batch."""
        super().__init__(OFFSETS_TOPIC, broker)
        self._settings = settings
        self._topic_bytes_max = topic_bytes_max
        self._entropy = entropy
        self._changes = TopicChanges(broker.metadata.image)
        self._memory = MemberMemory(self._kept_bytes)
        self._full_said_at: float | None = None

    def new_shard(self, partition: Partition, image: ClusterImage) -> GroupShard:
        shard = GroupShard(self._settings(), image, lambda: new_id(self._entropy), self._memory)
        shard.set_topic_bytes_max(self._topic_bytes_max(image))
        return shard

    def bring_up_to_date(self, shard: GroupShard, image: ClusterImage) -> None:
        shard.set_settings(self._settings())
        shard.set_topic_bytes_max(self._topic_bytes_max(image))
        shard.set_image(image)
        self._memory.forget()

    def _kept_bytes(self) -> int:
        """Of the members of all groups. It is said if that is nearly all that they may take."""
        kept = sum(live.shard.kept_bytes() for live in self.live_shards())
        now = self._broker.clock.monotonic()
        said_at = self._full_said_at
        said = said_at is not None and now - said_at < FULL_SAID_AGAIN_SECONDS
        if kept > MEMBERS_BYTES_MAX * 9 // 10 and not said:
            self._full_said_at = now
            log.warning(
                "members of groups take most of the memory that they may, and more may be refused"
                " bytes=%d limit=%d",
                kept,
                MEMBERS_BYTES_MAX,
            )
        return kept

    def image_changed(self, image: ClusterImage) -> None:
        settings = self._settings()
        topic_bytes_max = self._topic_bytes_max(image)
        changed, removed = self._changes.to(image)
        for live in list(self.live_shards()):
            live.shard.set_settings(settings)
            live.shard.set_topic_bytes_max(topic_bytes_max)
            live.tell(GroupShard.metadata_changed, image, changed, removed=removed)


def new_id(entropy: Entropy) -> str:
    """A random UUID, as text: the tail of a member id."""
    text = uuid4(entropy).hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
