"""Keys and values of control records, each after a two-byte version (`codec.encode_versioned`)."""

from penstock.wire.schema import NEVER_FLEXIBLE, Int16, Int32, TopMessage


class ControlRecordTypeSchema(TopMessage):
    min_version = 0
    max_version = 0
    flexible_from = NEVER_FLEXIBLE

    type: Int16 = 0


class EndTxnMarker(TopMessage):
    min_version = 0
    max_version = 0
    flexible_from = NEVER_FLEXIBLE

    coordinator_epoch: Int32 = 0
