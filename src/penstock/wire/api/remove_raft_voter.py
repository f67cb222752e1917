"""RemoveRaftVoter: remove a controller from a KRaft quorum."""

from penstock.wire.schema import ZERO_UUID, ApiMessage, Int16, Int32, String, Uuid


class RemoveRaftVoterRequest(ApiMessage):
    api_key = 81
    min_version = 0
    max_version = 0
    flexible_from = 0

    cluster_id: String | None = ""
    voter_id: Int32 = 0
    voter_directory_id: Uuid = ZERO_UUID


class RemoveRaftVoterResponse(ApiMessage):
    api_key = 81
    min_version = 0
    max_version = 0
    flexible_from = 0

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
