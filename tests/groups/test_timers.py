from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.shards.timers import Timers

_steps = st.lists(
    st.tuples(st.sampled_from(["set", "cancel", "extend", "advance"]), st.integers(0, 4), st.integers(0, 20)),
    max_size=60,
)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(_steps)
def test_fires_each_once_and_on_time(steps: list[tuple[str, int, int]]) -> None:
    timers = Timers()
    due: dict[int, int] = {}
    fired: list[int] = []
    now = 0
    for what, key, amount in steps:
        match what:
            case "set":
                timers.schedule(key, now + amount, lambda key=key: fired.append(key))  # type: ignore[misc]
                due[key] = now + amount
            case "cancel":
                timers.cancel(key)
                due.pop(key, None)
            case "extend":
                if timers.extend(key, now + amount):
                    assert key in due
                    due[key] = now + amount
            case "advance":
                now += amount
                wake_at = timers.next_deadline()
                assert (wake_at is None) == (not due)
                assert wake_at is None or wake_at <= min(due.values())
                fired.clear()
                while (action := timers.pop_due(now)) is not None:
                    action()
                expected = {key for key, deadline in due.items() if deadline <= now}
                assert sorted(fired) == sorted(expected)
                for done in expected:
                    del due[done]
    assert len(timers) == len(due)


def test_heartbeats_do_not_grow_the_heap() -> None:
    timers = Timers()
    for now in range(10_000):
        for member in range(5):
            if not timers.extend(member, now + 100):
                timers.schedule(member, now + 100, lambda: None)
    assert len(timers._heap) == 5


def test_timers_that_come_and_go_do_not_grow_the_heap() -> None:
    timers = Timers()
    for member in range(20_000):
        timers.schedule(member, 1_000_000 + member, lambda: None)
        timers.cancel(member)
    assert len(timers._heap) < 2_000
