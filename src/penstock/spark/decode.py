"""From record batches to Arrow: the driver of the compiled loops.

`Decoder.add(run)` takes bytes that hold whole batches of one partition, `Decoder.drain()` gives Arrow record
batches of a bounded size. Control batches and records outside the asked range or of aborted transactions are
left out; the CRC of each batch is checked unless told otherwise.
"""

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import crc32c
import numpy as np
import pyarrow as pa

from penstock.spark import kernels
from penstock.wire.buffers import Buffer
from penstock.wire.compression import decompress

# Rows and bytes per Arrow batch: large enough that per-batch cost vanishes, small enough for Spark's memory.
ROWS_MAX = 65_536
BYTES_TARGET = 4 * 1024 * 1024
# A batch may claim any size once decompressed; refuse what no broker would have accepted.
DECOMPRESSED_BYTES_MAX = 1 << 30
CRC_FROM = 21
CODEC_MASK, TRANSACTIONAL, CONTROL = 0x07, 0x10, 0x20

HEADER_TYPE = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
COLUMNS: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(HEADER_TYPE),
}


class CorruptLogError(Exception):
    """The stored bytes contradict themselves. The message says where."""


class AbortedRange(NamedTuple):
    """Records of `producer_id` from first_offset up to last_offset were aborted."""

    producer_id: int
    first_offset: int
    last_offset: int


