"""Heartbeat: a member of a classic group is alive."""

from typing import Annotated

from penstock.wire.schema import ApiMessage, Int16, Int32, String


class HeartbeatRequest(ApiMessage):
    api_key = 12
    min_version = 0
    max_version = 4
    flexible_from = 4

    group_id: String = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: Annotated[String | None, "3+"] = None


class HeartbeatResponse(ApiMessage):
    api_key = 12
    min_version = 0
    max_version = 4
    flexible_from = 4

    throttle_time_ms: Annotated[Int32, "1+", "ignorable"] = 0
    error_code: Int16 = 0
