"""The store on etcd: for the metadata log, its snapshots and leases, never for records.

Create-if-absent is one transaction: if the key was never created, put it, else return its contents. So a
create whose answer was lost recognises its own content in the same round trip as its repetition. Reads are
etcd's linearizable ones.

etcd takes requests of at most 1.5 MB, and snapshots and large entries are larger. A value over `INLINE_BYTES`
is first written in parts under a name of its own. Then a small pointer to them is created. Parts that belong
to no pointer are never read. They stay in etcd rather than in the object store: one system answers for the
whole metadata log, and `MetadataLog` knows nothing of it.

    <prefix>/<key>                 "=" and the contents, or "@" and the pointer
    <prefix>/.parts/<name>/<n>     part n

etcd keeps every version of a key until it is compacted, and leases are overwritten each second. So every
store asks etcd now and then to forget versions older than a few minutes, as Kubernetes does.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import TypeVar

import msgspec

from penstock.entropy import SYSTEM, Entropy
from penstock.storage.stores.etcd_gateway import (
    IDLE_CONNECTIONS_MAX,
    Answer,
    CompactedError,
    Gateway,
    Member,
    credentials_from_environment,
)
from penstock.storage.stores.objects import (
    ObjectInfo,
    ObjectMissingError,
    StoreError,
    StoreRefusedError,
    StoreUnavailableError,
)
from penstock.wire.buffers import Buffer

INLINE_BYTES = 512 * 1024
"""Well below etcd's limit, and small enough not to hold up the heartbeats of etcd's own members."""
DEFAULT_PORT = 2379
DEFAULT_PREFIX = "penstock"
HISTORY_SECONDS = 300.0
_PAGE_KEYS = 32
_PARTS = ".parts/"
_READS_MAX = 5

logger = logging.getLogger(__name__)
T = TypeVar("T")


class _Pointer(msgspec.Struct, frozen=True):
    name: str
    count: int
    size: int


class _Pair(msgspec.Struct):
    key: bytes = b""
    value: bytes = b""


class _Header(msgspec.Struct):
    revision: int = 0


class _Range(msgspec.Struct):
    header: _Header = msgspec.field(default_factory=_Header)
    kvs: list[_Pair] = []
    more: bool = False


class _Replaced(msgspec.Struct):
    """The answer to a put or a delete that asks for the value before."""

    header: _Header = msgspec.field(default_factory=_Header)
    prev_kv: _Pair | None = None
    prev_kvs: list[_Pair] = []


class _Branch(msgspec.Struct):
    response_range: _Range | None = None


class _Transaction(msgspec.Struct):
    header: _Header = msgspec.field(default_factory=_Header)
    succeeded: bool = False
    responses: list[_Branch] = []


class EtcdStore:
    local = None

    def __init__(
        self,
        url: str,
        *,
        idle_max: int = IDLE_CONNECTIONS_MAX,
        gateway: Gateway | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        entropy: Entropy = SYSTEM,
    ) -> None:
        """`url` is etcd://HOST:PORT,HOST:PORT,.../PREFIX, or etcds:// for TLS."""
        scheme, members, prefix = parse_url(url)
        self.url = url_of(scheme, members, prefix)
        """The same in one spelling; it holds no secrets."""
        self._gateway = gateway or Gateway(
            members,
            tls=scheme == "etcds",
            credentials=credentials_from_environment(),
            idle_max=idle_max,
            entropy=entropy,
        )
        self._entropy = entropy
        self._root = f"{prefix}/"
        self._monotonic = monotonic
        self._noted: tuple[int, float] | None = None
        """A revision, and when it was the newest."""
        self._compacting: asyncio.Task[None] | None = None

    @property
    def requests(self) -> int:
        return self._gateway.requests

    # The port.

    async def create(self, key: str, *parts: Buffer) -> bool:
        contents = b"".join(parts)
        if len(contents) <= INLINE_BYTES:
            return await self._create(key, b"=" + contents)
        pointer = await self._write_parts(contents)
        if await self._create(key, _encode_pointer(pointer)):
            return True
        await self._delete_parts(pointer)
        return False

    async def put(self, key: str, *parts: Buffer) -> None:
        contents = b"".join(parts)
        value = b"=" + contents
        if len(contents) > INLINE_BYTES:
            value = _encode_pointer(await self._write_parts(contents))
        message = {"key": self._name(key), "value": value, "prev_kv": True}
        answer = self._decoded(await self._ask("/v3/kv/put", message), _Replaced)
        if answer.prev_kv is not None:
            await self._delete_replaced(answer.prev_kv.value, value)

    async def get(self, key: str) -> bytes | None:
        for _ in range(_READS_MAX):
            value = await self._value(self._name(key))
            if value is None:
                return None
            pointer = _pointer(value)
            if pointer is None:
                return value[1:]
            contents = await self._read_parts(pointer)
            if contents is not None:
                return contents
            # It was replaced while it was read.
        raise StoreUnavailableError(f"{key} in {self.url} was replaced each time it was read")

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        contents = await self.get(key)
        if contents is None:
            raise ObjectMissingError(f"there is no {key} in {self.url}")
        if start + length > len(contents):
            raise ObjectMissingError(f"{key} ends before byte {start + length}")
        return contents[start : start + length]

    async def size(self, key: str) -> int | None:
        contents = await self.get(key)
        return len(contents) if contents is not None else None

    async def delete(self, key: str) -> None:
        message = {"key": self._name(key), "prev_kv": True}
        answer = self._decoded(await self._ask("/v3/kv/deleterange", message), _Replaced)
        for pair in answer.prev_kvs:
            await self._delete_replaced(pair.value)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        start = self._name(prefix)
        end = _after(start)
        hidden = self._name(_PARTS)
        more = True
        while more:
            message = {"key": start, "range_end": end, "limit": _PAGE_KEYS}
            page = self._decoded(await self._ask("/v3/kv/range", message), _Range)
            for pair in page.kvs:
                if not pair.key.startswith(hidden):
                    pointer = _pointer(pair.value)
                    size = len(pair.value) - 1 if pointer is None else pointer.size
                    yield ObjectInfo(pair.key[len(self._root) :].decode(), size)
            more = page.more
            if page.kvs:
                start = page.kvs[-1].key + b"\0"

    async def close(self) -> None:
        if self._compacting is not None:
            self._compacting.cancel()
            await asyncio.gather(self._compacting, return_exceptions=True)
        await self._gateway.close()

    # Values.

    def _name(self, key: str) -> bytes:
        return f"{self._root}{key}".encode()

    async def _create(self, key: str, value: bytes) -> bool:
        name = self._name(key)
        answer = await self._ask(
            "/v3/kv/txn",
            {
                "compare": [{"key": name, "target": "CREATE", "result": "EQUAL", "create_revision": "0"}],
                "success": [{"request_put": {"key": name, "value": value}}],
                "failure": [{"request_range": {"key": name}}],
            },
        )
        decided = self._decoded(answer, _Transaction)
        if decided.succeeded:
            return True
        if answer.sure:
            return False
        stored = [branch.response_range for branch in decided.responses if branch.response_range]
        return any(pair.value == value for found in stored for pair in found.kvs)

    async def _value(self, name: bytes) -> bytes | None:
        found = self._decoded(await self._ask("/v3/kv/range", {"key": name}), _Range)
        return found.kvs[0].value if found.kvs else None

    async def _write_parts(self, contents: bytes) -> _Pointer:
        name = self._entropy.token(12).hex()
        starts = range(0, len(contents), INLINE_BYTES)
        pointer = _Pointer(name, len(starts), len(contents))
        try:
            for number, start in enumerate(starts):
                part = contents[start : start + INLINE_BYTES]
                await self._ask("/v3/kv/put", {"key": self._part(pointer, number), "value": part})
        except StoreError:
            with suppress(StoreError):
                await self._delete_parts(pointer)
            raise
        return pointer

    async def _read_parts(self, pointer: _Pointer) -> bytes | None:
        found = []
        for number in range(pointer.count):
            part = await self._value(self._part(pointer, number))
            if part is None:
                return None
            found.append(part)
        return b"".join(found)

    async def _delete_replaced(self, old: bytes, new: bytes = b"") -> None:
        pointer = _pointer(old)
        # A put that was repeated may find its own pointer.
        if pointer is not None and old != new:
            await self._delete_parts(pointer)

    async def _delete_parts(self, pointer: _Pointer) -> None:
        first = self._name(f"{_PARTS}{pointer.name}/")
        await self._ask("/v3/kv/deleterange", {"key": first, "range_end": _after(first)})

    def _part(self, pointer: _Pointer, number: int) -> bytes:
        return self._name(f"{_PARTS}{pointer.name}/{number:06d}")

    # Requests.

    async def _ask(self, path: str, message: dict[str, object]) -> Answer:
        try:
            return await self._gateway.ask(path, message)
        except StoreError as error:
            raise type(error)(f"{error} ({self.url})") from error

    def _decoded(self, answer: Answer, kind: type[T]) -> T:
        try:
            # Numbers of 64 bits come as text.
            decoded = msgspec.json.decode(answer.body, type=kind, strict=False)
        except msgspec.DecodeError as error:
            raise StoreError(f"what answers at {self.url} is not etcd: {error}") from error
        self._note(decoded.header.revision)  # type: ignore[attr-defined]
        return decoded

    # History.

    def _note(self, revision: int) -> None:
        """Have what is older than a while forgotten, once in that while."""
        now = self._monotonic()
        if self._noted is None:
            self._noted = (revision, now)
            return
        old, since = self._noted
        if now - since < HISTORY_SECONDS:
            return
        self._noted = (revision, now)
        if revision > old and self._compacting is None:
            self._compacting = asyncio.ensure_future(self._compact(old))

    async def _compact(self, revision: int) -> None:
        try:
            await self._gateway.ask("/v3/kv/compaction", {"revision": str(revision)})
        except CompactedError:
            pass  # Another broker asked for it before.
        except StoreRefusedError as error:
            logger.warning("etcd's history was not compacted; have etcd do it itself error=%s", error)
        except StoreError as error:
            logger.info("etcd's history was not compacted error=%s", error)
        finally:
            self._compacting = None


