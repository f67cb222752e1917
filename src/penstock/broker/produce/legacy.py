"""Batches from clients of versions 0 to 2: message sets of magic 0 and 1, converted to one batch."""

from __future__ import annotations

from penstock.broker.produce.checks import (
    CORRUPT,
    TOO_LARGE,
    Demands,
    Refused,
    batch_size,
    is_beyond,
    refused_expanding,
)
from penstock.wire.errors import BatchError, ErrorCode
from penstock.wire.legacy import upconvert


def converted(records: memoryview, demands: Demands, limit: int | None) -> bytearray | Refused | None:
    """The records as one batch; None if there is not one whole message among them. BatchError with
    MESSAGE_TOO_LARGE if they exceed a `limit`."""
    at = 0
    while at < len(records):
        size = batch_size(records[at:])
        if size is None:
            break
        if isinstance(size, Refused):
            return size
        if size > demands.max_message_bytes:
            return TOO_LARGE
        at += size
    if at == 0:
        return None
    try:
        return upconvert(records[:at], limit)
    except BatchError as error:
        if is_beyond(error, limit):
            raise
        return CORRUPT if error.code is ErrorCode.CORRUPT_MESSAGE else refused_expanding(error)
