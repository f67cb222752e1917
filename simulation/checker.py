"""The promises, checked while things happen. A broken promise is kept and ends the world.

    P1  every image that a broker holds is the image of that version of the one log; a broker that an answer
        names is in the broker list of the same answer, or alive in the image that it came from
    P2  a broker that starts while its store works serves soon, whichever others are there; in the end the
        brokers that run are the brokers that are listed
    P3  a record that is acknowledged or readable is written; one offset has one value and one value one
        offset; no holes; the end of a partition, and a committed offset, never go back for a later question
    P4  an acknowledged record lies before the end at which its log was sealed
    P5  every request is answered

The checker reads the truth about the metadata log and the write-ahead logs off the store's own writes as they
take effect. It does not ask brokers for it.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Container, Iterable
from typing import NamedTuple

from penstock.metadata.apply import apply_entry
from penstock.metadata.codec import decode_entry, decode_identity
from penstock.metadata.image import ClusterImage, PartitionKey, WalRef

_VALUE = re.compile(rb"<[a-z0-9.-]+>")
"""Values are unique, and say so: they are found in whatever is written."""

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
        self._entries: dict[int, bytes] = {}
        self.written: dict[bytes, list[tuple[WalRef, int]]] = defaultdict(list)
        """By value, the logs it was written to, and the number of the flush."""
        self.log: dict[PartitionKey, dict[int, bytes]] = defaultdict(dict)
        """What anybody was told of each partition."""
        self.places: dict[bytes, tuple[PartitionKey, int]] = {}
        self.acknowledged: dict[bytes, tuple[PartitionKey, int]] = {}
        self.ends: dict[PartitionKey, Rising] = defaultdict(Rising)
        self.attempted: set[bytes] = set()
        self.reads = 0
        self.deleted: set[bytes] = set()
        """Ids of topics that somebody asked to delete."""
        self.starts: dict[PartitionKey, Rising] = defaultdict(Rising)
        self.on_start: Callable[[PartitionKey, int], None] = lambda key, start: None
        self.on_flush: list[Callable[[WalRef, bytes], None]] = []
        self.may_start: dict[PartitionKey, int] = {}
        """How far somebody asked to delete records; for others than these partitions, see `starts_freely`."""
        self.starts_freely: set[bytes] = set()
        """Ids of topics that retention takes records from."""
        self.compacted: set[bytes] = set()
        self.keys: dict[bytes, bytes] = {}
        """The key of each value that has one."""
        self.where: dict[bytes, PartitionKey] = {}
        """The partition that each value was sent to."""
        self.hurt: dict[PartitionKey, int] = {}
        """Partitions of which something may be damaged, and from which offset on."""
        self.torn: dict[PartitionKey, range] = {}
        """Offsets that a loss of power may have taken, and that readers pass over."""
        self.closed: set[PartitionKey] = set()
        """Partitions whose manifest rotted: until people decide, they cannot be opened."""
        self.cuts = 0
        """Power cuts after which what was not settled may be gone."""

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

    def partitions_in(self, contents: bytes) -> set[PartitionKey]:
        """Whose records are in there."""
        return {self.where[value] for value in _VALUE.findall(contents) if value in self.where}

    def flush(self, wal: WalRef, number: int, contents: bytes) -> None:
        """A flush was written."""
        for value in set(_VALUE.findall(contents)):
            self.written[value].append((wal, number))
        for look in self.on_flush:
            look(wal, contents)

    def _entry(self, number: int, contents: bytes) -> None:
        if number <= self.version:
            return  # Trimmed and created again by one who slept: it does not count, and who reads it knows.
        if number != self.version + 1:
            self.fail("P1 hole", f"entry {number} of the metadata log was written after {self.version}")
            return
        self.images[number] = apply_entry(self.image, decode_entry(contents, number).commands)
        self._entries[number] = contents
        self.version = number

    def log_is_cut(self, get: Callable[[str], bytes | None]) -> None:
        """After a power cut: an entry that its writer did not see to its end may be gone."""
        while self.version and get(f"meta/log/{self.version:012d}") != self._entries[self.version]:
            del self.images[self.version]
            self.version -= 1

    # What brokers hold.

    def image_held(self, who: str, image: ClusterImage) -> None:
        true = self.images.get(image.version)
        if true is None:
            if image.version or image.cluster_id:
                self.fail("P1 image", f"{who} holds an image of version {image.version}, beyond the log")
        elif image.version and image != true:
            self.fail("P1 image", f"{who} holds another image of version {image.version} than the log's")

    # What clients were told.

    def record_acknowledged(
        self, key: PartitionKey, offset: int, value: bytes, asked_at: float, by: str
    ) -> None:
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

    def record_read(
        self, key: PartitionKey, offset: int, value: bytes, by: str, *, ahead: bool = False
    ) -> None:
        """`ahead`: in the store, where records are before their broker knows that they are."""
        self.reads += 1
        if value not in self.attempted:
            self.fail("P3 unwritten", f"{by} read {value!r} at {_place(key, offset)}, which nobody sent")
        elif self.where.get(value, key) != key:
            self.fail(
                "P3 elsewhere", f"{by} read {value!r} at {_place(key, offset)}, not where it was sent to"
            )
        elif not self.written.get(value):
            self.fail(
                "P3 early", f"{by} read {value!r} at {_place(key, offset)}, which is not written anywhere"
            )
        self._seen(key, offset, value, f"read by {by}")
        if not ahead:
            self.ends[key].told(self._now(), offset + 1)

    def _seen(self, key: PartitionKey, offset: int, value: bytes, how: str) -> None:
        known = self.log[key].setdefault(offset, value)
        if known != value:
            self.fail("P3 inconsistent", f"{_place(key, offset)} is {value!r}, {how}, but was {known!r}")
        place = self.places.setdefault(value, (key, offset))
        if place != (key, offset):
            self.fail(
                "P3 duplicate", f"{value!r} is at {_place(key, offset)}, {how}, but also at {_place(*place)}"
            )

    def end_told(self, key: PartitionKey, end: int, asked_at: float, by: str) -> None:
        known = self.ends[key].known_before(asked_at)
        if end < known:
            self.fail(
                "P3 watermark",
                f"{by} said that {_place(key, end)} is the end, asked at {asked_at:.4f}; {known} was known",
            )
        self.ends[key].told(self._now(), end)

    def start_told(self, key: PartitionKey, start: int, asked_at: float, by: str) -> None:
        """Where a partition begins."""
        known = self.starts[key].known_before(asked_at)
        if start < known:
            self.fail("P3 start", f"{by} said that {_place(key, start)} is the start; it was at {known}")
        if key[0] not in self.starts_freely and start > self.may_start.get(key, 0):
            self.fail("P3 start", f"{by} said that {_place(key, start)} is the start, which nobody asked for")
        self.starts[key].told(self._now(), start)
        self.on_start(key, start)

    def power_lost(self, settled: dict[PartitionKey, int]) -> None:
        """What was not settled may be gone, or not; what comes next may have its offsets."""
        self.cuts += 1
        for key in list(self.ends):
            end = settled.get(key, 0)
            before = self.torn.get(key, range(end, end))
            self.torn[key] = range(min(end, before.start), max(self.ends[key].highest, before.stop))
            self.ends[key] = Rising()
            self.ends[key].told(self._now(), end)
            known = self.log[key]
            for offset in [offset for offset in known if offset >= end]:
                value = known.pop(offset)
                self.places.pop(value, None)
                self.acknowledged.pop(value, None)

    def log_is(
        self, key: PartitionKey, records: dict[int, bytes], start: int, end: int, hurt: list[range]
    ) -> None:
        """The whole log of a partition, when everything is healthy again. `hurt`: the offsets that cannot be
        read, and are said to be hurt."""
        if hurt and hurt[0].start < self.hurt.get(key, end):
            self.fail("P3 hurt", f"{_place(key, hurt[0].start)} is said to be damaged, and nothing of it is")
        newest = self._newest(key, records) if key[0] in self.compacted else None
        for value, (place, offset) in self.acknowledged.items():
            if place != key or offset < start or records.get(offset) == value:
                continue
            if any(offset in damaged for damaged in hurt):
                continue
            if newest is not None and newest[self.keys[value]] > offset:
                continue
            found = records.get(offset)
            self.fail("P3 lost", f"{value!r} was acknowledged at {_place(key, offset)}, where {found!r} is")
        hole = _first_hole(records, start, end, [*hurt, self.torn.get(key, range(0))])
        if hole is not None and newest is None:
            self.fail("P3 hole", f"{_place(key, hole)} is missing")
        if end < self.ends[key].highest:
            self.fail("P3 watermark", f"{_place(key, end)} is the end, which was at {self.ends[key].highest}")

    def passes_over(self, key: PartitionKey, start: int, end: int) -> bool:
        """Whether a reader may find nothing from `start` up to, not including, `end`."""
        torn = self.torn.get(key, range(0))
        return key[0] in self.compacted or (torn.start <= start and end <= torn.stop)

    def is_bare(self, key: PartitionKey, start: int, end: int) -> bool:
        """Whether compaction may have taken all that anybody knows of between these offsets."""
        if key[0] not in self.compacted:
            return False
        return not any(start <= offset < end for offset in self._newest(key, {}).values())

    def _newest(self, key: PartitionKey, records: dict[int, bytes]) -> dict[bytes, int]:
        """By key, the offset of the newest record that anybody knows of."""
        newest: dict[bytes, int] = {}
        known = [*self.log[key].items(), *records.items()]
        for offset, value in known:
            of = self.keys[value]
            newest[of] = max(offset, newest.get(of, -1))
        return newest


def _first_hole(records: Container[int], start: int, end: int, hurt: list[range]) -> int | None:
    """The first offset that is neither read nor said to be hurt."""
    at = start
    while at < end:
        damaged = next((one for one in hurt if at in one), None)
        if damaged is not None:
            at = damaged.stop
        elif at in records:
            at += 1
        else:
            return at
    return None


def _place(key: PartitionKey, offset: int) -> str:
    return f"{key[0][:4].hex()}-{key[1]}@{offset}"
