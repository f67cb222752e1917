"""Compiled loops from Arrow buffers to the records of a record batch.

The caller hands over the buffers of the columns as Arrow lays them out (64-bit ends, bytes, one validity byte
per row) and the rows that go into one batch, in order. Nothing here allocates. The caller sizes the output
with `sizes`, which is exact except for the few bytes that length prefixes may save.
"""

from typing import Any

import numpy as np

from penstock.arrow.compiled import compiled, copy_bytes, helper

# The longest form of the fixed parts of a record: length, attributes, timestamp delta, offset delta, key
# length, value length, header count; and of a header: two lengths.
RECORD_OVERHEAD = 5 + 1 + 10 + 5 + 5 + 5 + 5
HEADER_OVERHEAD = 10


@helper
def _murmur2(data: Any, start: int, end: int) -> int:
    """The hash that Kafka's default partitioner takes of a key, as a signed 32-bit number made positive."""
    length = end - start
    mask = np.int64(0xFFFFFFFF)
    m = np.int64(0x5BD1E995)
    h = (np.int64(0x9747B28C) ^ length) & mask
    blocks = length // 4
    for i in range(blocks):
        at = start + i * 4
        k = (
            np.int64(data[at])
            | (np.int64(data[at + 1]) << 8)
            | (np.int64(data[at + 2]) << 16)
            | (np.int64(data[at + 3]) << 24)
        )
        k = (k * m) & mask
        k ^= k >> 24
        k = (k * m) & mask
        h = (h * m) & mask
        h ^= k
    tail = start + blocks * 4
    left = length % 4
    if left >= 3:
        h ^= np.int64(data[tail + 2]) << 16
    if left >= 2:
        h ^= np.int64(data[tail + 1]) << 8
    if left >= 1:
        h ^= np.int64(data[tail])
        h = (h * m) & mask
    h ^= h >> 13
    h = (h * m) & mask
    h ^= h >> 15
    return h & np.int64(0x7FFFFFFF)


@compiled("void(r:i64, r:u8, r:u8, i64, i64, w:i32)")
def choose_partitions(ends: Any, data: Any, valid: Any, partitions: int, keyless: int, chosen: Any) -> None:
    """The partition of each row by its key; rows without a key go to `keyless`. `ends` starts with 0."""
    for row in range(chosen.shape[0]):
        if valid[row]:
            chosen[row] = _murmur2(data, ends[row], ends[row + 1]) % partitions
        else:
            chosen[row] = keyless


@helper
def _put_varint(out: Any, at: int, value: int) -> int:
    raw = np.uint64((value << 1) ^ (value >> 63))
    while raw >= np.uint64(128):
        out[at] = np.uint8((raw & np.uint64(127)) | np.uint64(128))
        raw >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(raw)
    return at + 1


@helper
def _varint_size(value: int) -> int:
    raw = np.uint64((value << 1) ^ (value >> 63))
    size = 1
    while raw >= np.uint64(128):
        raw >>= np.uint64(7)
        size += 1
    return size


@helper
def _put_bytes(out: Any, at: int, data: Any, start: int, end: int) -> int:
    copy_bytes(out, at, data, start, end - start)
    return at + end - start


@compiled("void(r:i64, r:i64, r:i64, r:i64, r:i64, w:i64)")
def sizes(
    key_ends: Any, value_ends: Any, header_ends: Any, name_ends: Any, header_value_ends: Any, out: Any
) -> None:
    """An upper bound for the encoded size of each row."""
    for row in range(out.shape[0]):
        size = RECORD_OVERHEAD
        size += key_ends[row + 1] - key_ends[row] + value_ends[row + 1] - value_ends[row]
        first, last = header_ends[row], header_ends[row + 1]
        size += name_ends[last] - name_ends[first] + header_value_ends[last] - header_value_ends[first]
        out[row] = size + (last - first) * HEADER_OVERHEAD


@helper
def _headers_size(first: int, last: int, names: Any, values: Any, valid: Any) -> int:
    size = _varint_size(last - first)
    for i in range(first, last):
        length = names[i + 1] - names[i]
        size += _varint_size(length) + length
        if valid[i]:
            length = values[i + 1] - values[i]
            size += _varint_size(length) + length
        else:
            size += 1
    return size


@compiled(
    "i64(r:i32, i64, i64, i64, r:i64, r:i64, r:u8, r:u8, r:i64, r:u8, r:u8, r:i64, r:i64, r:u8, r:i64,"
    " r:u8, r:u8, w:u8)"
)
def encode_records(
    rows: Any, first: int, last: int, base_timestamp: int, timestamps: Any,
    key_ends: Any, key_data: Any, key_valid: Any, value_ends: Any, value_data: Any, value_valid: Any,
    header_ends: Any, name_ends: Any, name_data: Any, header_value_ends: Any, header_value_data: Any,
    header_value_valid: Any, out: Any,
) -> int:  # fmt: skip
    """Write rows[first:last] as the records of one batch, offset deltas 0, 1, ...; the bytes written."""
    at = np.int64(0)
    for i in range(first, last):
        row = rows[i]
        delta = i - first
        delta_ms = timestamps[row] - base_timestamp
        key_size = key_ends[row + 1] - key_ends[row] if key_valid[row] else np.int64(-1)
        value_size = value_ends[row + 1] - value_ends[row] if value_valid[row] else np.int64(-1)
        h0, h1 = header_ends[row], header_ends[row + 1]
        size = (
            1
            + _varint_size(delta_ms)
            + _varint_size(delta)
            + _varint_size(key_size)
            + _varint_size(value_size)
        )
        size += max(key_size, 0) + max(value_size, 0)
        size += _headers_size(h0, h1, name_ends, header_value_ends, header_value_valid)
        at = _put_varint(out, at, size)
        out[at] = 0
        at = _put_varint(out, at + 1, delta_ms)
        at = _put_varint(out, at, delta)
        at = _put_varint(out, at, key_size)
        if key_size > 0:
            at = _put_bytes(out, at, key_data, key_ends[row], key_ends[row + 1])
        at = _put_varint(out, at, value_size)
        if value_size > 0:
            at = _put_bytes(out, at, value_data, value_ends[row], value_ends[row + 1])
        at = _put_varint(out, at, h1 - h0)
        for h in range(h0, h1):
            at = _put_varint(out, at, name_ends[h + 1] - name_ends[h])
            at = _put_bytes(out, at, name_data, name_ends[h], name_ends[h + 1])
            if header_value_valid[h]:
                at = _put_varint(out, at, header_value_ends[h + 1] - header_value_ends[h])
                at = _put_bytes(out, at, header_value_data, header_value_ends[h], header_value_ends[h + 1])
            else:
                at = _put_varint(out, at, np.int64(-1))
    return at
