"""Why a command may not be proposed: a Kafka error code for the client and a sentence for the person."""

import msgspec

from penstock.wire.errors import ErrorCode


class Refusal(msgspec.Struct, frozen=True):
    code: ErrorCode
    message: str
