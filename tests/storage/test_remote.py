"""The store on an S3 server that fails in every way a network can: retries, lost answers, refusals."""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from penstock.storage.stores import patience, remote
from penstock.storage.stores.attempts import Limits
from penstock.storage.stores.lanes import Lane
from penstock.storage.stores.objects import (
    ObjectMissingError,
    ObjectStore,
    StoreError,
    StoreRefusedError,
    StoreUnavailableError,
)
from penstock.storage.stores.opening import open_store
from penstock.storage.stores.proof import UnfitStoreError, prove_create
from penstock.storage.stores.remote import RemoteStore
from penstock.storage.stores.remote_errors import Verdict, explain
from penstock.testing.waiting import eventually
from tests.storage.fake_s3 import FakeS3
from tests.storage.world import keys_of


class World:
    def __init__(self, server: FakeS3) -> None:
        self.server = server
        self.pauses: list[float] = []

    def open(self, url: str = "s3://bucket/prefix") -> RemoteStore:
        async def sleep(seconds: float) -> None:
            self.pauses.append(seconds)

        return RemoteStore(url, sleep=sleep)


async def begin(monkeypatch: pytest.MonkeyPatch, server: FakeS3) -> World:
    for name, value in (await server.start()).items():
        monkeypatch.setenv(name, value)
    return World(server)


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    made = await begin(monkeypatch, FakeS3())
    yield made
    await made.server.stop()


