"""What links of a chain tell becomes a history: outcomes, counts, and moves without gaps for markers."""

from typing import Any

from conformance.histories.checking import check
from conformance.histories.history import OffsetSeen, Outcome
from conformance.transactions.account import Account, exactly_once


def told(event: str, name: str, at: float, **details: Any) -> dict[str, Any]:
    return {"event": event, "name": name, "at": at, **details}


def account_of(*outcomes: str | None) -> Account:
    """An input of as many values as there are outcomes; a transaction each, whose end is told or not."""
    account = Account()
    for number, outcome in enumerate(outcomes):
        account.wrote("in-0", f"in.{number}", number, began=0.0)
        name, at = f"link-1.{number}", 1.0 + number
        appends, moves = [["out-0", f"in.{number}|{name}.0"]], [["in-0", number, number + 1]]
        account.heard("link-1", "group", told("begin", name, at, appends=appends, moves=moves))
        if outcome != "killed":
            account.heard("link-1", "group", told("asked", name, at + 0.1))
        if outcome in ("committed", "aborted"):
            account.heard("link-1", "group", told("ended", name, at + 0.2, outcome=outcome))
    return account


def show(account: Account, *numbers: int) -> None:
    """A reader is shown the outputs of these inputs; a marker is between any two."""
    records = [(2 * at, f"in.{number}|link-1.{number}.0") for at, number in enumerate(numbers)]
    account.read_whole("reader", "out-0", 2 * len(numbers), records, committed=True)


def test_an_end_that_nobody_told_is_open_and_none_that_was_asked_for_an_abort() -> None:
    account = account_of("committed", None, "killed")
    found = [one.outcome for one in account.history().transactions if one.moves]
    assert found == [Outcome.COMMITTED, Outcome.UNKNOWN, Outcome.ABORTED]
    assert account.committed_by("group") == 1


def test_a_history_in_which_all_is_well() -> None:
    account = account_of("committed", "committed")
    show(account, 0, 1)
    history = account.history()
    assert check(history) == []
    assert exactly_once(history, ["out"], ["in.0", "in.1"]) == []


def test_what_is_lost_doubled_or_made_up_is_found() -> None:
    account = account_of("committed", "committed")
    show(account, 0)
    assert [one.kind for one in exactly_once(account.history(), ["out"], ["in.0", "in.1"])] == ["lost"]
    assert "lost" in {one.kind for one in check(account.history())}
    twice = account_of("committed")
    twice.read_whole("reader", "out-0", 4, [(0, "in.0|link-1.0.0"), (2, "in.0|link-2.0.0")], committed=True)
    assert [one.kind for one in exactly_once(twice.history(), ["out"], ["in.0"])] == ["duplicate"]
    assert [one.kind for one in exactly_once(twice.history(), ["out"], [])] == ["duplicate", "made up"]


def test_what_was_aborted_must_not_be_seen() -> None:
    account = account_of("aborted")
    show(account, 0)
    assert "aborted read" in {one.kind for one in check(account.history())}


def test_markers_between_two_transactions_are_no_gap() -> None:
    account = account_of("committed", "committed")
    show(account, 0, 1)
    # A second stage consumes the output: records at 0 and 2, a marker at 1.
    for number in (0, 1):
        name, start = f"second-1.{number}", 2 * number
        moves = [["out-0", start, start + 1]]
        account.heard("second-1", "second", told("begin", name, 5.0 + number, appends=[], moves=moves))
        account.heard("second-1", "second", told("asked", name, 5.1 + number))
        account.heard("second-1", "second", told("ended", name, 5.2 + number, outcome="committed"))
    history = account.history()
    second = [move for one in history.transactions for move in one.moves if move.group == "second"]
    assert [(move.start, move.end) for move in second] == [(0, 1), (1, 3)]
    assert check(history) == []


def test_a_group_that_was_put_at_the_start_is_there() -> None:
    account = account_of("committed")
    account.told(OffsetSeen("other", "in-0", 0, 0.5, 0.6))
    assert [one.kind for one in check(account.history())] == ["offset"]
    for group in ("other", "group"):
        account.placed(group, ["in-0", "in-1"])
    assert check(account.history()) == []
    assert account.counts() == {"committed": 1}
