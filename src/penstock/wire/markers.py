"""Control batches that end a transaction in one partition."""

from penstock.wire import codec
from penstock.wire.batch import Record, build_batch
from penstock.wire.errors import WireError
from penstock.wire.schemas.control_records import ControlRecordTypeSchema, EndTxnMarker

ABORT, COMMIT = 0, 1
"""Types of control records."""


def marker_batch(
    kind: int, producer_id: int, producer_epoch: int, coordinator_epoch: int, timestamp_ms: int
) -> bytearray:
    """The batch that ends a transaction in one partition: COMMIT or ABORT."""
    key = codec.encode_versioned(ControlRecordTypeSchema(type=kind))
    value = codec.encode_versioned(EndTxnMarker(coordinator_epoch=coordinator_epoch))
    return build_batch(
        [Record(0, timestamp_ms, key, value)],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def marker_kind(record: Record) -> int:
    """COMMIT or ABORT for a transaction marker; another number for control records of other kinds."""
    if record.key is None or len(record.key) < 4:
        raise WireError("a control record has no type")
    return int.from_bytes(record.key[2:4], "big", signed=True)
