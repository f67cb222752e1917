"""The checker of transactional histories finds each anomaly in histories made by hand, and none in others."""

import random

import msgspec
import pytest
from conformance.histories.checking import check
from conformance.histories.history import (
    Append,
    Finding,
    History,
    Move,
    OffsetSeen,
    Outcome,
    Reading,
    Seen,
    Transaction,
)

COMMITTED, ABORTED, UNKNOWN = Outcome.COMMITTED, Outcome.ABORTED, Outcome.UNKNOWN


def _transaction(name: str, outcome: Outcome, *sent: str, producer: str = "") -> Transaction:
    """Each of `sent`: a partition and an offset, such as `a0`; `b?` was not acknowledged."""
    appends = [Append(one[0], f"{name}.{one}", None if one[1:] == "?" else int(one[1:])) for one in sent]
    return Transaction(name, outcome, producer, appends)


def _reading(place: str, end: int, *values: str, committed: bool = True, whole: bool = True) -> Reading:
    """Values lie where their names say."""
    records = [Seen(int(value.rpartition(".")[2][1:]), value) for value in values]
    reader = "committed" if committed else "uncommitted"
    return Reading(f"{reader} {place}", place, 0, end, records, committed, whole)


def _only(history: History, kind: str) -> str:
    """The text of the only finding."""
    found = check(history)
    assert [one.kind for one in found] == [kind], found
    return found[0].text


def test_a_sound_history_passes() -> None:
    history = History(
        [
            _transaction("t1", COMMITTED, "a0", "b0", "a1", producer="p"),
            _transaction("t2", ABORTED, "a3", "b?", producer="p"),
            _transaction("t3", UNKNOWN, "a5", "b2", producer="q"),
            _transaction("t4", UNKNOWN, "a6", producer="r"),
            _transaction("t5", UNKNOWN, "b?", producer="s"),
        ],
        [
            _reading("a", 9, "t1.a0", "t1.a1", "t3.a5"),
            _reading("b", 5, "t1.b0", "t3.b2"),
            _reading("a", 9, "t1.a0", "t1.a1", "t2.a3", "t3.a5", "t4.a6", committed=False),
            _reading("a", 1, "t1.a0", whole=False),
        ],
    )
    assert check(history) == []
    assert check(msgspec.json.decode(msgspec.json.encode(history), type=History)) == []


def test_a_committed_record_that_nobody_finds_is_lost() -> None:
    history = History(
        [_transaction("t1", COMMITTED, "a0", "b0")], [_reading("a", 2), _reading("b", 2, "t1.b0")]
    )
    text = _only(history, "lost")
    assert text == (
        "committed a read a from 0 to 2 at read_committed without t1.a0 of t1, which was committed; "
        "it saw nothing of it there"
    )


def test_a_committed_record_whose_offset_nobody_knows_is_lost_too() -> None:
    """The answer of the append was lost, and a later one was acknowledged in its place."""
    history = History([_transaction("t1", COMMITTED, "a?")], [_reading("a", 7)])
    assert "without t1.a? of t1" in _only(history, "lost")
    history.readings[0].whole = False
    assert check(history) == []


def test_a_record_that_was_acknowledged_is_there_for_readers_of_everything() -> None:
    history = History([_transaction("t1", ABORTED, "a0", "a1")], [_reading("a", 3, "t1.a0", committed=False)])
    assert "at read_uncommitted without t1.a1" in _only(history, "torn")


def test_an_aborted_record_is_not_shown() -> None:
    history = History([_transaction("t1", ABORTED, "a0")], [_reading("a", 2, "t1.a0")])
    text = _only(history, "aborted read")
    assert text == "committed a read t1.a0 at a@0 at read_committed, and t1 was aborted"


def test_part_of_a_transaction_in_a_partition_is_torn() -> None:
    history = History([_transaction("t1", COMMITTED, "a0", "a1")], [_reading("a", 3, "t1.a0", whole=False)])
    assert "without t1.a1 of t1, which was committed; it saw some of it there" in _only(history, "torn")


