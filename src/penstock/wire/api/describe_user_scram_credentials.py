"""DescribeUserScramCredentials: which users have which SCRAM mechanisms, without secrets."""

from penstock.wire.schema import ApiMessage, Int8, Int16, Int32, Message, String


class UserName(Message):
    name: String = ""


class DescribeUserScramCredentialsRequest(ApiMessage):
    api_key = 50
    min_version = 0
    max_version = 0
    flexible_from = 0

    users: list[UserName] | None = []


class CredentialInfo(Message):
    mechanism: Int8 = 0
    iterations: Int32 = 0


class DescribeUserScramCredentialsResult(Message):
    user: String = ""
    error_code: Int16 = 0
    error_message: String | None = ""
    credential_infos: list[CredentialInfo] = []


class DescribeUserScramCredentialsResponse(ApiMessage):
    api_key = 50
    min_version = 0
    max_version = 0
    flexible_from = 0

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
    results: list[DescribeUserScramCredentialsResult] = []
