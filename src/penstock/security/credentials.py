"""SCRAM's derived keys (RFC 5802): what is kept of a password, and how a proof is checked against it.

Only salt, StoredKey, ServerKey and the number of iterations are kept. Comparisons take the same time wherever
the bytes differ.
"""

from __future__ import annotations

import hashlib
import hmac
from enum import IntEnum
from typing import Final

from penstock.metadata.access import SCRAM_SHA_256, SCRAM_SHA_512, ScramCredential

ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16384
"""A user's own number is bounded above, too: whoever logs in makes the client count to it."""
SALT_BYTES: Final = 16
SALT_BYTES_MAX: Final = 1024
"""A salt travels in each login; nobody needs a longer one."""


class Mechanism(IntEnum):
    """The SCRAM mechanisms, with the numbers that Kafka's protocol gives them."""

    SCRAM_SHA_256 = SCRAM_SHA_256
    SCRAM_SHA_512 = SCRAM_SHA_512

    @property
    def sasl_name(self) -> str:
        return self.name.replace("_", "-")

    @property
    def hash_name(self) -> str:
        return "sha256" if self is Mechanism.SCRAM_SHA_256 else "sha512"

    @property
    def hash_bytes(self) -> int:
        return 32 if self is Mechanism.SCRAM_SHA_256 else 64


BY_NAME: Final = {mechanism.sasl_name: mechanism for mechanism in Mechanism}


def derived(
    mechanism: Mechanism, password: str, salt: bytes, iterations: int = ITERATIONS_MIN
) -> ScramCredential:
    """What is kept of a password. Kafka's clients hash its UTF-8 bytes as they are."""
    name = mechanism.hash_name
    salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, iterations)
    return from_salted_password(mechanism, salted, salt, iterations)


def from_salted_password(
    mechanism: Mechanism, salted_password: bytes, salt: bytes, iterations: int
) -> ScramCredential:
    """The same from the salted password, which is what AlterUserScramCredentials brings."""
    name = mechanism.hash_name
    client_key = hmac.digest(salted_password, b"Client Key", name)
    return ScramCredential(
        salt=salt,
        stored_key=hashlib.new(name, client_key).digest(),
        server_key=hmac.digest(salted_password, b"Server Key", name),
        iterations=iterations,
    )


def decoy(mechanism: Mechanism, user: str, secret: bytes) -> ScramCredential:
    """A credential for a user that does not exist. It is the same each time, as a real one would be, and no
    password fits it."""

    def part(what: bytes, size: int) -> bytes:
        return hmac.digest(secret, what + b"\0" + user.encode(), "sha512")[:size]

    return ScramCredential(
        salt=part(b"salt", SALT_BYTES),
        stored_key=part(b"stored key", mechanism.hash_bytes),
        server_key=part(b"server key", mechanism.hash_bytes),
        iterations=ITERATIONS_MIN,
    )


def proves(mechanism: Mechanism, credential: ScramCredential, auth_message: bytes, proof: bytes) -> bool:
    """Whether the proof was made by somebody who knows the password."""
    name = mechanism.hash_name
    signature = hmac.digest(credential.stored_key, auth_message, name)
    whole = len(proof) == len(signature)
    client_key = bytes(a ^ b for a, b in zip(proof if whole else signature, signature, strict=True))
    found = hashlib.new(name, client_key).digest()
    return hmac.compare_digest(found, credential.stored_key) and whole


def server_signature(mechanism: Mechanism, credential: ScramCredential, auth_message: bytes) -> bytes:
    return hmac.digest(credential.server_key, auth_message, mechanism.hash_name)


def same_secret(given: str, kept: str) -> bool:
    """Whether two secrets are the same, in a time that tells neither where they differ nor how long they
    are."""
    digests = [hashlib.sha256(one.encode()).digest() for one in (given, kept)]
    return hmac.compare_digest(digests[0], digests[1])