Operation = Callable[[RemoteStore], Awaitable[object]]
OPERATIONS: dict[str, Operation] = {
    "get": lambda store: store.get("here"),
    "range": lambda store: store.get_range("here", 1, 2),
    "put": lambda store: store.put("there", b"x"),
    "create": lambda store: store.create("new", b"x"),
    "delete": lambda store: store.delete("here"),
    "list": lambda store: keys_of(store, "h"),
}
METHODS = {"get": "GET", "range": "GET", "put": "PUT", "create": "PUT", "delete": "POST", "list": "GET"}
ANSWERS: dict[str, object] = {
    "get": b"here", "range": b"er", "put": None, "create": True, "delete": None, "list": ["here"],
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("fault", ["503", "500", "429", "drop", "lose"])
async def test_what_fails_is_tried_again_after_uneven_pauses(world: World, name: str, fault: str) -> None:
    store = world.open()
    await store.put("here", b"here")
    world.server.faults = [(METHODS[name], fault)] * 3
    assert await OPERATIONS[name](store) == ANSWERS[name]
    assert len(world.pauses) == 3 and len(set(world.pauses)) == 3
    assert world.pauses[0] < world.pauses[2] < 2


@pytest.mark.parametrize("name", OPERATIONS)
async def test_a_service_that_stays_away_is_unavailable(world: World, name: str) -> None:
    store = world.open()
    world.server.faults = [(METHODS[name], "503")] * 100
    with pytest.raises(StoreUnavailableError) as refused:
        await OPERATIONS[name](store)
    assert "\n" not in str(refused.value) and "SlowDown" in str(refused.value)
    assert 3 < len(world.pauses) < 10 and sum(world.pauses) < 15


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What hangs is asked again soon."""
    monkeypatch.setattr(patience, "HEDGE_MIN_SECONDS", 0.05)


@pytest.mark.usefixtures("impatient")
async def test_an_answer_that_never_comes(world: World) -> None:
    """The request took effect, and the one beside it finds our own bytes."""
    store = world.open()
    world.server.faults = [("PUT", "silent")]
    async with asyncio.timeout(patience.SMALL_SECONDS - 1):
        assert await store.create("k", b"mine")
        world.server.faults = [("GET", "silent")]
        assert await store.get_range("k", 0, 4) == b"mine"
        world.server.faults = [("GET", "silent")]
        assert await store.get("k") == b"mine"
    # More where this machine takes longer than the patience to give a whole answer.
    assert store.hedges >= 3 and not world.pauses


@pytest.mark.usefixtures("impatient")
async def test_a_write_that_hangs_does_not_hold_up_its_call(world: World) -> None:
    """It is sent again beside it. What hangs may take effect after the object was deleted: that is the same
    object again, and nobody is told of it."""
    store = world.open()
    world.server.faults = [("PUT", "hang"), ("PUT", "hang")]
    async with asyncio.timeout(patience.SMALL_SECONDS - 1):
        assert await store.create("wal/1/1/5", b"mine")
    assert world.server.count("PUT") >= 3
    await store.delete("wal/1/1/5")
    world.server.release.set()
    await eventually(lambda: "prefix/wal/1/1/5" in world.server.objects, "the late write")
    assert not await store.create("wal/1/1/5", b"another's")


@pytest.mark.usefixtures("impatient")
async def test_a_hedge_that_finds_anothers_object(world: World) -> None:
    store = world.open()
    world.server.objects["prefix/k"] = b"theirs"
    world.server.faults = [("PUT", "hang")]
    assert not await store.create("k", b"mine")
    for stored in (b"min", b"mine and more", b"mime", b""):
        world.server.objects["prefix/k"] = stored
        world.server.faults = [("PUT", "hang")]
        assert not await store.create("k", b"mine"), "what is not our bytes is not our work"


@pytest.mark.usefixtures("impatient")
async def test_a_refusal_after_a_request_in_doubt_is_no_refusal(world: World) -> None:
    """The first request may still take effect, so nobody may be told that nothing was done."""
    store = world.open()
    for first in ("hang", "lose", "503"):
        world.server.faults = [("PUT", first), ("PUT", "403")]
        with pytest.raises(StoreUnavailableError) as told:
            await store.create(f"k-{first}", b"mine")
        assert not isinstance(told.value, StoreRefusedError)


async def test_a_look_that_is_refused_leaves_it_in_doubt(world: World) -> None:
    """The create took effect and its answer got lost; whether it did cannot be read."""
    store = world.open()
    world.server.faults = [("PUT", "lose"), ("GET", "403")]
    with pytest.raises(StoreUnavailableError) as told:
        await store.create("k", b"mine")
    assert not isinstance(told.value, StoreRefusedError)
    assert world.server.objects["prefix/k"] == b"mine"


@pytest.mark.usefixtures("impatient")
async def test_where_everything_hangs_requests_are_not_multiplied(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hedge is earned by answers: a store that is down gets its requests once."""
    allowed: list[bool] = []
    may_hedge = patience.Patience.may_hedge

    def noted(self: patience.Patience) -> bool:
        allowed.append(may_hedge(self))
        return allowed[-1]

    monkeypatch.setattr(patience.Patience, "may_hedge", noted)
    store = world.open()
    world.server.hangs = lambda method, path: True
    reads = [asyncio.ensure_future(store.get_range(f"k{number}", 0, 1)) for number in range(40)]
    await eventually(lambda: len(allowed) >= 40, "each read's wish to be hedged")
    await eventually(lambda: world.server.count("GET") >= 40 + allowed.count(True), "all requests")
    assert 40 < world.server.count("GET") <= 50
    for read in reads:
        read.cancel()
    await asyncio.gather(*reads, return_exceptions=True)


@pytest.mark.usefixtures("impatient")
async def test_a_call_ends_in_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "SMALL_SECONDS", 0.2)
    monkeypatch.setitem(remote.LIMITS, Lane.CONTROL, Limits(4, 0.5))
    store = world.open()
    world.server.hangs = lambda method, path: True
    for operation in (store.put("live/1", b"x"), store.create("meta/log/1", b"x")):
        with pytest.raises(StoreUnavailableError, match="no answer within"):
            async with asyncio.timeout(30):
                await operation


