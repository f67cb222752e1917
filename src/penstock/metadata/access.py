"""What the image holds for the doors of the cluster: derived keys of passwords.

These values are stored, so their fields are for ever (see `commands`). A secret never shows in a `repr`,
because logs, errors and tracebacks print values.
"""

import msgspec

SCRAM_SHA_256 = 1
SCRAM_SHA_512 = 2
"""The numbers that Kafka's protocol gives the mechanisms."""


class ScramCredential(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What is kept of a user's password for one mechanism. Nobody can log in with it, and the password does
    not follow from it but by trying."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations})"
