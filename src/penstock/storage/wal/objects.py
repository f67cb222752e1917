"""Write-ahead logs on an object store: one object per flush, wal/<broker>/<epoch>/<n>, created if absent.

A flush is one PUT, whatever the number of partitions. Several may be under way at once; each is reported
durable only when all before it are. Flush 0 holds nothing: it begins the log.

Sealing is creating the next number. A sealer finds the first number that does not exist and creates it with
the seal as its contents: this decides where the log ends. A flush that the writer had under way beyond that
number may still arrive. Nobody reads beyond the seal, and the writer never reports it, because the flush at
the seal's number was refused.

A log is a run of numbers: objects are deleted from the lowest number up, and the newest durable one is never
deleted while the log may grow. So the log ends at the first number missing above its beginning. The image
says where it begins (`cluster/sealing.py`): below, a write that was tried twice may take effect for a second
time after its object was deleted, however late.

The object before its beginning stays. If it is not there, nor anything that proves more, a store was emptied,
and the log is not taken for one that ends there.

But an object may be gone. A flush is begun only when the one `depth` numbers before it is durable: if that
later one is there, the missing one was acknowledged, and the log goes on behind it. What it held is unknown.
A seal says the same of all below it: with an image from before they were settled, the log is not empty.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

from penstock.entropy import SYSTEM, Entropy
from penstock.log.flush import (
    FLUSH_HEADER_SIZE,
    FlushError,
    check_index,
    decode_flush_header,
    encode_flush_header,
)
from penstock.log.salvage import FlushDamage, salvage
from penstock.metadata.image import WalRef
from penstock.storage.stores.objects import (
    DamagedObjectError,
    ObjectMissingError,
    ObjectShortError,
    ObjectStore,
    StoreError,
    StoreRefusedError,
    StoreUnavailableError,
)
from penstock.storage.wal.port import (
    NAME_DIGITS,
    Durable,
    Failed,
    Fenced,
    LogMissingError,
    Outcome,
    ScannedFlush,
)
from penstock.wire.buffers import Buffer

logger = logging.getLogger(__name__)

SEAL = b"PWSEAL1\n"
_DEPTH = 4
_WHOLE_BYTES = 64 * 1024  # An object of at most this is read in one go, its header and index with it.
_RETRY_FIRST_SECONDS = 0.5
_RETRY_MAX_SECONDS = 2.0  # The store makes pauses of its own before it gives up.
_SALVAGE_PAUSES_SECONDS = (0.0, 0.1, 0.4, 1.0)
_SCANS_AT_ONCE = 64
_DELETES_AT_ONCE = 8
_LOGS_AHEAD_MAX = 8  # Each is at most some hundred small indexes; few brokers are late at once.


def _prefix(wal: WalRef) -> str:
    return f"wal/{wal.broker}/{wal.epoch}/"


def _key(wal: WalRef, number: int) -> str:
    return f"{_prefix(wal)}{number:0{NAME_DIGITS}d}"


def flush_key(wal: WalRef, number: int) -> str:
    """The object of a flush. Object 0 begins the log."""
    return _key(wal, number + 1)


class _Put:
    __slots__ = ("done", "in_doubt", "key", "outcome", "refusal", "task")

    def __init__(self, key: str, done: Callable[[Outcome], None]) -> None:
        self.key = key
        self.done = done
        self.outcome: Outcome | None = None
        self.in_doubt = False
        """An attempt was not answered, or found an object: the flush may be in the log, now or later."""
        self.refusal: StoreError | None = None
        """Why the store did not take it, while nothing of it can be in the log."""
        self.task: asyncio.Task[None] | None = None


class ObjectWalWriter:
    """A flush must not be both refused and in the log. So the writer tries a flush in doubt until its outcome
    is known. It also goes on with a refused one as long as others beyond it may be in the log: their numbers
    are taken then. When all that are under way are refused, and none was ever in doubt, they have failed."""

    batches_max = 10_000
    """Each flush is a request that is paid for, so one takes whatever waits; this bounds the loop's work."""
    flushes_max = 500
    """Each is a request to whoever takes over, while nobody serves."""

    def __init__(
        self, store: ObjectStore, wal: WalRef, nonce: bytes, depth: int, entropy: Entropy = SYSTEM
    ) -> None:
        self.depth = depth
        self.nonce = nonce
        self._store = store
        self._wal = wal
        self._under_way: deque[_Put] = deque()
        self._entropy = entropy
        self._ended = False

    def write(
        self, number: int, parts: list[Buffer], size: int, done: Callable[[Outcome], None]
    ) -> Outcome | None:
        put = _Put(flush_key(self._wal, number), done)
        self._under_way.append(put)
        put.task = asyncio.get_running_loop().create_task(self._create(put, parts))
        return None

    def rotate(self, number: int) -> None:
        """Every flush is an object of its own already."""

    async def _create(self, put: _Put, parts: list[Buffer]) -> None:
        pause = _RETRY_FIRST_SECONDS
        while put.outcome is None:
            put.refusal = None
            try:
                if await self._store.create(put.key, *parts):
                    put.outcome = Durable(put.key, 0)
                else:
                    put.in_doubt = True
                    put.outcome = await self._found(put.key, parts)
            except StoreError as error:
                if isinstance(error, StoreUnavailableError) and not isinstance(error, StoreRefusedError):
                    put.in_doubt = True
                if not put.in_doubt:
                    put.refusal = error
                    if self._fail_all():
                        return
                logger.warning("a flush could not be written yet key=%s: %s", put.key, error)
                await asyncio.sleep(pause * (0.5 + self._entropy.fraction() / 2))
                pause = min(2 * pause, _RETRY_MAX_SECONDS)
        self._report()

    async def _found(self, key: str, parts: list[Buffer]) -> Outcome:
        """What it means that the object was there already."""
        stored = await self._store.get(key)
        if stored == b"".join(parts):
            return Durable(key, 0)  # By an attempt whose answer was lost.
        if stored is None or stored == SEAL:
            # What is not known to be durable, only whoever took the log over deletes.
            return Fenced()
        # Perhaps our own flush, hurt. Whoever seals the log decides what it holds.
        return Failed(DamagedObjectError(f"{key} does not hold what was written to it"), fatal=True)

    def _fail_all(self) -> bool:
        """If nothing of what is under way can be in the log: give it up, all at once."""
        if any(put.refusal is None for put in self._under_way):
            return False
        failed = self._take_all()
        if failed and not self._ended:
            assert failed[0].refusal is not None
            failed[0].done(Failed(failed[0].refusal))
        return True

    def _report(self) -> None:
        while self._under_way and self._under_way[0].outcome is not None:
            put = self._under_way.popleft()
            assert put.outcome is not None
            if not self._ended:
                self._ended = not isinstance(put.outcome, Durable)
                put.done(put.outcome)
        if self._ended:
            self._take_all()

    def _take_all(self) -> list[_Put]:
        """What was under way, given up."""
        taken = list(self._under_way)
        self._under_way.clear()
        for put in taken:
            if put.task is not None and put.task is not asyncio.current_task():
                put.task.cancel()
        return taken

    async def close(self) -> None:
        tasks = [put.task for put in self._take_all() if put.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)


