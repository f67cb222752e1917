"""The client's side of SASL: the tokens that prove to a broker who we are. Pure.

    proof = scram_proof(...)
    token = next(proof)                 the first token
    token = proof.send(challenge)       the next one, until StopIteration: we have nothing more to say

SCRAM's last word is the broker's: a broker that does not know the password either is told apart
(`NotProvenError`).
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from collections.abc import Generator

from penstock.security.credentials import BY_NAME, ITERATIONS_MIN

Proof = Generator[bytes, bytes, None]

ITERATIONS_LIMIT = 1_000_000
"""A broker that asks for more work wants to keep us busy."""


class NotProvenError(Exception):
    """The broker's side of the login was wrong. One sentence without its capital and full stop."""


def plain_proof(user: str, password: str) -> Proof:
    yield b"\0" + user.encode() + b"\0" + password.encode()


def bearer_proof(token: str) -> Proof:
    refused = yield b"n,,\x01auth=Bearer " + token.encode() + b"\x01\x01"
    if refused:
        yield b"\x01"  # The broker then says that the login failed.


def scram_proof(mechanism: str, user: str, password: str, nonce: str, *, by_token: bool = False) -> Proof:
    """`by_token`: a delegation token is shown, its id and its HMAC (KIP-48)."""
    name = BY_NAME[mechanism].hash_name
    bare = (
        f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}{',tokenauth=true' if by_token else ''}"
    )
    server_first = (yield b"n,," + bare.encode()).decode()
    try:
        parts = dict(part.split("=", 1) for part in server_first.split(","))
        both, salt, iterations = parts["r"], b64decode(parts["s"], validate=True), int(parts["i"])
    except (KeyError, ValueError):
        raise NotProvenError("the broker's challenge cannot be read") from None
    if not both.startswith(nonce) or len(both) == len(nonce):
        raise NotProvenError("the broker's nonce is not ours")
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_LIMIT:
        raise NotProvenError(f"the broker asks for {iterations} iterations")
    salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", name)
    unsigned = f"c=biws,r={both}"
    signed = f"{bare},{server_first},{unsigned}".encode()
    signature = hmac.digest(hashlib.new(name, client_key).digest(), signed, name)
    proof = b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()
    last = yield f"{unsigned},p={proof}".encode()
    expected = b"v=" + b64encode(hmac.digest(hmac.digest(salted, b"Server Key", name), signed, name))
    if not hmac.compare_digest(last, expected):
        raise NotProvenError("the broker does not know the password")
