"""Compiled loops from record batch bytes to Arrow buffers.

Theory of operation. A run of bytes holds whole record batches, one after the other. `scan_batches` walks the
headers and fills one row of a table per batch (`FIELDS` names the columns). `decode_batches` then walks the
records of the batches of that table and appends them to column buffers that the caller has allocated.
Everything that a batch claims (lengths, counts, deltas) is checked against the bytes that are there before it
is used; a lie ends the call with a negative code and changes nothing outside the buffers.

The column buffers are laid out as Arrow wants them: values back to back, int32 offsets, validity bitmaps.
Signatures are explicit and the machine code is cached, so nothing is compiled per task.
"""

from typing import Any

import numpy as np

from penstock.arrow.compiled import compiled, copy_bytes, helper

# Columns of the batch table.
FIELDS = (
    "position", "size", "base_offset", "attributes", "last_delta", "base_timestamp",
    "max_timestamp", "producer_id", "count", "crc", "leader_epoch", "producer_epoch",
)  # fmt: skip
POSITION, SIZE, BASE_OFFSET, ATTRIBUTES, LAST_DELTA, BASE_TIMESTAMP = range(6)
MAX_TIMESTAMP, PRODUCER_ID, COUNT, CRC, LEADER_EPOCH, PRODUCER_EPOCH = range(6, 12)
HEADER_BYTES = 61

# What goes wrong with a batch, as returned (negated) by the kernels.
BAD_LENGTH, BAD_MAGIC, BAD_COUNT, BAD_RECORD, BAD_TIMESTAMP, TABLE_FULL, HEADERS_FULL, ROWS_FULL = range(1, 9)
REASONS = {
    BAD_LENGTH: "a batch length that does not fit the bytes",
    BAD_MAGIC: "a batch magic other than 2",
    BAD_COUNT: "a record count that does not match the records",
    BAD_RECORD: "a record whose lengths do not fit its batch",
    BAD_TIMESTAMP: "a timestamp outside the range of a Spark timestamp",
}

# Cursor slots: how much of each column buffer is filled.
ROW, KEY_BYTES, VALUE_BYTES, HEADER_ROW, HEADER_KEY_BYTES, HEADER_VALUE_BYTES, FAULT_BATCH = range(7)
CURSOR_SLOTS = 7

# A timestamp in milliseconds must survive multiplication by 1,000 in 64 bits.
TIMESTAMP_MS_LIMIT = 9_223_372_036_854_775

WANT_KEY, WANT_VALUE, WANT_HEADERS = 1, 2, 4


@helper
def _big_endian(src: Any, at: int, width: int) -> int:
    value = np.int64(src[at])
    if value >= 128:
        value -= 256
    for i in range(1, width):
        value = (value << 8) | np.int64(src[at + i])
    return value


@compiled("i64(r:u8, i64, i64, w:i64:2)")
def scan_batches(src: Any, start: int, end: int, table: Any) -> int:
    """Fill `table` with the batches of src[start:end]; the number found, or a negated fault.

    A partial batch at the end is left out: the caller sees it by comparing the last position with `end`.
    """
    at = start
    found = 0
    while end - at >= HEADER_BYTES:
        length = _big_endian(src, at + 8, 4)
        if length < HEADER_BYTES - 12:
            return -BAD_LENGTH
        if src[at + 16] != 2:
            return -BAD_MAGIC
        size = length + 12
        if size > end - at:
            break
        if found >= table.shape[0]:
            return -TABLE_FULL
        row = table[found]
        row[POSITION] = at
        row[SIZE] = size
        row[BASE_OFFSET] = _big_endian(src, at, 8)
        row[LEADER_EPOCH] = _big_endian(src, at + 12, 4)
        row[CRC] = _big_endian(src, at + 17, 4) & 0xFFFFFFFF
        row[ATTRIBUTES] = _big_endian(src, at + 21, 2)
        row[LAST_DELTA] = _big_endian(src, at + 23, 4)
        row[BASE_TIMESTAMP] = _big_endian(src, at + 27, 8)
        row[MAX_TIMESTAMP] = _big_endian(src, at + 35, 8)
        row[PRODUCER_ID] = _big_endian(src, at + 43, 8)
        row[PRODUCER_EPOCH] = _big_endian(src, at + 51, 2)
        row[COUNT] = _big_endian(src, at + 57, 4)
        if row[COUNT] < 0 or row[LAST_DELTA] < 0 or row[COUNT] > row[LAST_DELTA] + 1:
            return -BAD_COUNT
        found += 1
        at += size
    return found


@helper
def _varint(src: Any, at: int, end: int) -> tuple[int, int]:
    """(zigzag value, next position); position -1 if the bytes run out or the number is too long."""
    if at < end:
        byte = np.int64(src[at])
        if byte < 128:
            return (byte >> 1) ^ -(byte & 1), at + 1
    raw = np.uint64(0)
    shift = np.uint64(0)
    for _ in range(10):
        if at >= end:
            return np.int64(0), np.int64(-1)
        byte8 = np.uint64(src[at])
        at += 1
        raw |= (byte8 & np.uint64(127)) << shift
        if byte8 < np.uint64(128):
            value = np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1))
            return value, at
        shift += np.uint64(7)
    return np.int64(0), np.int64(-1)


