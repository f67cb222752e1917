"""Silence is judged by the observer's own clock, and never against a broker that could have been heard."""

import pytest

from penstock.cluster.leases import Lease, LeaseTable, decode_lease, encode_lease
from penstock.metadata.image import BrokerInfo, ClusterImage, derive

TIMEOUT = 9.0
STAGGER = 2.0
NOW = 0.0
"""Silence is counted from looks; only the end of a process is counted from now."""


def broker(number: int, epoch: int | None = None) -> BrokerInfo:
    return BrokerInfo(number, number if epoch is None else epoch, ())


def image(*brokers: int) -> ClusterImage:
    return derive(ClusterImage(brokers={number: broker(number) for number in brokers}))


def table(me: int) -> LeaseTable:
    return LeaseTable(me, heartbeat_interval=1.0, timeout=TIMEOUT, look_interval=0.75)


def test_a_lease_comes_back_and_nonsense_is_nothing() -> None:
    assert decode_lease(encode_lease(Lease(3, 4))) == Lease(3, 4)
    assert decode_lease(None) is None
    assert decode_lease(b"\x00") is None
    assert decode_lease(b'{"epoch":"x"}') is None
    assert decode_lease(encode_lease(Lease(3, 4)).replace(b"e", b"\xb0", 1)) is None


def test_a_counter_that_stands_still_is_silence() -> None:
    leases = table(1)
    for second in range(9):
        leases.hear(broker(2), Lease(2, 7), second, second + 0.1)
    assert leases.silence(broker(2)) == 8 - 0.1
    assert not leases.overdue(image(1, 2), STAGGER, NOW)
    leases.hear(broker(2), Lease(2, 7), 9.2, 9.3)
    assert leases.overdue(image(1, 2), STAGGER, NOW) == [broker(2)]
    leases.hear(broker(2), Lease(2, 8), 10, 10.1)
    assert leases.silence(broker(2)) == 0


def test_a_broker_that_never_spoke_is_given_its_time() -> None:
    leases = table(1)
    leases.hear(broker(2), None, 100, 100)
    assert leases.silence(broker(2)) == 0
    leases.hear(broker(2), None, 109.5, 109.5)
    assert leases.overdue(image(1, 2), STAGGER, NOW) == [broker(2)]


def test_the_silence_of_one_incarnation_is_not_that_of_the_next() -> None:
    leases = table(1)
    leases.hear(broker(2), Lease(2, 7), 0, 0)
    leases.hear(broker(2), Lease(2, 7), 20, 20)
    assert leases.silence(broker(2)) == 20
    assert leases.silence(broker(2, epoch=5)) == 0


def test_an_observer_that_slept_while_it_read_judges_by_when_it_began() -> None:
    leases = table(1)
    leases.hear(broker(2), Lease(2, 7), 0, 0)
    # It began to read at 1, was stopped for an hour, and only then saw the answer of long ago.
    leases.hear(broker(2), Lease(2, 7), 1, 3600)
    assert leases.silence(broker(2)) == 1


def test_nobody_is_silent_while_the_store_is_out() -> None:
    leases = table(1)
    leases.hear(broker(2), Lease(2, 7), 0, 0)
    leases.hear(broker(2), Lease(2, 7), 8, 8)
    leases.excuse(60)
    leases.hear(broker(2), Lease(2, 7), 61, 61)
    assert leases.silence(broker(2)) == 1


def test_the_lowest_goes_first_and_the_others_wait_a_bit_longer() -> None:
    first, second, third = table(1), table(2), table(3)
    everybody = image(1, 2, 3, 4)
    for leases in (first, second, third):
        for number in (1, 2, 3):
            leases.hear(broker(number), Lease(number, 100), 9.5, 9.5)
        leases.hear(broker(4), Lease(4, 7), 0, 0)
        leases.hear(broker(4), Lease(4, 7), 9.5, 9.5)
    assert first.overdue(everybody, STAGGER, NOW) == [broker(4)]
    assert second.overdue(everybody, STAGGER, NOW) == []
    second.hear(broker(4), Lease(4, 7), 11.5, 11.5)
    third.hear(broker(4), Lease(4, 7), 11.5, 11.5)
    assert second.overdue(everybody, STAGGER, NOW) == [broker(4)]
    assert third.overdue(everybody, STAGGER, NOW) == []


