"""The columns of a topic as Arrow has them, and their buffers while the compiled loops fill them."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.arrow import kernels, memory
from penstock.wire.batch import LOG_APPEND_TIME

HEADER_TYPE = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
COLUMNS: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.field("element", HEADER_TYPE)),
}


def schema_of(columns: Iterable[str]) -> pa.Schema:
    return pa.schema([pa.field(name, COLUMNS[name]) for name in columns])


class Part(NamedTuple):
    """Batches whose records lie in one source: where each one's records begin, and their other fields."""

    source: Any
    """None: it is not unpacked, its header says enough."""
    table: Any
    rows: int
    size: int
    low: int
    """Records below this offset are not wanted."""


class Buffers:
    """Column buffers of one Arrow record batch while they are filled."""

    def __init__(self, pending: Sequence[Part], rows: int, header_rows: int, want: int) -> None:
        size = sum(part.size for part in pending)
        self.cursor = np.zeros(kernels.CURSOR_SLOTS, dtype=np.int64)
        self._offsets = memory.array(rows, np.int64)
        self._timestamps = memory.array(rows, np.int64)
        self._append_time = memory.array(rows, np.uint8)
        self._key = _Variable(rows if want & kernels.WANT_KEY else 0, size)
        self._value = _Variable(rows if want & kernels.WANT_VALUE else 0, size)
        headers = header_rows if want & kernels.WANT_HEADERS else 0
        self._header_ends = np.zeros(rows + 1 if headers else 1, dtype=np.int32)
        self._header_key = _Variable(headers, size)
        self._header_value = _Variable(headers, size)

    @property
    def rows(self) -> int:
        return int(self.cursor[kernels.ROW])

    def decode(self, part: Part, high: int, want: int) -> int:
        if part.source is None:
            return self._number(part, high)
        key, value, name, header = self._key, self._value, self._header_key, self._header_value
        fault: int = kernels.decode_batches(
            part.source, part.table, 0, len(part.table), part.low, high, want, self.cursor,
            self._offsets, self._timestamps, self._append_time,
            key.ends, key.data, key.valid, value.ends, value.data, value.valid,
            self._header_ends, name.ends, name.data, header.ends, header.data, header.valid,
        )  # fmt: skip
        return fault

    def _number(self, part: Part, high: int) -> int:
        """Append the records of a batch that has one for each offset."""
        base = int(part.table[0, kernels.BASE_OFFSET])
        first, last = max(base, part.low), min(base + part.rows, high)
        start = self.rows
        end = start + max(0, last - first)
        self._offsets[start:end] = np.arange(first, first + end - start)
        self._append_time[start:end] = bool(part.table[0, kernels.ATTRIBUTES] & LOG_APPEND_TIME)
        self.cursor[kernels.ROW] = end
        return 0

    def column(self, name: str) -> pa.Array:
        rows = self.rows
        match name:
            case "key":
                return self._key.arrow(pa.binary(), rows, int(self.cursor[kernels.KEY_BYTES]))
            case "value":
                return self._value.arrow(pa.binary(), rows, int(self.cursor[kernels.VALUE_BYTES]))
            case "offset":
                return _fixed(self._offsets, rows, pa.int64())
            case "timestamp":
                return _fixed(self._timestamps, rows, COLUMNS["timestamp"])
            case "timestampType":
                return pa.array(self._append_time[:rows].astype(np.int32))
        assert name == "headers", name
        return self._headers(rows)

    def _headers(self, rows: int) -> pa.Array:
        count = int(self.cursor[kernels.HEADER_ROW])
        names = _text(
            self._header_key.arrow(
                pa.string(), count, int(self.cursor[kernels.HEADER_KEY_BYTES]), nullable=False
            )
        )
        values = self._header_value.arrow(pa.binary(), count, int(self.cursor[kernels.HEADER_VALUE_BYTES]))
        entries = pa.StructArray.from_arrays([names, values], fields=list(HEADER_TYPE))
        # A record without headers has a null list, as in Spark's Kafka source.
        present = np.diff(self._header_ends[: rows + 1]) > 0
        validity = pa.py_buffer(np.packbits(present, bitorder="little"))
        ends = pa.py_buffer(self._header_ends[: rows + 1])
        return pa.Array.from_buffers(COLUMNS["headers"], rows, [validity, ends], children=[entries])


class _Variable:
    """One variable-length column: ends, bytes and validity bits; next to nothing if it has no rows."""

    def __init__(self, rows: int, size: int) -> None:
        self.ends = memory.array(rows + 1, np.int32)
        self.ends[0] = 0
        self.data = memory.array(size if rows else 0, np.uint8)
        self.valid = np.zeros((rows >> 3) + 1, dtype=np.uint8)

    def arrow(self, kind: pa.DataType, rows: int, size: int, *, nullable: bool = True) -> pa.Array:
        valid = pa.py_buffer(self.valid) if nullable else None
        return pa.Array.from_buffers(
            kind, rows, [valid, pa.py_buffer(self.ends[: rows + 1]), pa.py_buffer(self.data[:size])]
        )


def _fixed(values: Any, rows: int, kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(values[:rows])])


def _text(names: pa.Array) -> pa.Array:
    """Header names as valid UTF-8. Clients may write any bytes; Java's client shows what is not text as
    U+FFFD, and so does this, rather than fail on a record that every consumer can read."""
    try:
        names.validate(full=True)
    except pa.ArrowInvalid:
        raw = names.cast(pa.binary()).to_pylist()
        return pa.array([name.decode("utf-8", "replace") for name in raw], pa.string())
    return names
