"""The promises, checked while things happen. What is found is kept, and ends the world.

    P1  every image that a broker holds is the image of that version of the one log; whoever an answer names
        is in the broker list of the same answer, or alive in the image that it came from
    P2  a broker that starts while its store works serves soon, whoever else is there; in the end, those that
        run are those that are listed
    P3  what is acknowledged or readable is written; one offset has one value and one value one offset; no
        holes; the end of a partition, and a committed offset, never go back for whoever asks later
    P4  what is acknowledged lies before the end at which its log was sealed
    P5  all that was asked for is answered

The truth about the metadata log and the write-ahead logs is read off the store's own writes as they take
effect, not asked of brokers.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from penstock.metadata.apply import apply_entry
from penstock.metadata.codec import decode_entry, decode_identity
from penstock.metadata.image import ClusterImage, WalRef

_VALUE = re.compile(rb"<[a-z0-9.-]+>")
"""Values are unique, and say so: they are found in whatever is written."""

Key = tuple[bytes, int]
"""Topic id and partition."""


class Violation(NamedTuple):
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


class Rising:
    """A number that must never go back: what was told when."""

    __slots__ = ("_ends", "_times")

    def __init__(self) -> None:
        self._times: list[float] = []
        self._ends: list[int] = []

    def told(self, at: float, end: int) -> None:
        if not self._ends or end > self._ends[-1]:
            self._times.append(at)
            self._ends.append(end)

    def known_before(self, at: float) -> int:
        """The most that somebody had been told before this time."""
        found = bisect_left(self._times, at)
        return self._ends[found - 1] if found else 0

    @property
    def highest(self) -> int:
        return self._ends[-1] if self._ends else 0


class Checker:
    def __init__(self, now: Callable[[], float], on_violation: Callable[[Violation], None]) -> None:
        self._now = now
        self._on_violation = on_violation
        self.violations: list[Violation] = []
        self.images: dict[int, ClusterImage] = {0: ClusterImage()}
        self.version = 0
        self.written: dict[bytes, list[tuple[WalRef, int]]] = defaultdict(list)
        """By value, the logs it was written to, and the number of the flush."""
        self.log: dict[Key, dict[int, bytes]] = defaultdict(dict)
        """What anybody was told of each partition."""
        self.places: dict[bytes, tuple[Key, int]] = {}
        self.acknowledged: dict[bytes, tuple[Key, int]] = {}
        self.ends: dict[Key, Rising] = defaultdict(Rising)
        self.attempted: set[bytes] = set()
        self.reads = 0
        self.deleted: set[bytes] = set()
        """Ids of topics that somebody asked to delete."""

    @property
    def image(self) -> ClusterImage:
        """The newest of the one log."""
        return self.images[self.version]

    def fail(self, kind: str, text: str) -> None:
        violation = Violation(kind, text)
        self.violations.append(violation)
        self._on_violation(violation)

    # What the store was told.

    def effect(self, operation: str, key: str, contents: bytes) -> None:
        if key.startswith("meta/log/") and operation == "create":
            self._entry(int(key[9:]), contents)
        elif key.startswith("wal/") and operation == "create":
            _, broker, epoch, number = key.split("/")
            self.flush(WalRef(int(broker), int(epoch)), int(number) - 1, contents)
        elif key == "meta/cluster" and operation == "create":
            self.images[0] = ClusterImage(cluster_id=decode_identity(contents).cluster_id)

    def flush(self, wal: WalRef, number: int, contents: bytes) -> None:
        """A flush was written."""
        for value in set(_VALUE.findall(contents)):
            self.written[value].append((wal, number))

    def _entry(self, number: int, contents: bytes) -> None:
        if number <= self.version:
            return  # Trimmed and created again by one who slept: it does not count, and who reads it knows.
        if number != self.version + 1:
            self.fail("P1 hole", f"entry {number} of the metadata log was written after {self.version}")
            return
        self.images[number] = apply_entry(self.image, decode_entry(contents, number).commands)
        self.version = number

    # What brokers hold.

    def image_held(self, who: str, image: ClusterImage) -> None:
        true = self.images.get(image.version)
        if true is None:
            if image.version or image.cluster_id:
                self.fail("P1 image", f"{who} holds an image of version {image.version}, beyond the log")
        elif image.version and image != true:
            self.fail("P1 image", f"{who} holds another image of version {image.version} than the log's")

    # What clients were told.

    def record_acknowledged(self, key: Key, offset: int, value: bytes, asked_at: float, by: str) -> None:
        where = f"{value!r}, acknowledged by {by} at {_place(key, offset)},"
        flushes = self.written.get(value)
        if not flushes:
            self.fail("P3 early", f"{where} is not written anywhere")
        else:
            self._fenced(where, flushes)
        self.acknowledged[value] = (key, offset)
        self._seen(key, offset, value, f"acknowledged by {by}")
        self.ends[key].told(self._now(), offset + 1)

    def _fenced(self, where: str, flushes: Iterable[tuple[WalRef, int]]) -> None:
        sealed = self.image.sealed
        for wal, number in flushes:
            end = sealed.get(wal)
            if end is None or number < end:
                return
        self.fail("P4 fenced", f"{where} is only in logs that were sealed before it: {list(flushes)}")

    def record_read(self, key: Key, offset: int, value: bytes, by: str) -> None:
        self.reads += 1
        if value not in self.attempted:
            self.fail("P3 unwritten", f"{by} read {value!r} at {_place(key, offset)}, which nobody sent")
        elif not self.written.get(value):
            self.fail(
                "P3 early", f"{by} read {value!r} at {_place(key, offset)}, which is not written anywhere"
            )
        self._seen(key, offset, value, f"read by {by}")
        self.ends[key].told(self._now(), offset + 1)

    def _seen(self, key: Key, offset: int, value: bytes, how: str) -> None:
        known = self.log[key].setdefault(offset, value)
        if known != value:
            self.fail("P3 inconsistent", f"{_place(key, offset)} is {value!r}, {how}, but was {known!r}")
        place = self.places.setdefault(value, (key, offset))
        if place != (key, offset):
            self.fail(
                "P3 duplicate", f"{value!r} is at {_place(key, offset)}, {how}, but also at {_place(*place)}"
            )

    def end_told(self, key: Key, end: int, asked_at: float, by: str) -> None:
        known = self.ends[key].known_before(asked_at)
        if end < known:
            self.fail(
                "P3 watermark",
                f"{by} said that {_place(key, end)} is the end, asked at {asked_at:.4f}; {known} was known",
            )
        self.ends[key].told(self._now(), end)

    def log_is(self, key: Key, records: dict[int, bytes], start: int, end: int) -> None:
        """The whole log of a partition, when everything is healthy again."""
        for value, (place, offset) in self.acknowledged.items():
            if place == key and offset >= start and records.get(offset) != value:
                found = records.get(offset)
                self.fail(
                    "P3 lost", f"{value!r} was acknowledged at {_place(key, offset)}, where {found!r} is"
                )
        missing = [offset for offset in range(start, end) if offset not in records]
        if missing:
            self.fail("P3 hole", f"{_place(key, missing[0])} is missing")
        if end < self.ends[key].highest:
            self.fail("P3 watermark", f"{_place(key, end)} is the end, which was at {self.ends[key].highest}")


def _place(key: Key, offset: int) -> str:
    return f"{key[0][:4].hex()}-{key[1]}@{offset}"
