"""Single promises of a shard of transactional ids."""

from __future__ import annotations

from penstock.transactions.parking import PARKED_MAX, PATIENCE_MS
from penstock.transactions.transaction import Given, Place, State
from penstock.wire.errors import ErrorCode
from tests.transactions.world import World

HERE, THERE = Place("t", 0), Place("t", 1)


def begun(world: World, name: str = "x") -> Given:
    return world.told(world.init(name)).producer


def test_a_marker_of_another_end_does_not_count() -> None:
    """A late answer to a former coordinator, or about the transaction before."""
    world = World()
    producer = begun(world)
    world.add(producer, HERE, version=2)
    producer = world.told(world.end(producer, commit=True, bump=True)).producer
    (first,) = world.errands
    world.mark_all()
    world.add(producer, HERE, version=2)
    world.end(producer, commit=False, bump=True)
    world.marked(first)
    known = world.shard.described("x")
    assert known is not None
    assert known.state is State.PREPARE_ABORT
    (second,) = world.errands
    world.restart()
    world.marked(second)
    known = world.shard.described("x")
    assert known is not None
    assert known.state is State.PREPARE_ABORT, "its coordinator epoch is another"
    world.mark_all()
    known = world.shard.described("x")
    assert known is not None
    assert known.state is State.COMPLETE_ABORT


def test_only_so_many_requests_wait_for_markers() -> None:
    world = World()
    producer = begun(world)
    world.add(producer, HERE)
    world.end(producer, commit=True, bump=False)
    world.answers.clear()
    waiting = [world.add(producer, THERE) for _ in range(PARKED_MAX)]
    assert not world.answers
    one_more = world.add(producer, THERE)
    assert world.codes(one_more) == {THERE: ErrorCode.CONCURRENT_TRANSACTIONS}
    world.advance(PATIENCE_MS)
    assert {code for ticket in waiting for code in world.codes(ticket).values()} == {
        ErrorCode.CONCURRENT_TRANSACTIONS
    }


def test_a_transaction_gets_no_more_partitions_than_one_record_holds_and_ends() -> None:
    world = World()
    producer = begun(world)
    many = [Place("t" * 249, at) for at in range(100)]
    refused = dict.fromkeys(many, ErrorCode.UNKNOWN_SERVER_ERROR)
    assert set(world.codes(world.add(producer, HERE)).values()) == {ErrorCode.NONE}
    world.shard.set_topic_bytes_max(400)
    assert world.codes(world.add(producer, *many)) == refused
    known = world.shard.described("x")
    assert known is not None
    assert known.places == {HERE}
    # A record that ends it is written, however little the topic takes by now.
    world.shard.set_topic_bytes_max(1)
    assert world.told(world.end(producer, commit=True, bump=False)).code is ErrorCode.NONE
    world.mark_all()
    known = world.shard.described("x")
    assert known is not None
    assert known.state is State.COMPLETE_COMMIT


def test_whoever_waits_is_answered_when_the_partition_goes_elsewhere() -> None:
    world = World(prompt=False)
    asked = world.init()
    world.flush()
    producer = world.told(asked).producer
    world.add(producer, HERE)
    world.flush()
    world.end(producer, commit=True, bump=False)
    world.flush()
    world.answers.clear()
    parked = world.add(producer, HERE)
    writing = world.init("y")
    world.take(world.shard.unload(world.now))
    assert world.codes(parked) == {HERE: ErrorCode.NOT_COORDINATOR}
    assert world.told(writing).code is ErrorCode.NOT_COORDINATOR


def test_many_ids_expire_without_holding_up_the_rest() -> None:
    world = World()
    for number in range(450):
        begun(world, f"x{number}")
    world.advance(world.timing.expiration_ms + world.timing.expiry_check_ms)
    assert not list(world.shard.listed())
    assert len(world.log) == 900


def test_records_of_many_ids_share_batches() -> None:
    world = World(prompt=False)
    for number in range(3000):
        world.init(f"x{number}")
    sizes = []
    while world.in_flight is not None:
        sizes.append(sum(len(record.key) + len(record.value or b"") for record in world.in_flight.records))
        world.flush()
    assert len(world.answers) == 3000
    assert 2 < len(sizes) < 10
    assert max(sizes) < 70_000
