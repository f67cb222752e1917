"""Turns Arrow into record batches: the driver of the compiled loops of the sink.

`encode_partitions` takes one Arrow record batch with the columns of Spark's Kafka sink (key, value, headers,
topic, partition; value alone is required). It gives record batches per (topic, partition). They are ready to
be sent except for sequence numbers, which the committing driver fills, and base offset and leader epoch,
which a broker fills.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.arrow.errors import SourceError
from penstock.spark.write import kernels
from penstock.spark.write.staging import Traits
from penstock.wire.batch import HEADER_SIZE
from penstock.wire.compression import compress

BATCH_BYTES = 512 * 1024
_NO_PRODUCER = -1


class EncodedBatch(NamedTuple):
    topic: str
    partition: int
    records: int
    data: bytes
    traits: Traits


class RowError(SourceError, ValueError):
    """A row cannot be written. The message is one sentence for a person."""


class _Column(NamedTuple):
    """A binary column as the kernels want it: 64-bit ends from 0, bytes, one validity byte per row."""

    ends: Any
    data: Any
    valid: Any


def encode_partitions(
    table: pa.RecordBatch,
    *,
    default_topic: str | None,
    partition_count: Callable[[str], int],
    keyless: Callable[[str, int], int],
    now_ms: int,
    codec: int = 0,
    batch_bytes: Callable[[str], int] = lambda _topic: BATCH_BYTES,
) -> Iterator[EncodedBatch]:
    """Encode the rows. `keyless(topic, partitions)` chooses where rows without key and partition go,
    `batch_bytes(topic)` says how large a batch of several rows may be."""
    columns = {name: table.column(i) for i, name in enumerate(table.schema.names)}
    if "value" not in columns:
        raise RowError("The rows to write have no column 'value'.")
    rows = table.num_rows
    if rows == 0:
        return
    key = _binary(columns.get("key"), rows)
    value = _binary(columns["value"], rows)
    header_ends, names, header_values = _headers(columns.get("headers"), rows)
    times = _timestamps(columns.get("timestamp"), rows, now_ms)
    sizes = np.empty(rows, dtype=np.int64)
    kernels.sizes(key.ends, value.ends, header_ends, names.ends, header_values.ends, sizes)
    for topic, selected in _topics(columns.get("topic"), rows, default_topic):
        count = partition_count(topic)
        chosen = np.empty(rows, dtype=np.int32)
        kernels.choose_partitions(key.ends, key.data, key.valid, count, keyless(topic, count), chosen)
        _explicit(columns.get("partition"), chosen, topic, count)
        order = selected[np.argsort(chosen[selected], kind="stable")].astype(np.int32)
        for partition, group in _runs(order, chosen):
            for first, last in _cuts(sizes[group], batch_bytes(topic) - HEADER_SIZE):
                out = np.empty(int(sizes[group[first:last]].sum()), dtype=np.uint8)
                base = int(times[group[first]])
                written = kernels.encode_records(
                    group, first, last, base, times, key.ends, key.data, key.valid,
                    value.ends, value.data, value.valid, header_ends, names.ends, names.data,
                    header_values.ends, header_values.data, header_values.valid, out,
                )  # fmt: skip
                stamps, count = times[group[first:last]], last - first
                top = int(stamps.max())
                data = frame(memoryview(out.data)[:written], count, base, top, codec)
                without_key = not key.valid[group[first:last]].all()
                given = (int(stamps.min()), top) if "timestamp" in columns else None
                traits = Traits(len(data) if count == 1 else 0, without_key, given)
                yield EncodedBatch(topic, int(partition), count, data, traits)


def frame(records: memoryview, count: int, base_timestamp: int, max_timestamp: int, codec: int) -> bytes:
    """A whole batch around encoded records, without producer."""
    body: bytes | memoryview = compress(codec, records) if codec else records
    tail = struct.pack(
        ">hiqqqhii", codec, count - 1, base_timestamp, max_timestamp, _NO_PRODUCER, -1, -1, count
    )
    crc = crc32c.crc32c(body, crc32c.crc32c(tail))
    return struct.pack(">qiibI", 0, 49 + len(body), -1, 2, crc) + tail + bytes(body)


def _binary(column: Any, rows: int) -> _Column:
    """The buffers of a binary or string column; an absent column is all null."""
    if column is None:
        return _Column(np.zeros(rows + 1, np.int64), np.zeros(0, np.uint8), np.zeros(rows, np.uint8))
    if not (
        pa.types.is_binary(column.type) or pa.types.is_string(column.type)
        or pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
    ):  # fmt: skip
        raise RowError(f"Keys and values are binary or string columns, not {column.type}.")
    large = column.cast(pa.large_binary())
    _, offsets, data = large.buffers()
    ends = np.frombuffer(offsets, dtype=np.int64)[large.offset : large.offset + rows + 1]
    valid = np.ones(rows, np.uint8)
    if large.null_count:
        valid = large.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8)
    start = int(ends[0])
    raw = np.frombuffer(data, dtype=np.uint8)[start:] if data is not None else np.zeros(0, np.uint8)
    return _Column(np.ascontiguousarray(ends - start), raw, valid)


def _headers(column: Any, rows: int) -> tuple[Any, _Column, _Column]:
    if column is None or column.null_count == rows:
        nothing = _binary(None, 0)
        return np.zeros(rows + 1, np.int64), nothing, nothing
    lists = column.cast(pa.large_list(column.type.value_type))
    # Null lists may hide entries in their child; take the entries of the lists that are there.
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    ends = np.zeros(rows + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    entries = lists.flatten()
    names = entries.field("key") if entries.offset == 0 else pc.struct_field(entries, "key")
    values = pc.struct_field(entries, "value")
    if names.null_count:
        raise RowError("A header has no name.")
    return ends, _binary(names, len(entries)), _binary(values, len(entries))


def _timestamps(column: Any, rows: int, now_ms: int) -> Any:
    times = np.full(rows, now_ms, dtype=np.int64)
    if column is not None:
        given = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        valid = given.is_valid().to_numpy(zero_copy_only=False)
        micros = pc.fill_null(given, 0).to_numpy(zero_copy_only=False)
        times[valid] = micros[valid] // 1000
    return times


def _topics(column: Any, rows: int, default: str | None) -> Iterator[tuple[str, Any]]:
    """(topic, its rows). The option 'topic' wins over the column, as in Spark's sink."""
    if default is not None:
        yield default, np.arange(rows, dtype=np.int64)
        return
    if column is None:
        raise RowError("Set the option 'topic', or give the rows a column 'topic'.")
    if column.null_count:
        raise RowError("A row has no topic, and the option 'topic' is not set.")
    encoded = column.dictionary_encode()
    indexes = encoded.indices.to_numpy(zero_copy_only=False)
    for number, topic in enumerate(encoded.dictionary.to_pylist()):
        yield topic, np.flatnonzero(indexes == number)


def _explicit(column: Any, chosen: Any, topic: str, count: int) -> None:
    """A 'partition' column wins over the key where it is not null."""
    if column is None:
        return
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    given = pc.fill_null(column.cast(pa.int32()), 0).to_numpy(zero_copy_only=False)
    wrong = valid & ((given < 0) | (given >= count))
    if wrong.any():
        bad = int(given[wrong][0])
        raise RowError(f"A row names partition {bad} of topic {topic!r}, which has {count}.")
    chosen[valid] = given[valid]


def _runs(order: Any, chosen: Any) -> Iterator[tuple[int, Any]]:
    """(partition, rows) of rows sorted by partition."""
    parts = chosen[order]
    starts = np.flatnonzero(np.r_[True, parts[1:] != parts[:-1]])
    for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
        yield int(parts[start]), np.ascontiguousarray(order[start:end])


def _cuts(sizes: Any, most: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows that fit one batch; a row larger than that is a batch of its own."""
    total = np.cumsum(sizes)
    first = 0
    while first < len(sizes):
        before = total[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(total, before + most, side="right")))
        yield first, last
        first = last
