"""All groups that this broker coordinates: those whose partition of `__consumer_offsets` it leads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.broker.groups.topic_changes import TopicChanges
from penstock.broker.shards.coordinator import Coordinator, LeadingBroker
from penstock.entropy import Entropy, uuid4
from penstock.groups.shard import GroupShard
from penstock.metadata.image import OFFSETS_TOPIC

if TYPE_CHECKING:
    from penstock.metadata.image import ClusterImage
    from penstock.settings.groups import GroupSettings
    from penstock.storage.ledger.ledger import Partition


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

    def new_shard(self, partition: Partition, image: ClusterImage) -> GroupShard:
        shard = GroupShard(self._settings(), image, lambda: new_id(self._entropy))
        shard.set_topic_bytes_max(self._topic_bytes_max(image))
        return shard

    def bring_up_to_date(self, shard: GroupShard, image: ClusterImage) -> None:
        shard.set_settings(self._settings())
        shard.set_topic_bytes_max(self._topic_bytes_max(image))
        shard.set_image(image)

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
