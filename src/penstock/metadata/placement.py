"""Decides which broker leads which partition; commands record it.

Storage is shared, so placement is about load only. New partitions go to the brokers that lead least. The rest
of a failover order follows the ring of broker ids, other racks first. When a broker dies, each of its
partitions goes to the first live broker of its order, or to the broker that leads least if there is none.
When brokers come back, leaders return to the head of their order. Then leaders are spread evenly, except in
topics whose order a user chose.
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from penstock.metadata.commands import LeaderMove
from penstock.metadata.image import NO_LEADER, BrokerInfo, ClusterImage, PartitionInfo, TopicInfo
from penstock.metadata.preconditions import check_assignment
from penstock.metadata.refusal import Refusal
from penstock.wire.errors import ErrorCode

# A request for more could stop every broker of a cluster, and Kafka's controller refuses as many.
PARTITIONS_PER_REQUEST_MAX = 10_000

Orders = tuple[tuple[int, ...], ...]


def place(
    image: ClusterImage, partitions: int, replication_factor: int, *, defaults: tuple[int, int]
) -> Orders | Refusal:
    """Failover orders for a new topic. -1 asks for the default of (partitions, replication factor)."""
    if replication_factor < -1 or replication_factor == 0:
        message = "Replication factor must be larger than 0, or -1 to use the default value."
        return Refusal(ErrorCode.INVALID_REPLICATION_FACTOR, message)
    if partitions < -1 or partitions == 0:
        message = "Number of partitions was set to an invalid non-positive value."
        return Refusal(ErrorCode.INVALID_PARTITIONS, message)
    count = defaults[0] if partitions == -1 else partitions
    factor = defaults[1] if replication_factor == -1 else replication_factor
    return spread(image, count, factor)


def spread(image: ClusterImage, partitions: int, replication_factor: int) -> Orders | Refusal:
    """Failover orders for `partitions` new partitions, leaders where fewest are led."""
    if partitions > PARTITIONS_PER_REQUEST_MAX:
        message = "Excessively large number of partitions per request."
        return Refusal(ErrorCode.POLICY_VIOLATION, message)
    live = image.live_brokers
    if not live or replication_factor > len(live):
        reason = (
            f"The target replication factor of {replication_factor} cannot be reached because only "
            f"{len(live)} broker(s) are registered or some brokers have all their log directories cordoned."
        )
        if not live:
            reason = "All brokers are currently fenced, or have all their log directories cordoned."
        message = f"Unable to replicate the partition {replication_factor} time(s): {reason}"
        return Refusal(ErrorCode.INVALID_REPLICATION_FACTOR, message)
    loads = _Loads({broker.id: image.leader_counts.get(broker.id, 0) for broker in live})
    followers = max(1, len(live) - 1)
    rings: dict[tuple[int, int], tuple[int, ...]] = {}
    orders = []
    for _ in range(partitions):
        leader = loads.take()
        # Each next partition of a leader starts its failover one broker further, so that when the leader
        # dies its partitions do not all fall to the same one.
        key = (leader, (loads.count(leader) - 1) % followers)
        if key not in rings:
            rings[key] = _ring(live, image.brokers[leader], replication_factor, key[1])
        orders.append(rings[key])
    return tuple(orders)


def capped_factor(image: ClusterImage, wanted: int) -> int:
    """For internal topics, which must exist whatever the number of brokers."""
    return max(1, min(wanted, len(image.live_brokers)))


def manual_orders(
    image: ClusterImage, assignments: Mapping[int, Sequence[int]], first: int = 0, factor: int | None = None
) -> Orders | Refusal:
    """Failover orders that a user chose, by partition index counted from `first`."""
    orders = []
    for index, brokers in assignments.items():
        refusal = check_assignment(image, index, tuple(brokers), factor)
        if refusal is not None:
            return refusal
        factor = len(brokers)
    for index in range(first, first + len(assignments)):
        if index not in assignments:
            message = "partitions should be a consecutive 0-based integer sequence"
            return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
        orders.append(tuple(assignments[index]))
    return tuple(orders)


def more_partitions(
    image: ClusterImage, topic: TopicInfo, count: int, assignments: Sequence[Sequence[int]] | None
) -> Orders | Refusal:
    """Failover orders for the partitions that `topic` lacks to have `count`."""
    present = len(topic.partitions)
    if count == present:
        return Refusal(ErrorCode.INVALID_PARTITIONS, f"Topic already has {present} partition(s).")
    if count < present:
        message = (
            f"The topic {topic.name} currently has {present} partition(s); {count} would not be an increase."
        )
        return Refusal(ErrorCode.INVALID_PARTITIONS, message)
    factor = len(topic.partitions[0].replicas)
    added = count - present
    if added > PARTITIONS_PER_REQUEST_MAX:
        message = "Excessively large number of partitions per request."
        return Refusal(ErrorCode.POLICY_VIOLATION, message)
    if assignments is None:
        return spread(image, added, factor)
    if len(assignments) != added:
        message = (
            f"Attempted to add {added} additional partition(s), but only {len(assignments)} assignment(s) "
            f"were specified."
        )
        return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    return manual_orders(image, dict(enumerate(assignments, present)), present, factor)


class Led(msgspec.Struct, frozen=True):
    """One partition and where it is."""

    topic: TopicInfo
    index: int
    partition: PartitionInfo


def led_by(image: ClusterImage, broker: int) -> Iterator[Led]:
    """The partitions that `broker` leads (NO_LEADER: that nobody leads)."""
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            if partition.leader == broker:
                yield Led(topic, index, partition)


def leaderless_count(image: ClusterImage) -> int:
    total = sum(len(topic.partitions) for topic in image.topics.values())
    return total - sum(image.leader_counts.values())


def successors(image: ClusterImage, broker: int) -> tuple[LeaderMove, ...]:
    """Moves of everything that `broker` leads (NO_LEADER: that nobody leads) to other live brokers.

    Empty if nobody else is alive. The moves are for a broker whose log is sealed, or that is removed in
    the same entry before them.
    """
    loads = _Loads(
        {info.id: image.leader_counts.get(info.id, 0) for info in image.live_brokers if info.id != broker}
    )
    if not loads:
        return ()
    moves = []
    for led in led_by(image, broker):
        leader = next((other for other in led.partition.replicas if other in loads), NO_LEADER)
        leader = loads.take(leader) if leader != NO_LEADER else loads.take()
        moves.append(LeaderMove(led.topic.id, led.index, led.partition.leader_epoch, leader))
    return tuple(moves)


class HandOver(msgspec.Struct, frozen=True):
    """A partition that its leader should give to `leader`, with a new failover order if not None."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    leader: int
    replicas: tuple[int, ...] | None = None


