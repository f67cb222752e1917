"""AddRaftVoter: add a controller to a KRaft quorum."""

from typing import Annotated

from penstock.wire.schema import ZERO_UUID, ApiMessage, Bool, Int16, Int32, Message, String, UInt16, Uuid


class Listener(Message):
    name: String = ""
    host: String = ""
    port: UInt16 = 0


class AddRaftVoterRequest(ApiMessage):
    api_key = 80
    min_version = 0
    max_version = 1
    flexible_from = 0

    cluster_id: String | None = ""
    timeout_ms: Int32 = 0
    voter_id: Int32 = 0
    voter_directory_id: Uuid = ZERO_UUID
    listeners: list[Listener] = []
    ack_when_committed: Annotated[Bool, "1+"] = True


class AddRaftVoterResponse(ApiMessage):
    api_key = 80
    min_version = 0
    max_version = 1
    flexible_from = 0

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
