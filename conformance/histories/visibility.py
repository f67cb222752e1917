"""What readers at read_committed were shown of each transaction: all of it or nothing, and not too early."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.histories.history import Finding, History, Outcome, Reading, Transaction
from conformance.histories.logs import Logs


def shown(history: History, logs: Logs) -> dict[str, str]:
    """By name, the transactions that somebody was shown a record of at read_committed, and who was."""
    found: dict[str, str] = {}
    for reading in history.readings:
        if reading.committed:
            for seen in reading.records:
                written = logs.written.get(seen.value)
                if written is not None:
                    found.setdefault(written.transaction.name, f"{reading.reader} was shown {seen.value}")
    return found


def unseen_everywhere(history: History, transaction: Transaction) -> bool:
    """Whether readers would have seen a record of it, had it been committed. Nobody saw one."""
    read = {one.place for one in history.readings if one.committed and one.whole and not one.start}
    return any(append.place in read and append.place not in history.thinned for append in transaction.appends)


def check(history: History, logs: Logs, outcomes: dict[str, Outcome]) -> Iterator[Finding]:
    for reading in history.readings:
        if reading.committed:
            yield from _too_much(reading, logs, outcomes)
        if reading.place not in history.thinned:
            yield from _too_little(reading, logs, outcomes)


def _too_much(reading: Reading, logs: Logs, outcomes: dict[str, Outcome]) -> Iterator[Finding]:
    for seen in reading.records:
        written = logs.written.get(seen.value)
        if written is None or written.append.place != reading.place:
            continue
        transaction = written.transaction
        told = f"{reading.reader} read {seen.value} at {reading.place}@{seen.offset} at read_committed"
        if outcomes[transaction.name] is Outcome.ABORTED:
            yield Finding("aborted read", f"{told}, and {transaction.name} was aborted")
        elif seen.at < transaction.asked:
            yield Finding(
                "early read",
                f"{told} at {seen.at:.3f}, and {transaction.name} asked for its commit at {transaction.asked:.3f}",
            )


def _too_little(reading: Reading, logs: Logs, outcomes: dict[str, Outcome]) -> Iterator[Finding]:
    """What lies on the way of a reading, and was not read."""
    read = {seen.value for seen in reading.records}
    missing: dict[str, list[str]] = {}
    there: set[str] = set()
    for written in logs.sent[reading.place]:
        name, value = written.transaction.name, written.append.value
        if value in read:
            there.add(name)
        elif _due(reading, logs.offset_of.get(value), outcomes[name]):
            missing.setdefault(name, []).append(value)
    level = "read_committed" if reading.committed else "read_uncommitted"
    for name, values in missing.items():
        kind = "torn" if name in there else "lost"
        some = "some of it" if name in there else "nothing of it"
        outcome = outcomes[name].value
        yield Finding(
            kind,
            f"{reading.reader} read {reading.place} from {reading.start} to {reading.end} at {level} without "
            f"{', '.join(values[:3])}{' ...' if len(values) > 3 else ''} of {name}, which was {outcome}; it saw "
            f"{some} there",
        )


def _due(reading: Reading, offset: int | None, outcome: Outcome) -> bool:
    if outcome is not Outcome.COMMITTED and (reading.committed or offset is None):
        return False
    if offset is not None:
        return reading.start <= offset < reading.end
    # Nobody knows where it lies, but it lies somewhere.
    return reading.whole and not reading.start
