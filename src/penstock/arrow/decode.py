"""Turns record batches into Arrow: the driver of the compiled loops.

`Decoder.decode` takes bytes in which whole batches of one partition lie, and gives Arrow record batches of a
bounded size. It keeps the remaining rows until there are enough for another one, or until `finish`. It leaves
out control batches, records outside the asked range and those of aborted transactions. It checks the CRC of
each batch that it decodes unless told otherwise.

If only offsets are wanted and the header of a compressed batch tells them, the batch stays compressed.

Per batch there is one pass over a row of numbers and one CRC; per record there is no Python at all.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import crc32c
import numpy as np
import pyarrow as pa

from penstock.arrow import kernels
from penstock.arrow.columns import COLUMNS, Buffers, Part, schema_of
from penstock.arrow.errors import CorruptLogError
from penstock.wire.batch import CODEC_MASK, CONTROL, CRC_FROM, TRANSACTIONAL
from penstock.wire.buffers import Buffer
from penstock.wire.compression import decompress
from penstock.wire.errors import WireError

# Rows and bytes per Arrow batch: large enough that per-batch cost vanishes, small enough for Spark's memory.
ROWS_MAX = 65_536
BYTES_TARGET = 8 * 1024 * 1024
# A row that waits for more keeps the whole window that it lies in.
HELD_BYTES_MAX = 32 * 1024 * 1024
# A batch may claim any size once decompressed; refuse what no broker would have accepted.
DECOMPRESSED_BYTES_MAX = 1 << 30
# What the header of a batch tells of each of its records, if no offset from its first to its last is missing.
HEADER_COLUMNS = frozenset(("topic", "partition", "offset", "timestampType"))
# Batches that claim more records are unpacked whatever is wanted of them, which shows whether that is so.
HEADER_ROWS_MAX = 16 * ROWS_MAX
# Length, attributes, two deltas, key and value length, header count: a byte each at the least.
RECORD_BYTES_MIN = 7


class AbortedRange(NamedTuple):
    """Records of `producer_id` from first_offset up to last_offset were aborted."""

    producer_id: int
    first_offset: int
    last_offset: int


def _first_offset(entry: AbortedRange) -> int:
    return entry.first_offset


class Decoder:
    """Decodes batches of one partition, within [low, high), into the columns asked for."""

    def __init__(
        self,
        topic: str,
        partition: int,
        columns: Collection[str],
        *,
        low: int = 0,
        high: int = 2**63 - 1,
        aborted: Collection[AbortedRange] = (),
        check_crc: bool = True,
    ) -> None:
        self.low = low
        """Where records begin to be wanted: may be moved on between calls."""
        self._topic = topic
        self._partition = partition
        self._columns = tuple(columns)
        self._schema = schema_of(columns)
        self._high = high
        self._aborted: dict[int, list[AbortedRange]] = {}
        for entry in sorted(aborted):
            self._aborted.setdefault(entry.producer_id, []).append(entry)
        self._aborting = np.array(list(self._aborted), dtype=np.int64)
        self._check_crc = check_crc
        self._constants: dict[str, pa.Array] = {}
        self._pending: list[Part] = []
        self._rows = self._size = self._held = 0
        self._want = (
            (kernels.WANT_KEY if "key" in columns else 0)
            | (kernels.WANT_VALUE if "value" in columns else 0)
            | (kernels.WANT_HEADERS if "headers" in columns else 0)
        )
        self._by_header = HEADER_COLUMNS.issuperset(columns)

    def scan(
        self,
        window: Buffer,
        pieces: Sequence[tuple[int, int]] | None = None,
        span: tuple[int, int] | None = None,
    ) -> Any:
        """The batches in `window` that are wanted, for `decode`. CorruptLogError if they are not as they were
        written. `pieces`: the start and length of each run of whole batches in it; if not given, it is one.
        `span`: the first offset of the first batch and the one after the last, if that is known."""
        view = memoryview(window)
        table = self._scan(np.frombuffer(window, dtype=np.uint8), pieces or ((0, len(view)),))
        if span is not None:
            self._require_span(table, *span)
        table = self._in_range(table)
        if self._check_crc:
            # Of markers and aborted batches too: a damaged one could pass for such.
            self._require_crc(view, table)
        return table

    def decode(self, window: Buffer, table: Any = None) -> Iterator[pa.RecordBatch]:
        """Take the batches in `window`; Arrow record batches as soon as they are full. `table`: what `scan`
        found in it; if not given, it is one run of whole batches."""
        source = np.frombuffer(window, dtype=np.uint8)
        view = memoryview(window)
        if table is None:
            table = self.scan(window)
        for part in self._parts(source, view, self._visible(table)):
            if self._rows + part.rows > ROWS_MAX or self._size + part.size > BYTES_TARGET:
                yield from self.finish()
            self._pending.append(part)
            self._rows += part.rows
            self._size += part.size
        if self._pending:
            self._held += len(view)
            if self._held > HELD_BYTES_MAX:
                yield from self.finish()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """What was taken and not given yet."""
        pending, rows = self._pending, self._rows
        self._pending = []
        self._rows = self._size = self._held = 0
        if pending:
            yield from self._emit(pending, rows)

    # Which batches.

    def _scan(self, source: Any, pieces: Sequence[tuple[int, int]]) -> Any:
        tables = [self._scan_piece(source, start, start + length) for start, length in pieces]
        return tables[0] if len(tables) == 1 else np.concatenate(tables)

    def _scan_piece(self, source: Any, start: int, end: int) -> Any:
        capacity = max(16, (end - start) // 4096)
        while True:
            table = np.empty((capacity, len(kernels.FIELDS)), dtype=np.int64)
            found = kernels.scan_batches(source, start, end, table)
            if found != -kernels.TABLE_FULL:
                break
            capacity = min(capacity * 8, (end - start) // kernels.HEADER_BYTES + 1)
        if found < 0:
            raise self._corrupt(kernels.REASONS[-found], None)
        table = table[:found]
        covered = int(table[-1, kernels.POSITION] + table[-1, kernels.SIZE]) if found else start
        if covered != end:
            last = int(table[-1, kernels.BASE_OFFSET]) if found else None
            raise self._corrupt("a batch that is cut short", last)
        return table

    def _require_span(self, table: Any, first: int, end: int) -> None:
        """No CRC covers base offsets: a batch with a wrong one would be passed over."""
        base = table[:, kernels.BASE_OFFSET]
        after = base + table[:, kernels.LAST_DELTA] + 1
        if not len(table) or base[0] != first or after[-1] != end or (base[1:] < after[:-1]).any():
            raise self._corrupt("batches that are not those of its index", first)

    def _in_range(self, table: Any) -> Any:
        base = table[:, kernels.BASE_OFFSET]
        wanted = (base + table[:, kernels.LAST_DELTA] >= self.low) & (base < self._high)
        return table if wanted.all() else table[wanted]

    def _visible(self, table: Any) -> Any:
        """Without control batches and those of aborted transactions."""
        base = table[:, kernels.BASE_OFFSET]
        attributes = table[:, kernels.ATTRIBUTES]
        wanted = (attributes & CONTROL) == 0
        if self._aborted:
            suspects = wanted & ((attributes & TRANSACTIONAL) != 0)
            suspects &= np.isin(table[:, kernels.PRODUCER_ID], self._aborting)
            for at in np.flatnonzero(suspects):
                # A producer has one transaction at a time, so its ranges lie one after the other.
                ranges = self._aborted[int(table[at, kernels.PRODUCER_ID])]
                near = bisect_right(ranges, base[at], key=_first_offset)
                wanted[at] = not near or ranges[near - 1].last_offset < base[at]
        return table if wanted.all() else table[wanted]

    def _require_crc(self, view: memoryview, table: Any) -> None:
        checksum = crc32c.crc32c
        places = table[:, (kernels.POSITION, kernels.SIZE, kernels.CRC, kernels.BASE_OFFSET)].tolist()
        for position, size, crc, base in places:
            if checksum(view[position + CRC_FROM : position + size]) != crc:
                raise self._corrupt("a wrong CRC", base)

    # Where their records are.

    def _parts(self, source: Any, view: memoryview, table: Any) -> Iterator[Part]:
        """Plain batches that lie in the window together, compressed ones each by itself."""
        codecs = table[:, kernels.ATTRIBUTES] & CODEC_MASK
        packed = np.flatnonzero(codecs).tolist()
        start = 0
        for at in (*packed, len(table)):
            if at > start:
                yield from self._plain(source, table[start:at])
            if at < len(table):
                yield self._unpacked(view, table[at : at + 1], int(codecs[at]))
            start = at + 1

    def _plain(self, source: Any, table: Any) -> Iterator[Part]:
        records = table.copy()
        records[:, kernels.POSITION] += kernels.HEADER_BYTES
        records[:, kernels.SIZE] -= kernels.HEADER_BYTES
        self._require_room(records)
        rows = np.cumsum(records[:, kernels.COUNT])
        sizes = np.cumsum(records[:, kernels.SIZE])
        start = 0
        rows_before = size_before = 0
        while start < len(records):
            end = min(
                int(np.searchsorted(rows, rows_before + ROWS_MAX, side="right")),
                int(np.searchsorted(sizes, size_before + BYTES_TARGET, side="right")),
            )
            end = max(end, start + 1)
            rows_after, size_after = int(rows[end - 1]), int(sizes[end - 1])
            yield Part(
                source, records[start:end], rows_after - rows_before, size_after - size_before, self.low
            )
            start, rows_before, size_before = end, rows_after, size_after

    def _unpacked(self, view: memoryview, row: Any, codec: int) -> Part:
        count = int(row[0, kernels.COUNT])
        if self._by_header and count == row[0, kernels.LAST_DELTA] + 1 and count <= HEADER_ROWS_MAX:
            return Part(None, row, count, 0, self.low)
        start = int(row[0, kernels.POSITION])
        block = view[start + kernels.HEADER_BYTES : start + int(row[0, kernels.SIZE])]
        try:
            data = decompress(codec, block, DECOMPRESSED_BYTES_MAX)
        except WireError as error:
            raise self._corrupt(
                f"a block that does not decompress ({error})", int(row[0, kernels.BASE_OFFSET])
            ) from None
        records = row.copy()
        records[0, kernels.POSITION] = 0
        records[0, kernels.SIZE] = len(data)
        self._require_room(records)
        source = np.frombuffer(data, dtype=np.uint8)
        return Part(source, records, int(records[0, kernels.COUNT]), len(data), self.low)

    def _require_room(self, records: Any) -> None:
        """Memory is taken by the counts that batches claim, so those must be possible."""
        impossible = records[:, kernels.COUNT] * RECORD_BYTES_MIN > records[:, kernels.SIZE]
        if impossible.any():
            base = int(records[int(impossible.argmax()), kernels.BASE_OFFSET])
            raise self._corrupt(kernels.REASONS[kernels.BAD_COUNT], base)

    # Their columns.

    def _emit(self, pending: list[Part], rows: int) -> Iterator[pa.RecordBatch]:
        header_rows = rows + 1024
        while True:
            buffers = Buffers(pending, rows, header_rows, self._want)
            fault = 0
            for part in pending:
                fault = buffers.decode(part, self._high, self._want)
                if fault:
                    break
            if fault != -kernels.HEADERS_FULL:
                break
            header_rows *= 8
        if fault:
            base = int(part.table[int(buffers.cursor[kernels.FAULT_BATCH]), kernels.BASE_OFFSET])
            raise self._corrupt(kernels.REASONS[-fault], base)
        if not buffers.rows:
            return
        batch = pa.RecordBatch.from_arrays(
            [self._column(name, buffers) for name in self._columns], schema=self._schema
        )
        yield from _slices(batch)

    def _column(self, name: str, buffers: Buffers) -> pa.Array:
        if name == "topic":
            return self._constant(name, self._topic, buffers.rows)
        if name == "partition":
            return self._constant(name, self._partition, buffers.rows)
        return buffers.column(name)

    def _constant(self, name: str, value: str | int, rows: int) -> pa.Array:
        held = self._constants.get(name)
        if held is None or len(held) < rows:
            held = self._constants[name] = pa.repeat(pa.scalar(value, COLUMNS[name]), rows)
        return held[:rows]

    def _corrupt(self, reason: str, offset: int | None) -> CorruptLogError:
        where = "" if offset is None else f" in the batch at offset {offset}"
        return CorruptLogError(f"Topic {self._topic!r} partition {self._partition} holds {reason}{where}.")


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in pieces that Spark can take: one compressed batch may hold far more than it should."""
    parts = max(-(-batch.num_rows // (2 * ROWS_MAX)), -(-batch.nbytes // (2 * BYTES_TARGET)))
    if parts <= 1:
        yield batch
        return
    step = -(-batch.num_rows // parts)
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)
