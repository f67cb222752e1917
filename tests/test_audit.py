"""The audit: lines that nobody can forge or flood."""

import logging

import pytest

from penstock.audit import REFUSALS_AT_ONCE, Audit, literal
from tests.clocks import HandClock


def test_refusals_are_limited_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock.audit")
    clock = HandClock()
    audit = Audit(clock)
    for _ in range(1000):
        audit.refused("User:a", "10.0.0.1", "read topic='t'")
    assert len(caplog.records) == REFUSALS_AT_ONCE
    clock.advance(1000)
    audit.refused("User:a", "10.0.0.1", "read topic='t'")
    assert caplog.records[-1].getMessage() == (
        "refused read topic='t' principal='User:a' host='10.0.0.1' left_out_before=900"
    )
    clock.advance(1000)
    audit.refused("User:a", "10.0.0.1", "read topic='t'")
    assert "left_out" not in caplog.records[-1].getMessage()


def test_changes_are_always_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock.audit")
    audit = Audit(HandClock())
    for _ in range(1000):
        audit.changed("User:a", "10.0.0.1", "added a rule")
    assert len(caplog.records) == 1000


def test_a_name_is_one_line_and_bounded() -> None:
    assert literal("a\nb\r\x1b[31m") == r"'a\nb\r\x1b[31m'"
    assert len(literal("x" * 10_000)) < 250
