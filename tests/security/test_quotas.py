"""Which quota applies, and how long a client waits."""

from __future__ import annotations

import pytest

from penstock.metadata.access import QuotaEntity
from penstock.security import quotas
from penstock.security.quotas import (
    BYTE_SAMPLES_MIN,
    CONNECTIONS,
    PRODUCED,
    Bucket,
    Limit,
    Meter,
    QuotaTable,
    Usage,
)

BOTH = ("alice", "app")
LEVELS: list[tuple[QuotaEntity, tuple[str, str], str | None]] = [
    (("alice", "app", None), BOTH, None),
    (("alice", "", None), BOTH, "alice"),
    (("alice", None, None), ("alice", ""), None),
    (("", "app", None), BOTH, None),
    (("", "", None), BOTH, "alice"),
    (("", None, None), ("alice", ""), None),
    ((None, "app", None), ("", "app"), None),
    ((None, "", None), ("", "app"), "alice"),
]


@pytest.mark.parametrize("level", range(len(LEVELS)))
def test_the_most_specific_quota_applies(level: int) -> None:
    table = QuotaTable({entity: {PRODUCED: float(n)} for n, (entity, *_) in enumerate(LEVELS) if n >= level})
    assert table.limit("alice", "app", PRODUCED) == Limit(float(level), *LEVELS[level][1:])


def test_a_level_that_does_not_say_is_passed_over() -> None:
    table = QuotaTable({("alice", "app", None): {"x": 1.0}, (None, "", None): {PRODUCED: 2.0}})
    assert table.limit("alice", "app", PRODUCED) == Limit(2.0, ("", "app"), "alice")
    assert table.limit("alice", "app", "y") is None
    assert table.has("x", "y")
    assert not table.has("y")


def test_addresses() -> None:
    table = QuotaTable({(None, None, "10.0.0.1"): {CONNECTIONS: 5.0}, (None, None, ""): {CONNECTIONS: 2.0}})
    assert table.connection_rate("10.0.0.1") == 5.0
    assert table.connection_rate("10.0.0.2") == 2.0
    assert QuotaTable({}).connection_rate("10.0.0.1") is None


def test_nobody_waits_within_the_rate() -> None:
    meter = Meter()
    for second in range(100):
        meter.record(900, second * 1000.0)
        assert meter.delay_ms(1000.0, second * 1000.0) == 0.0


def test_who_used_too_much_waits_until_the_mean_is_back() -> None:
    meter = Meter()
    meter.record(30_000, 0.0)
    # 30,000 in ten seconds of samples is three times the rate: twenty seconds more make it even.
    assert meter.delay_ms(1000.0, 0.0) == pytest.approx(20_000)
    assert meter.delay_ms(1000.0, 5_000.0) == pytest.approx(20_000)
    assert meter.delay_ms(1000.0, 11_000.0) == 0.0, "the sample is forgotten"


def test_a_steady_client_that_obeys_is_held_at_its_rate() -> None:
    meter, now, sent = Meter(), 0.0, 0
    while now < 60_000:
        meter.record(5000, now)
        sent += 5000
        now += 1 + meter.delay_ms(10_000.0, now)
    assert sent / 60 == pytest.approx(10_000, rel=0.2)


@pytest.mark.parametrize("size", [160, 1000, 5000, 9900])
@pytest.mark.parametrize("idle_ms", [0, 11_700])
def test_bytes_are_held_at_the_rate_in_each_ten_seconds(size: int, idle_ms: float) -> None:
    """The client sends all it may at once, whether it was here before or not. Requests are whole."""
    meter, sent = Meter(BYTE_SAMPLES_MIN), []
    if idle_ms:
        meter.record(1, 0.0)
    now = idle_ms
    while now < 60_000:
        meter.record(size, now)
        sent.append(now)
        now += 1 + meter.delay_ms(10_000.0, now)
    for begins in range(int(idle_ms), 50_000, 500):
        used = size * sum(begins <= at < begins + 10_000 for at in sent)
        assert abs(used - 100_000) <= 10_000 + size


def test_a_bucket_is_overdrawn_once_and_fills() -> None:
    bucket = Bucket()
    assert bucket.delay_ms(5.0, 0.0) == 0.0
    bucket.take(55 + 10, 5.0, 0.0)
    assert bucket.delay_ms(5.0, 0.0) == pytest.approx(2000)
    assert bucket.delay_ms(5.0, 1000.0) == pytest.approx(1000)
    assert bucket.delay_ms(5.0, 2000.0) == 0.0
    assert bucket.delay_ms(5.0, 1e9) == 0.0
    bucket.take(56, 5.0, 1e9)
    assert bucket.delay_ms(5.0, 1e9) == pytest.approx(200), "it holds no more than eleven seconds bring"


RATE = 1000.0
DEBT = 30_000


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(quotas, "SHARES_MAX", 20)
    monkeypatch.setattr(quotas, "SWEEP_MIN", 5)
    return 20


def table_of(*entities: QuotaEntity) -> QuotaTable:
    return QuotaTable({entity: {PRODUCED: RATE} for entity in entities})


