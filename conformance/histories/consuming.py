"""What transactions were made from: a client that consumes at read_committed is a reader too.

A transaction that names the values it read began after it had read them, whatever became of it. Its moves say
which stretches of partitions it went through, and there it read all that was committed.
"""

from __future__ import annotations

from collections.abc import Iterator

from conformance.histories.history import Finding, History, Outcome, Transaction
from conformance.histories.logs import Logs


def shown(history: History, logs: Logs) -> dict[str, str]:
    """By name, the transactions that another one was made from, and which."""
    found: dict[str, str] = {}
    for one in history.transactions:
        for value in one.read:
            written = logs.written.get(value)
            if written is not None and written.transaction is not one:
                found.setdefault(written.transaction.name, f"{one.name} was made from {value}")
    return found


def check(history: History, logs: Logs, outcomes: dict[str, Outcome]) -> Iterator[Finding]:
    for one in history.transactions:
        if one.read:
            yield from _too_much(one, logs, outcomes)
            yield from _too_little(one, history, logs, outcomes)


def _too_much(one: Transaction, logs: Logs, outcomes: dict[str, Outcome]) -> Iterator[Finding]:
    for value in one.read:
        told = f"{one.name} was made from {value}"
        written = logs.written.get(value)
        if written is None:
            yield Finding("made up", f"{told}, which nobody sent")
            continue
        writer = written.transaction
        if outcomes[writer.name] is Outcome.ABORTED:
            yield Finding("aborted read", f"{told}, and {writer.name} was aborted")
        elif one.began < writer.asked and writer is not one:
            yield Finding(
                "early read",
                f"{told} at {one.began:.3f}, and {writer.name} asked for its commit at {writer.asked:.3f}",
            )


def _too_little(
    one: Transaction, history: History, logs: Logs, outcomes: dict[str, Outcome]
) -> Iterator[Finding]:
    """What lay on its way, and it did not read."""
    read = set(one.read)
    sources = {logs.written[value].transaction.name for value in read if value in logs.written}
    for move in one.moves:
        if move.place in history.thinned:
            continue
        there = logs.values.get(move.place, {})
        passed = (there[offset] for offset in range(move.start, move.end) if offset in there)
        for value in passed:
            writer = logs.written[value].transaction.name
            if value not in read and outcomes[writer] is Outcome.COMMITTED:
                kind = "torn" if writer in sources else "lost"
                yield Finding(
                    kind,
                    f"{one.name} went through {move.place} from {move.start} to {move.end} without {value} of "
                    f"{writer}, which was committed",
                )
