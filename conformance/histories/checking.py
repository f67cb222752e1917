"""Finds what is wrong with a history.

    lost           a record of a committed transaction is not where readers passed; a group went on too far
    torn           a reader passed all of a transaction and was shown some of it, or two readers differ
    aborted read   a record of an aborted transaction at read_committed (G1a)
    early read     a record at read_committed before anybody asked for the commit: an intermediate state (G1b)
    duplicate      one value at two offsets, or consumed twice by a group
    order          a partition does not have the order in which its writer sent
    inconsistent   one offset with two values
    made up        a value that nobody sent there
    cycle          an order of events that no run can have had (G0, G1c)
    offset         a group's offset that its transaction does not explain

Readers are those that tell what they were shown, and transactions that tell what they were made from.

A transaction whose outcome is unknown is all or nothing: it counts as committed once anybody was shown a record
or an offset of it, and as aborted if readers went through a partition that it wrote to and saw none.
"""

from __future__ import annotations

from conformance.histories import consuming, cycles, offsets, visibility
from conformance.histories.history import Finding, History, Outcome
from conformance.histories.logs import Logs


def check(history: History) -> list[Finding]:
    """Everything that is wrong, in the order of the list above as far as one follows from another."""
    logs = Logs(history)
    outcomes = resolve(history, logs)
    findings = list(logs.findings)
    findings += visibility.check(history, logs, outcomes)
    findings += consuming.check(history, logs, outcomes)
    findings += offsets.check(history, outcomes)
    findings += cycles.check(history, logs, outcomes)
    return findings


def resolve(history: History, logs: Logs) -> dict[str, Outcome]:
    """The outcome of each transaction, by name; UNKNOWN stays only where nobody looked."""
    outcomes = {one.name: one.outcome for one in history.transactions}
    assert len(outcomes) == len(history.transactions), "names of transactions must be unique"
    seen = visibility.shown(history, logs)
    seen |= consuming.shown(history, logs)
    seen |= offsets.shown(history, outcomes)
    for one in history.transactions:
        if one.outcome is Outcome.UNKNOWN:
            if one.name in seen:
                outcomes[one.name] = Outcome.COMMITTED
            elif visibility.unseen_everywhere(history, one):
                outcomes[one.name] = Outcome.ABORTED
    return outcomes
