"""The store on an S3 server that fails in every way a network can: retries, lost answers, refusals."""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from penstock.storage import open_store, remote
from penstock.storage.objects import (
    ObjectMissingError,
    ObjectStore,
    StoreError,
    StoreReadOnlyError,
    StoreUnavailableError,
)
from penstock.storage.proof import UnfitStoreError, prove_create
from penstock.storage.remote import RemoteStore
from penstock.storage.remote_errors import Verdict, explain
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


async def test_an_answer_that_never_comes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request took effect, and the repetition finds our own bytes."""
    monkeypatch.setattr(remote, "SMALL_SECONDS", 1.0)
    store = world.open()
    world.server.faults = [("PUT", "silent")]
    assert await store.create("k", b"mine")
    world.server.faults = [("GET", "silent")]
    assert await store.get_range("k", 0, 4) == b"mine"


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
        with pytest.raises(StoreReadOnlyError, match="the bucket does not exist"):
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
        assert isinstance(refused.value, StoreUnavailableError) is False and not world.pauses


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
