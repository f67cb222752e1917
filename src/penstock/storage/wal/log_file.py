"""One file of a write-ahead log, for all its readers: sealers, recovery, Spark, audits.

`LogFile.flushes` walks the flushes in order. If one is not as it was written, it looks for a later flush: a
flush of the log is begun only when all before it are in the file. If one follows, or the caller knows by
other means that more was there (a later file, the count of a sealed log), the flush is damaged. `log.salvage`
saves as much of it as possible, and `ScannedFlush.damage` tells the rest. If nothing follows, it may be one
that is being written, a torn one, or damage. The sealer of a log tells these apart by the boot that wrote the
file:

    same boot, not synced   A process that was killed leaves a file that ends within a flush. A flush of full
                            length that is not whole is damaged.
    synced                  All flushes but the last were on the disk before the next was begun. The last may
                            be torn by a loss of power, or by a sync that failed: then sectors of it are
                            zeros. If they are not, it is damaged.
    another boot            A loss of power takes unsynced bytes: sectors anywhere in the file are zeros, and
                            the file ends anywhere. A flush with such a hole is torn, even if whole ones
                            follow. So is a flush if too little is left to tell its contents. If its index is
                            whole, the batches that the hole spared are whole too. A flush that is hurt in
                            another way is damaged, if a whole flush follows.

One process wrote all files of a log: if the header of one is gone, the others tell boot and sync. A file
whose header is whole and names another log, or another place in this one, was put here by a person, or by a
program that copies. What should be here is unknown then, and nothing of it counts (`MisplacedFileError`).
"""

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

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
    without_batches,
)
from penstock.log.salvage import (
    SECTOR_BYTES,
    FlushDamage,
    holes,
    is_cut_short,
    is_off_by_a_byte,
    mended_file_header,
    salvage,
)
from penstock.metadata.image import WalRef
from penstock.storage.stores.files import Files
from penstock.storage.stores.objects import DamagedObjectError
from penstock.storage.wal.port import ScannedFlush
from penstock.wire.batch import HEADER

logger = logging.getLogger(__name__)

_WINDOW_BYTES = 256 * 1024
_UNKNOWN_BOOT = bytes(16)
_ANY_BOOT = b"?" * 16


class MisplacedFileError(DamagedObjectError):
    """A file of a log lies under a name that is not its own."""


def log_header(files: Files, paths: Iterable[str], wal: WalRef) -> FileHeader | None:
    """What the files of a log say of it: the first header that is whole, and of this log. None if there is
    none."""
    for path in paths:
        try:
            fd = files.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue  # Deleted since the directory was listed.
        try:
            header = decode_file_header(files.pread(fd, FILE_HEADER_SIZE, 0))
        except FlushError:
            continue
        finally:
            files.close(fd)
        if WalRef(header.broker, header.epoch) == wal:
            return header
    return None


_TORN = FlushDamage("a loss of power took it", complete=True, torn=True)


def _is_blank(header: bytes) -> bool:
    """Whether a file header never reached the disk: zeros, of which rot may have changed a byte."""
    return len(header) - header.count(0) <= 1


class _HurtBatch(NamedTuple):
    position: int
    """In its flush."""
    stored: bytes
    header: bytes
    """As it should be."""


