"""The judge of rebalances lets a good history pass and names what is wrong with a bad one."""

import pytest
from conformance.groups.history import Commit, Event, again, complaints_about, holdings

GOOD = (
    Event("a", "assigned", 10, (0, 1)),
    Event("a", "consumed", 20, (0,), (0, 1, 2)),
    Event("a", "consumed", 21, (1,), (0,)),
    Event("a", "revoked", 30, (0,)),
    Event("b", "assigned", 30.2, (0,)),
    Event("b", "consumed", 40, (0,), (3,)),
    Event("a", "consumed", 41, (1,), (1, 2)),
    Event("a", "died", 50),
    Event("b", "assigned", 60, (1,)),
    Event("b", "consumed", 70, (1,), (1, 2)),
)
COMMITS = (Commit(0, 3, 22), Commit(1, 1, 22), Commit(0, 4, 42), Commit(1, 3, 71))
ENDS = {0: 4, 1: 3}


def judge(*events: Event, commits: tuple[Commit, ...] = COMMITS, ends: dict[int, int] = ENDS) -> list[str]:
    return complaints_about(events, commits, ends, dict(ENDS))


def test_a_record_may_come_again_when_its_consumer_died_before_its_commit() -> None:
    assert judge(*GOOD) == []
    assert again(holdings(GOOD)[0]) == 2


@pytest.mark.parametrize(
    ("events", "complaint"),
    [
        (
            [*GOOD[:4], Event("b", "assigned", 28, (0,)), *GOOD[5:]],
            "partition 0 belonged to a and b (2.0 ms)",
        ),
        ([*GOOD[:3], *GOOD[4:]], "partition 0 belonged to a and b (19.8 ms)"),
        (
            [*GOOD[:5], Event("b", "consumed", 40, (0,), (2, 3)), *GOOD[6:]],
            "b on partition 0 began at 2, 3 was committed",
        ),
        (
            [*GOOD[:1], Event("a", "consumed", 20, (0,), (0, 2)), *GOOD[2:]],
            "a on partition 0 went from 0 to 2",
        ),
        (
            [*GOOD[:9], Event("b", "consumed", 70, (1,), (1,))],
            "never consumed: 1 of 4 records of partition 1 from 3 on",
        ),
        ([*GOOD, Event("a", "consumed", 80, (1,), (2,))], "a consumed of partition 1, which it did not have"),
        ([*GOOD[:3], Event("a", "lost", 30, (0,)), *GOOD[4:]], "a lost partition 0"),
    ],
)
def test_what_is_wrong_is_named(events: list[Event], complaint: str) -> None:
    ends = ENDS | {1: 4} if complaint.startswith("never") else ENDS
    assert complaint in judge(*events, ends=ends)


def test_commits_that_go_back_are_named() -> None:
    commits = (*COMMITS[:2], Commit(0, 4, 42), Commit(0, 3, 43), Commit(1, 3, 71))
    assert "commits of partition 0 went from 4 to 3" in judge(*GOOD, commits=commits)


def test_the_last_commits_are_compared_with_what_was_written() -> None:
    assert complaints_about(GOOD, COMMITS, ENDS, {0: 4, 1: 2}) == [
        "committed in the end: {0: 4, 1: 2}, written: {0: 4, 1: 3}"
    ]
