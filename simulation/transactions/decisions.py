"""No marker is written before it is: how a transaction ends is decided by a record of its coordinator.

Both are read off the flushes as they take effect in the store, whatever brokers say of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from penstock.metadata.image import WalRef
from penstock.transactions.transaction import State
from penstock.wire.batch import check_batch
from penstock.wire.errors import BatchError

_STATE = re.compile(rb"\x00\x00\x00.tx-[a-z0-9]+.{1,2}\x00\x01(.{8})(.{2}).{4}(.)", re.DOTALL)
"""A record of an id: key, size and version of the value; then producer id, epoch, time-out and state."""
_MARKER = re.compile(
    rb"\x00\x30\x00{4}.{16}(.{8})(.{2})\xff{4}\x00\x00\x00\x01.{1,6}\x08\x00\x00\x00([\x00\x01])\x0c\x00\x00",
    re.DOTALL,
)
"""A control batch from its attributes on: times, producer id, epoch; one record, and its key."""
_ATTRIBUTES_AT = 21
"""Where attributes stand in a batch."""

_KINDS = {
    State.PREPARE_COMMIT: 1,
    State.COMPLETE_COMMIT: 1,
    State.PREPARE_ABORT: 0,
    State.COMPLETE_ABORT: 0,
}


class Decisions:
    def __init__(self, fail: Callable[[str, str], None]) -> None:
        self._fail = fail
        self._decided: set[tuple[bytes, bytes, int]] = set()
        """Producer id, epoch, and whether it is a commit."""

    def look(self, wal: WalRef, contents: bytes) -> None:
        for found in _MARKER.finditer(contents):
            producer_id, epoch, kind = found.groups()
            if (producer_id, epoch, kind[0]) not in self._decided and _is_batch(contents, found.start()):
                number, at = int.from_bytes(producer_id, "big"), int.from_bytes(epoch, "big")
                what = "commit" if kind[0] else "abort"
                self._fail(
                    "T undecided", f"b{wal.broker} wrote that producer {number} epoch {at} has a {what}"
                )
        for producer_id, epoch, state in _STATE.findall(contents):
            if state[0] in _KINDS:
                self._decided.add((producer_id, epoch, _KINDS[State(state[0])]))


def _is_batch(contents: bytes, attributes_at: int) -> bool:
    """The index of a flush repeats the headers of its batches, one behind the other, and their markers."""
    try:
        check_batch(contents, attributes_at - _ATTRIBUTES_AT)
    except BatchError:
        return False
    return True
