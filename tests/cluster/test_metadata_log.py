"""The metadata log: agreement under races, lost answers and outages; snapshots; trimming; clear refusals."""

import asyncio
import json
import logging
from collections.abc import Sequence

import pytest

from penstock.clock import SystemClock
from penstock.cluster.metadata_log import DAMAGE_SECONDS, MetadataLog, MetadataUnavailableError
from penstock.cluster.snapshots import entry_key
from penstock.metadata.apply import apply_entry
from penstock.metadata.codec import FormatError, decode_entry
from penstock.metadata.commands import AnyCommand, DeleteTopic, RegisterBroker
from penstock.metadata.image import ClusterImage
from penstock.metadata.refusal import Refusal
from penstock.storage.stores.memory import MemoryStore
from penstock.storage.stores.objects import StoreFullError, StoreUnavailableError
from penstock.wire.errors import ErrorCode
from tests.clocks import HandClock

from .rig import FaultyStore, creating, open_log, registering


def replayed(inner: MemoryStore, version: int) -> ClusterImage:
    """The image that the stored entries fold to, by the shortest way."""
    image = ClusterImage(cluster_id=_cluster_id(inner))
    for number in range(1, version + 1):
        image = apply_entry(image, decode_entry(inner.objects[entry_key(number)], number).commands)
    return image


def _cluster_id(inner: MemoryStore) -> str:
    return str(json.loads(inner.objects["meta/cluster"])["cluster_id"])


async def test_an_empty_store_becomes_a_cluster() -> None:
    inner = MemoryStore()
    log = open_log(FaultyStore(inner))
    image = await log.open()
    assert image.version == 0
    assert len(image.cluster_id) == 22
    again = open_log(FaultyStore(inner, seed=5))
    assert (await again.open()).cluster_id == image.cluster_id


async def test_brokers_that_start_at_once_found_one_cluster() -> None:
    inner = MemoryStore()
    logs = [open_log(FaultyStore(inner, seed)) for seed in range(5)]
    images = await asyncio.gather(*(log.open() for log in logs))
    assert len({image.cluster_id for image in images}) == 1


class FarStore(FaultyStore):
    """Each request takes a while, as elsewhere in a region."""

    async def _request(self, operation: str, key: str) -> None:
        await asyncio.sleep(self.random.uniform(0.004, 0.016))
        await super()._request(operation, key)


async def test_who_writes_much_lets_the_others_come_to_it() -> None:
    """A loser must read what the winner wrote before it tries again. A winner that goes on at once has
    written the next entry by then: one of the three had nine of ten entries."""
    inner = MemoryStore()
    stores = [FarStore(inner, seed) for seed in range(3)]
    logs = [
        MetadataLog(store, SystemClock(), propose_timeout=60, jitter=store.random.random) for store in stores
    ]
    for number, log in enumerate(logs, 1):
        await log.open()
        await log.propose(registering(number))
    written = [0, 0, 0]

    async def write_much(at: int) -> None:
        epoch = logs[at].image.brokers[at + 1].epoch
        while sum(written) < 120:
            assert isinstance(await logs[at].allocate_producer_ids(at + 1, epoch, 1), range)
            written[at] += 1

    await asyncio.gather(*map(write_much, range(3)))
    assert min(written) >= 10, written
    for log in logs:
        await log.close()


async def test_an_epoch_is_the_number_of_the_entry() -> None:
    inner = MemoryStore()
    logs = [open_log(FaultyStore(inner, seed)) for seed in range(3)]
    for number, log in enumerate(logs, 1):
        await log.open()
        image = await log.propose(registering(number))
        assert isinstance(image, ClusterImage)
        assert image.brokers[number].epoch == number == image.version


@pytest.mark.parametrize("seed", range(25))
async def test_racing_proposals_all_images_are_prefixes_of_one_log(seed: int) -> None:
    """Five brokers, lost answers, failures, snapshots and trimming: everybody's wish happens exactly once."""
    inner = MemoryStore()
    stores = [FaultyStore(inner, seed * 10 + n) for n in range(5)]
    logs = [open_log(store, snapshot_entries=7) for store in stores]
    seen: list[ClusterImage] = []
    for number, log in enumerate(logs, 1):
        await log.open()
        log.subscribe(lambda old, new: seen.append(new))
        await log.propose(registering(number))
    for store in stores:
        store.fail = store.lose = 0.05

    async def wish(number: int) -> str:
        try:
            result = await logs[number % 5].propose(creating(f"topic-{number}"))
        except MetadataUnavailableError:
            return "unknown"
        return "created" if isinstance(result, ClusterImage) else result.message

    outcomes = await asyncio.gather(*(wish(number) for number in range(60)))
    for store in stores:
        store.fail = store.lose = 0.0
    images = [await log.catch_up() for log in logs]
    assert all(image == images[0] for image in images)
    for number, outcome in enumerate(outcomes):
        if outcome == "created":
            assert f"topic-{number}" in images[0].topics
        else:
            assert outcome == "unknown", "nobody is refused what he alone asked for"
    by_version: dict[int, ClusterImage] = {}
    for image in seen:
        assert by_version.setdefault(image.version, image) == image, "brokers agree on every version"
    # And a broker that comes later reads the same from snapshot and tail.
    late = open_log(FaultyStore(inner, 99))
    assert await late.open() == images[0]
    for log in [*logs, late]:
        await log.close()


