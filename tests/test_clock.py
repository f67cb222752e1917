"""The clocks that leases are measured with."""

import time

import pytest

from penstock.clock import SystemClock, monotonic_clock


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="only Linux has it")
def test_the_monotonic_clock_counts_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "clock_gettime", {time.CLOCK_BOOTTIME: 5.0}.__getitem__)
    assert monotonic_clock()() == 5.0


def test_the_monotonic_clock_goes_on() -> None:
    clock = SystemClock()
    before = clock.monotonic()
    assert clock.monotonic() >= before
