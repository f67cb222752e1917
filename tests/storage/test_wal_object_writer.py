"""Flushes that become objects, on a store that refuses, loses answers and hurts what it holds."""

import asyncio

import pytest

from penstock.storage.stores.memory import MemoryStore
from penstock.storage.stores.objects import (
    DamagedObjectError,
    StoreError,
    StoreFullError,
    StoreRefusedError,
    StoreUnavailableError,
)
from penstock.storage.wal.objects import SEAL, ObjectWalStore
from penstock.storage.wal.port import Durable, Failed, Fenced, Outcome, WalWriter
from penstock.testing.waiting import eventually
from penstock.wire.buffers import Buffer
from tests.leftovers import left_behind
from tests.storage.test_wal_behaviour import WAL, Logs, flush_of, turns, write

FAR = "wal/3/17/"


class Moody(MemoryStore):
    """Answers creates of a flush with the next error that is given for it: before it has an effect."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: dict[str, list[StoreError]] = {}
        self.creates = 0
        self.unreadable = 0

    def fail(self, number: int, *errors: StoreError) -> None:
        self.errors[key_of(number)] = list(errors)

    async def create(self, key: str, *parts: Buffer) -> bool:
        await asyncio.sleep(0)
        self.creates += 1
        if self.errors.get(key):
            raise self.errors[key].pop(0)
        return await super().create(key, *parts)

    async def get(self, key: str) -> bytes | None:
        if self.unreadable:
            self.unreadable -= 1
            raise StoreRefusedError("403")
        return await super().get(key)


def key_of(number: int) -> str:
    return f"{FAR}{number + 1:020d}"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Moody:
    monkeypatch.setattr("penstock.storage.wal.objects._RETRY_FIRST_SECONDS", 0.001)
    return Moody()


@pytest.fixture
async def writer(store: Moody) -> WalWriter:
    return await Logs(store, ObjectWalStore(store)).create()


def begin(writer: WalWriter, *numbers: int) -> list[tuple[int, Outcome]]:
    outcomes: list[tuple[int, Outcome]] = []
    for number in numbers:
        parts = flush_of(writer, number, b"v")
        writer.write(number, parts, 0, lambda outcome, n=number: outcomes.append((n, outcome)))  # type: ignore[misc]
    return outcomes


@pytest.mark.parametrize("refusal", [StoreRefusedError("403"), StoreFullError("full"), StoreError("501")])
async def test_flushes_that_are_all_refused_fail_at_once(
    store: Moody, writer: WalWriter, refusal: StoreError
) -> None:
    """None of them can be in the log, so producers need not wait, and the numbers are free."""
    for number in range(4):
        store.fail(number, refusal)
    outcomes = begin(writer, 0, 1, 2, 3)
    await turns()
    assert outcomes == [(0, Failed(refusal))]
    assert isinstance(await write(writer, 0, b"another"), Durable)
    await writer.close()


async def test_a_flush_that_is_refused_below_one_that_is_stored_is_tried_on(
    store: Moody, writer: WalWriter
) -> None:
    store.fail(0, *[StoreRefusedError("403")] * 3)
    outcomes = begin(writer, 0, 1)
    await eventually(lambda: len(outcomes) == 2, "both outcomes")
    assert [type(outcome) for _number, outcome in outcomes] == [Durable, Durable]
    await writer.close()


async def test_a_flush_that_was_ever_in_doubt_is_not_refused(store: Moody, writer: WalWriter) -> None:
    """The attempt that was not answered took effect: told as failed, it would be in the log all the same."""
    parts = flush_of(writer, 0, b"v")
    store.fail(0, StoreUnavailableError("no answer"), StoreRefusedError("403"), StoreFullError("full"))
    store.objects[key_of(0)] = b"".join(parts)
    assert isinstance(await write(writer, 0), Durable)
    await writer.close()


async def test_what_is_there_already_is_looked_at(store: Moody, writer: WalWriter) -> None:
    store.objects[key_of(0)] = SEAL
    store.unreadable = 3
    assert isinstance(await write(writer, 0), Fenced)
    await writer.close()


@pytest.mark.parametrize("hurt", ["shorter", "longer", "flipped", "empty"])
async def test_a_flush_that_is_stored_otherwise_is_neither_durable_nor_the_seal(
    store: Moody, writer: WalWriter, hurt: str
) -> None:
    """It may be our own, hurt. The incarnation ends, and whoever seals the log decides."""
    sound = b"".join(flush_of(writer, 0, b"v"))
    store.objects[key_of(0)] = {
        "shorter": sound[:-1], "longer": sound + b"x", "flipped": b"\0" + sound[1:], "empty": b"",
    }[hurt]  # fmt: skip
    store.fail(0, StoreUnavailableError("no answer"))
    outcome = await write(writer, 0)
    assert isinstance(outcome, Failed) and outcome.fatal
    assert isinstance(outcome.error, DamagedObjectError)
    await writer.close()


async def test_the_end_gives_up_what_is_beyond_it(store: Moody, writer: WalWriter) -> None:
    store.objects[key_of(0)] = SEAL
    store.fail(1, *[StoreUnavailableError("no answer")] * 1000)
    outcomes = begin(writer, 0, 1)
    await turns()
    assert outcomes == [(0, Fenced())]
    assert not left_behind(), "nothing is tried again"
    await writer.close()


async def test_closing_gives_up_what_the_store_does_not_take(store: Moody, writer: WalWriter) -> None:
    for number in range(4):
        store.fail(number, *[StoreUnavailableError("no answer")] * 1000)
    outcomes = begin(writer, 0, 1, 2, 3)
    await turns()
    async with asyncio.timeout(1):
        await writer.close()
    assert outcomes == [] and not left_behind()
    store.errors.clear()
    assert await ObjectWalStore(store).seal(WAL) == 0