def test_a_silent_lowest_does_not_hold_up_the_next() -> None:
    second = table(2)
    for now in (0.0, 9.5):
        second.hear(broker(1), Lease(1, 7), now, now)
    assert second.overdue(image(1, 2, 3), STAGGER, NOW) == [broker(1)]


def test_few_listen_for_all_and_all_listen_for_few() -> None:
    everybody = image(*range(1, 11))
    assert [info.id for info in table(1).watched(everybody)] == list(range(2, 11))
    assert [info.id for info in table(2).watched(everybody)] == [1, *range(3, 11)]
    assert [info.id for info in table(3).watched(everybody)] == [1, 2]
    assert [info.id for info in table(10).watched(everybody)] == [1, 2]


def test_when_the_few_fall_silent_the_next_few_take_their_place() -> None:
    leases = table(3)
    for number in (1, 2):
        leases.hear(broker(number), Lease(number, 7), 0, 0)
        leases.hear(broker(number), Lease(number, 7), 3, 3)
    assert [info.id for info in leases.watched(image(*range(1, 7)))] == [1, 2, 4, 5, 6]


def test_who_is_gone_is_forgotten() -> None:
    leases = table(1)
    leases.hear(broker(2), Lease(2, 7), 0, 0)
    leases.hear(broker(2), Lease(2, 7), 20, 20)
    leases.forget([])
    assert leases.silence(broker(2)) == 0


def test_a_heartbeat_is_listened_for_when_it_is_due() -> None:
    """One look when it is about to come, close looks until it has; then none until the next is due."""
    leases = table(1)
    others = [broker(2)]
    assert leases.due(others, 0.0) == others
    leases.hear(broker(2), Lease(2, 1), 10.0, 10.0)
    assert leases.due(others, 10.5) == []
    assert leases.pause(others, 10.5) == pytest.approx(0.4)
    assert leases.due(others, 10.9) == others
    leases.hear(broker(2), Lease(2, 1), 10.9, 10.9)
    assert leases.pause(others, 10.9) == pytest.approx(0.05)
    leases.hear(broker(2), Lease(2, 2), 11.0, 11.0)
    assert leases.pause(others, 11.2) == pytest.approx(0.7)


def test_one_that_is_late_is_listened_for_now_and_then_and_when_its_time_is_over() -> None:
    leases = table(1)
    others = [broker(2)]
    now = 10.0
    looks = []
    leases.hear(broker(2), Lease(2, 1), now, now)
    while not leases.overdue(image(1, 2), STAGGER, NOW):
        now += leases.pause(others, now)
        for info in leases.due(others, now):
            leases.hear(info, Lease(2, 1), now, now)
            looks.append(now)
    assert now == pytest.approx(10.0 + TIMEOUT)
    late = [at for at in looks if at >= 11.6]
    assert 9 <= len(late) <= 12


def test_one_whose_process_ended_has_a_moment_to_come_back() -> None:
    first, second = table(1), table(2)
    everybody = image(1, 2, 3)
    for leases in (first, second):
        for number in (1, 2, 3):
            leases.hear(broker(number), Lease(number, 7), 5.0, 5.0)
        leases.note(broker(3), True, 5.0)
        leases.note(broker(3), True, 5.5)
    assert first.overdue(everybody, STAGGER, 6.2) == []
    assert first.overdue(everybody, STAGGER, 6.25) == [broker(3)]
    assert second.overdue(everybody, STAGGER, 6.25) == []
    assert second.overdue(everybody, STAGGER, 8.25) == [broker(3)]
    again = derive(ClusterImage(brokers={1: broker(1), 2: broker(2), 3: broker(3, epoch=9)}))
    assert first.overdue(again, STAGGER, 60.0) == []
    first.note(broker(3, epoch=9), False, 60.0)
    first.note(broker(3, epoch=9), True, 61.0)
    assert first.overdue(again, STAGGER, 62.2) == []


def test_one_who_is_heard_is_not_dead_whatever_the_system_says() -> None:
    leases = table(1)
    leases.note(broker(2), True, 0.0)
    for second in range(1, 20):
        leases.hear(broker(2), Lease(2, second), second, second)
        leases.note(broker(2), True, second)
        assert leases.overdue(image(1, 2), STAGGER, second + 1.0) == []
