"""One file of a write-ahead log, for everybody who reads one: sealers, recovery, Spark, audits.

`LogFile.flushes` walks the flushes in order. Where something is not as it was written, it looks for what
follows: a later flush of the log is begun only when all before it are in the file. If one follows, or the
caller knows by other means that more was there (a later file, the count of a sealed log), the flush is
damaged. What can be salvaged of it is (`log.salvage`), and the rest is told in `ScannedFlush.damage`. If
nothing follows, it may be one that is being written, a torn one, or damage. Who seals a log tells these apart
by the boot that wrote the file:

    same boot, not synced   A process that was killed leaves a file that ends within a flush. A flush of full
                            length that is not whole is damaged.
    synced                  All flushes but the last were on the disk before the next was begun. The last may
                            be torn by a loss of power, or by a sync that failed: then sectors of it are
                            zeros. If they are not, it is damaged.
    another boot            Any flush after the last whole one may be torn.
"""

import logging
import os
from collections.abc import Iterator, Sequence

from penstock.log.checking import logged_problem
from penstock.log.flush import (
    FILE_HEADER_SIZE,
    FILE_SYNCED,
    FLUSH_HEADER_SIZE,
    NONCE_AT,
    FileHeader,
    FlushError,
    FlushHeader,
    check_index,
    decode_file_header,
    decode_flush_header,
    iter_blocks,
    unpack_file_body,
)
from penstock.log.salvage import (
    FlushDamage,
    has_hole,
    is_cut_short,
    is_off_by_a_byte,
    mended_file_header,
    salvage,
)
from penstock.storage.files import Files
from penstock.storage.wal import ScannedFlush
from penstock.wire.batch import HEADER

logger = logging.getLogger(__name__)

_WINDOW_BYTES = 256 * 1024
_UNKNOWN_BOOT = bytes(16)
_ANY_BOOT = b"?" * 16


