"""Entries and snapshots that a power cut tore, or that rot: healed, passed over or refused, never misread."""

import asyncio
import fcntl
import logging
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from penstock.admin.records import Sender
from penstock.cli.client import Client
from penstock.clock import SystemClock
from penstock.cluster import second_looks
from penstock.cluster.health.repair import Repair
from penstock.cluster.home import IDENTITY_KEY, HomeError
from penstock.cluster.leases import Lease, encode_lease, lease_key
from penstock.cluster.metadata_log import MetadataLog
from penstock.cluster.reading import ImageReader, NoClusterError
from penstock.cluster.snapshots import entry_key, snapshot_key
from penstock.metadata.codec import FormatError, Identity, decode_identity, encode_identity
from penstock.metadata.commands import AnyCommand, SetLevel
from penstock.metadata.image import ClusterImage
from penstock.storage.stores.directory import DirectoryStore
from penstock.storage.stores.memory import MemoryStore
from penstock.storage.stores.presence import Presence
from penstock.testing import Broker
from penstock.wire.batch import Record

from .rig import FaultyStore, creating, open_log, registering

NEWEST = 4


@pytest.fixture(autouse=True)
def no_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is damaged here stays damaged."""
    monkeypatch.setattr(second_looks, "PAUSES_SECONDS", ())
    monkeypatch.setattr(second_looks, "DIFFERENT_READS_MAX", 0)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[DirectoryStore]:
    store = DirectoryStore(str(tmp_path / "store"))
    yield store
    await store.close()


async def found(store: DirectoryStore, level: int) -> list[ClusterImage]:
    """A log of four entries; the image after each, from the empty one on."""

    def raise_level(image: ClusterImage) -> list[AnyCommand]:
        return [SetLevel(level)]

    log = MetadataLog(store, SystemClock())
    images = [await log.open()]
    first = raise_level if level > 1 else registering(2)
    for wish in (first, registering(1), creating("a"), creating("b")):
        await log.propose(wish)
        images.append(log.image)
    await log.close()
    assert log.image.version == NEWEST
    return images


async def opened(store: DirectoryStore) -> MetadataLog:
    log = MetadataLog(store, SystemClock())
    await log.open()
    return log


def damages(data: bytes) -> list[tuple[str, bytes]]:
    """Cut before each byte, and each byte with one bit flipped."""
    flipped = []
    for at in range(len(data)):
        hurt = bytearray(data)
        hurt[at] ^= 1 << (at % 8)
        flipped.append(("flip", bytes(hurt)))
    zeros = [("cut", data[:at] + bytes(len(data) - at)) for at in range(0, len(data) - 8, 16)]
    return [("cut", data[:at]) for at in range(len(data))] + zeros + flipped


@pytest.mark.parametrize("level", [1, 2])
async def test_the_newest_entry_cut_at_every_byte_is_healed(store: DirectoryStore, level: int) -> None:
    images = await found(store, level)
    path = Path(store.path(entry_key(NEWEST)))
    whole = path.read_bytes()
    for kind, hurt in damages(whole):
        path.write_bytes(hurt)
        if kind == "flip" and level == 2:
            with pytest.raises(FormatError):
                await opened(store)
            with pytest.raises(FormatError):
                await ImageReader(store).refresh()
            assert path.read_bytes() == hurt
            continue
        try:
            seen = await ImageReader(store).refresh()
            assert seen.version == NEWEST - 1 and seen == images[NEWEST - 1]
            assert path.read_bytes() == hurt, "a reader writes nothing"
            log = await opened(store)
        except FormatError:
            assert kind == "flip"
            continue
        # Its number is used: by an entry that changes nothing.
        assert log.image.version == NEWEST and log.image.topics == images[NEWEST - 1].topics
        await log.close()
        kept = sorted(Path(store.root, "torn").iterdir(), key=lambda one: int(one.suffix[1:]))
        assert kept[-1].read_bytes() == hurt
        for one in kept:
            one.unlink()


async def test_an_entry_that_a_broker_had_read_was_not_torn_by_a_power_cut(store: DirectoryStore) -> None:
    """It was whole: what was built on it is not set aside, and its number is not given to an empty one."""
    images = await found(store, 2)
    path = Path(store.path(entry_key(NEWEST)))
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    await store.create(f"wal/1/{NEWEST}/0", b"records")
    await store.put(lease_key(1), encode_lease(Lease(1, 30, NEWEST)))
    with pytest.raises(FormatError, match=r"entry 4 is cut short, and a broker had read it \(live/1\)"):
        await opened(store)
    assert path.read_bytes() == whole[:-3] and not Path(store.root, "torn").exists()
    path.write_bytes(whole)
    assert (await opened(store)).image == images[NEWEST]
    path.write_bytes(whole[:-3])
    await store.put(lease_key(1), encode_lease(Lease(1, 30, NEWEST - 1)))
    assert (await opened(store)).image.topics == images[NEWEST - 1].topics


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("number", [1, 3])
async def test_an_older_entry_damaged_at_any_byte_is_refused(
    store: DirectoryStore, level: int, number: int
) -> None:
    await found(store, level)
    path = Path(store.path(entry_key(number)))
    for _kind, hurt in damages(path.read_bytes()):
        path.write_bytes(hurt)
        for look in (lambda: opened(store), lambda: ImageReader(store).refresh()):
            with pytest.raises(FormatError, match=f"metadata entry {number} |feature level"):
                await look()
        assert path.read_bytes() == hurt
    assert not Path(store.root, "torn").exists()


async def test_a_refusal_names_the_object_and_what_to_do(store: DirectoryStore) -> None:
    await found(store, 2)
    path = Path(store.path(entry_key(2)))
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    with pytest.raises(FormatError) as caught:
        await opened(store)
    assert str(caught.value) == (
        "metadata entry 2 is damaged: its checksum does not match (meta/log/000000000002); `penstock store "
        "repair` says what can be saved"
    )


async def test_on_an_object_store_nothing_is_torn() -> None:
    inner = MemoryStore()
    log = open_log(FaultyStore(inner))
    await log.open()
    await log.propose(registering(1))
    await log.propose(creating("t"))
    inner.objects[entry_key(2)] = b""
    for look in (open_log(FaultyStore(inner)).open, ImageReader(FaultyStore(inner)).refresh):
        with pytest.raises(FormatError, match="metadata entry 2 is cut short"):
            await look()
    assert inner.objects[entry_key(2)] == b""


async def test_several_torn_entries_and_what_was_built_on_them(
    store: DirectoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    """The registration is lost, and the log of that incarnation is there: it is kept, and nobody gets that
    epoch again."""
    images = await found(store, 1)
    for number in (3, 4):
        Path(store.path(entry_key(number))).write_bytes(b"")
    for key in ("wal/1/1/0", "wal/2/3/0", "segments/2/3/0", "manifests/2/4/0"):
        await store.create(key, b"records")
    with caplog.at_level(logging.WARNING):
        log = await opened(store)
    (line,) = caplog.messages
    assert line.startswith("metadata entries 3 to 4 were cut short, as by a loss of power, and were replaced")
    assert log.image.version == 4 and log.image.topics == images[2].topics
    left = {info.key async for info in store.list("")}
    assert "wal/1/1/0" in left and not {"wal/2/3/0", "segments/2/3/0", "manifests/2/4/0"} & left
    kept = {
        str(path.relative_to(store.root)) for path in Path(store.root, "torn").rglob("*") if path.is_file()
    }
    assert {"torn/wal-2-3.1/0", "torn/segments-2-3.1/0", "torn/manifests-2-4.1/0"} <= kept
    registered = await log.propose(registering(3))
    assert isinstance(registered, ClusterImage) and registered.brokers[3].epoch == 5
    await log.close()
    assert (await opened(store)).image == registered


async def test_nobody_heals_beside_a_broker_that_runs(store: DirectoryStore) -> None:
    """Its image may hold what is torn on the disk; two logs would go on from there."""
    await found(store, 2)
    path = Path(store.path(entry_key(NEWEST)))
    path.write_bytes(path.read_bytes()[:-1])
    presence = Path(store.root, "presence")
    presence.mkdir()
    fd = os.open(presence / "1-2", os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(FormatError, match="metadata entry 4 is cut short"):
        await opened(store)
    os.close(fd)
    log = await opened(store)
    assert log.image.version == NEWEST
    await log.close()


async def test_a_torn_entry_below_another_is_not_healed(store: DirectoryStore) -> None:
    """Entry 4 was decided on what entry 3 held."""
    await found(store, 2)
    path = Path(store.path(entry_key(3)))
    path.write_bytes(b"")
    with pytest.raises(FormatError, match="metadata entry 3 is cut short"):
        await opened(store)
    assert path.read_bytes() == b""


# Snapshots.


async def snapshotted(inner: MemoryStore, snapshots: int) -> ClusterImage:
    log = open_log(FaultyStore(inner), snapshot_entries=10)
    await log.open()
    await log.propose(registering(1))
    for number in range(10 * snapshots + 3):
        await log.propose(creating(f"t{number}"))
        await log.snapshot_written()
    await log.close()
    return log.image


@pytest.mark.parametrize("snapshots", [1, 2, 4])
@pytest.mark.parametrize("hint", [True, False])
@pytest.mark.parametrize("hurt", [lambda data: b"", lambda data: data[:-1] + b"\xff"])
async def test_a_damaged_newest_snapshot_is_passed_over(
    snapshots: int, hint: bool, hurt: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    inner = MemoryStore()
    image = await snapshotted(inner, snapshots)
    inner.objects[snapshot_key(snapshots)] = hurt(inner.objects[snapshot_key(snapshots)])
    if not hint:
        del inner.objects["meta/hint"]
    assert await ImageReader(FaultyStore(inner)).refresh() == image
    with caplog.at_level(logging.WARNING):
        log = open_log(FaultyStore(inner), snapshot_entries=10)
        assert await log.open() == image
        await log.snapshot_written()
    assert f"key={snapshot_key(snapshots)}" in caplog.text
    # The next one heals the chain.
    await log.propose(creating("later"))
    await log.snapshot_written()
    for number in range(20):
        await log.propose(creating(f"later{number}"))
        await log.snapshot_written()
    await log.close()
    assert await open_log(FaultyStore(inner)).open() == log.image


async def test_without_the_one_before_a_damaged_snapshot_is_refused() -> None:
    """As after trimming by a version that kept one whole."""
    inner = MemoryStore()
    await snapshotted(inner, 3)
    inner.objects[snapshot_key(2)] = inner.objects[snapshot_key(1)]
    inner.objects[snapshot_key(3)] = b""
    for look in (open_log(FaultyStore(inner)).open, ImageReader(FaultyStore(inner)).refresh):
        with pytest.raises(FormatError, match=r"snapshot 3 is cut short .* nothing else holds what it held"):
            await look()


async def test_a_damaged_entry_below_a_snapshot_is_not_needed() -> None:
    inner = MemoryStore()
    sleeper = open_log(FaultyStore(inner, 2))
    await sleeper.open()
    image = await snapshotted(inner, 1)
    inner.objects[entry_key(5)] = inner.objects[entry_key(5)][:-1] + b"\xff"
    assert await sleeper.catch_up() == image
    assert await open_log(FaultyStore(inner)).open() == image


# From outside.


def test_a_broker_starts_after_a_power_cut(tmp_path: Path) -> None:
    """The newest entry is empty, as a version that did not sync it may have left it: what was written before
    is there, and writing goes on. At first the newest entry is the registration itself."""
    with Broker(
        store=tmp_path / "store", process=True, settings={"offsets.topic.num.partitions": 1}
    ) as broker:
        send(broker, b"first")
        for _ in range(2):
            broker.stop()
            broker.start()
            broker.kill()
            newest = max((tmp_path / "store" / "meta" / "log").iterdir())
            newest.write_bytes(b"")
            # Such a version's lease does not prove anything either.
            (tmp_path / "store" / "live" / "1").write_bytes(b'{"epoch":1,"counter":1}')
            broker.start()
            send(broker, b"more")
        assert read(broker) == [b"first", b"more", b"more"]
    assert len(list((tmp_path / "store" / "torn").glob("meta-log-*"))) == 2


IDENTITY = encode_identity(Identity.new("the-cluster"))
TORN_IDENTITIES = [b"", bytes(len(IDENTITY)), IDENTITY[:20], IDENTITY[:-1], IDENTITY[:40] + bytes(30)]


@pytest.fixture
def torn_identity(store: DirectoryStore) -> Path:
    path = Path(store.path(IDENTITY_KEY))
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


@pytest.mark.parametrize("left", TORN_IDENTITIES)
async def test_a_torn_identity_of_nothing_else_is_founded_anew(
    store: DirectoryStore, torn_identity: Path, left: bytes
) -> None:
    torn_identity.write_bytes(left)
    with pytest.raises(FormatError, match="as a loss of power leaves it"):
        await ImageReader(store).refresh()
    assert torn_identity.read_bytes() == left, "a reader writes nothing"
    both = [MetadataLog(store, SystemClock()), MetadataLog(store, SystemClock())]
    first, second = [image.cluster_id for image in await asyncio.gather(*(log.open() for log in both))]
    assert first == second == decode_identity(torn_identity.read_bytes()).cluster_id != ""
    assert Path(store.root, "torn", "meta-cluster.1").read_bytes() == left
    for log in both:
        await log.close()


async def _with_a_snapshot(store: DirectoryStore) -> MetadataLog:
    """A log that is closed."""
    log = MetadataLog(store, SystemClock(), snapshot_entries=2)
    await log.open()
    for wish in (registering(1), creating("a"), creating("b"), creating("c")):
        await log.propose(wish)
    for _ in range(500):
        if await store.get(snapshot_key(1)) is not None:
            break
        await asyncio.sleep(0.01)
    await log.close()
    return log


@pytest.mark.parametrize("left", TORN_IDENTITIES)
async def test_a_torn_identity_is_taken_from_a_snapshot(
    store: DirectoryStore, torn_identity: Path, left: bytes
) -> None:
    log = await _with_a_snapshot(store)
    cluster_id = log.image.cluster_id
    whole = torn_identity.read_bytes()
    torn_identity.write_bytes(left)
    again = await opened(store)
    assert again.image.cluster_id == cluster_id and again.image.version == log.image.version
    await again.close()
    assert torn_identity.read_bytes() == whole


@pytest.mark.parametrize("left", [None, IDENTITY[:40] + b"?!?!" + IDENTITY[44:], bytes(3) + IDENTITY[3:]])
async def test_an_identity_that_is_gone_or_hurt_is_restored_from_a_snapshot_by_a_repair(
    store: DirectoryStore, left: bytes | None
) -> None:
    log = await _with_a_snapshot(store)
    path = Path(store.path(IDENTITY_KEY))
    whole = path.read_bytes()
    path.unlink()
    if left is not None:
        path.write_bytes(left)
    store = DirectoryStore(store.root)
    with pytest.raises((HomeError, FormatError), match=IDENTITY_KEY):
        await opened(store)
    report = await Repair(store, SystemClock(), apply=True).run()
    assert [(step.how, step.key) for step in report.steps] == [("restored", IDENTITY_KEY)]
    assert report.exit_code == 0 and path.read_bytes() == whole
    kept = [info.key async for info in store.list("hurt/")]
    assert len(kept) == (left is not None)
    again = await opened(store)
    assert again.image.cluster_id == log.image.cluster_id and again.image.version == log.image.version
    await again.close()
    await store.close()


async def test_an_identity_that_nothing_tells_is_not_made_up(store: DirectoryStore) -> None:
    log = MetadataLog(store, SystemClock())
    await log.open()
    await log.propose(registering(1))
    await log.close()
    Path(store.path(IDENTITY_KEY)).unlink()
    store = DirectoryStore(store.root)
    with pytest.raises(NoClusterError):
        await Repair(store, SystemClock(), apply=True).run()
    assert await store.get(IDENTITY_KEY) is None
    await store.close()


@pytest.mark.parametrize("key", [entry_key(1), "wal/1/1/00000000000000000000", "segments/1/1/000000000001"])
async def test_a_torn_identity_of_records_that_name_no_cluster_is_refused(
    store: DirectoryStore, torn_identity: Path, key: str
) -> None:
    torn_identity.write_bytes(b"")
    await store.create(key, b"something")
    with pytest.raises(FormatError, match="meta/cluster is empty, as a loss of power leaves it"):
        await opened(store)
    assert torn_identity.read_bytes() == b""


async def test_a_torn_identity_beside_a_running_broker_is_left_alone(
    store: DirectoryStore, torn_identity: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torn_identity.write_bytes(b"")
    monkeypatch.setattr(Presence, "any_held", lambda presence: True)
    with pytest.raises(FormatError, match="as a loss of power leaves it"):
        await opened(store)
    assert torn_identity.read_bytes() == b""


def send(broker: Broker, value: bytes) -> None:
    with Client(broker.bootstrap_servers) as client:
        sender = Sender(client, "t", client.partitions("t", create=True), 0, -1)
        sender.send(Record(value=value), 0)
        sender.flush()


def read(broker: Broker) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
    place = TopicPartition("t", 0, 0)
    end = consumer.get_watermark_offsets(place, 30)[1]
    consumer.assign([place])
    found: list[bytes] = []
    while len(found) < end:
        found += [message.value() or b"" for message in consumer.consume(end, 0.2)]
    consumer.close()
    return found