def parse_url(url: str) -> tuple[str, list[Member], str]:
    """Scheme, members and prefix of etcd://HOST:PORT,HOST:PORT,.../PREFIX. StoreError if it is none."""
    scheme, _, rest = url.partition("://")
    addresses, _, prefix = rest.partition("/")
    if "@" in addresses:
        raise StoreError(
            "An address of etcd holds no user and password, because others can read it; set "
            "PENSTOCK_ETCD_USER and PENSTOCK_ETCD_PASSWORD."
        )
    members = []
    for address in addresses.split(","):
        host, colon, port = address.strip().rpartition(":")
        if not colon or "]" in port or (host.count(":") and not host.startswith("[")):
            host, port = address.strip(), str(DEFAULT_PORT)
        host = host.removeprefix("[").removesuffix("]")
        if not (host and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise StoreError(f"{url!r} is not etcd://HOST:PORT,HOST:PORT,.../PREFIX.")
        members.append(Member(host, int(port)))
    if scheme not in ("etcd", "etcds"):
        raise StoreError(f"{url!r} does not begin with etcd:// or etcds://.")
    return scheme, list(dict.fromkeys(members)), prefix.strip("/") or DEFAULT_PREFIX


def url_of(scheme: str, members: list[Member], prefix: str) -> str:
    return f"{scheme}://{','.join(map(str, members))}/{prefix}"


def _encode_pointer(pointer: _Pointer) -> bytes:
    return b"@" + msgspec.json.encode(pointer)


def _pointer(value: bytes) -> _Pointer | None:
    if not value.startswith(b"@"):
        return None
    try:
        return msgspec.json.decode(value[1:], type=_Pointer)
    except msgspec.DecodeError as error:
        raise StoreError(f"etcd holds a pointer that cannot be read: {error}") from error


def _after(prefix: bytes) -> bytes:
    """The end of the range of keys that begin with `prefix`."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
