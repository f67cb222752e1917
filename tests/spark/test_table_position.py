"""What a table says of itself, and whether to believe it."""

from penstock.spark.tables.position import Commit, History, Position, after, decode, difference, encode

NUMBERS: dict[str, dict[str, int | str]] = {"orders": {"id": "a-topic", "0": 7}}


def ours(batch: int, sequence: int, parent: int | None, query: str = "q") -> Commit:
    return Commit(parent, sequence, True, query, batch)


def theirs(sequence: int, parent: int | None, *, adds: bool = False) -> Commit:
    return Commit(parent, sequence, adds)


def at(batch: int, sequence: int, changed: str = "", query: str = "q") -> Position:
    return Position(query, batch, sequence, NUMBERS, changed)


def test_a_position_survives_the_way_into_a_property_and_back() -> None:
    assert decode(encode(at(3, 4, "why"))) == at(3, 4, "why")
    assert decode(None) is None


def test_the_position_of_the_current_snapshot_counts() -> None:
    commits = {10: ours(0, 1, None), 11: ours(1, 2, 10)}
    assert difference(at(1, 2), History(11, commits)) == ""


def test_compactions_and_deletions_after_it_change_nothing() -> None:
    commits = {10: ours(0, 1, None), 11: theirs(2, 10), 12: theirs(3, 11)}
    assert difference(at(0, 1), History(12, commits)) == ""


def test_it_counts_when_its_own_snapshot_was_expired() -> None:
    assert difference(at(0, 1), History(12, {12: theirs(3, 11)})) == ""
    assert difference(at(0, 1), History(12, {11: theirs(2, 10), 12: theirs(3, 11)})) == ""


def test_a_rollback_is_noticed() -> None:
    commits = {10: ours(0, 1, None), 11: ours(1, 2, 10)}
    assert difference(at(1, 2), History(10, commits)) == "it was rolled back"
    assert difference(at(0, 1), History(None, {})) == "it was rolled back"


def test_a_rollback_to_a_compaction_is_noticed_without_the_snapshots_before_it() -> None:
    commits = {11: theirs(2, 10), 12: ours(1, 3, 11)}
    assert difference(at(1, 3), History(11, commits)) == "it was rolled back"
    # And also if somebody compacts it again, and the snapshot of the position is expired.
    assert difference(at(1, 3), History(13, {11: theirs(2, 10), 13: theirs(4, 11)})) == "it was rolled back"


def test_rows_that_somebody_else_added_are_noticed() -> None:
    commits = {10: ours(0, 1, None), 11: theirs(2, 10, adds=True)}
    assert difference(at(0, 1), History(11, commits)) == "somebody else has added rows to it"


def test_a_table_holds_a_topic_as_it_is_from_its_first_micro_batch_on() -> None:
    first = after(None, History(None, {}), at(0, 1))
    assert first.changed == ""
    history = History(10, {10: ours(0, 1, None)})
    assert after(first, history, at(1, 2)) == at(1, 2)
    late = after(None, History(None, {}), at(5, 1))
    assert late.changed == "it does not begin where the topic began for its pipeline"
    old = after(None, history, at(1, 2))
    assert old.changed == "it does not begin where the topic began for its pipeline"


def test_what_was_wrong_once_stays_wrong() -> None:
    history = History(10, {10: ours(0, 1, None)})
    assert after(at(0, 1), history, at(1, 2, "its function makes other rows of them")).changed
    assert after(at(0, 1, "because"), history, at(1, 2)).changed == "because"
    other = after(at(0, 1), history, at(0, 2, query="another"))
    assert other.changed == "another run wrote to it that began anew"
    foreign = History(11, {10: ours(0, 1, None), 11: theirs(2, 10, adds=True)})
    assert after(at(0, 1), foreign, at(1, 3)).changed == "somebody else has added rows to it"
