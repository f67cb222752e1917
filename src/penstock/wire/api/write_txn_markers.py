"""WriteTxnMarkers: a transaction coordinator has partition leaders append commit and abort markers."""

from typing import Annotated

from penstock.wire.schema import ApiMessage, Bool, Int8, Int16, Int32, Int64, Message, String


class WritableTxnMarkerTopic(Message):
    name: String = ""
    partition_indexes: list[Int32] = []


class WritableTxnMarker(Message):
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    transaction_result: Bool = False
    topics: list[WritableTxnMarkerTopic] = []
    coordinator_epoch: Int32 = 0
    transaction_version: Annotated[Int8, "2+", "ignorable"] = 0


class WriteTxnMarkersRequest(ApiMessage):
    api_key = 27
    min_version = 0
    max_version = 2
    flexible_from = 1

    markers: list[WritableTxnMarker] = []


class WritableTxnMarkerPartitionResult(Message):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class WritableTxnMarkerTopicResult(Message):
    name: String = ""
    partitions: list[WritableTxnMarkerPartitionResult] = []


class WritableTxnMarkerResult(Message):
    producer_id: Int64 = 0
    topics: list[WritableTxnMarkerTopicResult] = []


class WriteTxnMarkersResponse(ApiMessage):
    api_key = 27
    min_version = 0
    max_version = 2
    flexible_from = 1

    markers: list[WritableTxnMarkerResult] = []
