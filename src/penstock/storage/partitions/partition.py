"""One partition led here: its log state, where its batches lie, and the readers that wait for more."""

from collections.abc import Callable

from penstock.log.extents import Extents
from penstock.log.manifest import HurtRange, Manifest, without_hurt_below
from penstock.log.partition import PartitionLog
from penstock.log.policy import DEFAULT_POLICY, LogPolicy
from penstock.metadata.image import ManifestRef, WalRef
from penstock.storage.partitions.answers import Done, ProducerView, producer_views
from penstock.storage.partitions.tail_cache import Tail
from penstock.storage.partitions.traffic import Traffic

Waiting = tuple[bytearray | memoryview, Done, float]
"""A batch that is to be written, whom to tell, and until when, by the loop's clock."""


class Partition(PartitionLog):
    """Handlers read its attributes and never write them.

    Records lie in three places, by offset: settled ones in the manifest's segments, up to
    `manifest.end_offset`; then `unsettled` ones in write-ahead logs; the newest also in `tail`.
    """

    __slots__ = (
        "_watchers",
        "closed",
        "hurt",
        "index",
        "manifest",
        "manifest_ref",
        "pending",
        "policy",
        "size_bytes",
        "tail",
        "topic",
        "topic_id",
        "traffic",
        "unsettled",
        "wals",
    )

    def __init__(self, topic_id: bytes, topic: str, index: int, leader_epoch: int) -> None:
        super().__init__(leader_epoch)
        self.topic_id = topic_id
        self.topic = topic
        self.index = index
        self.policy: LogPolicy = DEFAULT_POLICY
        self.wals: tuple[WalRef, ...] = ()
        """The logs that may hold records of it beyond its manifest, the own one last."""
        self.closed = False
        """True once this broker no longer leads it."""
        self.size_bytes = 0
        """Bytes of batches from the log start on, counted in whole segments and extents."""
        self.manifest: Manifest | None = None
        self.manifest_ref: ManifestRef | None = None
        self.hurt: tuple[HurtRange, ...] = ()
        """Records from the log start on that the store lost, in order. Replaced, never changed."""
        self.unsettled = Extents()
        self.tail = Tail()
        self.pending: list[Waiting] = []
        """Batches that wait for the next flush."""
        self.traffic: Traffic | None = None
        """Where its records are counted, once it has had any."""
        self._watchers: dict[object, Callable[[], None]] = {}

    @property
    def settled_end(self) -> int:
        """Records below this are in segments."""
        return self.manifest.end_offset if self.manifest is not None else 0

    def settled(self, manifest: Manifest, ref: ManifestRef) -> None:
        """The metadata log names a new manifest: what it covers is read from its segments from now on.

        `unsettled` is replaced, not changed: a search that is under way keeps the one it began with.
        """
        unsettled = self.unsettled
        self.manifest = manifest
        self.manifest_ref = ref
        beyond = (one for one in self.hurt if one.start >= manifest.end_offset)
        self.hurt = without_hurt_below((*manifest.hurt, *beyond), self.log_start_offset)
        self.unsettled = unsettled.slice(unsettled.find(manifest.end_offset), len(unsettled))
        self.tail.hide_below(manifest.compacted_end)
        self.count_bytes()

    def advance_log_start(self, offset: int) -> None:
        if offset > self.log_start_offset:
            super().advance_log_start(offset)
            self.hurt = without_hurt_below(self.hurt, offset)
            self.count_bytes()

    def count_bytes(self) -> None:
        """Bring `size_bytes` in line with what lies where."""
        start = self.log_start_offset
        segments = self.manifest.segments if self.manifest is not None else ()
        unsettled = sum(self.unsettled.lengths[self.unsettled.find(start) :])
        self.size_bytes = unsettled + sum(s.size_bytes for s in segments if s.end_offset > start)

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` each time the high watermark advances or the partition closes, until the
        function that is returned is called. A callback may stop itself or others."""
        key = object()
        self._watchers[key] = callback

        def stop() -> None:
            self._watchers.pop(key, None)

        return stop

    def wake(self) -> None:
        if self._watchers:
            for callback in tuple(self._watchers.values()):
                callback()

    def producers(self) -> list[ProducerView]:
        """For DescribeProducers."""
        return producer_views(self.producer_entries)
