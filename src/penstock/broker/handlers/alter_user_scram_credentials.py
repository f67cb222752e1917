"""AlterUserScramCredentials 0: set and remove what is kept of passwords (KIP-554).

- A client sends salt and salted password. Only the keys that are derived from them are kept.
- Each user once in a request, whatever the mechanisms: else DUPLICATE_RESOURCE, and nothing of that user.
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
    times: dict[str, int] = {}
    for name in _names(message):
        times[name] = times.get(name, 0) + 1
    wanted: dict[str, Change | Refusal] = {}
    for deletion in message.deletions:
        wanted[deletion.name] = _usable(deletion.name, deletion.mechanism) or RemoveScramCredential(
            deletion.name, deletion.mechanism
        )
    for upsertion in message.upsertions:
        wanted[upsertion.name] = _credential(upsertion)
    for name, count in times.items():
        if count > 1:
            why = "A user credential cannot be altered twice in the same request"
            wanted[name] = Refusal(ErrorCode.DUPLICATE_RESOURCE, why)
    outcomes: dict[str, Refusal | None] = {}

    def decide(image: ClusterImage) -> Sequence[AnyCommand]:
        commands: list[AnyCommand] = []
        for name, change in wanted.items():
            outcomes[name] = change if isinstance(change, Refusal) else _missing(image, change)
            if outcomes[name] is None and not isinstance(change, Refusal):
                commands.append(change)
        return commands

    refusal = await carry_out(broker, decide)
    done = [name for name, outcome in outcomes.items() if outcome is None]
    if refusal is None:
        tell(broker, request, (_told(wanted[name]) for name in done))
    else:
        outcomes.update(dict.fromkeys(wanted, refusal) if not outcomes else dict.fromkeys(done, refusal))
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(
                user=name,
                error_code=ErrorCode.NONE if outcome is None else outcome.code,
                error_message=None if outcome is None else outcome.message,
            )
            for name, outcome in outcomes.items()
        ]
    )


def _names(message: AlterUserScramCredentialsRequest) -> list[str]:
    return [*(one.name for one in message.deletions), *(one.name for one in message.upsertions)]


def _usable(name: str, mechanism: int) -> Refusal | None:
    if not name:
        return Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if mechanism not in tuple(Mechanism):
        return Refusal(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    return None


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


def _told(change: Change | Refusal) -> str:
    assert not isinstance(change, Refusal)
    verb = "set" if isinstance(change, SetScramCredential) else "removed"
    return (
        f"{verb} a credential: user={literal(change.user)} mechanism={Mechanism(change.mechanism).sasl_name}"
    )


def refused(message: AlterUserScramCredentialsRequest, code: ErrorCode) -> AlterUserScramCredentialsResponse:
    names = dict.fromkeys(_names(message))
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(user=name, error_code=code, error_message=None) for name in names
        ]
    )
