"""Transaction markers: the batch that ends a transaction in one partition, how the log reads it, and the
aborted ranges that follow from it."""

import struct
from bisect import bisect_left
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import msgspec

from penstock.wire.buffers import Buffer
from penstock.wire.markers import marker_batch

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")


class MarkerKind(IntEnum):
    ABORT = 0
    COMMIT = 1


class Marker(NamedTuple):
    kind: MarkerKind
    coordinator_epoch: int


class MarkerBatch(bytearray):
    """A marker on its way into the log, with what its bytes do not say."""

    __slots__ = ("has_own_epoch",)

    has_own_epoch: bool
    """Each end of a transaction has an epoch of its own (transaction version 2). So a marker of the epoch
    that the open transaction was written in is a late one, of a transaction before."""

    @classmethod
    def of(
        cls, marker: Marker, producer_id: int, producer_epoch: int, timestamp: int, *, has_own_epoch: bool
    ) -> "MarkerBatch":
        made = cls(
            marker_batch(marker.kind, producer_id, producer_epoch, marker.coordinator_epoch, timestamp)
        )
        made.has_own_epoch = has_own_epoch
        return made

    def another(self) -> "MarkerBatch":
        """The same for another partition: each log stamps its own."""
        made = MarkerBatch(self)
        made.has_own_epoch = self.has_own_epoch
        return made


class AbortedTransaction(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Records of `producer_id` from `first_offset` up to its marker at `last_offset` do not count.

    `last_stable_offset` is the stable end after the marker was written. A reader that looks for ranges that
    touch [start, end) may stop at the first one whose stable offset is at or beyond `end`.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def parse_marker(records: Buffer) -> Marker | None:
    """The marker in the records of a control batch, or None: other control records end no transaction."""
    view = memoryview(records)
    try:
        _length, at = _varint(view, 0)
        at += 1  # Attributes, unused.
        for _ in ("timestamp delta", "offset delta"):
            _value, at = _varint(view, at)
        key_size, at = _varint(view, at)
        _version, kind = _KEY.unpack_from(view, at)
        value_size, at = _varint(view, at + key_size)
        if kind not in (MarkerKind.ABORT, MarkerKind.COMMIT) or value_size < _VALUE.size:
            return None
        _version, coordinator_epoch = _VALUE.unpack_from(view, at)
    except (IndexError, struct.error):
        return None
    return Marker(MarkerKind(kind), coordinator_epoch)


ABORTED_BLOCK = 256
"""Fewer are looked at one by one in no time."""


class Beginnings:
    """The least first offset of each whole block of a long list of aborted transactions.

    While one transaction is open for long, many others may end. None of these tells a reader that it may
    stop, and mostly none of a block began early enough to matter.

    The list may grow, lose its newest and be replaced by one that leaves some out. A block is known by the
    transaction at its end: if that is the same object at the same place, so are those before it.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[int, tuple[AbortedTransaction, int]] = {}

    def least(self, aborted: Sequence[AbortedTransaction], number: int) -> int:
        """That of a block, which is whole."""
        end = (number + 1) * ABORTED_BLOCK
        last = aborted[end - 1]
        known = self._known.get(number)
        if known is not None and known[0] is last:
            return known[1]
        least = min(one.first_offset for one in aborted[end - ABORTED_BLOCK : end])
        if len(self._known) > len(aborted) // ABORTED_BLOCK:
            self._known.clear()  # The list has become shorter.
        self._known[number] = last, least
        return least


def touching(
    aborted: Sequence[AbortedTransaction], start: int, end: int, beginnings: Beginnings | None = None
) -> list[AbortedTransaction]:
    """The ranges that overlap offsets in [start, end). They are kept in the order of their markers, so that
    those which ended before `start` are not looked at, however many there are. `beginnings`: of this list or
    one that it follows; with it, few are looked at of those which began at or after `end`."""
    found = []
    at, count = bisect_left(aborted, start, key=_marker_offset), len(aborted)
    while at < count:
        if (
            beginnings is not None
            and at % ABORTED_BLOCK == 0
            and at + ABORTED_BLOCK <= count
            and beginnings.least(aborted, at // ABORTED_BLOCK) >= end
        ):
            at += ABORTED_BLOCK
            continue
        transaction = aborted[at]
        if transaction.first_offset < end:
            found.append(transaction)
        if transaction.last_stable_offset >= end:
            break
        at += 1
    return found


def _marker_offset(transaction: AbortedTransaction) -> int:
    return transaction.last_offset


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