class Decoder:
    """Decodes runs of one partition, within [low, high), into the columns asked for."""

    def __init__(
        self,
        topic: str,
        partition: int,
        columns: Collection[str],
        *,
        low: int = 0,
        high: int = 2**63 - 1,
        aborted: Collection[AbortedRange] = (),
        read_uncommitted: bool = False,
        check_crc: bool = True,
    ) -> None:
        self._topic = topic
        self._partition = partition
        self._columns = tuple(columns)
        self._low = low
        self._high = high
        self._aborted: dict[int, list[AbortedRange]] = {}
        for entry in aborted:
            self._aborted.setdefault(entry.producer_id, []).append(entry)
        self._read_uncommitted = read_uncommitted
        self._check_crc = check_crc
        self._want = (
            (kernels.WANT_KEY if "key" in columns else 0)
            | (kernels.WANT_VALUE if "value" in columns else 0)
            | (kernels.WANT_HEADERS if "headers" in columns else 0)
        )

    def decode(self, run: Buffer) -> Iterator[pa.RecordBatch]:
        """The records of a run of whole batches, as Arrow record batches."""
        src = np.frombuffer(run, dtype=np.uint8)
        table = self._scan(src, len(run))
        view = memoryview(run)
        pending: list[tuple[Any, Any]] = []
        rows = size = 0
        for src_part, part in self._parts(src, view, table):
            part_rows = int(part[:, kernels.COUNT].sum())
            part_bytes = int(part[:, kernels.SIZE].sum())
            if pending and (rows + part_rows > ROWS_MAX or size + part_bytes > BYTES_TARGET):
                yield from self._emit(pending, rows)
                pending, rows, size = [], 0, 0
            pending.append((src_part, part))
            rows += part_rows
            size += part_bytes
        if pending:
            yield from self._emit(pending, rows)

    def _scan(self, src: Any, length: int) -> Any:
        capacity = max(16, length // 4096)
        while True:
            table = np.empty((capacity, len(kernels.FIELDS)), dtype=np.int64)
            found = kernels.scan_batches(src, 0, length, table)
            if found != -kernels.TABLE_FULL:
                break
            capacity = min(capacity * 8, length // kernels.HEADER_BYTES + 1)
        if found < 0:
            raise self._corrupt(kernels.REASONS[-found], None)
        table = table[:found]
        covered = int(table[-1, kernels.POSITION] + table[-1, kernels.SIZE]) if found else 0
        if covered != length:
            last = int(table[-1, kernels.BASE_OFFSET]) if found else None
            raise self._corrupt("a batch that is cut short", last)
        return table

    def _parts(self, src: Any, view: memoryview, table: Any) -> Iterator[tuple[Any, Any]]:
        """(source bytes, table of batches whose records lie in it): plain batches together, others alone."""
        plain_from = 0
        position = 0
        bytes_so_far = rows_so_far = 0
        for index in range(len(table)):
            row = table[index]
            plain = self._admit(view, row) and not row[kernels.ATTRIBUTES] & CODEC_MASK
            if plain:
                bytes_so_far += int(row[kernels.SIZE])
                rows_so_far += int(row[kernels.COUNT])
                if bytes_so_far < BYTES_TARGET and rows_so_far < ROWS_MAX:
                    continue
                position = index + 1
            else:
                position = index
            if position > plain_from:
                yield src, self._records_table(table[plain_from:position])
            bytes_so_far = rows_so_far = 0
            plain_from = index + 1
            if not plain and self._wanted(row):
                yield self._decompressed(view, row)
        if len(table) > plain_from:
            yield src, self._records_table(table[plain_from:])

    def _wanted(self, row: Any) -> bool:
        base = int(row[kernels.BASE_OFFSET])
        last = base + int(row[kernels.LAST_DELTA])
        if last < self._low or base >= self._high or row[kernels.ATTRIBUTES] & CONTROL:
            return False
        if self._read_uncommitted or not row[kernels.ATTRIBUTES] & TRANSACTIONAL:
            return True
        ranges = self._aborted.get(int(row[kernels.PRODUCER_ID]), ())
        return not any(r.first_offset <= base <= r.last_offset for r in ranges)

    def _admit(self, view: memoryview, row: Any) -> bool:
        """Whether the batch is wanted at all; its CRC is checked if it is."""
        if not self._wanted(row):
            return False
        if self._check_crc:
            start = int(row[kernels.POSITION])
            stop = start + int(row[kernels.SIZE])
            if crc32c.crc32c(view[start + CRC_FROM : stop]) != row[kernels.CRC]:
                raise self._corrupt("a wrong CRC", int(row[kernels.BASE_OFFSET]))
        return True

    @staticmethod
    def _records_table(part: Any) -> Any:
        records = part.copy()
        records[:, kernels.POSITION] += kernels.HEADER_BYTES
        records[:, kernels.SIZE] -= kernels.HEADER_BYTES
        return records

    def _decompressed(self, view: memoryview, row: Any) -> tuple[Any, Any]:
        start = int(row[kernels.POSITION])
        block = view[start + kernels.HEADER_BYTES : start + int(row[kernels.SIZE])]
        try:
            data = decompress(int(row[kernels.ATTRIBUTES]) & CODEC_MASK, block, DECOMPRESSED_BYTES_MAX)
        except Exception as error:
            raise self._corrupt(
                f"a block that does not decompress ({error})", int(row[kernels.BASE_OFFSET])
            ) from error
        records = row.reshape(1, -1).copy()
        records[0, kernels.POSITION] = 0
        records[0, kernels.SIZE] = len(data)
        return np.frombuffer(data, dtype=np.uint8), records

    def _emit(self, pending: list[tuple[Any, Any]], rows: int) -> Iterator[pa.RecordBatch]:
        header_rows = rows + 1024
        while True:
            buffers = _Buffers(pending, rows, header_rows, self._want)
            fault = 0
            for src, part in pending:
                fault = buffers.decode(src, part, self._low, self._high, self._want)
                if fault:
                    break
            if fault == -kernels.HEADERS_FULL:
                header_rows *= 8
                continue
            break
        if fault:
            base = int(part[int(buffers.cursor[kernels.FAULT_BATCH]), kernels.BASE_OFFSET])
            raise self._corrupt(kernels.REASONS.get(-fault, "records that contradict their batch"), base)
        if buffers.rows:
            yield buffers.arrow(self._columns, self._topic, self._partition)

    def _corrupt(self, reason: str, offset: int | None) -> CorruptLogError:
        where = "" if offset is None else f" in the batch at offset {offset}"
        return CorruptLogError(f"topic {self._topic!r} partition {self._partition} holds {reason}{where}")


class _Buffers:
    """Column buffers of one Arrow record batch while they are filled."""

    def __init__(self, pending: list[tuple[Any, Any]], rows: int, header_rows: int, want: int) -> None:
        size = sum(int(part[:, kernels.SIZE].sum()) for _, part in pending)
        self.cursor = np.zeros(kernels.CURSOR_SLOTS, dtype=np.int64)
        self._offsets = np.empty(rows, dtype=np.int64)
        self._timestamps = np.empty(rows, dtype=np.int64)
        self._append_time = np.empty(rows, dtype=np.uint8)
        self._key = _Variable(rows, size if want & kernels.WANT_KEY else 0)
        self._value = _Variable(rows, size if want & kernels.WANT_VALUE else 0)
        headers = header_rows if want & kernels.WANT_HEADERS else 0
        header_bytes = size if headers else 0
        self._header_ends = np.zeros(rows + 1 if headers else 1, dtype=np.int32)
        self._header_key = _Variable(headers, header_bytes)
        self._header_value = _Variable(headers, header_bytes)

    @property
    def rows(self) -> int:
        return int(self.cursor[kernels.ROW])

    def decode(self, src: Any, part: Any, low: int, high: int, want: int) -> int:
        key, value, name, header = self._key, self._value, self._header_key, self._header_value
        fault: int = kernels.decode_batches(
            src, part, 0, len(part), low, high, want, self.cursor,
            self._offsets, self._timestamps, self._append_time,
            key.ends, key.data, key.valid, value.ends, value.data, value.valid,
            self._header_ends, name.ends, name.data, header.ends, header.data, header.valid,
        )  # fmt: skip
        return fault

    def arrow(self, columns: tuple[str, ...], topic: str, partition: int) -> pa.RecordBatch:
        rows = self.rows
        cursor = self.cursor
        arrays: list[pa.Array] = []
        for column in columns:
            match column:
                case "key":
                    arrays.append(self._key.arrow(pa.binary(), rows, int(cursor[kernels.KEY_BYTES])))
                case "value":
                    arrays.append(self._value.arrow(pa.binary(), rows, int(cursor[kernels.VALUE_BYTES])))
                case "topic":
                    arrays.append(pa.repeat(pa.scalar(topic, pa.string()), rows))
                case "partition":
                    arrays.append(pa.repeat(pa.scalar(partition, pa.int32()), rows))
                case "offset":
                    arrays.append(_fixed(self._offsets, rows, pa.int64()))
                case "timestamp":
                    arrays.append(_fixed(self._timestamps, rows, COLUMNS["timestamp"]))
                case "timestampType":
                    arrays.append(pa.array(self._append_time[:rows].astype(np.int32)))
                case "headers":
                    arrays.append(self._headers(rows))
        return pa.RecordBatch.from_arrays(arrays, names=list(columns))

    def _headers(self, rows: int) -> pa.Array:
        count = int(self.cursor[kernels.HEADER_ROW])
        names = self._header_key.arrow(
            pa.string(), count, int(self.cursor[kernels.HEADER_KEY_BYTES]), nullable=False
        )
        values = self._header_value.arrow(pa.binary(), count, int(self.cursor[kernels.HEADER_VALUE_BYTES]))
        entries = pa.StructArray.from_arrays([names, values], fields=list(HEADER_TYPE))
        # A record without headers has a null list, as in Spark's Kafka source.
        present = np.diff(self._header_ends[: rows + 1]) > 0
        validity = pa.py_buffer(np.packbits(present, bitorder="little"))
        ends = pa.py_buffer(self._header_ends[: rows + 1])
        return pa.Array.from_buffers(COLUMNS["headers"], rows, [validity, ends], children=[entries])


class _Variable:
    """One variable-length column: ends, bytes and validity bits."""

    def __init__(self, rows: int, size: int) -> None:
        self.ends = np.zeros(rows + 1, dtype=np.int32)
        self.data = np.empty(size, dtype=np.uint8)
        self.valid = np.zeros((rows >> 3) + 1, dtype=np.uint8)

    def arrow(self, kind: pa.DataType, rows: int, size: int, *, nullable: bool = True) -> pa.Array:
        valid = pa.py_buffer(self.valid) if nullable else None
        return pa.Array.from_buffers(
            kind, rows, [valid, pa.py_buffer(self.ends[: rows + 1]), pa.py_buffer(self.data[:size])]
        )


def _fixed(values: Any, rows: int, kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(values[:rows])])
