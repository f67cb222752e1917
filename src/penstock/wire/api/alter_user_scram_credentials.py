"""AlterUserScramCredentials: set and remove what is kept of passwords."""

from penstock.wire.schema import ApiMessage, Bytes, Int8, Int16, Int32, Message, String


class ScramCredentialDeletion(Message):
    name: String = ""
    mechanism: Int8 = 0


class ScramCredentialUpsertion(Message):
    name: String = ""
    mechanism: Int8 = 0
    iterations: Int32 = 0
    salt: Bytes = b""
    salted_password: Bytes = b""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r}, mechanism={self.mechanism})"


class AlterUserScramCredentialsRequest(ApiMessage):
    api_key = 51
    min_version = 0
    max_version = 0
    flexible_from = 0

    deletions: list[ScramCredentialDeletion] = []
    upsertions: list[ScramCredentialUpsertion] = []


class AlterUserScramCredentialsResult(Message):
    user: String = ""
    error_code: Int16 = 0
    error_message: String | None = ""


class AlterUserScramCredentialsResponse(ApiMessage):
    api_key = 51
    min_version = 0
    max_version = 0
    flexible_from = 0

    throttle_time_ms: Int32 = 0
    results: list[AlterUserScramCredentialsResult] = []