class ObjectWalStore:
    writes_come_late = True
    boot = b""
    survives_boot = True

    def __init__(self, store: ObjectStore, *, depth: int = _DEPTH, entropy: Entropy = SYSTEM) -> None:
        self._store = store
        self._depth = depth
        self._entropy = entropy
        self._ahead: dict[WalRef, dict[int, ScannedFlush]] = {}
        """What was read of logs whose writers are late, by flush. A flush never changes."""
        self._first_left: dict[WalRef, int] = {}
        """Of logs whose beginning was deleted here: the first object that is left. It saves a list each
        time."""

    async def create(self, wal: WalRef) -> ObjectWalWriter | Fenced:
        nonce = self._entropy.token(8)
        opening = encode_flush_header(0, nonce, 0, b"", 0, 0)
        if not await self._store.create(_key(wal, 0), opening):
            return Fenced()
        return ObjectWalWriter(self._store, wal, nonce, self._depth, self._entropy)

    async def seal(self, wal: WalRef, start: int = 0, said: int = 0) -> int:
        # Object `start` holds the flush below it, and is not deleted before the log is. A list of hundreds of
        # objects takes long, and is not needed if they were read ahead and nothing came since.
        number = self._end_ahead(wal, start)
        sizes = {} if number > start else await self._sizes(wal)
        while True:
            # No flush was as small as a seal when it was written.
            while sizes.get(number, 0) > len(SEAL):
                number += 1
            key = _key(wal, number)
            if number not in sizes and number <= said > 0 and await self._store.size(key) is None:
                number += 1
                continue
            if number not in sizes and await self._is_gone(wal, number, sizes):
                logger.error("an object of a write-ahead log is not there, and later ones are key=%s", key)
                number += 1
                continue
            if number == start > 0 and number not in sizes and await self._store.size(key) is None:
                raise LogMissingError(
                    f"{key}, with which a write-ahead log begins, is not there, and nothing says where it "
                    "ends: bring the objects of the log back, or put an empty one there to go on without them"
                )
            if number not in sizes and await self._store.create(key, SEAL):
                break
            sizes = await self._sizes(wal)
            sealed = await self._is_sealed_at(key, sizes.get(number))
            if sealed:
                break
            if sealed is not None:
                number += 1
        return max(number - 1, 0)

    async def _is_sealed_at(self, key: str, listed: int | None) -> bool | None:
        """Whether the object there is the seal; None if there is none. `listed`: its size, if a list names
        it. What is read must have that size: a flush that is taken for the seal ends its log, and a seal that
        is taken for a flush is waited for as one that is gone."""
        for pause in (*_SALVAGE_PAUSES_SECONDS, None):
            stored = await self._store.get(key)
            if stored is None:
                return None
            if len(stored) == (listed if listed is not None else await self._store.size(key)):
                return is_seal(stored)
            if pause is not None:
                await asyncio.sleep(pause)
        raise StoreUnavailableError(f"{key} is not read as it is listed")

    async def _is_gone(self, wal: WalRef, number: int, sizes: Mapping[int, int]) -> bool:
        """Whether an object that is not there once was. `sizes`: what was listed, if something was."""
        later = number + self._depth
        if sizes:
            was = any(_proves(other, size, number, later) for other, size in sizes.items())
        else:
            was = (await self._store.size(_key(wal, later)) or 0) > len(SEAL)
        return was and await self._store.size(_key(wal, number)) is None

    def _end_ahead(self, wal: WalRef, start: int) -> int:
        """The object behind those from `start` on that were read ahead; `start` if there are none."""
        known = self._ahead.get(wal, {})
        flush = start
        while flush in known:
            flush += 1
        return flush + 1 if flush > start else start

    async def _sizes(self, wal: WalRef) -> dict[int, int]:
        """The objects of a log by number, in order. What has another name is not of the log."""
        prefix = _prefix(wal)
        named = {info.key[len(prefix) :]: info.size async for info in self._store.list(prefix)}
        return {
            int(name): size for name, size in named.items() if name.isdecimal() and len(name) == NAME_DIGITS
        }

    async def read_ahead(self, wal: WalRef, start: int) -> None:
        """Each flush is a request, and there may be hundreds."""
        known = self._ahead.pop(wal, {})
        self._ahead[wal] = known
        while len(self._ahead) > _LOGS_AHEAD_MAX:
            del self._ahead[next(iter(self._ahead))]
        for number in [number for number in known if number < start]:
            del known[number]
        sizes = await self._sizes(wal)
        wanted = [n - 1 for n, size in sizes.items() if n > start and size > len(SEAL) and n - 1 not in known]
        for at in range(0, len(wanted), _SCANS_AT_ONCE):
            for flush in await self._scan_some(wal, wanted[at : at + _SCANS_AT_ONCE], sizes):
                known[flush.number] = flush

    async def scan(self, wal: WalRef, start: int, end: int) -> AsyncIterator[ScannedFlush]:
        """Objects are read some at a time; a large one by its header and then its index."""
        known = self._ahead.pop(wal, {})
        numbers = range(start, end)
        sizes = {} if all(number in known for number in numbers) else await self._sizes(wal)
        for at in range(0, len(numbers), _SCANS_AT_ONCE):
            some = numbers[at : at + _SCANS_AT_ONCE]
            missing = [number for number in some if number not in known]
            known.update((flush.number, flush) for flush in await self._scan_some(wal, missing, sizes))
            for number in some:
                yield known.pop(number)

    async def _scan_some(
        self, wal: WalRef, numbers: Iterable[int], sizes: Mapping[int, int]
    ) -> list[ScannedFlush]:
        return await asyncio.gather(
            *(self._scan_one(wal, number, sizes.get(number + 1)) for number in numbers)
        )

    async def _scan_one(self, wal: WalRef, number: int, size: int | None) -> ScannedFlush:
        flush = await read_flush(self._store, wal, number, size) if size is not None else None
        if flush is None:
            raise ObjectMissingError(f"flush {number} of the write-ahead log {_prefix(wal)} is missing")
        return flush

    async def delete_below(self, wal: WalRef, flush: int) -> None:
        # Object `flush` holds the last flush below it, and stays: the run must not begin beyond what is
        # durable, or a sealer would take flushes for the log's that arrived out of order.
        first = self._first_left.get(wal)
        if first is None:
            first = min(await self._sizes(wal), default=flush)
        await self._delete(wal, range(first, flush))
        self._first_left[wal] = max(first, flush)

    async def delete(self, wal: WalRef) -> None:
        # The seal stays, for ever: a writer that slept through all of this would create its number else, and
        # acknowledge what it wrote there.
        sizes = await self._sizes(wal)
        await self._delete(wal, [number for number, size in sizes.items() if size != len(SEAL)])
        self._first_left.pop(wal, None)

    async def _delete(self, wal: WalRef, numbers: Sequence[int]) -> None:
        for at in range(0, len(numbers), _DELETES_AT_ONCE):
            some = numbers[at : at + _DELETES_AT_ONCE]
            await asyncio.gather(*(self._store.delete(_key(wal, number)) for number in some))

    async def close(self) -> None:
        """Nothing is held open here."""


