"""The store on S3, GCS or Azure, through obstore.

This module makes retries (`attempts`), not the SDK, because a repeated create must know that it is one. A
create whose answer was lost (time-out, dropped connection, 5xx), or that was sent twice because it hung, may
find its own work, and so may one that was sent once, if a proxy repeats what is slow: the stored bytes tell
whose it is. Writers make their bytes unique (a nonce, the author of an entry), so equal bytes are ours.

A create that was sent twice may also take effect twice: again after its object was deleted, however late.
Nothing rests on a deleted key staying away. Nobody looks below the beginning of a write-ahead log
(`wal.objects`), trimmed entries do not count (`cluster/metadata_log`), and other names are used once.

The length of a read body is compared with the length that the service names, and a shorter one is asked for
again: a proxy that cuts a body does not make an object shorter. What has neither an entity tag nor a date, or
says that it is a page, is no object, whatever its status: somebody shall log in, for instance, or come back
later. Whoever answers so to reads answers so to writes, too, and then nothing was written (`receipts`). The
signature of a write holds a checksum, which S3 compares. All that is stored has checksums of its own.

Each lane has a client and limits of its own (`lanes`).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

import obstore
from obstore import exceptions

from penstock.entropy import SYSTEM, Entropy
from penstock.storage.stores.attempts import FAILURES, Attempts, Caller, Limits
from penstock.storage.stores.lanes import Lane, lane_of_delete, lane_of_list, lane_of_read, lane_of_write
from penstock.storage.stores.objects import (
    DatedObject,
    ObjectInfo,
    ObjectMissingError,
    ObjectShortError,
    StoreError,
    StoreRefusedError,
    StoreUnavailableError,
    Unproven,
)
from penstock.storage.stores.patience import LARGE_SECONDS, SMALL_BYTES, SMALL_SECONDS
from penstock.storage.stores.receipts import Receipts
from penstock.storage.stores.remote_errors import Verdict, concerns_range, explain
from penstock.storage.stores.urls import open_backend
from penstock.wire.buffers import Buffer

if TYPE_CHECKING:
    from obstore import GetResult, ObjectMeta
    from obstore.store import ObjectStore as Backend

LIMITS = {
    # A broker is fenced after nine seconds of silence by default.
    Lane.CONTROL: Limits(calls=64, seconds=8.0, pause_seconds=1.0),
    # As many as a writer has under way, and the seals of a few takeovers.
    Lane.LOG: Limits(calls=16, seconds=20.0, pause_seconds=1.0),
    Lane.READ: Limits(calls=64, seconds=60.0),
    Lane.WRITE: Limits(calls=32, seconds=60.0),
    Lane.SWEEP: Limits(calls=16, seconds=60.0),
}
_UNKNOWN_BYTES = SMALL_BYTES + 1
"""What a whole object is taken for: entries are small, snapshots are not."""
_PAGE = "text/html"
"""No object that is written here has this type."""
_NAME = "penstockkey"
"""What every object says it is, beside its contents. Azure takes no hyphen in such names."""
_LIST_CHUNK = 200
"""A page that repeats itself is noticed after so many objects."""
_LIST_SECONDS = 300.0
"""A store may hold hundreds of thousands of objects; each page of a list has its own time-out."""


class ShortAnswerError(OSError):
    """Fewer bytes came than the service said there are."""


class ForeignAnswerError(OSError):
    """A page of somebody between here and the service, with the status of an object."""


class RemoteStore(Unproven):
    local = None

    def __init__(
        self,
        url: str,
        *,
        backend: "Backend | None" = None,
        entropy: Entropy = SYSTEM,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`url` is s3://bucket/prefix, gs://bucket/prefix or az://container/prefix. Credentials come from the
        usual environment variables of each service, and so do region and endpoint, unless the URL names them:
        s3://bucket/prefix?endpoint=http://host:9000&region=us-east-1&path_style=true."""
        self.url = url
        self._callers = {lane: Caller(limits, entropy, sleep) for lane, limits in LIMITS.items()}
        self._backends = {lane: backend if backend is not None else open_backend(url) for lane in LIMITS}
        self._receipts = Receipts()

    @property
    def requests(self) -> int:
        return sum(caller.requests for caller in self._callers.values())

    @property
    def hedges(self) -> int:
        """How many requests were asked a second time because they hung."""
        return sum(caller.patience.hedges for caller in self._callers.values())

    async def create(self, key: str, *parts: Buffer) -> bool:
        contents = b"".join(parts)
        lane = lane_of_write(key)
        store = self._backends[lane]
        attempts = Attempts()

        async def put() -> None:
            answer = await obstore.put_async(
                store, key, contents, attributes={_NAME: key}, mode="create", use_multipart=False
            )
            await self._require_written(store, key, contents, answer["e_tag"])

        try:
            await self._callers[lane].call(put, len(contents), attempts=attempts)
            return True
        except FAILURES as error:
            if explain(error).verdict is Verdict.EXISTS:
                return await self._holds(key, contents)
            in_doubt = attempts.begun > 1
            raise self._error(error, f"could not create {key}", writing=True, in_doubt=in_doubt) from error

    async def _holds(self, key: str, contents: bytes) -> bool:
        """Whether what is there is what was to be created. StoreUnavailableError if that cannot be told."""
        try:
            return await self.get(key) == contents
        except StoreError as error:
            # Refused is the look, not the create.
            raise StoreUnavailableError(str(error)) from error

    async def put(self, key: str, *parts: Buffer) -> None:
        contents = b"".join(parts)
        lane = lane_of_write(key)
        store = self._backends[lane]

        async def put() -> None:
            answer = await obstore.put_async(
                store, key, contents, attributes={_NAME: key}, use_multipart=False
            )
            await self._require_written(store, key, contents, answer["e_tag"])

        try:
            await self._callers[lane].call(put, len(contents))
        except FAILURES as error:
            raise self._error(error, f"could not write {key}", writing=True) from error

    async def _require_written(self, store: "Backend", key: str, contents: bytes, tag: str | None) -> None:
        """That it was the store that took a write."""
        if self._receipts.are_usual(tag):
            return
        try:
            answer = await obstore.get_async(store, key)
            written = bytes(await answer.bytes_async()) == contents
        except FAILURES as error:
            # Not in its words: they would be taken for an answer to the write, which is in doubt.
            raise ForeignAnswerError("a write was answered, and cannot be read back") from error
        if not written:
            raise ForeignAnswerError("it was not the store that answered: nothing was written")
        self._receipts.learn(tag)

    async def get(self, key: str) -> bytes | None:
        lane = lane_of_read(key)
        store = self._backends[lane]

        async def whole() -> bytes:
            async with asyncio.timeout(SMALL_SECONDS):
                answer = await obstore.get_async(store, key)
            found = bytes(await answer.bytes_async())
            _require(key, len(found), answer)
            return found

        try:
            return await self._callers[lane].call(whole, _UNKNOWN_BYTES)
        except FAILURES as error:
            told = self._error(error, f"could not read {key}")
            if isinstance(told, ObjectMissingError):
                return None
            raise told from error

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        found = await self.get_up_to(key, start, length)
        if len(found) != length:
            raise ObjectShortError(f"{key} ends before byte {start + length}")
        return found

    async def get_up_to(self, key: str, start: int, length: int) -> bytes:
        """At most `length` bytes from `start`: fewer if the object ends before."""
        if not length:
            return b""
        lane = lane_of_read(key)
        store = self._backends[lane]

        async def part() -> bytes:
            try:
                answer = await obstore.get_async(store, key, options={"range": (start, start + length)})
                found = bytes(await answer.bytes_async())
            except exceptions.GenericError as error:
                if not concerns_range(error):
                    raise
                if await _size(store, key) > start:
                    raise
                return b""
            _require(key, len(found), answer, start, length)
            return found

        try:
            return await self._callers[lane].call(part, length)
        except FAILURES as error:
            raise self._error(error, f"could not read {key}") from error

    async def size(self, key: str) -> int | None:
        """How many bytes an object has; None if there is none."""
        lane = lane_of_read(key)
        store = self._backends[lane]

        async def look() -> int:
            # Not HEAD: its answer has no body, so it does not say whether it is the object that is missing.
            try:
                answer = await obstore.get_async(store, key, options={"range": (0, 1)})
                _require(key, len(await answer.bytes_async()), answer, 0, 1)
            except exceptions.GenericError as error:
                if not concerns_range(error) or await _size(store, key):
                    raise
                return 0  # Not even a first byte, and the service says so twice.
            return answer.meta["size"]

        try:
            return await self._callers[lane].call(look, 1)
        except FAILURES as error:
            told = self._error(error, f"could not look at {key}")
            if isinstance(told, ObjectMissingError):
                return None
            raise told from error

    async def delete(self, key: str) -> None:
        lane = lane_of_delete(key)
        store = self._backends[lane]

        async def delete() -> None:
            await obstore.delete_async(store, key)

        try:
            # Not hedged: one that takes effect late removes what was written since, and nobody waits for it.
            await self._callers[lane].call(delete, hedge=False)
        except FAILURES as error:
            told = self._error(error, f"could not delete {key}")
            if not isinstance(told, ObjectMissingError):
                raise told from error

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        async for found in self.list_dated(prefix):
            yield ObjectInfo(found.key, found.size)

    async def list_dated(self, prefix: str) -> AsyncIterator[DatedObject]:
        lane = lane_of_list(prefix)
        store = self._backends[lane]
        # A service matches whole path segments only: ask for the directory, and match the rest here.
        directory = prefix.rpartition("/")[0]

        async def everything() -> list[DatedObject]:
            found: dict[str, ObjectMeta] = {}
            pages = aiter(obstore.list(store, directory or None, chunk_size=_LIST_CHUNK))
            while True:
                async with asyncio.timeout(LARGE_SECONDS):
                    chunk = await anext(pages, None)
                if chunk is None:
                    break
                known = len(found)
                found.update((meta["path"], meta) for meta in chunk)
                if len(found) - known < len(chunk) // 2:
                    raise ForeignAnswerError("a list comes to no end: its pages repeat themselves")
            return [
                DatedObject(path, meta["size"], int(meta["last_modified"].timestamp() * 1000))
                for path, meta in found.items()
                if path.startswith(prefix)
            ]

        try:
            found = await self._callers[lane].call(everything, hedge=False, seconds=_LIST_SECONDS)
        except FAILURES as error:
            # A list of nothing is an answer; 404 says that it is not the store that answers.
            what = f"could not list {prefix or 'objects'}"
            raise self._error(error, what, writing=True) from error
        for one in sorted(found):
            yield one

    async def close(self) -> None:
        """The SDK closes its connections when the store is forgotten."""

    def _error(
        self, error: Exception, what: str, *, writing: bool = False, in_doubt: bool = False
    ) -> StoreError:
        """`in_doubt`: another request of the call may have taken effect, or may yet."""
        verdict, reason = explain(error)
        if isinstance(error, TimeoutError):
            reason = str(error) or f"no answer within {SMALL_SECONDS:.0f} s"
        sentence = f"{what} in {self.url}: {reason}"
        if verdict is Verdict.AGAIN or in_doubt:
            return StoreUnavailableError(sentence)
        if verdict is Verdict.MISSING and not writing:
            return ObjectMissingError(sentence)
        if verdict is Verdict.MISUSED:
            return StoreError(sentence)
        return StoreRefusedError(sentence)


def _require(key: str, found: int, answer: "GetResult", start: int = 0, length: int | None = None) -> None:
    """That so many bytes are those that were asked for. `length`: at most, if the object ends before."""
    _require_object(answer.meta)
    if answer.attributes.get(_NAME, key) != key:
        raise ForeignAnswerError("another object came")
    if answer.attributes.get("Content-Type", "").startswith(_PAGE):
        raise ForeignAnswerError("it was not the store that answered: a page came")
    promised = answer.meta["size"] - start
    if length is not None:
        promised = min(length, promised)
    if found != promised:
        raise ShortAnswerError(f"{found} bytes came instead of {promised}")


def _require_object(meta: "ObjectMeta") -> None:
    if meta["e_tag"] is None and not meta["last_modified"].timestamp():
        raise ForeignAnswerError("it was not the store that answered: objects have a tag or a date")


async def _size(store: "Backend", key: str) -> int:
    meta = await obstore.head_async(store, key)
    _require_object(meta)
    return meta["size"]
