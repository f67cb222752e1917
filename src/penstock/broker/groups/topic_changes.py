"""The changes to topics between two images, as far as groups care."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.metadata.image import ClusterImage


class TopicChanges:
    """Most images change something else: who leads, where records lie. That costs a walk over the topics."""

    __slots__ = ("_image",)

    def __init__(self, image: ClusterImage) -> None:
        self._image = image

    def to(self, new: ClusterImage) -> tuple[frozenset[str], bool]:
        """Topics that came, went, came anew or grew since the last call, and whether any went."""
        old, self._image = self._image, new
        if old.topics is new.topics:
            return frozenset(), False
        changed = set()
        removed = False
        for name, topic in new.topics.items():
            before = old.topics.get(name)
            if before is topic:
                continue
            if before is None or len(before.partitions) != len(topic.partitions) or before.id != topic.id:
                changed.add(name)
                removed = removed or (before is not None and before.id != topic.id)
        for name in old.topics:
            if name not in new.topics:
                changed.add(name)
                removed = True
        return frozenset(changed), removed
