"""The audit: lines that nobody can forge or flood."""

import logging

import pytest

from penstock.audit import NAME_MAX, REFUSALS_AT_ONCE, Asked, Audit, literal
from penstock.broker.rights import Permit
from tests.clocks import HandClock

ASKED = Asked("Fetch", 7, "shop")


def test_refusals_are_limited_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock.audit")
    clock = HandClock()
    audit = Audit(clock)
    for _ in range(1000):
        audit.refused("User:a", "10.0.0.1", "read topic='t'", ASKED)
    assert len(caplog.records) == REFUSALS_AT_ONCE
    clock.advance(1000)
    audit.refused("User:a", "10.0.0.1", "read topic='t'", ASKED)
    assert caplog.records[-1].getMessage() == (
        "refused read topic='t' api=Fetch correlation=7 client='shop' "
        "principal='User:a' host='10.0.0.1' left_out_before=900"
    )
    clock.advance(1000)
    audit.refused("User:a", "10.0.0.1", "read topic='t'", ASKED)
    assert "left_out" not in caplog.records[-1].getMessage()


def test_changes_are_always_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock.audit")
    audit = Audit(HandClock())
    for _ in range(1000):
        audit.changed("User:a", "10.0.0.1", "added a rule", ASKED)
    assert len(caplog.records) == 1000


def test_a_name_is_one_line_and_bounded() -> None:
    assert literal("a\nb\r\x1b[31m") == r"'a\nb\r\x1b[31m'"
    assert len(literal("x" * 10_000)) < 250


def test_what_a_client_calls_itself_is_one_line_and_bounded(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock.audit")
    for name in (None, "a\nb", "x" * 32_000):
        Audit(HandClock()).changed("User:a", "h", "did it", Asked("Fetch", 7, name))
    ends = "principal='User:a' host='h'"
    assert caplog.messages == [
        f"did it api=Fetch correlation=7 client=None {ends}",
        rf"did it api=Fetch correlation=7 client='a\nb' {ends}",
        f"did it api=Fetch correlation=7 client='{'x' * NAME_MAX}...' {ends}",
    ]


def test_permits_are_the_same_whichever_request_they_were_made_for() -> None:
    assert Permit(None, "User:a", asked=ASKED) == Permit(None, "User:a", asked=Asked("Fetch", 8, None))
    assert (
        len({Permit(None, "User:a", asked=ASKED), Permit(None, "User:a", asked=Asked("Fetch", 8, None))}) == 1
    )