def _proves(other: int, size: int, missing: int, later: int) -> bool:
    """Whether an object shows that a missing one was there: a flush from `later` on, or a seal, which was
    made when all below it were."""
    return other > missing if size == len(SEAL) else size > len(SEAL) and other >= later


def is_seal(stored: bytes) -> bool:
    """Of an object where a flush might be. A byte may be hurt; nothing else that is as small is a seal."""
    return len(stored) == len(SEAL) and sum(a != b for a, b in zip(stored, SEAL, strict=True)) <= 1


async def read_flush(
    store: ObjectStore, wal: WalRef, number: int, size: int | None = None
) -> ScannedFlush | None:
    """Flush `number`, whole or damaged; None if the seal is in its place. `size`: of its object, if known.
    ObjectMissingError if nothing is there."""
    key = flush_key(wal, number)
    try:
        length = FLUSH_HEADER_SIZE if size is None else min(size, _WHOLE_BYTES)
        head = memoryview(await store.get_range(key, 0, length))
        header = decode_flush_header(head)
        if header.number != number:
            return await _salvaged(store, key, number, size)
        index_at = FLUSH_HEADER_SIZE + header.data_size
        if len(head) == size:
            index = bytes(head[index_at:])
        else:
            index = bytes(await store.get_range(key, index_at, header.index_size))
        check_index(header, index)
        return ScannedFlush(number, key, 0, header.time_ms, header.size, index)
    except (FlushError, ObjectShortError):
        return await _salvaged(store, key, number, size)