def hand_overs(image: ClusterImage, broker: int) -> tuple[HandOver, ...]:
    """What `broker`, alive, should hand to other live brokers so that leaders are spread evenly.

    Every broker computes this from the same image for itself, so the plans of all brokers fit together:
    first each partition returns to the head of its failover order; then brokers that would lead more
    than their share give the surplus to those that would lead less, and the order follows.
    """
    homes: dict[int, int] = {info.id: 0 for info in image.live_brokers}
    plans = []
    movable: dict[int, list[Led]] = {info.id: [] for info in image.live_brokers}
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            home = partition.replicas[0] if partition.replicas[0] in homes else partition.leader
            if home not in homes:
                continue
            homes[home] += 1
            if home == partition.leader:
                if not topic.pinned and partition.replicas[0] == home:
                    movable[home].append(Led(topic, index, partition))
            elif partition.leader == broker:
                plans.append(HandOver(topic.id, index, partition.leader_epoch, home))
    for giver, taker in _evening(homes, {home: len(led) for home, led in movable.items()}):
        led = movable[giver].pop()
        if giver == broker:
            plans.append(_moved_home(led, taker))
    return tuple(plans)


def asked_hand_overs(image: ClusterImage, broker: int) -> tuple[HandOver, ...]:
    """What `broker`, alive, was asked to hand to others and can, because they are alive."""
    plans = []
    for (topic_id, index), move in image.moves.items():
        partition = image.partition(topic_id, index)
        if partition is None or partition.leader != broker:
            continue
        wanted = (move.leader,) if move.leader != NO_LEADER else partition.replicas
        leader = next((other for other in wanted if image.is_live(other)), broker)
        if leader != broker:
            plans.append(HandOver(topic_id, index, partition.leader_epoch, leader))
    return tuple(plans)


