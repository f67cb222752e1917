"""The history checker finds what it says it finds, and nothing in a history that is well."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conformance.faults.history import History, Read, Resume, Watermark, Write, check, gaps


def healthy() -> History:
    """Two writers, a reader, an observer; one write without an answer that is in the log, one that is not."""
    history = History()
    history.writes = [
        Write("a", 0, b"a0", 1.0, 1.1, 0),
        Write("b", 0, b"b0", 1.2, 1.3, 1),
        Write("a", 0, b"a1", 2.0, 3.0),
        Write("a", 0, b"a2", 3.1, 3.2, 3),
        Write("b", 0, b"b1", 3.3, 3.4),
        Write("b", 0, b"b2", 3.5, 3.6, refused=True),
    ]
    history.log[0] = {0: b"a0", 1: b"b0", 2: b"a1", 3: b"a2"}
    history.reads["r"] = [Read(0, offset, history.log[0][offset], 4.0 + offset) for offset in range(4)]
    history.topics_created, history.topics_deleted, history.topics = {"made"}, {"unmade"}, {"made", "t"}
    history.resumes = [Resume("g", 0, 0, 0, 0), Resume("g", 0, 2, 2, 4)]
    history.watermarks = [Watermark(0, 1, 1.1, 1.15), Watermark(0, 2, 1.4, 1.5), Watermark(0, 4, 4.0, 4.1)]
    return history


def test_a_healthy_history() -> None:
    assert check(healthy()) == []


def lose(history: History) -> None:
    history.log[0][3] = b"b1"


def repeat(history: History) -> None:
    history.log[0][4] = b"a0"


def differ(history: History) -> None:
    history.reads["other"] = [Read(0, 1, b"b1", 5.0)]


def invent(history: History) -> None:
    history.log[0][4] = b"x"


def take_refused(history: History) -> None:
    history.log[0][4] = b"b2"


def read_early(history: History) -> None:
    history.reads["r"].append(Read(0, 4, b"b1", 9.0))


def drop(history: History) -> None:
    del history.log[0][2]


def skip(history: History) -> None:
    del history.reads["r"][1]


def go_back(history: History) -> None:
    history.reads["r"].append(Read(0, 1, b"b0", 9.0))


def sink(history: History) -> None:
    history.watermarks.append(Watermark(0, 3, 5.0, 5.1))


def lag_behind_an_acknowledgement(history: History) -> None:
    history.watermarks.append(Watermark(0, 1, 1.35, 1.36))


def swap(history: History) -> None:
    history.writes[2].sent_at = 3.15


def forget(history: History) -> None:
    history.resumes.append(Resume("g", 0, 1, 2, 3))


def lose_a_topic(history: History) -> None:
    history.topics.discard("made")


def keep_a_topic(history: History) -> None:
    history.topics.add("unmade")


def jump(history: History) -> None:
    history.resumes.append(Resume("g", 0, 4, 2, 3))


@pytest.mark.parametrize(
    ("spoil", "kinds"),
    [
        (lose, {"lost", "inconsistent"}),
        (repeat, {"duplicate"}),
        (differ, {"inconsistent"}),
        (invent, {"unwritten"}),
        (take_refused, {"unwritten"}),
        (read_early, {"unstable", "watermark"}),
        (drop, {"hole", "unstable"}),
        (skip, {"hole"}),
        (go_back, {"backwards"}),
        (sink, {"watermark"}),
        (lag_behind_an_acknowledgement, {"watermark"}),
        (swap, {"order"}),
        (forget, {"forgotten"}),
        (jump, {"skipped"}),
        (lose_a_topic, {"topic"}),
        (keep_a_topic, {"topic"}),
    ],
)
def test_what_is_found(spoil: Callable[[History], None], kinds: set[str]) -> None:
    history = healthy()
    spoil(history)
    assert kinds <= {violation.kind for violation in check(history)}


def test_gaps() -> None:
    assert gaps([1.0, 2.0, 7.0, 8.0], 0.0, 9.0) == 5.0
    assert gaps([], 0.0, 9.0) == 9.0
