"""For any sequence of commands: one image (P1), epochs and log starts that never go back, stored forms that
lose nothing, and no image that changes after it was made."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.metadata.apply import apply_entry
from penstock.metadata.codec import Entry, decode_entry, decode_snapshot, encode_entry, encode_snapshot
from penstock.metadata.commands import (
    AdvanceLogStart,
    AllocateProducerIds,
    AnyCommand,
    AssignLeaders,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    FenceBroker,
    LeaderMove,
    LogStart,
    MoveLeader,
    RemoveBroker,
    SetConfig,
    SetReplicas,
    Settled,
    SettlePartitions,
)
from penstock.metadata.draft import Draft
from penstock.metadata.image import TOPIC_CONFIG, ClusterImage, ManifestRef
from penstock.metadata.placement import asked_hand_overs, hand_overs, spread, successors
from penstock.metadata.preconditions import check
from penstock.metadata.refusal import Refusal

from .worlds import check_image, registered, topic_id

BROKERS = st.integers(1, 4)
TOPICS = st.integers(1, 4)
FLUSHES = st.integers(0, 3)


class AnyHistory(RuleBasedStateMachine):
    """Commands that somebody could propose, some of them refused; every accepted one is applied."""

    def __init__(self) -> None:
        super().__init__()
        self.image = ClusterImage(cluster_id="any")
        self.frozen: list[tuple[ClusterImage, bytes]] = []
        self.producer_ids = 0

    @initialize()
    def first(self) -> None:
        self.propose(registered(1))

    def propose(self, *commands: AnyCommand) -> bool:
        """All of `commands` as one entry, as a proposer does it."""
        before = self.image
        draft = Draft(before)
        draft.version += 1
        for command in commands:
            if check(draft.view(), command) is not None:
                return False
            draft = Draft(apply_entry(draft.image(), (command,)))
            draft.version -= 1
        entry = Entry(before.version + 1, "author", 0, list(commands))
        stored = decode_entry(encode_entry(entry, before.level), before.version + 1)
        assert stored == entry
        self.image = apply_entry(before, stored.commands)
        self.frozen.append((before, encode_snapshot(before, 0)))
        self.check_history(before, self.image)
        return True

    def check_history(self, old: ClusterImage, new: ClusterImage) -> None:
        assert new.version == old.version + 1
        assert new.next_producer_id >= old.next_producer_id
        for name, topic in new.topics.items():
            earlier = old.topics.get(name)
            if earlier is None or earlier.id != topic.id:
                continue
            assert len(topic.partitions) >= len(earlier.partitions)
            for before, after in zip(earlier.partitions, topic.partitions, strict=False):
                assert after.log_start >= before.log_start
                assert after.leader_epoch >= before.leader_epoch
                same_writer = before.wals[-1:] == after.wals[-1:]
                if after.leader_epoch == before.leader_epoch and after.leader != -1:
                    assert after.leader == before.leader and same_writer

    @rule(broker=BROKERS, count=FLUSHES)
    def register(self, broker: int, count: int) -> None:
        old = self.image.brokers.get(broker)
        epoch = -1 if old is None else old.epoch
        if old is not None and not old.fenced:
            assert self.propose(registered(broker, previous_epoch=epoch, sealed=count))
        else:
            assert self.propose(registered(broker, previous_epoch=epoch))

    @rule(broker=BROKERS, count=FLUSHES, take_over=st.booleans())
    def fence(self, broker: int, count: int, take_over: bool) -> None:
        info = self.image.brokers.get(broker)
        if info is None:
            return
        commands: list[AnyCommand] = [FenceBroker(broker, info.epoch, count)]
        moves = successors(self.image, broker)
        if take_over and moves:
            commands.append(AssignLeaders(moves[0].leader, 0, moves))
        assert self.propose(*commands) == (not info.fenced)
        assert not self.image.is_live(broker)

    @rule(broker=BROKERS, count=st.none() | FLUSHES)
    def remove(self, broker: int, count: int | None) -> None:
        info = self.image.brokers.get(broker)
        if info is not None:
            removed = self.propose(RemoveBroker(broker, info.epoch, count))
            assert removed == (info.fenced or count is not None)
            assert removed == (broker not in self.image.brokers)

    @rule()
    def adopt(self) -> None:
        moves = successors(self.image, -1)
        if moves:
            assert self.propose(AssignLeaders(moves[0].leader, 0, moves))

    @rule(broker=BROKERS)
    def balance(self, broker: int) -> None:
        info = self.image.brokers.get(broker)
        if info is None or info.fenced:
            return
        moves = tuple(
            LeaderMove(p.topic_id, p.partition, p.leader_epoch, p.leader, True, None, p.replicas)
            for p in hand_overs(self.image, broker)
        )
        if moves:
            assert self.propose(AssignLeaders(broker, info.epoch, moves))
            assert not hand_overs(self.image, broker)

    @rule(topic=TOPICS, count=st.integers(1, 5), factor=st.integers(1, 3))
    def create(self, topic: int, count: int, factor: int) -> None:
        orders = spread(self.image, count, factor)
        if not isinstance(orders, Refusal):
            name = f"topic.{topic}"
            wanted = name not in self.image.topics
            command = CreateTopic(topic_id(self.image.version), name, orders, {"retention.ms": "5"})
            assert self.propose(command) == wanted

    @rule(topic=TOPICS)
    def delete(self, topic: int) -> None:
        info = self.image.topic(f"topic.{topic}")
        if info is not None:
            assert self.propose(DeleteTopic(info.id))

    @rule(topic=TOPICS, added=st.integers(1, 3))
    def grow(self, topic: int, added: int) -> None:
        info = self.image.topic(f"topic.{topic}")
        if info is not None:
            orders = spread(self.image, added, len(info.partitions[0].replicas))
            if not isinstance(orders, Refusal):
                assert self.propose(CreatePartitions(info.id, len(info.partitions), orders))

    @rule(topic=TOPICS, index=st.integers(0, 5), replicas=st.lists(BROKERS, min_size=1, max_size=3))
    def reassign(self, topic: int, index: int, replicas: list[int]) -> None:
        info = self.image.topic(f"topic.{topic}")
        if info is not None:
            self.propose(SetReplicas(info.id, index, tuple(replicas)))

    @rule(topic=TOPICS, index=st.integers(0, 5), leader=BROKERS)
    def ask(self, topic: int, index: int, leader: int) -> None:
        info = self.image.topic(f"topic.{topic}")
        if info is not None and index < len(info.partitions):
            self.propose(MoveLeader(info.id, index, info.partitions[index].leader_epoch, leader))

    @rule(broker=BROKERS)
    def obey(self, broker: int) -> None:
        info = self.image.brokers.get(broker)
        plans = asked_hand_overs(self.image, broker)
        if info is None or not plans:
            return
        moves = (LeaderMove(p.topic_id, p.partition, p.leader_epoch, p.leader, True) for p in plans)
        assert self.propose(AssignLeaders(broker, info.epoch, tuple(moves)))
        assert not asked_hand_overs(self.image, broker)

    @rule(topic=TOPICS, value=st.none() | st.sampled_from(["delete", "compact", "nonsense"]))
    def configure(self, topic: int, value: str | None) -> None:
        self.propose(SetConfig(TOPIC_CONFIG, f"topic.{topic}", {"cleanup.policy": value}))

    @rule(broker=BROKERS, count=st.integers(1, 1000))
    def allocate(self, broker: int, count: int) -> None:
        info = self.image.brokers.get(broker)
        if info is not None and self.propose(
            AllocateProducerIds(broker, info.epoch, self.image.next_producer_id, count)
        ):
            self.producer_ids += count

    @rule(topic=TOPICS, index=st.integers(0, 5), drop=st.booleans(), start=st.none() | st.integers(0, 9))
    def settle(self, topic: int, index: int, drop: bool, start: int | None) -> None:
        info = self.image.topic(f"topic.{topic}")
        if info is None or index >= len(info.partitions):
            return
        partition = info.partitions[index]
        epoch = self.image.brokers[partition.leader].epoch if partition.leader in self.image.brokers else 0
        self.propose(
            SettlePartitions(
                partition.leader,
                epoch,
                (
                    Settled(
                        info.id,
                        index,
                        partition.leader_epoch,
                        ManifestRef(f"manifest/{self.image.version}", 0, 10),
                        partition.wals[:-1] if drop else (),
                        start,
                    ),
                ),
                self.image.version,
            )
        )

    @rule(topic=TOPICS, index=st.integers(0, 5), start=st.integers(0, 99), stale=st.booleans())
    def advance(self, topic: int, index: int, start: int, stale: bool) -> None:
        info = self.image.topic(f"topic.{topic}")
        if info is None or index >= len(info.partitions):
            return
        partition = info.partitions[index]
        epoch = self.image.brokers[partition.leader].epoch if partition.leader in self.image.brokers else 0
        item = LogStart(info.id, index, partition.leader_epoch - stale, start)
        done = self.propose(AdvanceLogStart(partition.leader, epoch, (item,)))
        assert done == (not stale and partition.leader != -1 and start >= partition.log_start)

    @invariant()
    def holds(self) -> None:
        check_image(self.image)
        assert self.image.next_producer_id == self.producer_ids

    @invariant()
    def survives_a_snapshot(self) -> None:
        assert decode_snapshot(encode_snapshot(self.image, 3), 1) == (3, self.image)

    def teardown(self) -> None:
        for image, snapshot in self.frozen:
            assert encode_snapshot(image, 0) == snapshot, "an image must never change"


AnyHistory.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestAnyHistory = AnyHistory.TestCase