@helper
def _headers(
    src: Any,
    at: int,
    end: int,
    cursor: Any,
    names: Any,
    name_data: Any,
    values: Any,
    value_data: Any,
    valid: Any,
) -> int:
    """Append the headers of one record; the position after them, or a negated fault."""
    count, at = _varint(src, at, end)
    if at < 0 or count < 0 or count > end - at:
        return -BAD_RECORD
    if cursor[HEADER_ROW] + count >= names.shape[0]:
        return -HEADERS_FULL
    for _ in range(count):
        row = cursor[HEADER_ROW]
        length, at = _varint(src, at, end)
        if at < 0 or length < 0 or length > end - at:
            return -BAD_RECORD
        copy_bytes(name_data, cursor[HEADER_KEY_BYTES], src, at, length)
        cursor[HEADER_KEY_BYTES] += length
        at += length
        length, at = _varint(src, at, end)
        if at < 0 or length < -1 or length > end - at:
            return -BAD_RECORD
        if length >= 0:
            copy_bytes(value_data, cursor[HEADER_VALUE_BYTES], src, at, length)
            cursor[HEADER_VALUE_BYTES] += length
            at += length
            valid[row >> 3] |= np.uint8(1 << (row & 7))
        names[row + 1] = cursor[HEADER_KEY_BYTES]
        values[row + 1] = cursor[HEADER_VALUE_BYTES]
        cursor[HEADER_ROW] = row + 1
    return at


@compiled(
    "i64(r:u8, w:i64:2, i64, i64, i64, i64, i64, w:i64, w:i64, w:i64, w:u8, w:i32, w:u8, w:u8, w:i32,"
    " w:u8, w:u8, w:i32, w:i32, w:u8, w:i32, w:u8, w:u8)"
)
def decode_batches(  # noqa: PLR0915 - one loop, kept whole for the compiler
    src: Any, table: Any, first: int, last: int, low: int, high: int, want: int, cursor: Any,
    offsets: Any, timestamps: Any, append_time: Any,
    key_ends: Any, key_data: Any, key_valid: Any, value_ends: Any, value_data: Any, value_valid: Any,
    header_ends: Any, name_ends: Any, name_data: Any, header_value_ends: Any, header_value_data: Any,
    header_value_valid: Any,
) -> int:  # fmt: skip
    """Append the records of table[first:last] with low <= offset < high; 0, or a negated fault.

    `table[i, POSITION]` is where the records of batch i begin in src, `table[i, SIZE]` how many bytes they
    take: for a compressed batch src is the decompressed block.
    """
    for batch in range(first, last):
        cursor[FAULT_BATCH] = batch
        at = table[batch, POSITION]
        end = at + table[batch, SIZE]
        base = table[batch, BASE_OFFSET]
        log_append = (table[batch, ATTRIBUTES] & 8) != 0
        previous_delta = np.int64(-1)
        for _ in range(table[batch, COUNT]):
            length, at = _varint(src, at, end)
            if at < 0 or length < 0 or length > end - at:
                return -BAD_RECORD
            stop = at + length
            at += 1  # record attributes carry nothing
            delta_ms, at = _varint(src, at, stop)
            if at < 0:
                return -BAD_RECORD
            delta, at = _varint(src, at, stop)
            if at < 0 or delta <= previous_delta or delta > table[batch, LAST_DELTA]:
                return -BAD_RECORD
            previous_delta = delta
            offset = base + delta
            if offset < low or offset >= high:
                at = stop
                continue
            row = cursor[ROW]
            if row >= offsets.shape[0]:
                return -ROWS_FULL
            key_size, at = _varint(src, at, stop)
            if at < 0 or key_size < -1 or key_size > stop - at:
                return -BAD_RECORD
            if key_size >= 0:
                if want & WANT_KEY:
                    copy_bytes(key_data, cursor[KEY_BYTES], src, at, key_size)
                    cursor[KEY_BYTES] += key_size
                    key_valid[row >> 3] |= np.uint8(1 << (row & 7))
                at += key_size
            value_size, at = _varint(src, at, stop)
            if at < 0 or value_size < -1 or value_size > stop - at:
                return -BAD_RECORD
            if value_size >= 0:
                if want & WANT_VALUE:
                    copy_bytes(value_data, cursor[VALUE_BYTES], src, at, value_size)
                    cursor[VALUE_BYTES] += value_size
                    value_valid[row >> 3] |= np.uint8(1 << (row & 7))
                at += value_size
            if want & WANT_HEADERS:
                at = _headers(
                    src, at, stop, cursor, name_ends, name_data, header_value_ends, header_value_data,
                    header_value_valid,
                )  # fmt: skip
                if at < 0:
                    return at
                if at != stop:
                    return -BAD_RECORD
                header_ends[row + 1] = cursor[HEADER_ROW]
            timestamp = table[batch, MAX_TIMESTAMP] if log_append else table[batch, BASE_TIMESTAMP] + delta_ms
            if timestamp > TIMESTAMP_MS_LIMIT or timestamp < -TIMESTAMP_MS_LIMIT:
                return -BAD_TIMESTAMP
            offsets[row] = offset
            timestamps[row] = timestamp * 1000
            append_time[row] = 1 if log_append else 0
            if want & WANT_KEY:
                key_ends[row + 1] = cursor[KEY_BYTES]
            if want & WANT_VALUE:
                value_ends[row + 1] = cursor[VALUE_BYTES]
            cursor[ROW] = row + 1
            at = stop
        if at != end:
            return -BAD_COUNT
    return 0
