"""The references of the partitions led here: how many to each object, and how much of it is alive.

They are kept as manifests come and go, so no question about space needs a walk over all partitions.
"""

from collections.abc import Iterable
from typing import NamedTuple

from penstock.log.manifest import Manifest, SegmentRef
from penstock.log.moving import Sparse, footprint, is_sparse


class Dropped(NamedTuple):
    """An object that no partition led here refers to any more."""

    key: str
    index_key: str
    """The object whose footer says what it holds."""
    object_bytes: int


class _Use:
    __slots__ = ("index_key", "live_bytes", "object_bytes", "references")

    def __init__(self, index_key: str) -> None:
        self.index_key = index_key
        self.references = 0
        self.live_bytes = 0
        self.object_bytes = -1


class Usage:
    def __init__(self) -> None:
        self._uses: dict[str, _Use] = {}
        self._sparse: set[str] = set()
        self._unknown: dict[str, None] = {}
        """Objects whose size no manifest tells."""
        self.readable_bytes = 0
        """Batches in segments of the partitions led here."""
        self.live_bytes = 0
        """The same with their indexes."""
        self.stored_bytes = 0
        """Of the whole objects that they lie in, also where other brokers' partitions share them."""

    def __contains__(self, key: str) -> bool:
        return key in self._uses

    def add(self, manifest: Manifest | None) -> None:
        """A partition led here refers to the objects of `manifest`."""
        for segment in manifest.segments if manifest is not None else ():
            use = self._refer(segment.key, segment.index_key)
            self._count(segment, 1)
            use.live_bytes += footprint(segment)
            if use.object_bytes < 0:
                self._learn(segment.key, use, segment.object_bytes)
            self._judge(segment.key, use)
            if segment.index_key != segment.key:
                self._refer(segment.index_key, segment.index_key)

    def drop(self, manifest: Manifest | None) -> list[Dropped]:
        """It does not any more. Returns the objects that none of them refers to now."""
        gone: dict[str, Dropped] = {}
        for segment in manifest.segments if manifest is not None else ():
            use = self._uses[segment.key]
            self._count(segment, -1)
            use.live_bytes -= footprint(segment)
            self._judge(segment.key, use)
            for key in dict.fromkeys((segment.key, segment.index_key)):
                one = self._uses[key]
                one.references -= 1
                if not one.references:
                    self._forget(key, one)
                    gone[key] = Dropped(key, segment.index_key, one.object_bytes)
        return list(gone.values())

    def _refer(self, key: str, index_key: str) -> _Use:
        use = self._uses.get(key)
        if use is None:
            use = self._uses[key] = _Use(index_key)
        use.references += 1
        return use

    def _count(self, segment: SegmentRef, sign: int) -> None:
        self.readable_bytes += sign * segment.size_bytes
        self.live_bytes += sign * footprint(segment)

    def _learn(self, key: str, use: _Use, object_bytes: int) -> None:
        if object_bytes < 0:
            self._unknown[key] = None
            return
        use.object_bytes = object_bytes
        self.stored_bytes += object_bytes
        self._unknown.pop(key, None)

    def _judge(self, key: str, use: _Use) -> None:
        if is_sparse(use.live_bytes, use.object_bytes):
            self._sparse.add(key)
        else:
            self._sparse.discard(key)

    def _forget(self, key: str, use: _Use) -> None:
        del self._uses[key]
        self._sparse.discard(key)
        self._unknown.pop(key, None)
        self.stored_bytes -= max(use.object_bytes, 0)

    # Sizes that no manifest tells: those of before sizes were kept.

    def unknown(self) -> tuple[str, ...]:
        return tuple(self._unknown)

    def learn(self, key: str, object_bytes: int) -> None:
        use = self._uses.get(key)
        if use is not None and use.object_bytes < 0:
            self._learn(key, use, object_bytes)
            self._judge(key, use)

    def sparse(self) -> Iterable[Sparse]:
        """The objects of which the partitions led here need less than half, as far as sizes are known."""
        for key in self._sparse:
            use = self._uses[key]
            yield Sparse(key, use.index_key, use.live_bytes, use.object_bytes)
