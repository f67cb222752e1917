"""Rules, credentials, quotas and tokens as commands of the log."""

from __future__ import annotations

import msgspec
import pytest

from penstock.metadata import access_changes
from penstock.metadata.access import AccessRule, DelegationToken, ScramCredential
from penstock.metadata.apply import apply
from penstock.metadata.codec import Entry, decode_entry, decode_snapshot, encode_entry, encode_snapshot
from penstock.metadata.commands import (
    ACCESS_COMMANDS,
    AnyCommand,
    RemoveAcls,
    RemoveDelegationToken,
    RemoveScramCredential,
    SetAcls,
    SetDelegationToken,
    SetQuota,
    SetScramCredential,
)
from penstock.metadata.image import ClusterImage
from penstock.metadata.levels import SECURITY_FROM
from penstock.metadata.preconditions import check
from penstock.wire.errors import ErrorCode
from tests.metadata.worlds import check_image, cluster, do

IMAGE = msgspec.structs.replace(cluster(1), level=SECURITY_FROM)
RULE = AccessRule(2, "t", 3, "User:alice", "*", 3, 3)
OTHER = AccessRule(2, "t", 3, "User:bob", "*", 3, 3)
CREDENTIAL = ScramCredential(b"salt", bytes(32), bytes(32), 4096)
TOKEN = DelegationToken("id", "User:alice", "User:alice", (), 1, 100, 1000)

COMMANDS: list[AnyCommand] = [
    SetAcls((RULE,)),
    RemoveAcls((RULE,)),
    SetScramCredential("alice", 1, CREDENTIAL),
    RemoveScramCredential("alice", 1),
    SetQuota("alice", None, None, {"producer_byte_rate": 10.0}),
    SetDelegationToken(TOKEN),
    RemoveDelegationToken("id"),
]


def refused(image: ClusterImage, command: AnyCommand) -> ErrorCode | None:
    refusal = check(image, command)
    return None if refusal is None else refusal.code


def stored(image: ClusterImage) -> ClusterImage:
    _floor, found = decode_snapshot(encode_snapshot(image, 0), 1)
    assert isinstance(found, ClusterImage)
    return found


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
def test_below_its_level_each_is_refused_with_the_way_out(command: AnyCommand) -> None:
    refusal = check(msgspec.structs.replace(IMAGE, level=SECURITY_FROM - 1), command)
    assert refusal is not None
    assert refusal.code is ErrorCode.UNSUPPORTED_VERSION
    assert "penstock cluster upgrade" in (refusal.message or "")
    entry = Entry(1, "a", 0, [command])
    assert decode_entry(encode_entry(entry, 3), 1) == entry


def test_all_are_tried() -> None:
    assert {type(command) for command in COMMANDS} == set(ACCESS_COMMANDS)


def test_rules_come_and_go_and_are_in_snapshots() -> None:
    image = do(IMAGE, SetAcls((RULE, OTHER)), SetAcls((RULE,)))
    assert list(image.access_rules) == [RULE, OTHER]
    assert stored(image) == image
    check_image(image)
    image = do(image, RemoveAcls((RULE,)), RemoveAcls((RULE,)))
    assert list(image.access_rules) == [OTHER]
    assert do(image, SetQuota("x", None, None, {"a": 1.0})).access_rules is image.access_rules


def test_credentials() -> None:
    image = do(IMAGE, SetScramCredential("alice", 1, CREDENTIAL))
    assert image.credentials == {("alice", 1): CREDENTIAL}
    assert stored(image) == image
    assert refused(image, RemoveScramCredential("alice", 2)) is ErrorCode.RESOURCE_NOT_FOUND
    assert do(image, RemoveScramCredential("alice", 1)).credentials == {}
    short = ScramCredential(b"salt", bytes(31), bytes(32), 4096)
    assert refused(IMAGE, SetScramCredential("a", 1, short)) is ErrorCode.UNACCEPTABLE_CREDENTIAL
    assert refused(IMAGE, SetScramCredential("a", 2, CREDENTIAL)) is ErrorCode.UNACCEPTABLE_CREDENTIAL
    assert refused(IMAGE, SetScramCredential("a", 3, CREDENTIAL)) is ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert refused(IMAGE, SetScramCredential("", 1, CREDENTIAL)) is ErrorCode.UNACCEPTABLE_CREDENTIAL


def test_no_secret_is_printed() -> None:
    credential = ScramCredential(b"the-salt", b"the-stored", b"the-server", 4096)
    command = SetScramCredential("alice", 1, credential)
    assert "the-" not in repr(command) + repr(apply(IMAGE, command).credentials)


def test_quotas() -> None:
    image = do(IMAGE, SetQuota("alice", None, None, {"a": 1.0, "b": 2.0}), SetQuota("", "", None, {"a": 3.0}))
    assert image.quotas == {("alice", None, None): {"a": 1.0, "b": 2.0}, ("", "", None): {"a": 3.0}}
    assert stored(image) == image
    image = do(
        image, SetQuota("alice", None, None, {"a": None, "b": 4.0}), SetQuota("", "", None, {"a": None})
    )
    assert image.quotas == {("alice", None, None): {"b": 4.0}}
    for wrong in (
        SetQuota(None, None, None, {}),
        SetQuota("a", None, "1.2.3.4", {}),
        SetQuota("a", None, None, {"a": 0.0}),
        SetQuota("a", None, None, {"a": float("nan")}),
    ):
        assert refused(IMAGE, wrong) is ErrorCode.INVALID_REQUEST


def test_a_token_is_changed_only_from_what_it_was() -> None:
    image = do(IMAGE, SetDelegationToken(TOKEN))
    assert stored(image) == image
    later = msgspec.structs.replace(TOKEN, expires_ms=200)
    assert refused(image, SetDelegationToken(later)) is ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    image = do(image, SetDelegationToken(later, 100))
    assert refused(image, SetDelegationToken(later, 100)) is ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    image = do(image, RemoveDelegationToken("id"))
    assert image.tokens == {}
    assert refused(image, RemoveDelegationToken("id")) is ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    assert refused(image, SetDelegationToken(later, 200)) is ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_each_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RULES_MAX", "CREDENTIALS_MAX", "QUOTAS_MAX", "TOKENS_MAX"):
        monkeypatch.setattr(access_changes, name, 1)
    image = do(
        IMAGE,
        SetAcls((RULE,)),
        SetScramCredential("alice", 1, CREDENTIAL),
        SetQuota("alice", None, None, {"a": 1.0}),
        SetDelegationToken(TOKEN),
    )
    more: list[AnyCommand] = [
        SetAcls((OTHER,)),
        SetScramCredential("bob", 1, CREDENTIAL),
        SetQuota("bob", None, None, {"a": 1.0}),
        SetDelegationToken(msgspec.structs.replace(TOKEN, token_id="other")),
    ]
    assert [refused(image, command) for command in more] == [ErrorCode.POLICY_VIOLATION] * 4
    assert refused(image, SetAcls((RULE,))) is None
    long = msgspec.structs.replace(RULE, name="x" * 40_000)
    assert refused(IMAGE, SetAcls((long,))) is ErrorCode.INVALID_REQUEST