async def test_a_lost_answer_is_recognised_by_its_content() -> None:
    inner = MemoryStore()
    store = FaultyStore(inner)
    log = open_log(store)
    await log.open()
    await log.propose(registering(1))

    def lose_the_first_answer(operation: str, key: str) -> None:
        attempts = store.requests.count(("create", entry_key(2)))
        store.lose = 1.0 if operation == "create" and attempts == 1 else 0.0

    store.before = lose_the_first_answer
    image = await log.propose(creating("once"))
    assert isinstance(image, ClusterImage)
    assert image.version == 2
    assert store.requests.count(("create", entry_key(2))) == 2
    assert replayed(inner, 2) == image
    assert entry_key(3) not in inner.objects


async def test_equal_wishes_of_two_brokers_are_two_entries() -> None:
    """Producer ids: if equal bytes were taken for one's own, two brokers would hand out the same ids."""
    inner = MemoryStore()
    logs = [open_log(FaultyStore(inner, seed)) for seed in range(3)]
    for number, log in enumerate(logs, 1):
        await log.open()
        await log.propose(registering(number))
    for log in logs:
        await log.catch_up()

    async def blocks(number: int) -> list[range]:
        result = []
        for _ in range(10):
            block = await logs[number].allocate_producer_ids(number + 1, number + 1, 100)
            assert isinstance(block, range)
            result.append(block)
        return result

    taken = [block for group in await asyncio.gather(*map(blocks, range(3))) for block in group]
    ids = [producer_id for block in taken for producer_id in block]
    assert sorted(ids) == list(range(3000))


@pytest.mark.parametrize("seed", range(5))
async def test_the_same_commands_from_two_brokers_are_not_taken_for_one_another(seed: int) -> None:
    inner = MemoryStore()
    logs = [open_log(FaultyStore(inner, seed * 2 + n)) for n in range(2)]
    for log in logs:
        await log.open()
        await log.propose(registering(1))
        await log.catch_up()
    results = await asyncio.gather(*(log.propose(creating("t")) for log in logs))
    assert sorted(type(result).__name__ for result in results) == ["ClusterImage", "Refusal"]


async def test_wishes_of_one_broker_share_an_entry() -> None:
    inner = MemoryStore()
    store = FaultyStore(inner)
    log = open_log(store)
    await log.open()
    await log.propose(registering(1))
    await asyncio.gather(*(log.propose(creating(f"t{number}")) for number in range(100)))
    assert log.image.version == 2
    assert len(log.image.topics) == 100


