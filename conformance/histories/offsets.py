"""Group offsets that were committed in transactions: visible with the commit, and a chain without gaps.

The offsets of a group in a partition only grow: who starts again begins at the committed one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from conformance.histories.history import Finding, History, Move, OffsetSeen, Outcome, Place, Transaction

Lane = tuple[str, Place]
"""A group, and a partition that it reads."""


class Moved(NamedTuple):
    transaction: Transaction
    move: Move


def lanes(history: History) -> dict[Lane, list[Moved]]:
    found: dict[Lane, list[Moved]] = defaultdict(list)
    for transaction in history.transactions:
        for move in transaction.moves:
            found[move.group, move.place].append(Moved(transaction, move))
    return found


def shown(history: History, outcomes: dict[str, Outcome]) -> dict[str, str]:
    """By name, transactions of unknown outcome that alone explain an offset that somebody was told."""
    moved = lanes(history)
    found: dict[str, str] = {}
    for seen in history.offsets:
        could = [
            one.transaction.name
            for one in moved.get((seen.group, seen.place), ())
            if one.move.end == seen.offset and outcomes[one.transaction.name] is not Outcome.ABORTED
        ]
        if len(could) == 1 and outcomes[could[0]] is Outcome.UNKNOWN:
            found.setdefault(could[0], f"the offset {seen.offset} of {seen.group} in {seen.place} was told")
    return found


def check(history: History, outcomes: dict[str, Outcome]) -> Iterator[Finding]:
    moved = lanes(history)
    for seen in history.offsets:
        yield from _check_seen(seen, moved.get((seen.group, seen.place), []), outcomes)
    for lane, all_moves in moved.items():
        yield from _check_chain(lane, all_moves, outcomes)


def _check_seen(seen: OffsetSeen, moved: list[Moved], outcomes: dict[str, Outcome]) -> Iterator[Finding]:
    told = f"{seen.group} was told that it is at {seen.offset} in {seen.place}"
    due = [
        one
        for one in moved
        if seen.stable
        and outcomes[one.transaction.name] is Outcome.COMMITTED
        and one.transaction.ended < seen.asked
        and one.move.end > seen.offset
    ]
    if due:
        last = max(due, key=lambda one: one.move.end)
        yield Finding("offset", f"{told}, and {last.transaction.name} had committed {last.move.end}")
    starts = {one.move.start for one in moved}
    if seen.offset < 0 or (starts and seen.offset == min(starts)):
        return
    makers = [one.transaction for one in moved if one.move.end == seen.offset]
    if not makers:
        yield Finding("offset", f"{told}, which nobody committed")
        return
    kept = [one for one in makers if outcomes[one.name] is not Outcome.ABORTED]
    if not kept:
        names = ", ".join(one.name for one in makers[:3])
        yield Finding("offset", f"{told}, which only {names} wanted to commit, aborted")
    elif all(seen.at < one.asked for one in kept):
        yield Finding(
            "offset",
            f"{told} at {seen.at:.3f}, and {kept[0].name} asked for its commit at {kept[0].asked:.3f}",
        )


def _check_chain(lane: Lane, moved: list[Moved], outcomes: dict[str, Outcome]) -> Iterator[Finding]:
    """Each committed move begins where the one before it ended: nothing is consumed twice or passed over."""
    group, place = lane
    kept = [one for one in moved if outcomes[one.transaction.name] is Outcome.COMMITTED]
    doubtful = any(outcomes[one.transaction.name] is Outcome.UNKNOWN for one in moved)
    kept.sort(key=lambda one: (one.move.start, one.move.end))
    for before, after in pairwise(kept):
        told = f"{group} consumed {place} up to {before.move.end} in {before.transaction.name}"
        if after.move.start < before.move.end:
            yield Finding(
                "duplicate", f"{told}, and from {after.move.start} in {after.transaction.name} again"
            )
        elif after.move.start > before.move.end and not doubtful:
            yield Finding("lost", f"{told}, and went on at {after.move.start} in {after.transaction.name}")