def test_a_transaction_of_unknown_outcome_is_all_or_nothing() -> None:
    """One partition shows it, so it was committed; so the other has to show it too."""
    history = History(
        [_transaction("t1", UNKNOWN, "a0", "b0")], [_reading("a", 2, "t1.a0"), _reading("b", 2)]
    )
    assert "without t1.b0 of t1, which was committed" in _only(history, "lost")


def test_a_record_that_is_shown_before_its_commit_was_asked_for_is_early() -> None:
    history = History([_transaction("t1", COMMITTED, "a0")], [_reading("a", 2, "t1.a0")])
    history.transactions[0].asked = 5.0
    history.readings[0].records[0].at = 4.0
    assert "read t1.a0 at a@0 at read_committed at 4.000" in _only(history, "early read")
    history.readings[0].committed = False
    assert check(history) == []


def test_one_value_has_one_offset() -> None:
    history = History([_transaction("t1", COMMITTED, "a0")], [_reading("a", 3, "t1.a0")])
    history.readings[0].records.append(Seen(2, "t1.a0"))
    assert _only(history, "duplicate") == "t1.a0 is at a@2, read by committed a, and at a@0 too"


def test_one_offset_has_one_value() -> None:
    history = History(
        [_transaction("t1", COMMITTED, "a0"), _transaction("t2", COMMITTED, "a0")],
        [_reading("a", 1, "t1.a0")],
    )
    assert "inconsistent" in {one.kind for one in check(history)}


def test_a_value_that_nobody_sent_is_made_up() -> None:
    history = History([_transaction("t1", ABORTED, "b0")], [_reading("a", 1, "t9.a0", whole=False)])
    assert "which nobody sent" in _only(history, "made up")
    history.readings[0].records[0].value = "t1.b0"
    assert "which was sent to b" in _only(history, "made up")


def test_a_partition_has_the_order_of_its_writer() -> None:
    history = History(
        [
            _transaction("t1", COMMITTED, "a4", producer="p"),
            _transaction("t2", COMMITTED, "a1", producer="p"),
        ],
        [_reading("a", 6, "t2.a1", "t1.a4")],
    )
    kinds = [one.kind for one in check(history)]
    assert kinds == ["order", "cycle"]
    history.transactions[1].producer = "q"
    assert check(history) == []


def test_the_order_inside_of_a_transaction_counts() -> None:
    history = History([_transaction("t1", COMMITTED, "a4", "a2")], [_reading("a", 6, "t1.a2", "t1.a4")])
    assert "t1.a4 of t1 is at a@4, behind t1.a2 of t1 at 2" in _only(history, "order")


def test_a_reader_does_not_go_back() -> None:
    history = History([_transaction("t1", COMMITTED, "a0", "a1")], [_reading("a", 2, "t1.a1", "t1.a0")])
    assert _only(history, "order") == "committed a read a@0 after a@1"


def test_writers_that_are_open_together_may_cross() -> None:
    """Kafka promises nothing else: each is before the other somewhere."""
    history = History([_transaction("t1", COMMITTED, "a0", "b1"), _transaction("t2", COMMITTED, "a1", "b0")])
    assert check(history) == []


def test_writers_that_follow_each_other_do_not_cross() -> None:
    history = History([_transaction("t1", COMMITTED, "a0", "b1"), _transaction("t2", COMMITTED, "a1", "b0")])
    history.transactions[0].ended, history.transactions[1].began = 4.0, 5.0
    text = _only(history, "cycle")
    assert text.startswith("G0: ") and "t1 was answered at 4.000" in text
    assert "t2.b0 is before t1.b1 in b" in text


def test_two_transactions_cannot_have_read_each_other() -> None:
    history = History([_transaction("t1", COMMITTED, "a0"), _transaction("t2", COMMITTED, "b0")])
    history.transactions[0].read = ["t2.b0"]
    history.transactions[1].moves = [Move("g", "a", 0, 1)]
    text = _only(history, "cycle")
    assert text in (
        "G1c: t1.a0 of t1 was read by t2, t2.b0 of t2 was read by t1",
        "G1c: t2.b0 of t2 was read by t1, t1.a0 of t1 was read by t2",
    )


