"""The port to shared storage: one linearizable primitive, create-if-absent, and plain object access.

Every write that could race with another broker is a `create`: exactly one of many callers gets True for a
key, and every later `get` returns the winner's bytes. `put` overwrites. It is for leases and hints only,
never for anything that safety rests on.

Keys are slash-separated, relative, and made of [A-Za-z0-9._-] segments. Implementations share one behaviour
suite.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from penstock.wire.buffers import Buffer

if TYPE_CHECKING:
    from penstock.storage.stores.local import LocalDirectory


class StoreError(Exception):
    """A storage operation failed. The message is one sentence for a person."""


class StoreUnavailableError(StoreError):
    """The store did not answer, or answered that it is overloaded; trying again later may work. A write may
    have been done, and may still be done. Only this error leaves it in doubt."""


class StoreRefusedError(StoreUnavailableError):
    """The store does not accept our identity or our request (401, 403, no such bucket, EACCES), perhaps only
    for a while: nothing was done, and nothing is known of the object."""


class StoreFullError(StoreError):
    """There is no room left. Writes fail until space returns; reads go on."""


class StoreReadOnlyError(StoreError):
    """The store takes no writes (a read-only file system)."""


class ObjectMissingError(StoreError):
    """The object asked for by range does not exist."""


class ObjectShortError(ObjectMissingError):
    """The object is there, and ends before the range that was asked for does."""


class DamagedObjectError(StoreError):
    """The bytes that were read are provably not those that were written: a checksum is wrong. Nothing else is
    damage. An object that is refused, late or not there is unknown, and is asked for again."""


class HurtRangeError(DamagedObjectError):
    """Records of one partition that were acknowledged once, and that the store lost or damaged."""

    def __init__(self, topic: str, partition: int, start: int, end: int, reason: str) -> None:
        """From `start` up to, not including, `end`."""
        super().__init__(f"offsets {start} to {end - 1} of {topic}-{partition} are damaged: {reason}")
        self.topic = topic
        self.partition = partition
        self.start = start
        self.end = end


class Range(NamedTuple):
    """`length` bytes from `start` of `key`."""

    key: str
    start: int
    length: int


ReadRange = Callable[[str, int, int], Awaitable[Buffer]]
"""`ObjectStore.get_range`, or what stands before it: key, start, length."""


class ObjectInfo(NamedTuple):
    key: str
    size: int


class DatedObject(NamedTuple):
    key: str
    size: int
    modified_ms: int
    """When it was written, by the store's clock."""


class ObjectStore(Protocol):
    @property
    def local(self) -> "LocalDirectory | None":
        """The directory of this machine that the store is; None if it is none. Objects are files then: logs
        are appended to, a loss of power may tear what was not synced, and all brokers are
        processes of this machine."""

    async def create(self, key: str, *parts: Buffer) -> bool:
        """Create `key` holding the concatenated parts, unless it exists. True if this call created it.

        An attempt whose answer was lost is decided by reading the object back and comparing contents. Only
        after StoreUnavailableError, and not StoreRefusedError, it may be there or still come.
        """

    async def put(self, key: str, *parts: Buffer) -> None:
        """Write `key`, replacing what was there. Readers see the old or the new contents, never a mix."""

    async def get(self, key: str) -> bytes | None:
        """The whole object, or None if there is none."""

    async def get_range(self, key: str, start: int, length: int) -> bytes | bytearray:
        """Exactly `length` bytes from `start`; ObjectMissingError if the object is gone, ObjectShortError if
        it is shorter."""

    async def size(self, key: str) -> int | None:
        """How many bytes the object has; None if there is none."""

    async def delete(self, key: str) -> None:
        """Remove `key`; removing what is not there is fine."""

    def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """Objects whose key starts with `prefix`, in key order. Never used on a read path."""

    async def close(self) -> None:
        """Release connections and file handles."""


class Unproven:
    """A store on a service of another maker. A trial shows whether its create is atomic, when a cluster is
    founded on it."""

    url: str


@runtime_checkable
class DatedStore(ObjectStore, Protocol):
    """A store that also knows when objects were written: those that hold records do."""

    def list_dated(self, prefix: str) -> AsyncIterator[DatedObject]:
        """As `list`."""