@pytest.mark.usefixtures("impatient")
async def test_lanes_do_not_hold_each_other_up(world: World) -> None:
    """All reads of records, all settling and deleting hang, more of them than there is room for; heartbeats,
    the metadata log and flushes go on, and logs are listed to seal them."""
    store = world.open()
    world.server.hangs = lambda method, path: "segments/" in path or method == "POST"
    bulk = [asyncio.ensure_future(store.get_range(f"segments/{at}", 0, 1)) for at in range(200)]
    bulk += [asyncio.ensure_future(store.create(f"segments/{at}", b"x")) for at in range(200)]  # type: ignore[arg-type]
    bulk += [asyncio.ensure_future(store.delete(f"segments/{at}")) for at in range(50)]  # type: ignore[arg-type]
    await eventually(lambda: world.server.count("POST") and world.server.count("GET") >= 64, "full lanes")
    async with asyncio.timeout(30):
        for number in range(20):
            await store.put("live/1", b"%d" % number)
            assert await store.get("live/1") == b"%d" % number
            assert await store.create(f"meta/log/{number}", b"entry")
            assert await store.create(f"wal/1/1/{number:02d}", b"flush")
            assert len(await keys_of(store, "wal/1/1/")) == number + 1
    assert not any(one.done() for one in bulk)
    hanging = [one for one in world.server.requests if world.server.hangs(*one)]
    assert len(hanging) < 3 * (64 + 32 + 16)
    for one in bulk:
        one.cancel()
    await asyncio.gather(*bulk, return_exceptions=True)


@pytest.mark.parametrize("fault", ["cut", "short", "other", "page", "login", "away"])
async def test_what_comes_short_is_asked_for_again(world: World, fault: str) -> None:
    """A proxy that cuts or swaps bodies, or answers in the service's place, makes nothing shorter, and makes
    nothing go away."""
    store = world.open()
    await store.put("k", b"0123456789")
    reads: list[tuple[Awaitable[bytes | None], bytes]] = [
        (store.get_range("k", 2, 6), b"234567"), (store.get_up_to("k", 2, 20), b"23456789"),
    ]  # fmt: skip
    if fault in ("cut", "page", "login", "away"):
        # A whole object that comes shorter, with a length that agrees, is known by its checksum alone.
        reads.append((store.get("k"), b"0123456789"))
    for read, expected in reads:
        world.server.faults = [("GET", fault)]
        assert await read == expected
    assert len(world.pauses) == len(reads)


async def test_what_always_comes_short_is_not_missing(world: World) -> None:
    store = world.open()
    await store.put("k", b"0123456789")
    for fault in ("cut", "short", "page", "login", "away", "416"):
        world.server.faults = [("GET", fault)] * 100
        for read in (store.get_range("k", 2, 6), store.get_up_to("k", 2, 6)):
            with pytest.raises(StoreUnavailableError):
                await read


@pytest.mark.parametrize("fault", ["login", "away"])
async def test_a_page_of_somebody_else_is_no_object(world: World, fault: str) -> None:
    """An entry of the metadata log with such contents would be a damaged one, and end who reads it."""
    store = world.open()
    await store.put("k", b"0123456789")
    world.server.faults = [("GET", fault)] * 100
    with pytest.raises(StoreUnavailableError, match="it was not the store that answered"):
        await store.get("k")
    with pytest.raises(StoreUnavailableError):
        await store.size("k")


@pytest.mark.parametrize("written", ["put", "create"])
async def test_what_comes_for_another_object_is_asked_for_again(world: World, written: str) -> None:
    """Most of what is stored would pass for its neighbour: a manifest for the one that it replaced."""
    store = world.open()
    for key in ("manifests/1/2/3", "manifests/1/2/4"):
        await (store.put if written == "put" else store.create)(key, key.encode())
    reads: list[Awaitable[object]] = [
        store.get("manifests/1/2/3"), store.get_range("manifests/1/2/3", 14, 1), store.size("manifests/1/2/3")
    ]  # fmt: skip
    for read, expected in zip(reads, (b"manifests/1/2/3", b"3", 15), strict=True):
        world.server.faults = [("GET", "swapped")]
        assert await read == expected
    world.server.faults = [("GET", "swapped")] * 100
    with pytest.raises(StoreUnavailableError, match="another object came"):
        await store.get("manifests/1/2/3")