async def _salvaged(store: ObjectStore, key: str, number: int, size: int | None) -> ScannedFlush | None:
    """What is left of a flush, if it is damaged indeed: it is read again for a while, and must be the same
    each time, with the size that it is listed with. What was only hurt, or swapped, on its way would be lost
    for ever if it counted as damage."""
    seen: set[bytes] = set()
    for pause in (*_SALVAGE_PAUSES_SECONDS, None):
        stored = await store.get(key)
        if stored is None:
            raise ObjectMissingError(f"there is no {key}")
        seen.add(stored)
        if size is None or len(stored) == size:
            if is_seal(stored):
                return None
            flush = _judged(stored, key, number)
            if flush.damage is None or (pause is None and len(seen) == 1):
                fate = f"lost, {flush.damage.reason}" if flush.damage is not None else "salvaged"
                logger.warning("a flush is not as it was written key=%s bytes=%d: %s", key, len(stored), fate)
                return flush
        if pause is not None:
            await asyncio.sleep(pause)
    raise StoreUnavailableError(f"{key} is read differently each time, or not as it is listed")


def _judged(stored: bytes, key: str, number: int) -> ScannedFlush:
    with contextlib.suppress(FlushError):
        header = decode_flush_header(memoryview(stored)[:FLUSH_HEADER_SIZE])
        if header.number != number:
            reason = f"it says that it is flush {header.number}"
            return ScannedFlush(number, key, 0, header.time_ms, header.size, b"", FlushDamage(reason))
    found = salvage(stored, number, None, 0)
    return ScannedFlush(number, key, 0, found.time_ms, len(stored), found.blocks, found.damage)