def imbalance_allowed(counts: Mapping[int, int]) -> int:
    """How many more partitions one broker may lead than another before any are moved: a tenth of what
    each leads, as moving costs clients a moment, and at least one, which no move can better."""
    return max(1, sum(counts.values()) // (10 * len(counts)))


def _moved_home(led: Led, taker: int) -> HandOver:
    old = led.partition.replicas
    others = tuple(other for other in old if other != taker)
    # The order keeps its length: a taker from outside of it replaces the last one.
    replicas = (taker, *others[: len(old) - 1])
    return HandOver(led.topic.id, led.index, led.partition.leader_epoch, taker, replicas)


def _evening(counts: Mapping[int, int], movable: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    """Pairs (giver, taker) that even out `counts`, at most `movable` from each giver; fewest moves."""
    counts = dict(counts)
    left = dict(movable)
    if counts and max(counts.values()) - min(counts.values()) <= imbalance_allowed(counts):
        return
    while True:
        givers = [broker for broker, count in left.items() if count > 0]
        if not givers:
            return
        giver = max(givers, key=lambda broker: (counts[broker], broker))
        taker = min(counts, key=lambda broker: (counts[broker], broker))
        if counts[giver] - counts[taker] <= 1:
            return
        counts[giver] -= 1
        left[giver] -= 1
        counts[taker] += 1
        yield giver, taker


def _ring(live: Sequence[BrokerInfo], leader: BrokerInfo, length: int, shift: int) -> tuple[int, ...]:
    """A failover order that starts at `leader` and goes round the ids from `shift` on, new racks first."""
    at = live.index(leader)
    others = [*live[at + 1 :], *live[:at]]
    waiting = [*others[shift:], *others[:shift]]
    order = [leader]
    seen: dict[str | None, int] = {leader.rack: 1}
    while len(order) < length:
        # Brokers without a rack are each a rack of their own.
        following = min(waiting, key=lambda broker: seen.get(broker.rack, 0) if broker.rack else 0)
        waiting.remove(following)
        order.append(following)
        seen[following.rack] = seen.get(following.rack, 0) + 1
    return tuple(broker.id for broker in order)


class _Loads:
    """Brokers by how many partitions they lead; the least loaded is taken first, the lowest id of equals."""

    def __init__(self, counts: Mapping[int, int]) -> None:
        self._counts = dict(counts)
        self._heap = [(count, broker) for broker, count in counts.items()]
        heapq.heapify(self._heap)

    def __contains__(self, broker: int) -> bool:
        return broker in self._counts

    def __len__(self) -> int:
        return len(self._counts)

    def count(self, broker: int) -> int:
        return self._counts[broker]

    def take(self, broker: int | None = None) -> int:
        """Give one more partition to `broker`, or to the least loaded."""
        if broker is None:
            while True:
                count, broker = self._heap[0]
                if count == self._counts[broker]:
                    break
                # The broker was given partitions by name since: its place in the heap is out of date.
                heapq.heapreplace(self._heap, (self._counts[broker], broker))
            heapq.heapreplace(self._heap, (count + 1, broker))
        self._counts[broker] += 1
        return broker
