"""All groups that this broker coordinates: those whose partition of `__consumer_offsets` it leads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.broker.groups.topic_changes import TopicChanges
from penstock.broker.shards.coordinator import Coordinator, LeadingBroker
from penstock.entropy import Entropy, uuid4
from penstock.groups.settings import GroupSettings
from penstock.groups.shard import GroupShard
from penstock.metadata.image import OFFSETS_TOPIC

if TYPE_CHECKING:
    from penstock.metadata.image import ClusterImage
    from penstock.settings import Settings
    from penstock.storage.ledger.ledger import Partition


class GroupCoordinator(Coordinator[GroupShard]):
    def __init__(self, broker: LeadingBroker, settings: Callable[[], Settings], entropy: Entropy) -> None:
        """`settings`: those in force, as of the newest image."""
        super().__init__(OFFSETS_TOPIC, broker)
        self._in_force = settings
        self._entropy = entropy
        self._given = settings()
        self._settings = group_settings(self._given)
        self._changes = TopicChanges(broker.metadata.image)

    def new_shard(self, partition: Partition, image: ClusterImage) -> GroupShard:
        return GroupShard(self._group_settings(), image, lambda: new_id(self._entropy))

    def bring_up_to_date(self, shard: GroupShard, image: ClusterImage) -> None:
        shard.set_settings(self._group_settings())
        shard.set_image(image)

    def image_changed(self, image: ClusterImage) -> None:
        settings = self._group_settings()
        changed, removed = self._changes.to(image)
        for live in list(self.live_shards()):
            live.shard.set_settings(settings)
            live.tell(GroupShard.metadata_changed, image, changed, removed=removed)

    def _group_settings(self) -> GroupSettings:
        in_force = self._in_force()
        if in_force is not self._given:
            self._given, self._settings = in_force, group_settings(in_force)
        return self._settings


def group_settings(settings: Settings) -> GroupSettings:
    values = {
        name: getattr(settings, name)
        for name in GroupSettings.__struct_fields__
        if name in settings.__struct_fields__
    }
    values["group_consumer_assignors"] = tuple(
        name.strip() for name in settings.group_consumer_assignors.split(",")
    )
    return GroupSettings(**values)


def new_id(entropy: Entropy) -> str:
    """A random UUID, as text: the tail of a member id."""
    text = uuid4(entropy).hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