async def test_what_was_written_without_a_name_is_read(world: World) -> None:
    """By an earlier version, or by whoever brought an object back."""
    store = world.open()
    world.server.objects["prefix/k"] = b"0123456789"
    assert await store.get("k") == b"0123456789"


async def test_a_list_without_an_end_is_no_list(world: World) -> None:
    """A page whose continuation leads to itself would be asked for, and kept, until memory is full."""
    store = world.open()
    world.server.objects = {f"prefix/wal/1/1/{number:03d}": b"x" for number in range(300)}
    world.server.faults = [("GET", "again")] * 2
    assert len(await keys_of(store, "wal/")) == 300
    world.server.faults = [("GET", "again")] * 10_000
    with pytest.raises(StoreUnavailableError, match="its pages repeat themselves"):
        await keys_of(store, "wal/")


@pytest.mark.parametrize("fault", ["login", "away"])
@pytest.mark.parametrize("name", ["put", "create"])
async def test_a_page_is_no_receipt(world: World, name: str, fault: str) -> None:
    """While a proxy answers everything with a page and the status of a success, nothing is written, and a
    producer whose flush was such a write may not be told that it was."""
    store = world.open()
    world.server.faults = [("PUT", fault)]
    await OPERATIONS[name](store)
    (contents,) = world.server.objects.values()
    assert contents == b"x"
    world.server.objects.clear()
    # Its tags are known now, and reading is not what is broken.
    world.server.faults = [("PUT", fault)] * 100
    with pytest.raises(StoreUnavailableError):
        await OPERATIONS[name](store)
    assert not world.server.objects


async def test_a_service_is_looked_at_once(world: World) -> None:
    store = world.open()
    for number in range(5):
        assert await store.create(f"wal/1/1/{number}", b"flush %d" % number)
    assert world.server.count("GET") == 1


async def test_who_loses_against_itself_has_won(world: World) -> None:
    """A proxy repeats what is slow: the first of the two requests wins, the answer to the second comes."""
    store = world.open()
    world.server.faults = [("PUT", "repeated")]
    assert await store.create("k", b"mine")
    assert not await store.create("k", b"another's")
    assert world.server.objects["prefix/k"] == b"mine"


@pytest.mark.parametrize("fault", ["whole", "other", "416", "drop", "503"])
async def test_a_size_that_cannot_be_told_is_not_nothing(world: World, fault: str) -> None:
    """A sealer takes an object without bytes for one that was never there, and settling would remember it.
    Words of an error prove nothing: the name of a bucket or a prefix may be among them."""
    store = world.open("s3://bucket/orange")
    await store.put("k", b"0123456789")
    await store.put("empty")
    assert (await store.size("k"), await store.size("empty"), await store.size("none")) == (10, 0, None)
    world.server.faults = [("GET", fault)]
    assert await store.size("k") == 10
    world.server.faults = [("GET", fault)] * 100
    with pytest.raises(StoreUnavailableError):
        await store.size("k")


async def test_a_list_that_is_not_found_is_not_an_empty_one(world: World) -> None:
    store = world.open()
    world.server.faults = [("GET", "page")] * 100
    with pytest.raises(StoreUnavailableError):
        await keys_of(store, "wal/")
    world.server.faults = [("GET", "403")]
    with pytest.raises(StoreRefusedError):
        await keys_of(store, "wal/")


async def test_lost_answers_of_racing_creates(world: World) -> None:
    """Whatever gets lost, each key has one creator, who knows it; nobody else thinks so."""
    chance = random.Random(7)
    stores = [world.open() for _ in range(3)]
    for number in range(30):
        world.server.faults = [
            ("PUT", chance.choice(["lose", "drop", "503"])) for _ in range(chance.randrange(4))
        ]
        values = [b"writer %d of %d" % (at, number) for at in range(3)]
        won = await asyncio.gather(
            *(store.create(f"key/{number}", value) for store, value in zip(stores, values, strict=True))
        )
        assert won.count(True) == 1
        assert world.server.objects[f"prefix/key/{number}"] == values[won.index(True)]


