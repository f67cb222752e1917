"""The port to write-ahead logs. Each incarnation (broker, epoch) owns one, and only it writes there.

A `WalWriter` takes flushes in order and reports the outcome of each: durable, fenced or failed. A flush is
durable only if the log was not sealed before it. So an incarnation whose log was sealed can acknowledge
nothing more, without any clock or lock.

There are two implementations: numbered files that are appended to (`wal.directory`), and one object per flush
(`wal.objects`). Readers read a log by key and position through the ObjectStore, like a segment.
"""

from collections.abc import AsyncIterator, Callable
from typing import NamedTuple, Protocol

from penstock.log.salvage import FlushDamage
from penstock.metadata.image import WalRef
from penstock.storage.stores.objects import StoreError, StoreUnavailableError
from penstock.wire.buffers import Buffer

NAME_DIGITS = 20
"""Of a file or an object of a log, which is named by its first flush."""
WAL_PREFIX = "wal/"
SEAL_BYTES_MAX = 8
"""What marks a log as sealed is no larger than this, and is all that stays of it."""


class Durable(NamedTuple):
    """The flush survives this process (durability=os) or this machine's power (fsync)."""

    key: str
    position: int
    """Where the flush begins in the object `key`."""


class Fenced(NamedTuple):
    """The log was sealed: this incarnation is over, and the flush must not be acknowledged."""


class Failed(NamedTuple):
    """The flush is not in the log and never will be. The flushes behind it that are under way are not either:
    they get no outcome of their own. If `fatal`, that is not certain, and the incarnation must end: the
    sealer then decides what is in the log."""

    error: StoreError
    fatal: bool = False


Outcome = Durable | Fenced | Failed


class ScannedFlush(NamedTuple):
    number: int
    key: str
    position: int
    time_ms: int
    size: int
    blocks: bytes
    """The index block, its checksum verified: `log.flush.iter_blocks` reads it."""
    damage: FlushDamage | None = None
    """What is lost of it. `blocks` is then what was salvaged of the index."""


class LogMissingError(StoreUnavailableError):
    """A write-ahead log is not there, and nothing says that it never was."""


class WalFile(NamedTuple):
    """A file (or object) of a log, and the number of the first flush in it."""

    key: str
    first_flush: int


class WalWriter(Protocol):
    depth: int
    """How many flushes may be under way at once."""
    batches_max: int
    """How many batches one flush may hold."""
    flushes_max: int
    """So many flushes are settled, whatever their size: whoever takes over looks at each of the others."""
    nonce: bytes
    """What every flush header of this log repeats."""

    def write(
        self, number: int, parts: list[Buffer], size: int, done: Callable[[Outcome], None]
    ) -> Outcome | None:
        """Write flush `number` (counted from 0, in order). The outcome is returned at once where it is
        known, else `done` gets it from the loop; outcomes come in the order of numbers. `parts` must
        not change until then."""

    def rotate(self, number: int) -> None:
        """Begin a new file with flush `number`, which was not given to `write` yet."""

    async def close(self) -> None:
        """Release files. What is under way ends or is given up, unacknowledged; the log stays as it is."""


class WalStore(Protocol):
    writes_come_late: bool
    """Whether a write may take effect after its writer was told that it failed, or died."""
    boot: bytes
    """The present boot of the machine that logs lie on: zeros if nobody knows, empty on an object store."""
    survives_boot: bool
    """Whether what is durable outlives a loss of power."""

    async def create(self, wal: WalRef) -> WalWriter | Fenced:
        """Begin the log of a new incarnation, unless somebody sealed it before it began."""

    async def seal(self, wal: WalRef, start: int = 0, said: int = 0) -> int:
        """Let nobody write to this log any more; how many flushes it then holds, counted from flush 0,
        damaged ones among them: it ends after the last that is whole or was provably written whole, and not
        before flush `said`, where its writer said that all below are durable.

        May be called again, by anybody, and then gives the same count or, if a fenced writer appended
        unacknowledged flushes meanwhile, a greater one; the count that went into the metadata log
        holds. `start` is the number of leading flushes that are settled and may be deleted already; where
        writes come late, it must be what the newest image says (`cluster/sealing.py`). LogMissingError if
        what begins the log there is gone, and nothing tells where it ends.
        """

    async def read_ahead(self, wal: WalRef, start: int) -> None:
        """Somebody may have to take this log over soon: read now what `scan` would make them wait for, where
        that takes long. Changes nothing."""

    def scan(self, wal: WalRef, start: int, end: int) -> AsyncIterator[ScannedFlush]:
        """The flushes numbered from `start` up to, not including, `end`, of a sealed log, each of them: those
        that are provably hurt come as damaged. ObjectMissingError if a file or object is not there, which
        proves nothing."""

    async def delete_below(self, wal: WalRef, flush: int) -> None:
        """Remove files (objects) that hold only flushes numbered below `flush`."""

    async def delete(self, wal: WalRef) -> None:
        """Remove the flushes of the log, which must be sealed. It stays so: its seal is not removed."""

    async def close(self) -> None: ...