def _consumed(*read: str, outcome: Outcome = COMMITTED) -> History:
    """`t1` wrote two values and asked for its commit at 5; `t2` began at 6, after it had consumed `read`."""
    writer = _transaction("t1", COMMITTED, "a0", "a1")
    writer.asked, writer.ended = 5.0, 5.5
    reader = Transaction("t2", outcome, read=list(read), moves=[Move("g", "a", 0, 2)], began=6.0)
    return History([writer, reader])


@pytest.mark.parametrize("outcome", list(Outcome))
def test_what_a_transaction_was_made_from_was_committed_before(outcome: Outcome) -> None:
    """Whatever becomes of it: what a client consumed at read_committed, it was shown."""
    history = _consumed("t1.a0", "t1.a1", outcome=outcome)
    assert check(history) == []
    history.transactions[0].asked, history.transactions[0].ended = 7.0, 7.5
    found = {one.kind for one in check(history)}
    assert found == {"early read"}
    history.transactions[0].outcome = ABORTED
    assert {one.kind for one in check(history)} == {"aborted read"}
    history.transactions[1].read.append("t1.a9")
    assert {one.kind for one in check(history)} == {"aborted read", "made up"}


def test_a_transaction_that_consumed_part_of_another_is_torn() -> None:
    text = _only(_consumed("t1.a0"), "torn")
    assert text == "t2 went through a from 0 to 2 without t1.a1 of t1, which was committed"


def test_a_transaction_that_passed_over_another_lost_it() -> None:
    history = _consumed("t3.b0")
    history.transactions.append(_transaction("t3", COMMITTED, "b0"))
    assert [one.kind for one in check(history)] == ["lost", "lost"]
    history.thinned = {"a"}
    assert check(history) == []


def test_a_transaction_of_unknown_outcome_that_another_was_made_from_was_committed() -> None:
    history = _consumed("t1.a0", "t1.a1")
    history.transactions[0].outcome = UNKNOWN
    assert check(history) == []
    history.readings = [_reading("a", 3)]
    assert "without t1.a0, t1.a1 of t1, which was committed" in _only(history, "lost")


def test_a_transaction_cannot_go_on_from_an_offset_of_its_future() -> None:
    first = _transaction("t1", COMMITTED, "a0", producer="p")
    second = _transaction("t2", COMMITTED, "a1", producer="p")
    first.moves, second.moves = [Move("g", "in", 5, 9)], [Move("g", "in", 0, 5)]
    text = _only(History([first, second]), "cycle")
    assert "the offset 5 of g in in from t2 was read by t1" in text


def _moved(*outcomes: Outcome) -> History:
    """Each moves the group by five."""
    transactions = [Transaction(f"t{n}", outcome) for n, outcome in enumerate(outcomes)]
    at = 0
    for number, one in enumerate(transactions):
        one.moves = [Move("g", "in", at, at + 5)]
        one.began, one.asked, one.ended = number * 10 + 1.0, number * 10 + 5.0, number * 10 + 6.0
        if one.outcome is COMMITTED:
            at += 5
    return History(transactions)


def _told(offset: int, at: float, *, stable: bool = True) -> OffsetSeen:
    return OffsetSeen("g", "in", offset, at, at + 0.1, stable)


def test_offsets_become_visible_with_their_commits() -> None:
    history = _moved(COMMITTED, ABORTED, COMMITTED)
    history.offsets = [
        _told(-1, 0.0),
        _told(5, 7.0),
        _told(5, 17.0),
        _told(5, 25.5),
        _told(10, 25.5),
        _told(10, 30.0),
    ]
    assert check(history) == []


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        (_told(10, 17.0), "which only t1 wanted to commit, aborted"),
        (_told(-1, 7.0), "t0 had committed 5"),
        (_told(5, 30.0), "t2 had committed 10"),
        (_told(7, 7.0), "which nobody committed"),
        (_told(5, 3.0), "t0 asked for its commit at 5.000"),
    ],
)
def test_an_offset_that_its_transactions_do_not_explain_is_found(seen: OffsetSeen, text: str) -> None:
    history = _moved(COMMITTED, ABORTED, *([COMMITTED] if seen.offset == 5 else []))
    history.offsets = [seen]
    assert text in _only(history, "offset")