async def test_a_wish_sees_those_before_it_and_a_refused_one_leaves_nothing() -> None:
    log = open_log(FaultyStore(MemoryStore()))
    await log.open()
    await log.propose(registering(1))

    def half_wrong(image: ClusterImage) -> Sequence[AnyCommand]:
        good = creating("half")(image)
        assert not isinstance(good, Refusal)
        return [*good, DeleteTopic(bytes(16))]

    results = await asyncio.gather(
        log.propose(creating("same", b"1" * 16)),
        log.propose(creating("same", b"2" * 16)),
        log.propose(half_wrong),
        log.propose(creating("other")),
    )
    assert isinstance(results[0], ClusterImage)
    assert results[1] == Refusal(ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 'same' already exists.")
    assert isinstance(results[2], Refusal)
    assert results[2].code == ErrorCode.UNKNOWN_TOPIC_ID
    assert set(log.image.topics) == {"same", "other"}
    assert log.image.version == 2


async def test_a_failing_decision_fails_alone() -> None:
    log = open_log(FaultyStore(MemoryStore()))
    await log.open()

    def broken(image: ClusterImage) -> Sequence[AnyCommand]:
        raise ZeroDivisionError

    good, bad = await asyncio.gather(log.propose(registering(1)), log.propose(broken), return_exceptions=True)
    assert isinstance(good, ClusterImage)
    assert isinstance(bad, ZeroDivisionError)


async def test_a_refusal_is_decided_on_the_newest_image() -> None:
    inner = MemoryStore()
    first, second = open_log(FaultyStore(inner, 1)), open_log(FaultyStore(inner, 2))
    await first.open()
    await first.propose(registering(1))
    await first.propose(creating("t"))
    await second.open()
    topic = first.image.topics["t"]
    await first.propose(lambda image: [DeleteTopic(topic.id)])
    # The second broker still knows the topic, and must not say that it exists.
    assert "t" in second.image.topics
    result = await second.propose(creating("t"))
    assert isinstance(result, ClusterImage)
    assert "t" in result.topics


async def test_nothing_to_do_writes_nothing() -> None:
    inner = MemoryStore()
    log = open_log(FaultyStore(inner))
    await log.open()
    assert await log.propose(lambda image: []) == log.image
    assert entry_key(1) not in inner.objects


async def test_a_caller_that_gives_up_takes_nobody_with_it() -> None:
    log = open_log(FaultyStore(MemoryStore()))
    await log.open()
    await log.propose(registering(1))
    given_up = asyncio.ensure_future(log.propose(creating("a")))
    kept = asyncio.ensure_future(log.propose(creating("b")))
    await asyncio.sleep(0)
    given_up.cancel()
    assert isinstance(await kept, ClusterImage)
    assert "b" in log.image.topics


async def test_an_outage_is_an_error_and_then_over() -> None:
    store = FaultyStore(MemoryStore())
    log = open_log(store, timeout=0.05)
    await log.open()
    await log.propose(registering(1))
    store.down = True
    with pytest.raises(MetadataUnavailableError, match="cannot be written: the store does not answer"):
        await log.propose(creating("t"))
    with pytest.raises(MetadataUnavailableError, match="cannot be read"):
        await log.catch_up()
    store.down = False
    assert isinstance(await log.propose(creating("t")), ClusterImage)


async def test_a_full_store_is_an_error_at_once() -> None:
    store = FaultyStore(MemoryStore())
    log = open_log(store)
    await log.open()

    def full(operation: str, key: str) -> None:
        if operation == "create":
            raise StoreFullError("there is no room left")

    store.before = full
    with pytest.raises(MetadataUnavailableError, match="there is no room left"):
        await log.propose(registering(1))
    store.before = None
    assert isinstance(await log.propose(registering(1)), ClusterImage)


async def given_up(inner: MemoryStore, log: MetadataLog) -> tuple[str, bytes]:
    """A proposal that got no answer, and the write that is still on its way."""
    under_way: list[tuple[str, bytes]] = []
    real_create = inner.create

    async def no_answer(key: str, *parts: bytes) -> bool:
        under_way.append((key, b"".join(parts)))
        raise StoreUnavailableError("no answer in time")

    inner.create = no_answer  # type: ignore[method-assign, assignment]
    with pytest.raises(MetadataUnavailableError):
        await log.propose(creating("late"))
    inner.create = real_create  # type: ignore[method-assign]
    return under_way[0]


async def test_a_write_that_arrives_after_everybody_gave_up_is_an_entry_like_any_other() -> None:
    inner = MemoryStore()
    log = open_log(FaultyStore(inner), timeout=0.05)
    await log.open()
    await log.propose(registering(1))
    late = await given_up(inner, log)
    assert await inner.create(*late)
    assert "late" in (await log.catch_up()).topics
    assert isinstance(await log.propose(creating("next")), ClusterImage)


@pytest.mark.parametrize("wish", ["something", "nothing", "refused"])
async def test_an_answer_settles_what_was_in_doubt_before_it(wish: str) -> None:
    inner = MemoryStore()
    log = open_log(FaultyStore(inner), timeout=0.05)
    await log.open()
    await log.propose(registering(1))
    late = await given_up(inner, log)
    refusal = Refusal(ErrorCode.INVALID_REQUEST, "no")
    decisions = {
        "something": creating("next"),
        "nothing": lambda image: [],
        "refused": lambda image: refusal,
    }
    result = await log.propose(decisions[wish])
    assert isinstance(result, Refusal) == (wish == "refused")
    assert not await inner.create(*late), "it cannot arrive any more"
    assert "late" not in (await log.catch_up()).topics
    assert log.image.version == 2
    # And nothing is written for an answer when nothing is in doubt.
    await log.propose(lambda image: [])
    assert log.image.version == 2


async def test_subscribers_are_told_in_order_and_a_broken_one_harms_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = open_log(FaultyStore(MemoryStore()))
    await log.open()
    told: list[tuple[int, int]] = []

    def broken(old: ClusterImage, new: ClusterImage) -> None:
        raise ZeroDivisionError

    log.subscribe(broken)
    stop = log.subscribe(lambda old, new: told.append((old.version, new.version)))
    await log.propose(registering(1))
    await log.propose(creating("a"))
    stop()
    await log.propose(creating("b"))
    assert told == [(0, 1), (1, 2)]
    assert "a subscriber of the metadata log failed" in caplog.text


async def test_catching_up_is_shared_and_fresh() -> None:
    inner = MemoryStore()
    writer = open_log(FaultyStore(inner, 1))
    await writer.open()
    store = FaultyStore(inner, 2)
    reader = open_log(store)
    await reader.open()
    await writer.propose(registering(1))
    store.requests.clear()
    images = await asyncio.gather(*(reader.catch_up() for _ in range(100)))
    assert all(image.version == 1 for image in images)
    assert len(store.requests) <= 6


# What cannot be read.


async def test_a_foreign_format_is_refused_with_a_sentence() -> None:
    inner = MemoryStore()
    inner.objects["meta/cluster"] = b'{"kind":"penstock-cluster","format":7,"cluster_id":"x"}'
    with pytest.raises(FormatError, match="the store holds a cluster in format 7"):
        await open_log(FaultyStore(inner)).open()


async def test_an_entry_of_a_newer_version_stops_a_broker_and_does_not_mislead_it() -> None:
    inner = MemoryStore()
    told: list[str] = []
    log = MetadataLog(FaultyStore(inner), HandClock(), on_unreadable=told.append)
    await log.open()
    await log.propose(registering(1))
    newer = bytearray(inner.objects[entry_key(1)])
    newer[5] = 3
    inner.objects[entry_key(2)] = bytes(newer)
    for _ in range(2):
        with pytest.raises(MetadataUnavailableError, match="metadata entry 2 is in format 3"):
            await log.catch_up()
    assert log.image.version == 1
    # Nothing is written on the strength of an image that does not follow the others'.
    with pytest.raises(MetadataUnavailableError, match="metadata entry 2 is in format 3"):
        await log.propose(creating("t"))
    assert len(told) == 1 and "metadata entry 2 is in format 3" in told[0]
    with pytest.raises(FormatError, match="metadata entry 2 is in format 3"):
        await open_log(FaultyStore(inner)).open()


async def test_damage_has_some_time_to_pass() -> None:
    """A proxy that gives a page instead of each object may end no broker: it would end all of them."""
    inner = MemoryStore()
    told: list[str] = []
    clock = HandClock()
    other = open_log(FaultyStore(inner, 1))
    await other.open()
    log = MetadataLog(FaultyStore(inner), clock, on_unreadable=told.append)
    await log.open()
    await other.propose(registering(1))
    key = entry_key(1)
    entry = inner.objects[key]
    for seconds in (0.0, DAMAGE_SECONDS - 1):
        inner.objects[key] = b"<html>back soon</html>"
        clock.seconds += seconds
        with pytest.raises(MetadataUnavailableError, match="metadata entry 1 does not look like one"):
            await log.catch_up()
        with pytest.raises(MetadataUnavailableError):
            await log.propose(creating("t"))
    inner.objects[key] = entry
    assert (await log.catch_up()).version == 1
    assert told == []
    inner.objects[entry_key(2)] = entry
    for _ in range(2):
        with pytest.raises(MetadataUnavailableError):
            await log.catch_up()
        clock.seconds += DAMAGE_SECONDS
    assert len(told) == 1 and "says that it is entry 1" in told[0]
    await other.close()


# In the background.


async def test_the_tail_follows_and_tells_of_an_outage_once(caplog: pytest.LogCaptureFixture) -> None:
    inner = MemoryStore()
    writer = open_log(FaultyStore(inner, 1))
    await writer.open()
    store = FaultyStore(inner, 2)
    reader = MetadataLog(store, HandClock(), poll_interval=0.001)
    await reader.open()
    news = asyncio.Event()
    reader.subscribe(lambda old, new: news.set())
    await writer.propose(registering(1))
    await news.wait()
    assert reader.image == writer.image
    with caplog.at_level(logging.INFO):
        looks = 0
        failed = asyncio.Event()

        def count(operation: str, key: str) -> None:
            nonlocal looks
            looks += 1
            if looks == 40:
                failed.set()

        store.before = count
        store.down = True
        await failed.wait()
        assert reader.unavailable_since is not None
        store.down = False
        news.clear()
        await writer.propose(creating("t"))
        await news.wait()
        await reader.catch_up()
    assert caplog.text.count("could not be followed") == 1
    assert caplog.text.count("was followed again") == 1
    await reader.close()


async def test_closing_answers_those_who_wait() -> None:
    store = FaultyStore(MemoryStore())
    log = open_log(store)
    await log.open()
    store.down = True
    waiting = [asyncio.ensure_future(log.propose(creating(f"t{n}"))) for n in range(3)]
    await asyncio.sleep(0)
    await log.close()
    for result in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(result, MetadataUnavailableError)
    with pytest.raises(MetadataUnavailableError, match="The broker is stopping"):
        await log.propose(lambda image: [RegisterBroker(1, ())])
    with pytest.raises(MetadataUnavailableError, match="The broker is stopping"):
        await log.catch_up()
