"""Records and bytes that came and went, by topic. Counted once for each flush and each answer of a fetch.

A counter must never go down, so a topic keeps its own count or shares one for as long as it is known: the
first topics with traffic have their own, up to a limit, and all others share `OTHER`.
"""

from collections.abc import Collection, Iterator

OTHER = "other"
"""The name of all topics that have no count of their own. A topic that is called so is one of them."""


class Traffic:
    """Of one topic, or of all that share it."""

    __slots__ = ("bytes_in", "bytes_out", "records_in", "records_out")

    def __init__(self) -> None:
        self.records_in = 0
        self.bytes_in = 0
        self.records_out = 0
        """By the offsets that a reader was brought forward: what compaction left out is counted too."""
        self.bytes_out = 0


class TopicTraffic:
    def __init__(self, topics_max: int = 100) -> None:
        self._topics_max = topics_max
        self._topics: dict[str, Traffic] = {}
        self._other = Traffic()

    def of(self, topic: str) -> Traffic:
        """Where the traffic of a topic is counted."""
        found = self._topics.get(topic)
        if found is not None:
            return found
        if len(self._topics) >= self._topics_max or topic == OTHER:
            return self._other
        made = self._topics[topic] = Traffic()
        return made

    def forget_others(self, known: Collection[str]) -> None:
        """Topics that are gone make room for others."""
        for topic in [topic for topic in self._topics if topic not in known]:
            del self._topics[topic]

    def all(self) -> Iterator[tuple[str, Traffic]]:
        """By topic, and at last what the others share, if there is any."""
        yield from self._topics.items()
        if self._other.bytes_in or self._other.bytes_out:
            yield OTHER, self._other