async def test_a_missing_bucket_is_not_an_empty_store(world: World) -> None:
    store = world.open("s3://nowhere/prefix")
    for operation in OPERATIONS.values():
        with pytest.raises(StoreRefusedError, match="the bucket does not exist"):
            await operation(store)
    assert not world.pauses


async def test_a_missing_object_is_missing_at_once(world: World) -> None:
    store = world.open()
    assert await store.get("none") is None
    with pytest.raises(ObjectMissingError):
        await store.get_range("none", 0, 1)
    await store.put("short", b"12")
    for start, length in ((1, 2), (2, 1), (9, 1)):
        with pytest.raises(ObjectMissingError):
            await store.get_range("short", start, length)
    assert not world.pauses


@pytest.mark.parametrize(
    ("status", "verdict"),
    [(400, Verdict.REFUSED), (403, Verdict.REFUSED), (405, Verdict.REFUSED), (501, Verdict.MISUSED),
     (408, Verdict.AGAIN), (409, Verdict.AGAIN), (429, Verdict.AGAIN), (500, Verdict.AGAIN)],
)  # fmt: skip
async def test_which_answers_are_final(world: World, status: int, verdict: Verdict) -> None:
    store = world.open()
    world.server.faults = [("PUT", str(status))]
    if verdict is Verdict.AGAIN:
        assert await store.create("k", b"x")
    else:
        with pytest.raises(StoreError) as refused:
            await store.create("k", b"x")
        assert isinstance(refused.value, StoreRefusedError) is (verdict is Verdict.REFUSED)
        assert not world.pauses


def test_what_is_not_the_sdks_own_error_is_told_too() -> None:
    assert explain(OSError("odd")) == (Verdict.AGAIN, "odd")
    assert explain(TimeoutError()).verdict is Verdict.AGAIN


# Whether a cluster can live there.


async def test_a_store_that_keeps_its_promise(world: World) -> None:
    store = world.open()
    await prove_create(store, store.url, "probe")
    assert not world.server.objects


@pytest.mark.parametrize("kind", [{"atomic": False}, {"conditional": False}])
async def test_a_store_that_does_not(monkeypatch: pytest.MonkeyPatch, kind: dict[str, bool]) -> None:
    world = await begin(monkeypatch, FakeS3(**kind))
    store = world.open()
    with pytest.raises(UnfitStoreError) as refused:
        await prove_create(store, store.url, "probe")
    assert "\n" not in str(refused.value) and "not atomic" in str(refused.value)
    assert not world.server.objects
    await world.server.stop()


async def test_the_url_may_say_where_the_service_is(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    for name in ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_ALLOW_HTTP"):
        monkeypatch.delenv(name)
    store = world.open(f"s3://bucket/prefix?endpoint={endpoint}&region=nowhere-1&path_style=true")
    assert await store.create("k", b"x")
    assert list(world.server.objects) == ["prefix/k"]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s3://bucket/prefix?secret=x", "endpoint, region, path_style"),
        ("gs://bucket/prefix?endpoint=x", "nothing"),
        ("s3://bucket/prefix?path_style=perhaps", "true or false"),
        ("https://host/path", "s3://"),
        ("http://host/path", "s3://"),
    ],
)
def test_urls_that_are_refused(url: str, words: str) -> None:
    with pytest.raises(StoreError) as refused:
        open_store(url)
    assert words in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "environment"),
    [
        ("gs://bucket/prefix", {"GOOGLE_SKIP_SIGNATURE": "true"}),
        ("az://container/prefix", {"AZURE_STORAGE_ACCOUNT_NAME": "account", "AZURE_SKIP_SIGNATURE": "true"}),
        ("az://container/prefix?account=account", {"AZURE_SKIP_SIGNATURE": "true"}),
        ("abfss://container@account.dfs.core.windows.net/prefix", {"AZURE_SKIP_SIGNATURE": "true"}),
    ],
)
def test_other_services_open_by_the_same_code(
    monkeypatch: pytest.MonkeyPatch, url: str, environment: dict[str, str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    opened: ObjectStore = open_store(url)
    assert isinstance(opened, RemoteStore) and opened.url == url
