"""Delegation tokens: found by their passwords."""

from __future__ import annotations

import pytest

from penstock.metadata.access import DelegationToken
from penstock.security import delegation
from penstock.security.delegation import TokensByHmac, token_hmac

SECRET = "the key of the tokens"


def tokens(*ids: str) -> dict[str, DelegationToken]:
    return {one: DelegationToken(one, "User:alice", "User:alice", (), 0, 1, 1) for one in ids}


def test_a_token_is_found_by_its_hmac_and_by_no_other() -> None:
    index, all_of_them = TokensByHmac(SECRET), tokens("a", "b")
    for one in ("a", "b"):
        assert index.find(all_of_them, token_hmac(one, SECRET)) == all_of_them[one]
    right = token_hmac("a", SECRET)
    for wrong in (
        b"",
        b"a",
        right[:-1],
        right + b"\0",
        token_hmac("a", "another key"),
        token_hmac("c", SECRET),
    ):
        assert index.find(all_of_them, wrong) is None


def test_tokens_come_and_go() -> None:
    index, hmacs = TokensByHmac(SECRET), [token_hmac(one, SECRET) for one in "abc"]
    for there in (tokens("a"), tokens("a", "b"), tokens("b", "c"), tokens(), tokens("a", "c")):
        found = [index.find(there, one) for one in hmacs]
        assert [token and token.token_id for token in found] == [
            one if one in there else None for one in "abc"
        ]


def test_a_token_that_changes_is_told_as_it_is() -> None:
    index, before = TokensByHmac(SECRET), tokens("a")
    assert index.find(before, token_hmac("a", SECRET)) is before["a"]
    after = {"a": DelegationToken("a", "User:alice", "User:alice", (), 0, 2, 2)}
    assert index.find(after, token_hmac("a", SECRET)) is after["a"]


def test_each_hmac_is_made_once_however_often_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody who may log in may ask with any HMAC: with 10,000 tokens each question held the broker up for
    forty milliseconds."""
    made: list[str] = []

    def counted(token_id: str, secret: str) -> bytes:
        made.append(token_id)
        return token_hmac(token_id, secret)

    monkeypatch.setattr(delegation, "token_hmac", counted)
    index, there = TokensByHmac(SECRET), tokens("a", "b", "c")
    for _ in range(100):
        assert index.find(there, b"guessed") is None
    assert sorted(made) == ["a", "b", "c"]
    more = {**there, **tokens("d")}
    assert index.find(more, token_hmac("d", SECRET)) == more["d"]
    assert sorted(made) == ["a", "b", "c", "d"]
