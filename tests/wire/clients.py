"""The record builders and readers of kafka-python and aiokafka, behind one shape."""

from collections.abc import Iterable, Iterator
from typing import Any

import aiokafka.record.default_records as aio_default
import aiokafka.record.legacy_records as aio_legacy
import aiokafka.record.memory_records as aio_memory
import kafka.record.default_records as py_default
import kafka.record.legacy_records as py_legacy
import kafka.record.memory_records as py_memory

from penstock.wire.batch import NO_TIMESTAMP, Record
from penstock.wire.buffers import Buffer


def build(client: str, magic: int, codec: int, records: Iterable[Record], **batch: Any) -> bytes:
    """What a producer of that client would send."""
    default, legacy = (aio_default, aio_legacy) if client == "aiokafka" else (py_default, py_legacy)
    if magic == 2:
        builder = default.DefaultRecordBatchBuilder(
            magic=2,
            compression_type=codec,
            is_transactional=batch.get("is_transactional", False),
            producer_id=batch.get("producer_id", -1),
            producer_epoch=batch.get("producer_epoch", -1),
            base_sequence=batch.get("base_sequence", -1),
            batch_size=10_000_000,
        )
    else:
        builder = legacy.LegacyRecordBatchBuilder(magic=magic, compression_type=codec, batch_size=10_000_000)
    for record in records:
        headers = list(record.headers) if magic == 2 else []
        assert builder.append(record.offset, record.timestamp, record.key, record.value, headers) is not None
    return bytes(builder.build())


def read(client: str, data: Buffer) -> Iterator[Record]:
    """What a consumer of that client would see, with its checksums checked."""
    module = aio_memory if client == "aiokafka" else py_memory
    batches = module.MemoryRecords(bytes(data))
    while batches.has_next():
        batch = batches.next_batch()
        assert batch.validate_crc()
        for record in batch:
            timestamp = NO_TIMESTAMP if record.timestamp is None else record.timestamp
            yield Record(
                record.offset,
                timestamp,
                None if record.key is None else bytes(record.key),
                None if record.value is None else bytes(record.value),
                tuple((key, value) for key, value in record.headers),
            )