class LogFile:
    """Closed by `close`. All calls may read the disk."""

    def __init__(
        self,
        files: Files,
        path: str,
        key: str,
        first_flush: int,
        boot: bytes,
        log: FileHeader | None = None,
        *,
        wal: WalRef,
        syncs: bool = True,
    ) -> None:
        """`boot`: the present one. `log`: the header of some file of the same log, if one is known.
        `wal`: the log. `syncs`: whether a loss of power took nothing of a log none of whose files
        tells. MisplacedFileError."""
        self.key = key
        self.first_flush = first_flush
        self.mended = 0
        """How many flushes, and file headers, were not as they were written and are known all the same."""
        self._files = files
        self._wal = wal
        self._syncs = syncs
        self._window = b""
        self._window_at = 0
        self._fd = files.open(path, os.O_RDONLY)
        try:
            self.size = files.size(self._fd)
            self._header = header = self._read_header(log)
        except BaseException:
            files.close(self._fd)
            raise
        self.synced = header is not None and bool(header.flags & FILE_SYNCED)
        self.same_boot = header is not None and boot != _UNKNOWN_BOOT and header.boot in (boot, _ANY_BOOT)
        guessed = header is None or header.boot == _ANY_BOOT
        self._waited_for_disk = self.synced or (syncs and guessed)
        told = header or log
        self.may_be_torn = (
            not told.flags & FILE_SYNCED and (boot == _UNKNOWN_BOOT or told.boot not in (boot, _ANY_BOOT))
            if told is not None
            else not syncs and _is_blank(self._bytes(0, FILE_HEADER_SIZE))
        )
        """Whether a loss of power may have taken any of it."""
        head = self._bytes(0, FILE_HEADER_SIZE)
        self.is_empty = log is None and (
            len(head) < FILE_HEADER_SIZE or (_is_blank(head) and not self._has_more())
        )
        """Whether nothing is known of it, nor of the log."""

    def _has_more(self) -> bool:
        """Whether anything lies behind the header."""
        return any(
            any(self._bytes(at, _WINDOW_BYTES)) for at in range(FILE_HEADER_SIZE, self.size, _WINDOW_BYTES)
        )

    def close(self) -> None:
        self._files.close(self._fd)

    @property
    def nonce(self) -> bytes | None:
        return self._header.nonce if self._header is not None else None

    def _read_header(self, log: FileHeader | None) -> FileHeader | None:
        """The header; None if the file has none, or nothing of it is known."""
        raw = self._bytes(0, FILE_HEADER_SIZE)
        try:
            return self._own(decode_file_header(raw))
        except FlushError:
            pass
        if len(raw) < FILE_HEADER_SIZE:
            return None
        self.mended += 1
        first = self._header_at(FILE_HEADER_SIZE)
        known = {one.nonce for one in (log, first) if one is not None}
        proven = mended_file_header(raw, self.first_flush)
        if proven is not None and known <= {proven.nonce}:
            return proven
        if log is not None:
            return log._replace(number=self.first_flush, first_flush=self.first_flush)
        blank = _is_blank(raw)
        if blank and not self._syncs:
            return None
        # What is not known to be of another boot is judged by the stricter rules.
        header = unpack_file_body(raw[:-4])
        if not blank and header.first_flush == self.first_flush and known <= {header.nonce}:
            return header._replace(boot=_ANY_BOOT)
        if first is None or first.number != self.first_flush:
            return None
        return FileHeader(0, 0, 0, self.first_flush, self.first_flush, first.nonce, _ANY_BOOT)

    def _own(self, header: FileHeader) -> FileHeader:
        if (WalRef(header.broker, header.epoch), header.first_flush) == (self._wal, self.first_flush):
            return header
        raise MisplacedFileError(
            f"{self.key} holds flush {header.first_flush} on of the log of broker {header.broker}, "
            f"epoch {header.epoch}: it was put there under a wrong name; take it away, and bring back from "
            "a backup what was there before, if something was"
        )

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
            if flush is not None:
                found = [flush]
            else:
                found = list(self._not_whole(position, number, time_ms, stop, sealed=sealed))
            if not found:
                return
            yield from map(self._spared, found) if self.may_be_torn else found
            flush = found[-1]
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
        cut_short = following is None and is_cut_short(region, number, self.nonce)
        if at_end and cut_short:
            return
        found = salvage(region, number, self.nonce, time_ms)
        if found.damage is not None and at_end and not sealed:
            return
        if (
            self.may_be_torn
            and found.damage is not None
            # Where nothing bounds what it held, all is gone that the power may have taken.
            and (cut_short or not found.damage.complete or self._holes(position, found.size))
        ):
            found = found._replace(blocks=b"", damage=_TORN)
        yield ScannedFlush(number, self.key, position, found.time_ms, found.size, found.blocks, found.damage)
        if found.damage is None:
            self.mended += 1
        elif found.size == len(region) and not at_end:
            # The header that follows may be of a flush beyond the end of the log.
            last = min(one for one in (following and following[1], stop) if one is not None)
            for other in range(number + 1, last):
                gone = _TORN if self.may_be_torn else FlushDamage("it is not there")
                yield ScannedFlush(other, self.key, end, found.time_ms, 0, b"", gone)

    def _spared(self, flush: ScannedFlush) -> ScannedFlush:
        """The flush without the batches that a hole took."""
        hurt = list(self._hurt_batches(flush)) if flush.damage is None else []
        if not hurt:
            return flush
        gaps = self._holes(flush.position, flush.size)
        gone = {
            one.position
            for one in hurt
            if any(start < one.position + len(one.stored) and one.position < end for start, end in gaps)
            and not is_off_by_a_byte(one.stored, one.header)
        }
        if not gone:
            return flush
        return flush._replace(blocks=without_batches(flush.blocks, gone), damage=_TORN)

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
        hurt = [flush.damage for flush in flushes if flush.damage is not None]
        torn = sum(damage.torn for damage in hurt)
        if self.mended or hurt:
            logger.warning(
                "a write-ahead file is not as it was written"
                " key=%s flushes=%d salvaged=%d torn=%d damaged=%d",
                self.key, len(flushes), self.mended, torn, len(hurt) - torn,
            )  # fmt: skip

    # Judging the end of a log.

    def sync(self, position: int = 0) -> None:
        """What is read from `position` on after this is on the disk. A sync that failed, of whoever wrote,
        leaves pages in memory that look as if they were: they are dropped.

        If the writer did not wait for the disk, what memory has was acknowledged. It counts, whatever the
        disk says, and is safe once it is settled from there."""
        if self._waited_for_disk:
            self._files.fdatasync(self._fd)
            self._files.drop_cached(self._fd, position)
            self._window = b""
            return
        try:
            self._files.fdatasync(self._fd)
        except OSError as error:
            logger.warning(
                "a write-ahead file could not be synced, and was read from memory key=%s: %s", self.key, error
            )

    def is_whole(self, flush: ScannedFlush) -> bool:
        """Whether the batches of a flush are, too."""
        return flush.damage is None and next(self._hurt_batches(flush), None) is None

    def is_torn(self, flush: ScannedFlush) -> bool:
        """Whether a flush that is not whole may never have been: sectors of it were not written. What is
        explained by a changed byte was."""
        if flush.damage is not None and flush.damage.torn:
            return True
        if flush.damage is None and all(
            is_off_by_a_byte(one.stored, one.header) for one in self._hurt_batches(flush)
        ):
            return False
        return bool(self._holes(flush.position, flush.size))

    def _holes(self, position: int, size: int) -> list[tuple[int, int]]:
        """Those in a flush. The sector that it ends in is looked at whole."""
        end = -(-(position + size) // SECTOR_BYTES) * SECTOR_BYTES
        return holes(self._bytes(position, min(end, self.size) - position), position)

    def _hurt_batches(self, flush: ScannedFlush) -> Iterator["_HurtBatch"]:
        """Batches that are not what the index says."""
        for block in iter_blocks(flush.blocks):
            for batch in block.batches():
                stored = self._read(flush.position + batch.position, batch.header.size)
                if logged_problem(stored, batch.header) is not None:
                    yield _HurtBatch(batch.position, stored, HEADER.pack(*batch.header))

    def _bytes(self, position: int, length: int) -> bytes:
        at = position - self._window_at
        if at < 0 or at + length > len(self._window):
            self._window = self._read(position, max(length, _WINDOW_BYTES))
            self._window_at = position
            at = 0
        return self._window[at : at + length]

    def _read(self, position: int, length: int) -> bytes:
        """As much as the file holds: what a short read leaves out is not taken for missing."""
        read = self._files.pread(self._fd, length, position)
        while len(read) < length:
            more = self._files.pread(self._fd, length - len(read), position + len(read))
            if not more:
                break
            read += more
        return read