def limit_of(table: QuotaTable, user: str, client_id: str) -> Limit:
    limit = table.limit(user, client_id, PRODUCED)
    assert limit is not None
    return limit


ENTITIES: list[QuotaEntity] = [
    ("mallory", "", None),
    ("alice", None, None),
    ("bob", "app", None),
    (None, "named", None),
    (None, "", None),
]


@pytest.mark.parametrize(
    ("user", "client_id", "later"),
    [
        ("alice", "app", "another"),
        ("bob", "app", "app"),
        ("carol", "named", "named"),
        ("mallory", "app", "app"),
        ("dave", "app", "app"),
    ],
)
def test_no_crowd_of_client_ids_makes_a_debt_forgotten(
    small: int, user: str, client_id: str, later: str
) -> None:
    table, usage = table_of(*ENTITIES), Usage(Meter)
    usage.of(limit_of(table, user, client_id), 0.0).record(DEBT, 0.0)
    for at in range(10 * small):
        for stranger in ("mallory", "eve"):
            usage.of(limit_of(table, stranger, f"n{at}"), 10.0 * at).record(1, 10.0 * at)
    limit = limit_of(table, user, later)
    assert usage.of(limit, 2000.0).delay_ms(limit.rate, 2000.0) == pytest.approx(20_000, rel=0.01)
    assert len(usage) <= small + 2, "one more for each user with too many"


def test_where_there_is_no_room_the_further_client_ids_of_a_user_share(small: int) -> None:
    table, usage = table_of(*ENTITIES), Usage(Meter)
    for at in range(small):
        usage.of(limit_of(table, "eve", f"n{at}"), 0.0).record(1, 0.0)
    eve, other, dave = (limit_of(table, *who) for who in (("eve", "x"), ("eve", "y"), ("dave", "x")))
    usage.of(eve, 0.0).record(DEBT, 0.0)
    assert usage.of(other, 0.0) is usage.of(eve, 0.0)
    assert usage.of(other, 0.0).delay_ms(RATE, 0.0) == pytest.approx(20_000)
    assert usage.of(dave, 0.0).delay_ms(RATE, 0.0) == 0.0, "another user pays for nothing of it"
    alice, named = limit_of(table, "alice", "z"), limit_of(table, "dave", "named")
    assert usage.of(alice, 0.0) is not usage.of(dave, 0.0), "by user there is always room"
    assert usage.of(named, 0.0) is not usage.of(dave, 0.0), "and for a name of the administrator's"


def test_nobody_leaves_a_crowd_that_owes_although_there_is_room_again(small: int) -> None:
    table, usage = table_of(*ENTITIES), Usage(Meter)
    for at in range(small):
        usage.of(limit_of(table, "eve", f"n{at}"), 0.0).record(1, 0.0)
    late = limit_of(table, "eve", "late")
    usage.of(late, 10_000.0).record(DEBT, 10_000.0)
    assert usage.of(late, 12_000.0).delay_ms(RATE, 12_000.0) > 0
    assert usage.of(late, 21_001.0).delay_ms(RATE, 21_001.0) == 0.0
    assert usage.of(late, 21_001.0) is not usage.of(limit_of(table, "eve", "later"), 21_001.0)


def test_those_whose_use_counts_no_more_are_forgotten(small: int) -> None:
    table, usage = table_of(*ENTITIES), Usage(Meter)
    for at in range(100 * small):
        now_ms = 2000.0 * at
        usage.of(limit_of(table, "eve", f"n{at}"), now_ms).record(1, now_ms)
        assert len(usage) <= 13, "six count, and as many are kept until the next look"


def test_a_bucket_with_a_long_debt_is_kept_until_it_is_full_again(small: int) -> None:
    table, usage = table_of(("alice", "", None)), Usage(Bucket)
    limit = limit_of(table, "alice", "app")
    usage.of(limit, 0.0).take(100 * RATE, RATE, 0.0)
    for at in range(2 * small):
        usage.of(limit_of(table, "alice", f"n{at}"), 30_000.0).take(1, RATE, 30_000.0)
    assert usage.of(limit, 40_000.0).delay_ms(RATE, 40_000.0) == pytest.approx(49_000)
    kept = usage.of(limit, 40_000.0)
    for at in range(2 * small):
        usage.of(limit_of(table, "alice", f"m{at}"), 100_000.0).take(1, RATE, 100_000.0)
    assert usage.of(limit, 100_000.0) is not kept


def test_a_rate_holds_for_an_address_however_it_is_written() -> None:
    table = QuotaTable({(None, None, "0:0:0:0:0:0:0:1"): {CONNECTIONS: 5.0}})
    assert table.connection_rate("::1") == 5.0


def test_of_a_long_client_id_little_is_remembered() -> None:
    table = QuotaTable({(None, "", None): {PRODUCED: 1.0}, (None, "n" * 30_000, None): {PRODUCED: 7.0}})
    named, other, another = (table.limit("u", one * 30_000, PRODUCED) for one in "nxy")
    assert named is not None and other is not None and another is not None
    assert (named.rate, other.rate) == (7.0, 1.0), "it counts whole"
    assert other.share != another.share
    assert max(len(part) for part in other.share) <= quotas.ID_CHARACTERS_MAX
