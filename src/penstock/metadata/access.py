"""What the image holds for the doors of the cluster: rules, derived keys of passwords, delegation tokens.

These values are stored, so their fields are for ever (see `commands`). A secret never shows in a `repr`,
because logs, errors and tracebacks print values.
"""

import msgspec

SCRAM_SHA_256 = 1
SCRAM_SHA_512 = 2
"""The numbers that Kafka's protocol gives the mechanisms."""

DEFAULT_NAME = ""
"""In a quota's entity: all users, clients or addresses that have no quota of their own."""

QuotaEntity = tuple[str | None, str | None, str | None]
"""User, client id, address: whom a quota is for. None: whatever it is."""


class AccessRule(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One access rule. The numbers are those of Kafka's protocol (`penstock.security.words`)."""

    resource_type: int
    name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int

    @property
    def itself(self) -> "AccessRule":
        return self


class ScramCredential(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What is kept of a user's password for one mechanism. Nobody can log in with it, and the password does
    not follow from it but by trying."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations})"


class DelegationToken(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A token that speaks for its owner. Its HMAC, which is the password, is not kept: it follows from the id
    and a key that only the settings of brokers hold."""

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_ms: int
    expires_ms: int
    expires_last_ms: int
    """Nobody can renew it beyond this."""
