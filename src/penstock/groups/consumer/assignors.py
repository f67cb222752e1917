"""The assignors that the coordinator runs: `range` and `uniform`.

Both give every partition of a subscribed topic to exactly one of its subscribers, and depend on nothing but
their input, so that any broker computes the same.

- **range** hands out each topic in contiguous ranges, in the order of the members. Members that subscribe to
  the same topics get the same partition numbers of each, which is what joins need. It does not try to keep
  what a member has.
- **uniform** balances the number of partitions per member and moves as few as it can.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from penstock.groups.consumer.group import NO_TARGET, Target
from penstock.metadata.image import PartitionKey


class MemberSpec(NamedTuple):
    id: str
    topics: frozenset[bytes]
    """Ids of the topics that it subscribes to and that exist."""
    target: Target = NO_TARGET
    """What the previous target gave it."""
    instance_id: str | None = None


Assignment = dict[str, Target]
Assignor = Callable[[Sequence[MemberSpec], Mapping[bytes, int]], Assignment]


def assign_range(members: Sequence[MemberSpec], partition_counts: Mapping[bytes, int]) -> Assignment:
    # Static members go first, by instance: their ranges survive a restart, whatever their member id.
    ordered = sorted(members, key=lambda m: (m.instance_id is None, m.instance_id or "", m.id))
    assignment: dict[str, dict[bytes, frozenset[int]]] = {m.id: {} for m in ordered}
    for topic_id, subscribers in _subscribers(ordered).items():
        share, extra = divmod(partition_counts[topic_id], len(subscribers))
        start = 0
        for position, member in enumerate(subscribers):
            end = start + share + (1 if position < extra else 0)
            if end > start:
                assignment[member.id][topic_id] = frozenset(range(start, end))
            start = end
    return dict(assignment)


def assign_uniform(members: Sequence[MemberSpec], partition_counts: Mapping[bytes, int]) -> Assignment:
    if not members:
        return {}
    ordered = sorted(members, key=lambda m: m.id)
    kept, unassigned = _keep(ordered, partition_counts)
    if all(m.topics == ordered[0].topics for m in ordered):
        _fill_equally(kept, unassigned)
    else:
        subscribers = {topic_id: [m.id for m in found] for topic_id, found in _subscribers(ordered).items()}
        _fill_least_loaded(kept, unassigned, subscribers)
        _level(kept, subscribers)
    return {member_id: _by_topic(partitions) for member_id, partitions in kept.items()}


def _subscribers(members: Iterable[MemberSpec]) -> dict[bytes, list[MemberSpec]]:
    found: dict[bytes, list[MemberSpec]] = {}
    for member in members:
        for topic_id in member.topics:
            found.setdefault(topic_id, []).append(member)
    return dict(sorted(found.items()))


def _keep(
    members: Sequence[MemberSpec], partition_counts: Mapping[bytes, int]
) -> tuple[dict[str, list[PartitionKey]], list[PartitionKey]]:
    """What each member has and may still have, and what nobody has."""
    free = {
        (topic_id, partition)
        for topic_id in {topic_id for member in members for topic_id in member.topics}
        for partition in range(partition_counts[topic_id])
    }
    kept: dict[str, list[PartitionKey]] = {}
    for member in members:
        mine = kept[member.id] = []
        for topic_id, partitions in sorted(member.target.items()):
            if topic_id not in member.topics:
                continue
            for partition in sorted(partitions):
                if (topic_id, partition) in free:
                    free.discard((topic_id, partition))
                    mine.append((topic_id, partition))
    return kept, sorted(free)


def _fill_equally(kept: dict[str, list[PartitionKey]], unassigned: list[PartitionKey]) -> None:
    """Everybody may have anything: nobody ends with more than one partition more than another."""
    total = sum(map(len, kept.values())) + len(unassigned)
    share, extra = divmod(total, len(kept))
    # Those who have the most get the larger shares: they would have to give up more otherwise.
    by_load = sorted(kept, key=lambda member_id: -len(kept[member_id]))
    quota = {member_id: share + (1 if at < extra else 0) for at, member_id in enumerate(by_load)}
    for member_id, partitions in kept.items():
        unassigned.extend(partitions[quota[member_id] :])
        del partitions[quota[member_id] :]
    queue = deque(sorted(unassigned))
    hungry = [member_id for member_id in kept if len(kept[member_id]) < quota[member_id]]
    while queue:
        # In turns, so that each member gets partitions of many topics.
        for member_id in hungry:
            if queue:
                kept[member_id].append(queue.popleft())
        hungry = [member_id for member_id in hungry if len(kept[member_id]) < quota[member_id]]


def _fill_least_loaded(
    kept: dict[str, list[PartitionKey]],
    unassigned: Sequence[PartitionKey],
    subscribers: Mapping[bytes, Sequence[str]],
) -> None:
    by_topic: dict[bytes, list[PartitionKey]] = {}
    for partition in unassigned:
        by_topic.setdefault(partition[0], []).append(partition)
    # Topics that few can take go first, while those few are not yet loaded with what others could take.
    for topic_id in sorted(by_topic, key=lambda t: (len(subscribers[t]), t)):
        heap = [(len(kept[member_id]), member_id) for member_id in subscribers[topic_id]]
        heapify(heap)
        for partition in by_topic[topic_id]:
            load, member_id = heappop(heap)
            kept[member_id].append(partition)
            heappush(heap, (load + 1, member_id))


def _level(kept: dict[str, list[PartitionKey]], subscribers: Mapping[bytes, Sequence[str]]) -> None:
    """Move partitions from the loaded to the less loaded, until no move would help.

    A move is made only if it narrows a gap of two or more, so the sum of the squared loads falls with each
    and the loop ends.
    """
    moved = True
    while moved:
        moved = False
        for giver in sorted(kept, key=lambda member_id: -len(kept[member_id])):
            for topic_id in dict.fromkeys(topic_id for topic_id, _ in kept[giver]):
                taker = min(subscribers[topic_id], key=lambda member_id: (len(kept[member_id]), member_id))
                if len(kept[giver]) - len(kept[taker]) < 2:
                    continue
                at = next(i for i in reversed(range(len(kept[giver]))) if kept[giver][i][0] == topic_id)
                kept[taker].append(kept[giver].pop(at))
                moved = True


def _by_topic(partitions: Iterable[PartitionKey]) -> Target:
    found: dict[bytes, set[int]] = {}
    for topic_id, partition in partitions:
        found.setdefault(topic_id, set()).add(partition)
    return {topic_id: frozenset(indexes) for topic_id, indexes in sorted(found.items())}


ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
