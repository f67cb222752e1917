"""When a request that hangs is asked a second time."""

from penstock.storage.stores.patience import (
    HEDGE_MIN_SECONDS,
    LARGE_SECONDS,
    SMALL_BYTES,
    SMALL_SECONDS,
    Patience,
    attempt_seconds,
)

LARGE_BYTES = 16 * SMALL_BYTES


def told(*seconds: float, size: int = 0) -> Patience:
    patience = Patience()
    for one in seconds:
        patience.note(size, one)
    return patience


def test_nothing_is_known_at_first() -> None:
    assert Patience().before_hedge(0) == HEDGE_MIN_SECONDS
    assert HEDGE_MIN_SECONDS < Patience().before_hedge(LARGE_BYTES) < LARGE_SECONDS


def test_what_was_usual_lately_is_waited_for() -> None:
    assert told(*[0.02] * 64).before_hedge(0) == HEDGE_MIN_SECONDS, "never sooner than this"
    assert told(*[0.6] * 64).before_hedge(0) == 0.6 * 3
    assert told(*[5.0] * 64).before_hedge(0) == SMALL_SECONDS / 2, "early enough to be of use"
    assert told(*[5.0] * 64, *[0.02] * 64).before_hedge(0) == HEDGE_MIN_SECONDS, "long ago"


def test_one_that_hung_does_not_make_hanging_usual() -> None:
    assert told(*[0.02] * 40, 5.9).before_hedge(0) == HEDGE_MIN_SECONDS


def test_large_requests_say_nothing_of_small_ones() -> None:
    patience = told(*[4.0] * 64, size=LARGE_BYTES)
    assert patience.before_hedge(0) == HEDGE_MIN_SECONDS
    assert patience.before_hedge(LARGE_BYTES) == 12.0


def test_a_hedge_is_earned() -> None:
    patience = Patience()
    assert [patience.may_hedge() for _ in range(12)] == [True] * 10 + [False] * 2
    for _ in range(11):
        patience.note(0, 0.01)
    assert patience.may_hedge() and not patience.may_hedge()
    assert patience.hedges == 11


def test_a_store_that_always_takes_longer_is_heard_in_the_end() -> None:
    assert [attempt_seconds(0, attempt) for attempt in range(6)] == [6, 6, 12, 12, 24, 24]
    assert attempt_seconds(LARGE_BYTES, 0) == LARGE_SECONDS
