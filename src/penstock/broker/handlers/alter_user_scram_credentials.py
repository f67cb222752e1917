"""AlterUserScramCredentials 0: set and remove what is kept of passwords (KIP-554).

- A client sends salt and salted password. Only the keys that are derived from them are kept.
- Each user once in a request, whatever the mechanisms: else DUPLICATE_RESOURCE, and nothing of that user. If
  the first wish for a user was wrong already, that is told instead.
- UNACCEPTABLE_CREDENTIAL for an empty user, or iterations that are not 4096 to 16384;
  UNSUPPORTED_SASL_MECHANISM; RESOURCE_NOT_FOUND to remove what is not there.
- All changes of a request become one entry of the metadata log; the audit is told of each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.audit import literal
from penstock.broker.security.changing import carry_out, tell
from penstock.metadata.commands import RemoveScramCredential, SetScramCredential
from penstock.metadata.refusal import Refusal
from penstock.security.credentials import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SALT_BYTES_MAX,
    Mechanism,
    from_salted_password,
)
from penstock.wire.api.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialUpsertion,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.broker.context import Broker
    from penstock.metadata.commands import AnyCommand
    from penstock.metadata.image import ClusterImage
    from penstock.wire.exchange import Request

Change = SetScramCredential | RemoveScramCredential


async def handle(
    broker: Broker, request: Request, message: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    wanted: dict[str, Change | Refusal] = {}

    def decide(image: ClusterImage) -> Sequence[AnyCommand]:
        nonlocal wanted
        wanted = _judged(image, message)
        return [change for change in wanted.values() if not isinstance(change, Refusal)]

    refusal = await carry_out(broker, decide)
    if refusal is None:
        tell(
            broker,
            request,
            (_told(change) for change in wanted.values() if not isinstance(change, Refusal)),
        )
    elif not wanted:
        return refused(message, refusal.code, refusal.message)
    return AlterUserScramCredentialsResponse(
        results=[
            _result(name, change if isinstance(change, Refusal) else refusal)
            for name, change in wanted.items()
        ]
    )


def _judged(image: ClusterImage, message: AlterUserScramCredentialsRequest) -> dict[str, Change | Refusal]:
    """What is to be done for each user, or why not. What is wrong first is what is told."""
    asked = [
        *((one.name, _removal(one.name, one.mechanism)) for one in message.deletions),
        *((one.name, _credential(one)) for one in message.upsertions),
    ]
    wanted: dict[str, Change | Refusal] = {}
    for name, change in asked:
        known = wanted.get(name)
        if known is None:
            wanted[name] = change if isinstance(change, Refusal) else _missing(image, change) or change
        elif not isinstance(known, Refusal):
            why = "A user credential cannot be altered twice in the same request"
            wanted[name] = Refusal(ErrorCode.DUPLICATE_RESOURCE, why)
    return wanted


def _result(name: str, refusal: Refusal | None) -> AlterUserScramCredentialsResult:
    return AlterUserScramCredentialsResult(
        user=name,
        error_code=ErrorCode.NONE if refusal is None else refusal.code,
        error_message=None if refusal is None else refusal.message,
    )


def _names(message: AlterUserScramCredentialsRequest) -> list[str]:
    return [*(one.name for one in message.deletions), *(one.name for one in message.upsertions)]


def _usable(name: str, mechanism: int) -> Refusal | None:
    if not name:
        return Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if mechanism not in tuple(Mechanism):
        return Refusal(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    return None


def _removal(name: str, mechanism: int) -> Change | Refusal:
    return _usable(name, mechanism) or RemoveScramCredential(name, mechanism)


def _credential(upsertion: ScramCredentialUpsertion) -> Change | Refusal:
    fault = _usable(upsertion.name, upsertion.mechanism)
    if fault is not None:
        return fault
    mechanism = Mechanism(upsertion.mechanism)
    why = ""
    if upsertion.iterations < ITERATIONS_MIN:
        why = "Too few iterations"
    elif upsertion.iterations > ITERATIONS_MAX:
        why = "Too many iterations"
    elif not 0 < len(upsertion.salt) <= SALT_BYTES_MAX:
        why = "The salt is empty or too long"
    elif not upsertion.salted_password:
        why = "The salted password is empty"
    if why:
        return Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, why)
    credential = from_salted_password(
        mechanism, bytes(upsertion.salted_password), bytes(upsertion.salt), upsertion.iterations
    )
    return SetScramCredential(upsertion.name, mechanism, credential)


def _missing(image: ClusterImage, change: Change) -> Refusal | None:
    if isinstance(change, RemoveScramCredential) and (change.user, change.mechanism) not in image.credentials:
        why = "Attempt to delete a user credential that does not exist"
        return Refusal(ErrorCode.RESOURCE_NOT_FOUND, why)
    return None


def _told(change: Change) -> str:
    verb = "set" if isinstance(change, SetScramCredential) else "removed"
    return (
        f"{verb} a credential: user={literal(change.user)} mechanism={Mechanism(change.mechanism).sasl_name}"
    )


def refused(
    message: AlterUserScramCredentialsRequest, code: ErrorCode, why: str | None = None
) -> AlterUserScramCredentialsResponse:
    names = dict.fromkeys(_names(message))
    refusal = Refusal(code, why or code.name)
    return AlterUserScramCredentialsResponse(results=[_result(name, refusal) for name in names])
