"""FindCoordinator: which broker coordinates a group or transaction; many keys at once from version 4."""

from typing import Annotated

from penstock.wire.schema import ApiMessage, Int8, Int16, Int32, Message, String


class FindCoordinatorRequest(ApiMessage):
    api_key = 10
    min_version = 0
    max_version = 6
    flexible_from = 3

    key: Annotated[String, "0-3"] = ""
    key_type: Annotated[Int8, "1+"] = 0
    coordinator_keys: Annotated[list[String], "4+"] = []


class Coordinator(Message):
    key: String = ""
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""


class FindCoordinatorResponse(ApiMessage):
    api_key = 10
    min_version = 0
    max_version = 6
    flexible_from = 3

    throttle_time_ms: Annotated[Int32, "1+", "ignorable"] = 0
    error_code: Annotated[Int16, "0-3"] = 0
    error_message: Annotated[String | None, "1-3", "ignorable"] = ""
    node_id: Annotated[Int32, "0-3"] = 0
    host: Annotated[String, "0-3"] = ""
    port: Annotated[Int32, "0-3"] = 0
    coordinators: Annotated[list[Coordinator], "4+"] = []
