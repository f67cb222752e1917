"""When rules, credentials, quotas and delegation tokens may change, and what follows: the preconditions of
these commands and their effects, side by side.

What a client sent is judged by the handlers, which know Kafka's words for it. Here stands what must hold of
every image, whoever proposes: bounds, and that a change is made from what is there.
"""

from collections.abc import Callable, Mapping
from typing import Any

from penstock.metadata.access import SCRAM_SHA_256, SCRAM_SHA_512
from penstock.metadata.commands import (
    RemoveAcls,
    RemoveDelegationToken,
    RemoveScramCredential,
    SetAcls,
    SetDelegationToken,
    SetQuota,
    SetScramCredential,
)
from penstock.metadata.draft import Draft
from penstock.metadata.image import ClusterImage
from penstock.metadata.refusal import Refusal
from penstock.wire.errors import ErrorCode

RULES_MAX = 100_000
"""All of them are in every snapshot, and in the memory of every broker."""
CREDENTIALS_MAX = 100_000
QUOTAS_MAX = 100_000
TOKENS_MAX = 100_000
TEXT_MAX = 32_767
"""Characters of a name or principal: what the protocol can carry."""

_KEYS_OF = {SCRAM_SHA_256: 32, SCRAM_SHA_512: 64}


def check_set_acls(image: ClusterImage, command: SetAcls) -> Refusal | None:
    added = sum(rule not in image.access_rules for rule in command.rules)
    if len(image.access_rules) + added > RULES_MAX:
        return _full("access rules", RULES_MAX)
    if any(max(len(rule.name), len(rule.principal), len(rule.host)) > TEXT_MAX for rule in command.rules):
        return Refusal(ErrorCode.INVALID_REQUEST, f"A name in an access rule is longer than {TEXT_MAX}.")
    return None


def set_acls(draft: Draft, command: SetAcls) -> None:
    for rule in command.rules:
        draft.put_item("access_rules", rule, rule)


def check_remove_acls(image: ClusterImage, command: RemoveAcls) -> Refusal | None:
    return None


def remove_acls(draft: Draft, command: RemoveAcls) -> None:
    for rule in command.rules:
        draft.put_item("access_rules", rule, None)


def check_set_scram_credential(image: ClusterImage, command: SetScramCredential) -> Refusal | None:
    if (command.user, command.mechanism) not in image.credentials and (
        len(image.credentials) >= CREDENTIALS_MAX
    ):
        return _full("credentials", CREDENTIALS_MAX)
    size = _KEYS_OF.get(command.mechanism)
    if size is None:
        return Refusal(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism.")
    credential = command.credential
    if len(credential.stored_key) != size or len(credential.server_key) != size or not credential.salt:
        return Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "The derived keys do not fit the mechanism.")
    if not 0 < len(command.user) <= TEXT_MAX:
        return Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    return None


def set_scram_credential(draft: Draft, command: SetScramCredential) -> None:
    draft.put_item("credentials", (command.user, command.mechanism), command.credential)


def check_remove_scram_credential(image: ClusterImage, command: RemoveScramCredential) -> Refusal | None:
    if (command.user, command.mechanism) not in image.credentials:
        message = "Attempt to delete a user credential that does not exist"
        return Refusal(ErrorCode.RESOURCE_NOT_FOUND, message)
    return None


def remove_scram_credential(draft: Draft, command: RemoveScramCredential) -> None:
    draft.put_item("credentials", (command.user, command.mechanism), None)


def check_set_quota(image: ClusterImage, command: SetQuota) -> Refusal | None:
    entity = (command.user, command.client_id, command.address)
    if entity not in image.quotas and len(image.quotas) >= QUOTAS_MAX:
        return _full("entities with quotas", QUOTAS_MAX)
    if entity == (None, None, None) or (command.address is not None and entity[:2] != (None, None)):
        return Refusal(ErrorCode.INVALID_REQUEST, "A quota is for users and clients, or for an address.")
    if any(value is not None and not value > 0 for value in command.changes.values()):
        return Refusal(ErrorCode.INVALID_REQUEST, "A quota must be greater than 0.")
    return None


def set_quota(draft: Draft, command: SetQuota) -> None:
    entity = (command.user, command.client_id, command.address)
    values = draft.quota(entity)
    for key, value in command.changes.items():
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value
    draft.put_item("quotas", entity, values or None)


def check_set_delegation_token(image: ClusterImage, command: SetDelegationToken) -> Refusal | None:
    old = image.tokens.get(command.token.token_id)
    if old is None and len(image.tokens) >= TOKENS_MAX:
        return _full("delegation tokens", TOKENS_MAX)
    if (-1 if old is None else old.expires_ms) != command.base_ms:
        message = "The token has been changed, or is gone, since this was decided."
        return Refusal(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, message)
    return None


def set_delegation_token(draft: Draft, command: SetDelegationToken) -> None:
    draft.put_item("tokens", command.token.token_id, command.token)


def check_remove_delegation_token(image: ClusterImage, command: RemoveDelegationToken) -> Refusal | None:
    if command.token_id not in image.tokens:
        return Refusal(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, "There is no such token.")
    return None


def remove_delegation_token(draft: Draft, command: RemoveDelegationToken) -> None:
    draft.put_item("tokens", command.token_id, None)


def _full(what: str, most: int) -> Refusal:
    return Refusal(ErrorCode.POLICY_VIOLATION, f"A cluster keeps at most {most} {what}.")


ACCESS_CHECKS: Mapping[type[Any], Callable[[ClusterImage, Any], Refusal | None]] = {
    SetAcls: check_set_acls,
    RemoveAcls: check_remove_acls,
    SetScramCredential: check_set_scram_credential,
    RemoveScramCredential: check_remove_scram_credential,
    SetQuota: check_set_quota,
    SetDelegationToken: check_set_delegation_token,
    RemoveDelegationToken: check_remove_delegation_token,
}

ACCESS_EFFECTS: Mapping[type[Any], Callable[[Draft, Any], None]] = {
    SetAcls: set_acls,
    RemoveAcls: remove_acls,
    SetScramCredential: set_scram_credential,
    RemoveScramCredential: remove_scram_credential,
    SetQuota: set_quota,
    SetDelegationToken: set_delegation_token,
    RemoveDelegationToken: remove_delegation_token,
}
