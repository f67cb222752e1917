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
from heapq import heapify, heappop, heappush, heapreplace
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
        _level(kept, subscribers, {m.id: m.topics for m in ordered})
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


def _level(
    kept: dict[str, list[PartitionKey]],
    subscribers: Mapping[bytes, Sequence[str]],
    topics: Mapping[str, frozenset[bytes]],
) -> None:
    """Move partitions from the loaded to the less loaded, until no move would help.

    A move is made only if it narrows a gap of two or more, so the sum of the squared loads falls with each
    and the loop ends. No load falls below the least there is.
    """
    loads = {member_id: len(partitions) for member_id, partitions in kept.items()}
    held = {member_id: _stacks(partitions) for member_id, partitions in kept.items()}
    takers = _LeastLoaded(loads, subscribers)
    moved = True
    while moved:
        moved = False
        least = min(loads.values())
        for giver in sorted(kept, key=lambda member_id: -loads[member_id]):
            if loads[giver] - least < 2:
                continue
            before = loads[giver]
            for topic_id in list(held[giver]):
                taker = takers.of(topic_id)
                if loads[giver] - loads[taker] < 2:
                    continue
                held[taker].setdefault(topic_id, []).append(held[giver][topic_id].pop())
                loads[taker] += 1
                loads[giver] -= 1
                if not held[giver][topic_id]:
                    del held[giver][topic_id]
            if loads[giver] < before:
                takers.lowered(giver, topics[giver])
                moved = True
    for member_id, stacks in held.items():
        kept[member_id] = [partition for stack in stacks.values() for partition in stack]


def _stacks(partitions: Iterable[PartitionKey]) -> dict[bytes, list[PartitionKey]]:
    stacks: dict[bytes, list[PartitionKey]] = {}
    for partition in partitions:
        stacks.setdefault(partition[0], []).append(partition)
    return stacks


class _LeastLoaded:
    """The subscriber of each topic that has the least, the first by id of several.

    A thousand members may have hundreds of topics, and each look at all subscribers of one would be a look
    too many. So each topic has a heap of them, made when it is first asked for. What a heap says of a member
    that got more since is too low, and put right when it comes to the top. A member that has less now is
    entered once more.
    """

    __slots__ = ("_heaps", "_loads", "_subscribers")

    def __init__(self, loads: Mapping[str, int], subscribers: Mapping[bytes, Sequence[str]]) -> None:
        self._loads = loads
        self._subscribers = subscribers
        self._heaps: dict[bytes, list[tuple[int, str]]] = {}

    def of(self, topic_id: bytes) -> str:
        loads = self._loads
        heap = self._heaps.get(topic_id)
        if heap is None:
            heap = self._heaps[topic_id] = [
                (loads[member_id], member_id) for member_id in self._subscribers[topic_id]
            ]
            heapify(heap)
        while heap[0][0] < loads[heap[0][1]]:
            member_id = heap[0][1]
            heapreplace(heap, (loads[member_id], member_id))
        return heap[0][1]

    def lowered(self, member_id: str, topics: Iterable[bytes]) -> None:
        entry = self._loads[member_id], member_id
        for topic_id in topics:
            heap = self._heaps.get(topic_id)
            if heap is not None:
                heappush(heap, entry)


def _by_topic(partitions: Iterable[PartitionKey]) -> Target:
    found: dict[bytes, set[int]] = {}
    for topic_id, partition in partitions:
        found.setdefault(topic_id, set()).add(partition)
    return {topic_id: frozenset(indexes) for topic_id, indexes in sorted(found.items())}


ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
