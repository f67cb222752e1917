"""Checks the answers that `penstock doctor` got: which of them would clients stumble over?

A finding may be true for a moment only (a broker just left, a leader just moved). `lasting` asks again before
it calls one a problem.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from penstock.admin.doctor.questions import Address, Opinion, Picture, listed, text
from penstock.admin.doctor.transactions import hanging, standing_still
from penstock.wire.api.metadata import MetadataResponseTopic
from penstock.wire.errors import ErrorCode

_NAMED_MAX = 3


class Finding(NamedTuple):
    check: str
    problem: str


def examine(picture: Picture) -> list[Finding]:
    """Every problem, each once, in the order of the checks."""
    found = [Finding(name, problem) for name, check in CHECKS.items() for problem in check(picture)]
    return list(dict.fromkeys(found))


def lasting(before: Sequence[Finding], now: Sequence[Finding]) -> list[Finding]:
    """What is wrong on a second look, of what was wrong before; counts and names may have changed."""
    failed = {finding.check for finding in before}
    return [finding for finding in now if finding.check in failed]


def _voices(picture: Picture) -> Iterator[tuple[str, Opinion]]:
    for address, one in picture.opinions.items():
        yield f"The broker at {text(address)}", one


def _reachable(picture: Picture) -> Iterator[str]:
    named = {where for one in picture.opinions.values() for where in listed(one.metadata).values()}
    for address, why in picture.silent.items():
        if address in named:
            yield (
                f"Metadata lists a broker at {text(address)} that cannot be reached from here: {why} "
                "Clients will wait for it; is the advertised address right?"
            )
        else:
            yield f"The bootstrap address {text(address)} does not answer: {why}"


def _same_cluster(picture: Picture) -> Iterator[str]:
    ids = {str(one.metadata.cluster_id) for one in picture.opinions.values()}
    if len(ids) > 1:
        yield f"These brokers belong to different clusters: {', '.join(sorted(ids))}."
    everybody: dict[int, set[Address]] = {}
    for one in picture.opinions.values():
        for node, address in listed(one.metadata).items():
            everybody.setdefault(node, set()).add(address)
    for who, one in _voices(picture):
        known = listed(one.metadata)
        missing = everybody.keys() - known.keys()
        if not known:
            yield f"{who} lists no broker at all, not even itself."
        elif missing:
            yield (
                f"{who} lists brokers {_numbers(known)} and not {_numbers(missing)}, which others list: "
                "clients see another cluster through it."
            )
    for node, places in everybody.items():
        if len(places) > 1:
            where = " and ".join(sorted(map(text, places)))
            yield f"Broker {node} has different addresses, depending on who is asked: {where}."


def _controller(picture: Picture) -> Iterator[str]:
    for who, one in _voices(picture):
        known = listed(one.metadata)
        if one.metadata.controller_id not in known:
            yield (
                f"{who} names broker {one.metadata.controller_id} as controller, which is not in its own "
                f"list ({_numbers(known)}): no topic can be created through it."
            )


def _leaders(picture: Picture) -> Iterator[str]:
    for who, one in _voices(picture):
        known = listed(one.metadata)
        strangers: dict[int, int] = {}
        for topic in one.metadata.topics:
            if not _is_whole(topic):
                yield f"{who} leaves partitions of topic {topic.name!r} out of its answer."
            for partition in topic.partitions:
                if partition.leader_id not in known:
                    strangers[partition.leader_id] = strangers.get(partition.leader_id, 0) + 1
        for leader, count in strangers.items():
            if leader < 0:
                yield f"{who} says that {count} partitions have no leader."
            else:
                yield (
                    f"{who} says that {count} partitions are led by broker {leader}, which is not in its own "
                    f"list ({_numbers(known)}): clients cannot read or write them."
                )


def _is_whole(topic: MetadataResponseTopic) -> bool:
    indexes = sorted(partition.partition_index for partition in topic.partitions)
    return bool(topic.error_code) or indexes == list(range(len(indexes)))


def _topics(picture: Picture) -> Iterator[str]:
    known = {
        who: {topic.name for topic in one.metadata.topics if topic.name and not topic.error_code}
        for who, one in _voices(picture)
    }
    everything = set().union(*known.values())
    for who, names in known.items():
        missing = sorted(everything - names)
        if missing:
            some = ", ".join(missing[:_NAMED_MAX]) + (", ..." if len(missing) > _NAMED_MAX else "")
            yield f"{who} does not know {len(missing)} topics that others know: {some}."


def _coordinators(picture: Picture) -> Iterator[str]:
    chosen: dict[str, set[int]] = {}
    asked = {group for one in picture.opinions.values() for group in one.coordinators}
    for who, one in _voices(picture):
        known = listed(one.metadata)
        failed: dict[str, int] = {}
        if left_out := asked - one.coordinators.keys():
            yield f"{who} leaves {len(left_out)} of {len(asked)} groups out of its answer."
        for group, found in one.coordinators.items():
            if found.error:
                failed[_code(found.error)] = failed.get(_code(found.error), 0) + 1
                continue
            chosen.setdefault(group, set()).add(found.node_id)
            if found.node_id not in known:
                yield (
                    f"{who} names broker {found.node_id} as coordinator of groups, which is not in its own "
                    f"list ({_numbers(known)}): strict clients retry for ever."
                )
            elif known[found.node_id] != found.address:
                yield (
                    f"{who} gives two addresses of broker {found.node_id}: {text(known[found.node_id])} in "
                    f"Metadata, {text(found.address)} in FindCoordinator."
                )
        for name, count in failed.items():
            if name == ErrorCode.GROUP_AUTHORIZATION_FAILED.name:
                yield f"This user may not ask {who[0].lower()}{who[1:]} about groups ({name})."
                continue
            yield f"{who} finds no coordinator for {count} of {len(asked)} groups: {name}."
    split = sum(len(nodes) > 1 for nodes in chosen.values())
    if split:
        yield f"Brokers disagree on who coordinates {split} of {len(chosen)} groups: members would not meet."


def _offsets(picture: Picture) -> Iterator[str]:
    for who, one in _voices(picture):
        if one.offsets is None:
            continue
        missing = [place for place in one.asked if place not in one.offsets]
        if missing:
            topic, index = missing[0]
            yield (
                f"{who}, asked for the offsets of a new group, leaves out {len(missing)} of {len(one.asked)} "
                f"partitions (partition {index} of {topic!r}, for one): consumers join and never fetch."
            )
        wrong = sorted(item for item in one.offsets.items() if item[1] != (ErrorCode.NONE, -1))
        if wrong:
            (topic, index), (error, offset) = wrong[0]
            yield (
                f"{who}, asked for the offsets of a new group, answers {_code(error)} and offset {offset} "
                f"for partition {index} of {topic!r}; it should be NONE and -1."
            )


def _hanging(picture: Picture) -> Iterator[str]:
    return hanging(picture.transactions)


def _standing_still(picture: Picture) -> Iterator[str]:
    return standing_still(picture.transactions, picture.earlier)


CHECKS = {
    "every broker that is named can be reached": _reachable,
    "all brokers list the same brokers": _same_cluster,
    "the controller is one of them": _controller,
    "every partition has a leader among them": _leaders,
    "all brokers know the same topics": _topics,
    "every group has one coordinator among them": _coordinators,
    "a new group is answered for every partition": _offsets,
    "no transaction hangs": _hanging,
    "readers of committed records are not held back": _standing_still,
}


def _numbers(ids: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(ids))) or "none"


def _code(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"