def test_an_offset_that_is_not_stable_may_be_the_one_before() -> None:
    history = _moved(COMMITTED)
    history.offsets = [_told(-1, 7.0, stable=False)]
    assert check(history) == []


def test_offsets_of_an_unknown_outcome_go_with_its_records() -> None:
    history = _moved(UNKNOWN)
    history.transactions[0].appends = [Append("a", "v", 0)]
    history.readings = [Reading("r", "a", 0, 2, [Seen(0, "v")], whole=True)]
    history.offsets = [_told(0, 7.0)]
    assert "t0 had committed 5" in _only(history, "offset")
    history.readings[0].records, history.offsets = [], [_told(5, 7.0)]
    assert "without v of t0" in _only(history, "lost")


def test_no_input_is_consumed_twice_or_passed_over() -> None:
    history = _moved(COMMITTED, COMMITTED)
    assert check(history) == []
    history.transactions[1].moves[0].start = 3
    assert "consumed in up to 5 in t0, and from 3 in t1 again" in _only(history, "duplicate")
    history.transactions[1].moves[0].start = 6
    assert "and went on at 6 in t1" in _only(history, "lost")


def test_what_compaction_took_is_not_lost() -> None:
    history = History([_transaction("t1", COMMITTED, "a0")], [_reading("a", 2)], thinned={"a"})
    assert check(history) == []


def _made(rng: random.Random) -> History:
    """A run of a cluster that does everything right, with writers that are open together."""
    history = History()
    ends = dict.fromkeys("abc", 0)
    visible: dict[str, list[Seen]] = {place: [] for place in ends}
    everything: dict[str, list[Seen]] = {place: [] for place in ends}
    open_now: list[Transaction] = []
    for step in range(300):
        if len(open_now) < 3:
            one = Transaction(f"t{step}", rng.choice(list(Outcome)), f"p{step}", began=float(step))
            history.transactions.append(one)
            open_now.append(one)
        one = rng.choice(open_now)
        if rng.random() < 0.7:
            place = rng.choice("abc")
            value = f"{one.name}.{len(one.appends)}"
            one.appends.append(Append(place, value, ends[place]))
            everything[place].append(Seen(ends[place], value, step + 0.2))
            ends[place] += 1
        else:
            open_now.remove(one)
            one.asked, one.ended = step + 0.1, step + 0.3
            if one.outcome is COMMITTED or (one.outcome is UNKNOWN and rng.random() < 0.5):
                for append in one.appends:
                    assert append.offset is not None
                    visible[append.place].append(Seen(append.offset, append.value, step + 0.2))
            for place in ends:
                ends[place] += any(append.place == place for append in one.appends)
    for one in open_now:
        one.outcome = ABORTED
    for place, end in ends.items():
        shown = sorted(visible[place], key=lambda seen: seen.offset)
        history.readings.append(Reading("rc", place, 0, end, shown, True, True))
        history.readings.append(Reading("ru", place, 0, end, everything[place], False, True))
    return history


def _spoil(history: History, rng: random.Random) -> None:
    """Something that no sound cluster shows."""
    reading = rng.choice([one for one in history.readings if one.committed and len(one.records) > 2])
    at = rng.randrange(len(reading.records) - 1)
    match rng.randrange(3):
        case 0:
            name = reading.records[at].value.partition(".")[0]
            one = next(one for one in history.transactions if one.name == name)
            one.outcome = ABORTED
        case 1:
            first, second = reading.records[at : at + 2]
            first.value, second.value = second.value, first.value
        case 2:
            name = reading.records[at].value.partition(".")[0]
            one = next(one for one in history.transactions if one.name == name)
            one.outcome = COMMITTED
            del reading.records[at]


@pytest.mark.parametrize("seed", range(40))
def test_histories_that_a_sound_cluster_makes_pass_and_spoiled_ones_do_not(seed: int) -> None:
    rng = random.Random(seed)
    history = _made(rng)
    assert check(history) == []
    _spoil(history, rng)
    found = check(history)
    assert found and all(isinstance(one, Finding) for one in found)