class LogFile:
    """Closed by `close`. All calls may read the disk."""

    def __init__(
        self, files: Files, path: str, key: str, first_flush: int, boot: bytes, nonce: bytes | None = None
    ) -> None:
        """`boot`: the present one. `nonce`: of the log, if another file told it."""
        self.key = key
        self.first_flush = first_flush
        self.mended = 0
        """How many flushes, and file headers, were not as they were written and are known all the same."""
        self._files = files
        self._window = b""
        self._window_at = 0
        self._fd = files.open(path, os.O_RDONLY)
        try:
            self.size = files.size(self._fd)
            self._header = header = self._read_header(nonce)
        except BaseException:
            files.close(self._fd)
            raise
        self.synced = header is not None and bool(header.flags & FILE_SYNCED)
        self.same_boot = header is not None and boot != _UNKNOWN_BOOT and header.boot in (boot, _ANY_BOOT)

    def close(self) -> None:
        self._files.close(self._fd)

    @property
    def nonce(self) -> bytes | None:
        return self._header.nonce if self._header is not None else None

    def _read_header(self, nonce: bytes | None) -> FileHeader | None:
        """The header; None if the file has none, or nothing of it is known."""
        raw = self._bytes(0, FILE_HEADER_SIZE)
        try:
            header = decode_file_header(raw)
            if header.first_flush == self.first_flush:
                return header
        except FlushError:
            pass
        if len(raw) < FILE_HEADER_SIZE:
            return None
        self.mended += 1
        first = self._header_at(FILE_HEADER_SIZE)
        proven = mended_file_header(raw, self.first_flush)
        # What is not known to be of another boot is judged by the stricter rules.
        header = proven or unpack_file_body(raw[:-4])._replace(boot=_ANY_BOOT)
        known = {told for told in (nonce, first.nonce if first is not None else None) if told is not None}
        if header.first_flush == self.first_flush and known <= {header.nonce}:
            return header
        if nonce is None and first is not None and first.number == self.first_flush:
            nonce = first.nonce
        if nonce is None:
            return None
        return FileHeader(0, 0, 0, self.first_flush, self.first_flush, nonce, _ANY_BOOT)

    # Walking.

    def flushes(
        self,
        number: int | None = None,
        position: int = FILE_HEADER_SIZE,
        stop: int | None = None,
        *,
        sealed: bool = False,
    ) -> Iterator[ScannedFlush]:
        """The flushes from `number` on, the first of the file if not given, which begins at `position`. With
        `stop`, all up to it were written: what is not whole now comes as damaged. If the log is `sealed`,
        nobody is writing what is left at the end: that comes as damaged too, unless it is cut short.

        If the file ends where a flush ends, what should follow may lie in a file that is missing. That proves
        nothing, and nothing comes; except where a loss of power may have cut the file."""
        number = self.first_flush if number is None else number
        time_ms = 0
        while stop is None or number < stop:
            flush = self._whole_at(position, number)
            if flush is None:
                damaged = list(self._not_whole(position, number, time_ms, stop, sealed=sealed))
                if not damaged:
                    return
                yield from damaged
                flush = damaged[-1]
            else:
                yield flush
            number, time_ms = flush.number + 1, flush.time_ms
            position = flush.position + flush.size

    def _whole_at(self, position: int, number: int) -> ScannedFlush | None:
        header = self._header_at(position)
        if header is None or header.number != number or header.nonce != self.nonce:
            return None
        if position + header.size > self.size:
            return None
        index = self._bytes(position + FLUSH_HEADER_SIZE + header.data_size, header.index_size)
        try:
            check_index(header, index)
        except FlushError:
            return None
        return ScannedFlush(number, self.key, position, header.time_ms, header.size, index)

    def _header_at(self, position: int) -> FlushHeader | None:
        try:
            return decode_flush_header(self._bytes(position, FLUSH_HEADER_SIZE))
        except FlushError:
            return None

    def _not_whole(
        self, position: int, number: int, time_ms: int, stop: int | None, *, sealed: bool
    ) -> Iterator[ScannedFlush]:
        """The flush at `position`, salvaged or damaged, and with it those of which no header is there.
        Nothing if it may be the end of the log."""
        following = self._following(position, number)
        at_end = following is None and stop is None
        end = following[0] if following is not None else self.size
        region = self._bytes(position, end - position)
        if not region and (at_end or self.synced or self.same_boot):
            return
        if at_end and is_cut_short(region, number, self.nonce):
            return
        found = salvage(region, number, self.nonce, time_ms)
        if found.damage is not None and at_end and not sealed:
            return
        yield ScannedFlush(number, self.key, position, found.time_ms, found.size, found.blocks, found.damage)
        if found.damage is None:
            self.mended += 1
        elif found.size == len(region) and not at_end:
            last = following[1] if following is not None else stop
            assert last is not None
            for other in range(number + 1, last):
                gone = FlushDamage("it is not there")
                yield ScannedFlush(other, self.key, end, found.time_ms, 0, b"", gone)

    def _following(self, position: int, number: int) -> tuple[int, int] | None:
        """Where the next flush header lies whose number is above `number`, and that number."""
        nonce = self.nonce
        if nonce is None:
            return None
        at = position + 1 + NONCE_AT
        while at < self.size:
            window = self._bytes(at, _WINDOW_BYTES)
            found = window.find(nonce)
            while found >= 0:
                start = at + found - NONCE_AT
                header = self._header_at(start)
                if header is not None and header.nonce == nonce and header.number > number:
                    return start, header.number
                found = window.find(nonce, found + 1)
            at += max(len(window) - len(nonce) + 1, 1)
        return None

    def tell(self, flushes: Sequence[ScannedFlush]) -> None:
        """Say what was found, if something is not as it was written."""
        damaged = sum(flush.damage is not None for flush in flushes)
        if self.mended or damaged:
            logger.warning(
                "a write-ahead file is not as it was written key=%s flushes=%d salvaged=%d damaged=%d",
                self.key, len(flushes), self.mended, damaged,
            )  # fmt: skip

    # Judging the end of a log.

    def sync(self, position: int = 0) -> None:
        """What is read from `position` on after this is on the disk. A sync that failed, of whoever wrote,
        leaves pages in memory that look as if they were: they are dropped."""
        self._files.fdatasync(self._fd)
        self._files.drop_cached(self._fd, position)
        self._window = b""

    def is_whole(self, flush: ScannedFlush) -> bool:
        """Whether the batches of a flush are, too."""
        return flush.damage is None and next(self._hurt_batches(flush), None) is None

    def is_torn(self, flush: ScannedFlush) -> bool:
        """Whether a flush that is not whole may never have been: sectors of it were not written. What is
        explained by a changed byte was."""
        if flush.damage is None and all(
            is_off_by_a_byte(stored, header) for stored, header in self._hurt_batches(flush)
        ):
            return False
        return has_hole(self._bytes(flush.position, flush.size), flush.position)

    def _hurt_batches(self, flush: ScannedFlush) -> Iterator[tuple[bytes, bytes]]:
        """Batches that are not what the index says: their bytes, and the header that they should have."""
        for block in iter_blocks(flush.blocks):
            for batch in block.batches():
                stored = self._files.pread(self._fd, batch.header.size, flush.position + batch.position)
                if logged_problem(stored, batch.header) is not None:
                    yield stored, HEADER.pack(*batch.header)

    def _bytes(self, position: int, length: int) -> bytes:
        at = position - self._window_at
        if at < 0 or at + length > len(self._window):
            self._window = self._files.pread(self._fd, max(length, _WINDOW_BYTES), position)
            self._window_at = position
            at = 0
        return self._window[at : at + length]
