"""Joining, dying, waking up and leaving, with several brokers on one store and time moved by hand."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import pytest

from penstock.cluster.leases import lease_key
from penstock.cluster.membership import Lost, Membership
from penstock.cluster.metadata_log import MetadataLog
from penstock.cluster.seat import Seat, Times
from penstock.metadata.commands import (
    AnyCommand,
    AssignLeaders,
    CreateTopic,
    FenceBroker,
    LeaderMove,
    MoveLeader,
    RegisterBroker,
    RepairPartition,
    SetReplicas,
    Settled,
    SettlePartitions,
)
from penstock.metadata.image import NO_LEADER, ClusterImage, Listener, ManifestRef, PartitionKey
from penstock.metadata.placement import HandOver, spread
from penstock.metadata.refusal import Refusal
from penstock.storage.partitions.answers import Surrendered
from penstock.storage.stores.memory import MemoryStore
from penstock.storage.stores.objects import StoreUnavailableError
from penstock.wire.errors import ErrorCode
from tests.clocks import HandClock
from tests.leftovers import left_behind

from ..metadata.worlds import check_image
from .rig import FaultyStore, open_log, until_led_by

SESSION = 3.0
FLUSHES = 7


class FakeLedger:
    """Surrenders what it is told to, and remembers."""

    def __init__(self, log: MetadataLog) -> None:
        self._log = log
        self.surrendered: list[PartitionKey] = []
        self.resumed: list[PartitionKey] = []
        self.resumed_often = asyncio.Event()
        self.settles = 0
        self.fail = False
        self.open: list[PartitionKey] = []
        self.durable_flushes = 0

    async def settle(self) -> bool:
        self.settles += 1
        return True

    def led(self) -> Iterable[PartitionKey]:
        return self.open

    async def surrender(self, keys: Iterable[PartitionKey]) -> Mapping[PartitionKey, Surrendered]:
        if self.fail:
            raise StoreUnavailableError("not settled")
        surrendered = list(keys)
        self.surrendered.extend(surrendered)
        return {key: Surrendered(self.manifest(key), ManifestRef("manifest", 0, 1)) for key in surrendered}

    def manifest(self, key: PartitionKey) -> ManifestRef | None:
        info = self._log.image.partition(*key)
        return info.manifest if info is not None else None

    def resume(self, keys: Iterable[PartitionKey]) -> None:
        self.resumed.extend(keys)
        if len(self.resumed) > 1:
            self.resumed_often.set()


class NodeLogs:
    """The logs of a world, as one broker gets at them."""

    def __init__(self, world: "World") -> None:
        self.boot = ""
        self.seal = world.seal
        self.read_ahead = world.read_ahead


class Node:
    """One broker process."""

    def __init__(self, world: "World", broker: int, seed: int) -> None:
        self.store = FaultyStore(world.inner, seed)
        self.log: MetadataLog = open_log(self.store, clock=world.clock)
        self.lost: list[Lost] = []
        self.ledger = FakeLedger(self.log)
        self.running = True
        self.logs = NodeLogs(world)
        self.seat = Seat(
            broker, self.log, self.store, world.clock, self.logs, Times(SESSION, 1.0, balance_interval=2.0)
        )
        listeners = (Listener("PLAINTEXT", f"host-{broker}", 9090 + broker),)
        self.member = Membership(self.seat, RegisterBroker(broker, listeners), self.lost.append)

    def steps(self) -> list[Callable[[], Awaitable[object]]]:
        """What is due each second."""
        member = self.member
        return [self.log.catch_up, member.heartbeat, member.watch.look, member.balance.balance]

    def hurry(self, heartbeat_interval: float) -> None:
        self.seat.times = self.seat.times._replace(heartbeat_interval=heartbeat_interval)

    async def start(self) -> None:
        await self.log.open()
        await self.member.register()
        # The background work is done by hand, in `World.pass_time`.
        self.member.balance.leadership = self.ledger
        self.member._unsubscribe = self.log.subscribe(self.member._on_image)
        await self.member.heartbeat()


class World:
    def __init__(self) -> None:
        self.inner = MemoryStore()
        self.clock = HandClock()
        self.nodes: dict[int, Node] = {}
        self.sealed: list[tuple[int, int]] = []
        self.read: list[tuple[int, int]] = []
        self.flushes = FLUSHES
        self.seeds = iter(range(1000))

    async def seal(self, broker: int, epoch: int) -> int:
        await asyncio.sleep(0)
        self.sealed.append((broker, epoch))
        return self.flushes

    async def read_ahead(self, broker: int, epoch: int) -> None:
        self.read.append((broker, epoch))

    async def start(self, *brokers: int) -> None:
        for broker in brokers:
            self.nodes[broker] = Node(self, broker, next(self.seeds))
        await asyncio.gather(*(self.nodes[broker].start() for broker in brokers))

    def kill(self, broker: int) -> None:
        self.nodes[broker].running = False

    async def pass_time(self, seconds: float) -> None:
        """Everybody who runs does what is due, second by second."""
        for _ in range(int(seconds)):
            self.clock.advance(1000)
            running = [node for node in self.nodes.values() if node.running]
            for step in range(4):
                await asyncio.gather(*(self.do(node.steps()[step]) for node in running))

    async def do(self, step: Callable[[], Awaitable[object]]) -> None:
        try:
            await step()
        except Exception as error:
            assert "the store does not answer" in str(error)

    async def image(self) -> ClusterImage:
        """What all who run agree on."""
        running = [node for node in self.nodes.values() if node.running]
        images = [await node.log.catch_up() for node in running]
        assert all(image == images[0] for image in images)
        check_image(images[0])
        return images[0]

    async def create(self, name: str, partitions: int, factor: int = 1) -> None:
        def decide(image: ClusterImage) -> Sequence[AnyCommand] | Refusal:
            orders = spread(image, partitions, factor)
            if isinstance(orders, Refusal):
                return orders
            return [CreateTopic(name.encode().rjust(16), name, orders)]

        node = next(node for node in self.nodes.values() if node.running)
        assert isinstance(await node.log.propose(decide), ClusterImage)
        await self.image()


@pytest.fixture
def world() -> World:
    return World()


def live(image: ClusterImage) -> list[int]:
    return [info.id for info in image.live_brokers]


async def test_a_lone_broker_of_a_dead_cluster_serves_at_once(world: World) -> None:
    await world.start(1, 2, 3)
    await world.create("t", 6)
    for broker in (1, 2, 3):
        world.kill(broker)
    await world.start(2)
    node = world.nodes[2]
    assert node.member.epoch == node.log.image.version
    assert node.log.image.leader_counts[2] == 2
    # What the others led follows when their time is up, and not before.
    await world.pass_time(2)
    assert live(await world.image()) == [1, 2, 3]
    await world.pass_time(4)
    image = await world.image()
    assert live(image) == [2]
    assert image.leader_counts == {2: 6}


async def test_the_log_of_a_silent_broker_is_read_before_its_time_is_up(world: World) -> None:
    await world.start(1, 2, 3)
    epoch = world.nodes[3].member.epoch
    await world.pass_time(3)
    assert world.read == []
    world.kill(3)
    await world.pass_time(SESSION - 1)
    assert live(await world.image()) == [1, 2, 3] and world.sealed == []
    assert world.read == [(3, epoch)] * 2, "once by each of the others"
    await world.pass_time(3)
    assert live(await world.image()) == [1, 2]
    assert world.read == [(3, epoch)] * 2


async def test_a_restart_seals_the_log_of_the_incarnation_before(world: World) -> None:
    await world.start(1)
    await world.create("t", 1)
    first = world.nodes[1].member.epoch
    await world.start(1)
    assert world.sealed == [(1, first)]
    image = await world.nodes[1].log.catch_up()
    partition = image.topics["t"].partitions[0]
    assert [wal.epoch for wal in partition.wals] == [first, world.nodes[1].member.epoch]
    assert image.sealed[partition.wals[0]] == FLUSHES
    assert partition.leader_epoch == 1


async def test_a_silent_broker_is_fenced_once_and_its_partitions_are_shared_out(world: World) -> None:
    await world.start(1, 2, 3)
    await world.create("t", 9, factor=3)
    epoch = world.nodes[3].member.epoch
    world.kill(3)
    await world.pass_time(3)
    assert live(await world.image()) == [1, 2, 3]
    before = (await world.image()).version
    await world.pass_time(2)
    image = await world.image()
    assert live(image) == [1, 2]
    assert image.version == before + 1, "one entry, whoever else noticed"
    assert world.sealed.count((3, epoch)) == 1, "the lowest went first; nobody else had to"
    assert NO_LEADER not in [p.leader for p in image.topics["t"].partitions]
    assert sorted(image.leader_counts) == [1, 2]


async def test_the_next_one_acts_if_the_lowest_is_the_dead_one(world: World) -> None:
    await world.start(1, 2, 3)
    await world.create("t", 9)
    world.kill(1)
    await world.pass_time(5)
    image = await world.image()
    assert live(image) == [2, 3]
    assert image.controller_id == 2
    assert sum(image.leader_counts.values()) == 9


async def test_all_but_the_last_die(world: World) -> None:
    await world.start(*range(1, 8))
    await world.create("t", 21)
    for broker in range(1, 7):
        world.kill(broker)
    await world.pass_time(15)
    image = await world.image()
    assert live(image) == [7]
    assert image.leader_counts == {7: 21}


async def test_an_outage_of_the_store_kills_nobody(world: World) -> None:
    await world.start(1, 2, 3)
    await world.create("t", 3)
    version = (await world.image()).version
    for node in world.nodes.values():
        node.store.down = True
    await world.pass_time(60)
    # The store comes back for one after the other.
    for node in world.nodes.values():
        node.store.down = False
        await world.pass_time(1)
    await world.pass_time(10)
    assert (await world.image()).version == version


async def test_who_cannot_write_does_not_judge(world: World) -> None:
    await world.start(1, 2)
    version = (await world.image()).version

    def read_only(operation: str, key: str) -> None:
        if operation == "put":
            raise StoreUnavailableError("the store does not answer")

    # Broker 1 can read but not write; broker 2 is dead. It is 1 that is cut off, so it keeps quiet.
    world.nodes[1].store.before = read_only
    world.kill(2)
    await world.pass_time(20)
    assert (await world.image()).version == version


async def test_a_paused_broker_learns_that_it_was_fenced_and_comes_back_as_another(world: World) -> None:
    await world.start(1, 2)
    await world.create("t", 4)
    sleeper = world.nodes[2]
    sleeper.running = False
    await world.pass_time(6)
    assert live(await world.image()) == [1]
    sleeper.running = True
    await world.pass_time(1)
    assert sleeper.lost == [Lost.FENCED]
    old = sleeper.member.epoch
    await sleeper.member.register()
    assert sleeper.member.epoch > old
    image = await world.image()
    assert live(image) == [1, 2]
    assert image.leader_counts == {1: 4}


async def test_a_broker_that_was_fenced_before_its_first_heartbeat_learns_of_it() -> None:
    """Recovery comes between registering and the first heartbeat, and may take long."""
    world = World()
    await world.start(1)
    late = Node(world, 2, 99)
    await late.log.open()
    info = await late.member.register()
    fence = FenceBroker(2, info.epoch, FLUSHES)
    assert not isinstance(await world.nodes[1].log.propose(lambda image: [fence]), Refusal)
    await late.log.catch_up()
    await late.member.start(late.ledger)
    assert late.lost == [Lost.FENCED]
    await late.member.stop()


async def test_a_second_process_with_the_same_id_replaces_the_first(world: World) -> None:
    await world.start(1)
    first = world.nodes[1]
    await world.start(1)
    await first.log.catch_up()
    assert first.lost == [Lost.REPLACED]
    await first.member.heartbeat()
    assert world.nodes[1].lost == []


async def test_registering_while_being_fenced(world: World) -> None:
    """Between sealing and proposing, somebody else fenced the incarnation: it looks again and joins."""
    await world.start(1, 2)
    old = world.nodes[2].member.epoch
    world.kill(2)
    other = world.nodes[1]
    seal = world.seal

    async def fenced_meanwhile(broker: int, epoch: int) -> int:
        count = await seal(broker, epoch)
        result = await other.log.propose(lambda image: [FenceBroker(2, old, count)])
        assert isinstance(result, ClusterImage)
        return count

    node = Node(world, 2, 77)
    node.logs.seal = fenced_meanwhile
    world.nodes[2] = node
    await node.log.open()
    info = await node.member.register()
    assert info.epoch > old
    assert live(await world.image()) == [1, 2]


async def test_leaving_hands_everything_over_in_one_entry(world: World) -> None:
    await world.start(1, 2, 3)
    await world.create("t", 9, factor=2)
    before = (await world.image()).version
    leaver = world.nodes[2]
    await leaver.member.leave()
    leaver.running = False
    image = await world.image()
    assert image.version == before + 1
    assert 2 not in image.brokers
    assert live(image) == [1, 3]
    assert NO_LEADER not in [p.leader for p in image.topics["t"].partitions]
    assert lease_key(2) not in world.inner.objects
    assert leaver.lost == []


async def test_a_leaver_gives_away_what_it_settled_and_leaves_the_rest_in_its_sealed_log(
    world: World,
) -> None:
    await world.start(1, 2, 3)
    await world.create("t", 9, factor=2)
    topic = (await world.image()).topics["t"]
    leaver = world.nodes[2]
    own = leaver.log.image.brokers[2].wal
    led = [(topic.id, index) for index, p in enumerate(topic.partitions) if p.leader == 2]
    leaver.ledger.open = led[:2]
    await leaver.member.leave()
    leaver.running = False
    image = await world.image()
    assert leaver.ledger.settles == 1
    assert leaver.ledger.surrendered == led[:2]
    moved = [image.partition(*key) for key in led]
    assert [p is not None and own in p.wals for p in moved] == [False, False, True]
    assert [p is not None and p.manifest is not None for p in moved] == [True, True, False]
    assert image.sealed == {own: FLUSHES}
    assert live(image) == [1, 3]


async def test_a_leaver_that_cannot_settle_leaves_all_the_same(world: World) -> None:
    await world.start(1, 2)
    await world.create("t", 4)
    leaver = world.nodes[2]
    leaver.ledger.fail = True
    await leaver.member.leave()
    leaver.running = False
    image = await world.image()
    assert image.leader_counts == {1: 4}
    assert image.sealed != {}


async def test_the_last_to_leave_and_the_first_to_come_back(world: World) -> None:
    await world.start(1, 2)
    await world.create("t", 4)
    world.flushes = 0
    for broker in (1, 2):
        await world.nodes[broker].member.leave()
        world.kill(broker)
    await world.start(2)
    image = await world.image()
    assert live(image) == [2]
    assert image.leader_counts == {2: 4}
    assert not image.sealed


async def test_leaving_when_already_fenced_changes_nothing(world: World) -> None:
    await world.start(1, 2)
    sleeper = world.nodes[2]
    sleeper.running = False
    await world.pass_time(6)
    version = (await world.image()).version
    await sleeper.member.leave()
    assert (await world.image()).version == version


async def test_partitions_without_a_leader_are_adopted(world: World) -> None:
    await world.start(1, 2)
    await world.create("t", 4)
    epoch = world.nodes[2].member.epoch
    world.kill(2)
    # Fenced by a hand that forgot to share out what it led.
    await world.nodes[1].log.propose(lambda image: [FenceBroker(2, epoch, 1)])
    assert NO_LEADER in [p.leader for p in (await world.image()).topics["t"].partitions]
    await world.pass_time(1)
    assert (await world.image()).leader_counts == {1: 4}


async def test_leaders_return_when_a_broker_comes_back(world: World) -> None:
    await world.start(1, 2, 3)
    await world.create("t", 9, factor=3)
    world.kill(3)
    await world.pass_time(6)
    assert (await world.image()).leader_counts.get(3) is None
    await world.start(3)
    await world.pass_time(6)
    image = await world.image()
    assert image.leader_counts == {1: 3, 2: 3, 3: 3}
    assert all(p.leader == p.replicas[0] for p in image.topics["t"].partitions)
    released = [key for node in world.nodes.values() for key in node.ledger.surrendered]
    assert len(released) == 3
    moved = [image.partition(*key) for key in released]
    assert all(p is not None and p.manifest is not None and len(p.wals) == 1 for p in moved)


async def test_a_new_order_moves_the_leader(world: World) -> None:
    await world.start(1, 2)
    await world.create("t", 2, factor=1)
    image = await world.image()
    topic = image.topics["t"]
    at = next(index for index, p in enumerate(topic.partitions) if p.leader == 1)
    await world.nodes[2].log.propose(lambda image: [SetReplicas(topic.id, at, (2, 1))])
    await world.pass_time(4)
    partition = (await world.image()).topics["t"].partitions[at]
    assert (partition.leader, partition.replicas) == (2, (2, 1))


async def test_what_is_asked_for_is_handed_over_without_waiting_for_balance(world: World) -> None:
    await world.start(1, 2, 3)
    await world.create("t", 3, factor=3)
    leader = world.nodes[1]
    topic = (await world.image()).topics["t"]
    at = next(index for index, p in enumerate(topic.partitions) if p.leader == 1)
    epoch = topic.partitions[at].leader_epoch
    obeying = asyncio.ensure_future(leader.member.balance.obey())
    try:
        await world.nodes[3].log.propose(lambda image: [MoveLeader(topic.id, at, epoch, 3)])
        await leader.log.catch_up()
        await until_led_by(leader.log, "t", at, 3)
        await world.nodes[3].log.propose(lambda image: [SetReplicas(topic.id, at, (2,))])
        # It is 3 that leads now: 1 does nothing about it.
        await leader.log.catch_up()
        assert leader.ledger.surrendered == [(topic.id, at)]
        await world.nodes[3].member.balance.hand_over_asked()
    finally:
        obeying.cancel()
    image = await world.image()
    assert image.topics["t"].partitions[at].leader == 2
    assert not image.moves


async def test_what_is_asked_for_is_tried_again_until_the_store_takes_it(world: World) -> None:
    await world.start(1, 2)
    await world.create("t", 2, factor=2)
    leader = world.nodes[1]
    leader.hurry(0.001)
    leader.ledger.fail = True
    topic = (await world.image()).topics["t"]
    at = next(index for index, p in enumerate(topic.partitions) if p.leader == 1)
    obeying = asyncio.ensure_future(leader.member.balance.obey())
    try:
        await leader.log.propose(lambda image: [MoveLeader(topic.id, at, 0, 2)])
        await asyncio.wait_for(leader.ledger.resumed_often.wait(), 60)
        leader.ledger.fail = False
        await until_led_by(leader.log, "t", at, 2)
    finally:
        obeying.cancel()


@pytest.mark.parametrize("alive", [True, False])
async def test_a_broker_is_unregistered_dead_or_alive(world: World, alive: bool) -> None:
    await world.start(1, 2, 3)
    await world.create("t", 9, factor=3)
    gone = world.nodes[3]
    if not alive:
        world.kill(3)
        await world.pass_time(6)
    assert await world.nodes[2].member.unregister(3) is None
    if alive:
        await gone.log.catch_up()
        assert gone.lost == [Lost.REMOVED]
        world.kill(3)
    image = await world.image()
    assert sorted(image.brokers) == [1, 2]
    assert sum(image.leader_counts.values()) == 9
    assert world.sealed.count((3, gone.member.epoch)) == 1
    assert lease_key(3) not in world.inner.objects
    refusal = await world.nodes[2].member.unregister(3)
    assert refusal == Refusal(ErrorCode.BROKER_ID_NOT_REGISTERED, "Broker ID 3 is not currently registered")


async def test_a_broker_that_is_asked_to_unregister_itself_leaves_in_order(world: World) -> None:
    await world.start(1, 2)
    await world.create("t", 4)
    node = world.nodes[2]
    assert await node.member.unregister(2) is None
    assert node.lost == [Lost.REMOVED]
    node.running = False
    assert live(await world.image()) == [1]


async def test_a_broker_that_comes_back_while_it_is_unregistered_is_removed_all_the_same(
    world: World,
) -> None:
    await world.start(1, 2)
    seal = world.seal
    again = Node(world, 2, 78)

    async def registers_meanwhile(broker: int, epoch: int) -> int:
        world.nodes[1].logs.seal = seal
        await again.start()
        return await seal(broker, epoch)

    world.nodes[1].logs.seal = registers_meanwhile
    world.kill(2)
    assert await world.nodes[1].member.unregister(2) is None
    assert live(await world.image()) == [1]
    await again.log.catch_up()
    assert again.lost == [Lost.REMOVED]


async def test_leases_say_how_far_each_image_has_come(world: World) -> None:
    await world.start(1, 2)
    await world.create("t", 1)
    await world.pass_time(1)
    version = (await world.image()).version
    leases = await world.nodes[1].member.heartbeats.others()
    assert {broker: lease.version for broker, lease in leases.items()} == {2: version}
    world.kill(2)
    await world.create("u", 1)
    leases = await world.nodes[1].member.heartbeats.others()
    assert {broker: lease.version for broker, lease in leases.items()} == {2: version}
    assert world.nodes[1].member.heartbeats.lease().version == version + 1


async def test_a_lease_holds_for_the_session_time_out_after_each_heartbeat(world: World) -> None:
    await world.start(1)
    member = world.nodes[1].member
    assert member.heartbeats.lease_until == world.clock.seconds + SESSION
    world.clock.advance(int(SESSION * 1000) - 100)
    await member.heartbeat()
    assert member.heartbeats.lease_until == world.clock.seconds + SESSION


async def test_who_was_late_is_sure_of_nothing_until_it_was_heard_for_a_while(world: World) -> None:
    """An observer may have found it silent and be about to fence it."""
    await world.start(1)
    member = world.nodes[1].member
    world.clock.advance(int(SESSION * 1000))
    lapsed = world.clock.seconds
    while world.clock.seconds < lapsed + SESSION:
        await member.heartbeat()
        await world.nodes[1].log.catch_up()
        assert member.heartbeats.lease_until <= world.clock.seconds
        world.clock.advance(1000)
    await world.nodes[1].log.catch_up()
    await member.heartbeat()
    assert member.heartbeats.lease_until == world.clock.seconds + SESSION


async def test_who_was_late_is_sure_of_nothing_until_it_read_the_log(world: World) -> None:
    """The store takes its heartbeats and does not say that somebody fenced it."""
    await world.start(1)
    member = world.nodes[1].member
    world.clock.advance(int(SESSION * 1000))
    for _ in range(2 * int(SESSION)):
        await member.heartbeat()
        assert member.heartbeats.lease_until <= world.clock.seconds
        world.clock.advance(1000)
    await world.nodes[1].log.catch_up()
    await member.heartbeat()
    assert member.heartbeats.lease_until == world.clock.seconds + SESSION


async def test_a_heartbeat_that_fails_extends_nothing(world: World) -> None:
    await world.start(1)
    member = world.nodes[1].member
    until = member.heartbeats.lease_until
    world.nodes[1].store.down = True
    world.clock.advance(1000)
    with pytest.raises(StoreUnavailableError):
        await member.heartbeat()
    assert member.heartbeats.lease_until == until


async def test_what_could_not_be_settled_stays(world: World) -> None:
    await world.start(1)
    await world.create("t", 4)
    world.nodes[1].ledger.fail = True
    await world.start(2)
    for _ in range(4):
        world.clock.advance(1000)
        await asyncio.gather(*(node.log.catch_up() for node in world.nodes.values()))
        for node in world.nodes.values():
            await node.member.heartbeat()
        with contextlib.suppress(StoreUnavailableError):
            await world.nodes[1].member.balance.balance()
    assert (await world.image()).leader_counts == {1: 4}
    assert len(world.nodes[1].ledger.resumed) >= 2


async def test_a_hand_over_of_which_the_end_is_unknown_is_not_resumed(world: World) -> None:
    """Its entry may still arrive; writing on could acknowledge what the next leader never reads."""
    await world.start(1)
    await world.create("t", 4)
    await world.start(2)
    node = world.nodes[1]
    await world.image()
    outage = asyncio.Event()

    def cut_off(operation: str, key: str) -> None:
        if operation == "create":
            node.store.down = True
            outage.set()

    node.store.before = cut_off
    node.hurry(0.01)
    node.log._propose_timeout = 0.05
    world.clock.advance(5000)
    balancing = asyncio.ensure_future(node.member.balance.balance())
    await outage.wait()
    # Long past the time-out of one proposal.
    await asyncio.wait([balancing], timeout=0.3)
    assert not balancing.done()
    assert node.ledger.surrendered and not node.ledger.resumed
    node.store.before = None
    node.store.down = False
    await balancing
    assert not node.ledger.resumed
    assert (await world.image()).leader_counts == {1: 2, 2: 2}


async def test_a_hand_over_to_a_broker_that_dies_meanwhile_is_resumed(world: World) -> None:
    await world.start(1)
    await world.create("t", 4)
    await world.start(2)
    await world.image()
    node = world.nodes[1]
    world.clock.advance(5000)
    real_surrender = node.ledger.surrender

    async def surrender_while_two_dies(
        keys: Iterable[PartitionKey],
    ) -> Mapping[PartitionKey, Surrendered]:
        await world.nodes[2].member.leave()
        world.kill(2)
        return await real_surrender(keys)

    node.ledger.surrender = surrender_while_two_dies  # type: ignore[method-assign]
    await node.member.balance.balance()
    assert sorted(node.ledger.resumed) == sorted(node.ledger.surrendered) != []
    assert (await world.image()).leader_counts == {1: 4}


async def test_a_hand_over_to_a_broker_that_is_fenced_in_the_same_entry_is_resumed(world: World) -> None:
    """The partition comes back under a later epoch: nobody led it in between, and it must be served again."""
    await world.start(1, 2)
    await world.create("t", 1)
    node = world.nodes[1]
    ((index, info),) = enumerate((await world.image()).topics["t"].partitions)
    topic_id = node.log.image.topics["t"].id
    leader, other = world.nodes[info.leader], world.nodes[3 - info.leader]
    gone = other.log.image.brokers[3 - info.leader]
    real_propose = leader.log.propose

    async def propose_beside_a_fence(decide: Callable[[ClusterImage], Sequence[AnyCommand]]) -> object:
        leader.log.propose = real_propose  # type: ignore[method-assign]
        back = LeaderMove(topic_id, index, info.leader_epoch + 1, info.leader)
        fence: list[AnyCommand] = [
            FenceBroker(gone.id, gone.epoch, 0),
            AssignLeaders(info.leader, leader.member.epoch, (back,)),
        ]
        return await real_propose(lambda image: [*decide(image), *fence])

    leader.log.propose = propose_beside_a_fence  # type: ignore[assignment, method-assign]
    plan = HandOver(topic_id, index, info.leader_epoch, gone.id)
    assert await leader.member.balance.hand_over([plan]) == 0
    now = leader.log.image.partition(topic_id, index)
    assert now is not None and (now.leader, now.leader_epoch) == (info.leader, info.leader_epoch + 2)
    assert leader.ledger.resumed == leader.ledger.surrendered == [(topic_id, index)]


SETTLED = ManifestRef("settled", 0, 1)
REPAIRED = ManifestRef("repaired", 0, 1)


async def repaired_during_surrender(world: World, broker: int) -> PartitionKey:
    """The first partition that a broker leads is settled, and repaired as soon as it is surrendered."""
    node = world.nodes[broker]
    topic = (await world.image()).topics["t"]
    at, info = next((at, p) for at, p in enumerate(topic.partitions) if p.leader == broker)
    settled = Settled(topic.id, at, info.leader_epoch, SETTLED)
    await node.log.propose(lambda _: [SettlePartitions(broker, node.member.epoch, (settled,))])
    real_surrender = node.ledger.surrender

    async def surrender(keys: Iterable[PartitionKey]) -> Mapping[PartitionKey, Surrendered]:
        node.ledger.surrender = real_surrender  # type: ignore[method-assign]
        surrendered = await real_surrender(keys)
        other = next(one for number, one in world.nodes.items() if number != broker)
        await other.log.propose(lambda _: [RepairPartition(topic.id, at, SETTLED, REPAIRED)])
        return surrendered

    node.ledger.surrender = surrender  # type: ignore[method-assign]
    return topic.id, at


async def test_a_hand_over_that_was_prepared_before_a_repair_does_not_undo_it(world: World) -> None:
    await world.start(1, 2)
    await world.create("t", 4)
    node = world.nodes[1]
    key = await repaired_during_surrender(world, 1)
    before = node.log.image.partition(*key)
    assert before is not None
    plan = HandOver(*key, before.leader_epoch, 2)
    assert await node.member.balance.hand_over([plan]) == 0
    info = (await world.image()).partition(*key)
    assert info is not None and (info.leader, info.manifest) == (1, REPAIRED)
    assert node.ledger.resumed == [key]
    assert await node.member.balance.hand_over([plan]) == 1, "it is settled anew, from what was repaired"


async def test_a_leaver_leaves_what_was_repaired_meanwhile_in_its_sealed_log(world: World) -> None:
    await world.start(1, 2)
    await world.create("t", 4)
    leaver = world.nodes[2]
    key = await repaired_during_surrender(world, 2)
    own = leaver.log.image.brokers[2].wal
    leaver.ledger.open = [key]
    await leaver.member.leave()
    leaver.running = False
    info = (await world.image()).partition(*key)
    assert info is not None and (info.leader, info.manifest) == (1, REPAIRED)
    assert own in info.wals


async def test_what_is_asked_for_is_handed_over_once_a_repair_is_known(world: World) -> None:
    await world.start(1, 2)
    await world.create("t", 2, factor=2)
    node = world.nodes[1]
    topic_id, at = await repaired_during_surrender(world, 1)
    info = (await world.image()).partition(topic_id, at)
    assert info is not None
    node.hurry(0.01)
    obeying = asyncio.ensure_future(node.member.balance.obey())
    try:
        move = MoveLeader(topic_id, at, info.leader_epoch, 2)
        await world.nodes[2].log.propose(lambda _: [move])
        await node.log.catch_up()
        await until_led_by(node.log, "t", at, 2)
    finally:
        obeying.cancel()
    assert node.ledger.resumed == [(topic_id, at)]


async def test_heartbeats_do_not_touch_the_log(world: World) -> None:
    await world.start(1, 2, 3)
    version = (await world.image()).version
    await world.pass_time(30)
    assert (await world.image()).version == version


async def test_in_the_background_a_broker_is_heard_and_stops_when_told() -> None:
    inner = MemoryStore()
    store = FaultyStore(inner, 1)
    log = open_log(store)
    await log.open()

    seat = Seat(1, log, store, HandClock(), NodeLogs(World()), Times(9.0, 0.001, balance_interval=0.001))
    member = Membership(seat, RegisterBroker(1, (Listener("PLAINTEXT", "h", 1),)))
    await member.register()
    heard = asyncio.Event()

    def count(operation: str, key: str) -> None:
        if store.requests.count(("put", lease_key(1))) >= 5:
            heard.set()

    store.before = count
    await member.start(FakeLedger(log))
    await heard.wait()
    await member.stop()
    assert not left_behind()
