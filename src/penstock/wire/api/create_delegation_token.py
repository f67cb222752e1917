"""CreateDelegationToken: make a token that speaks for its owner."""

from typing import Annotated

from penstock.wire.schema import ApiMessage, Bytes, Int16, Int32, Int64, Message, String


class CreatableRenewers(Message):
    principal_type: String = ""
    principal_name: String = ""


class CreateDelegationTokenRequest(ApiMessage):
    api_key = 38
    min_version = 1
    max_version = 3
    flexible_from = 2

    owner_principal_type: Annotated[String | None, "3+"] = None
    owner_principal_name: Annotated[String | None, "3+"] = None
    renewers: list[CreatableRenewers] = []
    max_lifetime_ms: Int64 = 0


class CreateDelegationTokenResponse(ApiMessage):
    api_key = 38
    min_version = 1
    max_version = 3
    flexible_from = 2

    error_code: Int16 = 0
    principal_type: String = ""
    principal_name: String = ""
    token_requester_principal_type: Annotated[String, "3+", "ignorable"] = ""
    token_requester_principal_name: Annotated[String, "3+", "ignorable"] = ""
    issue_timestamp_ms: Int64 = 0
    expiry_timestamp_ms: Int64 = 0
    max_timestamp_ms: Int64 = 0
    token_id: String = ""
    hmac: Bytes = b""
    throttle_time_ms: Int32 = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}(token_id={self.token_id!r}, error_code={self.error_code})"
