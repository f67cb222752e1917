"""DescribeDelegationToken: list tokens."""

from typing import Annotated

from penstock.wire.schema import ApiMessage, Bytes, Int16, Int32, Int64, Message, String


class DescribeDelegationTokenOwner(Message):
    principal_type: String = ""
    principal_name: String = ""


class DescribeDelegationTokenRequest(ApiMessage):
    api_key = 41
    min_version = 1
    max_version = 3
    flexible_from = 2

    owners: list[DescribeDelegationTokenOwner] | None = []


class DescribedDelegationTokenRenewer(Message):
    principal_type: String = ""
    principal_name: String = ""


class DescribedDelegationToken(Message):
    principal_type: String = ""
    principal_name: String = ""
    token_requester_principal_type: Annotated[String, "3+", "ignorable"] = ""
    token_requester_principal_name: Annotated[String, "3+", "ignorable"] = ""
    issue_timestamp: Int64 = 0
    expiry_timestamp: Int64 = 0
    max_timestamp: Int64 = 0
    token_id: String = ""
    hmac: Bytes = b""
    renewers: list[DescribedDelegationTokenRenewer] = []

    def __repr__(self) -> str:
        return f"{type(self).__name__}(token_id={self.token_id!r})"


class DescribeDelegationTokenResponse(ApiMessage):
    api_key = 41
    min_version = 1
    max_version = 3
    flexible_from = 2

    error_code: Int16 = 0
    tokens: list[DescribedDelegationToken] = []
    throttle_time_ms: Int32 = 0
