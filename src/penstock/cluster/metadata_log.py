"""The shared metadata log: how brokers agree without talking to each other.

Objects in the store, or in etcd where the cluster keeps them there (`home`):

    meta/cluster          the identity: cluster id and format version
    meta/log/<n>          entry n, created once; the broker that creates n + 1 decided on the image of entry n
    meta/snapshot/<k>     the image at some entry, created once; k counts snapshots from 1
    meta/hint             {"snapshot": k}, overwritten; only saves looking

`tail` explains reading, `entries` writing one entry, `snapshots` trimming.

Proposing. The wishes of all local callers that wait become one entry (`deciding`). If another broker created
that number first, this one reads on and decides everything again after a short random pause. A refusal is
final only if the image it was decided on is still the newest.

An unreadable entry (`tail` says which) ends this end of the log: a broker must not lead by an image that does
not follow the others'. `on_unreadable` is called once, and nothing is proposed or read any more. Damage has
some seconds to pass before that: somebody between here and the store may have given something else, and all
brokers would end together.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from penstock.clock import Clock
from penstock.cluster.deciding import DraftEntry, Proposal, decide_all
from penstock.cluster.entries import EntryWriter
from penstock.cluster.home import HomeError, join, newest_log, open_elsewhere
from penstock.cluster.leases import whole_leases
from penstock.cluster.snapshots import Snapshotter, entry_key
from penstock.cluster.tail import LogReader, Stuck, heal, require_unread
from penstock.entropy import SYSTEM
from penstock.metadata.apply import apply_entry
from penstock.metadata.codec import DamagedError, FormatError
from penstock.metadata.commands import AllocateProducerIds, AnyCommand
from penstock.metadata.image import ClusterImage
from penstock.metadata.proposing import Decide
from penstock.metadata.refusal import Refusal
from penstock.storage.stores.objects import ObjectStore, StoreError, StoreUnavailableError
from penstock.storage.wal.port import WAL_PREFIX
from penstock.wire.uuids import uuid_text

Subscriber = Callable[[ClusterImage, ClusterImage], None]

# One entry holds at most this many wishes: an entry stays small enough to write and read at once.
PROPOSALS_PER_ENTRY_MAX: Final = 1000
LOOKS_PER_CATCH_UP: Final = 16
CONTENDED_SECONDS: Final = 5.0
"""So long after somebody else wrote first, this broker lets others go before it writes again."""
DAMAGE_SECONDS: Final = 20.0
"""So long damage has to pass."""
WINS_IN_A_ROW: Final = 8
"""After so many entries it does so all the same: who always wins does not know of the others."""

logger = logging.getLogger(__name__)


class MetadataUnavailableError(Exception):
    """The store did not take or give an entry in time. The change may have been made or not; a later look at
    the image tells. The message is one sentence for a person."""


class MetadataLog:
    """One broker's end of the shared log. `image` is the newest image it has read."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        *,
        metadata: str = "",
        poll_interval: float | None = None,
        propose_timeout: float = 10.0,
        snapshot_entries: int = 1000,
        jitter: Callable[[], float] | None = None,
        token: Callable[[], bytes] | None = None,
        elsewhere: Callable[[str], ObjectStore] = open_elsewhere,
        on_unreadable: Callable[[str], None] | None = None,
    ) -> None:
        """`store`: the store of the cluster; `metadata`: where its log is to be, if not there.
        `poll_interval`: seconds between looks for new entries (None: only when asked to catch up).
        `jitter` gives numbers in [0, 1), `token` sixteen unique bytes; both default to the system's.
        `elsewhere` opens the place of a log that is not in the store. `on_unreadable` is told why, if the log
        cannot be followed any more."""
        self.image = ClusterImage()
        self._home = store
        self._elsewhere = elsewhere
        self._metadata = metadata
        self._clock = clock
        self._poll_interval = poll_interval
        self._propose_timeout = propose_timeout
        self._jitter = jitter or SYSTEM.fraction
        # Uneven, so that brokers rarely write the same snapshot at once; one of them wins if they do.
        self._snapshot_entries = int(snapshot_entries * (1 + self._jitter()))
        self._token = token or (lambda: SYSTEM.token(16))
        self._doubtful = 0
        self._use(store, "")
        self._subscribers: list[Subscriber] = []
        self._queue: list[Proposal] = []
        self._writing: asyncio.Task[None] | None = None
        self._round: asyncio.Task[None] | None = None
        self._next_round: asyncio.Future[None] | None = None
        self._tail: asyncio.Task[None] | None = None
        self._closed = False
        self._contended_until = 0.0
        """Somebody else wrote first a moment ago, and others may be waiting, too."""
        self._yield_until = 0.0
        """Let them go first."""
        self._wins = 0
        """Entries of this broker since somebody else wrote first."""
        self._on_unreadable = on_unreadable
        self._unreadable: str | None = None
        self._damaged_since: float | None = None
        """Since when only damage was read (monotonic)."""
        self.found = False
        """The store has said which cluster it is, or was given one."""
        self.unavailable_since: float | None = None
        """When the store began to fail while the log was followed (monotonic), None while it works."""
        self.complete_as_of_ms = 0
        """The last time at which the image is known to have held the whole log. For people."""
        self.complete_as_of = 0.0
        """The same by the clock that does not jump."""

    def _use(self, store: ObjectStore, author: str) -> None:
        """The log is in this store."""
        self._store = store
        self._reader = LogReader(store)
        chain = self._reader.chain
        self._writer = EntryWriter(store, chain, self._clock, self._jitter, author)
        self._snapshotter = Snapshotter(chain, lambda: self.image, self._snapshot_entries)

    async def open(self) -> ClusterImage:
        """Create or join the cluster that lives in the store, and read its log to the end.

        FormatError if this version cannot serve it; HomeError if the store is another cluster's;
        MetadataUnavailableError if the store fails.
        """
        author = self._token().hex()
        try:
            home = await join(self._home, self._metadata, lambda: uuid_text(self._token()), self._elsewhere)
            self.found = True
            self._use(home.metadata_store, author)
            self.image = await self._reader.chain.find() or ClusterImage(cluster_id=home.cluster_id)
            await self._read_on(heals=True)
            await self._require_whole()
        except HomeError:
            raise
        except StoreError as error:
            raise MetadataUnavailableError(f"The cluster cannot be opened: {error}") from error
        if self._poll_interval is not None:
            self._tail = asyncio.create_task(self._follow(self._poll_interval), name="metadata tail")
        return self.image

    async def _require_whole(self) -> None:
        """FormatError if entries are gone, HomeError if all of them are, or the records are a copy."""
        leases = await whole_leases(self._store) if self.image.version else {}
        await self._reader.require_whole(lambda: self.image, self._advance, leases)
        if self._store is not self._home and self._home.local is None:
            from penstock.cluster.belonging import require_own_bucket

            await require_own_bucket(self._home, self._store, leases, lambda: self.image, self._read_on)
        newest = await newest_log(self._home)
        if newest is None or newest.epoch <= self.image.version:
            return
        # A broker registers before it begins its log, so if that was meanwhile, the image has it now.
        await self._read_on()
        version = self.image.version
        if not version:
            raise HomeError(
                f"The metadata log of cluster {self.image.cluster_id} is gone: the store holds records, "
                "and nothing says which of them count. Bring meta/ back from a backup."
            )
        if newest.epoch > version:
            # Leases may be as old as the log: a backup of etcd has both.
            log = f"{WAL_PREFIX}{newest.broker}/{newest.epoch}/"
            raise FormatError(
                f"the metadata log ends at entry {version}, and broker {newest.broker} registered with entry "
                f"{newest.epoch} ({log}): bring the entries after {entry_key(version)} back from a newer "
                f"backup, or take {log} away to go on without what they said"
            )

    async def close(self) -> None:
        """Stop following the log. Proposals that wait fail with MetadataUnavailableError."""
        self._closed = True
        tasks = [self._tail, self._writing, self._round, self._snapshotter.task]
        for task in tasks:
            if task is not None and not task.done():
                task.cancel()
        await asyncio.gather(*(task for task in tasks if task is not None), return_exceptions=True)
        error = MetadataUnavailableError("The broker is stopping.")
        self._fail(self._queue, error)
        self._queue = []
        if self._next_round is not None and not self._next_round.done():
            self._next_round.set_exception(error)
            self._next_round.exception()  # Marked as seen: an asker that went away is no error.
        if self._store is not self._home:
            await self._store.close()

    @property
    def home(self) -> ObjectStore:
        """The store of the cluster."""
        return self._home

    @property
    def store(self) -> ObjectStore:
        """Where the log is, and leases too. Known once the log is open."""
        return self._store

    # Reading.

    async def catch_up(self) -> ClusterImage:
        """Read the log to its end: the image then holds every entry that was written before this call.

        Calls that come while a read is under way share the next one.
        """
        self._require_open()
        if self._round is None:
            self._round = asyncio.create_task(self._rounds(), name="metadata catch up")
        if self._next_round is None:
            self._next_round = asyncio.get_running_loop().create_future()
        waiting = self._next_round
        try:
            await asyncio.shield(waiting)
        except (StoreError, FormatError) as error:
            raise MetadataUnavailableError(f"The metadata log cannot be read: {error}") from error
        return self.image

    def _require_open(self) -> None:
        if self._closed:
            raise MetadataUnavailableError("The broker is stopping.")
        if self._unreadable is not None:
            raise MetadataUnavailableError(f"The metadata log cannot be read: {self._unreadable}")

    def subscribe(self, callback: Subscriber) -> Callable[[], None]:
        """Call `callback(old, new)` after each change of the image, in order. Returns how to stop it."""
        self._subscribers.append(callback)

        def unsubscribe() -> None:
            if callback in self._subscribers:
                self._subscribers.remove(callback)

        return unsubscribe

    async def _rounds(self) -> None:
        """Read on for as long as somebody asks, so that each asker gets a read that began after it asked."""
        try:
            while self._next_round is not None:
                waiting, self._next_round = self._next_round, None
                try:
                    await self._read_on()
                except BaseException as error:
                    if isinstance(error, FormatError):
                        self._give_up(error)
                    if not waiting.done():
                        waiting.set_exception(_as_exception(error))
                        waiting.exception()  # Marked as seen: an asker that went away is no error.
                    if not isinstance(error, Exception):
                        raise
                else:
                    if not waiting.done():
                        waiting.set_result(None)
        finally:
            self._round = None

    def _give_up(self, error: FormatError) -> None:
        """End this end of the log, unless it is damage that may pass."""
        if self._unreadable is not None:
            return
        if isinstance(error, DamagedError):
            now = self._clock.monotonic()
            if self._damaged_since is None:
                self._damaged_since = now
            if now - self._damaged_since < DAMAGE_SECONDS:
                return
        self._unreadable = str(error)
        logger.error("the metadata log could not be read on version=%d error=%s", self.image.version, error)
        if self._on_unreadable is not None:
            self._on_unreadable(self._unreadable)

    async def _read_on(self, *, heals: bool = False) -> None:
        """Read the log to its end. `heals`: torn entries at the end are replaced."""
        while True:
            began, began_ms = self._clock.monotonic(), self._clock.time_ms()
            stuck = await self._reader.read_to_end(lambda: self.image, self._advance)
            if stuck is None:
                self.complete_as_of, self.complete_as_of_ms = began, began_ms
                self._damaged_since = None
                return
            if not heals:
                raise stuck.error
            await self._heal(stuck)

    async def _heal(self, stuck: Stuck) -> None:
        from penstock.storage.stores.healing import RunningBrokersError

        def empty_entry(number: int) -> bytes:
            return self._writer.encode(number, (), self.image.level)

        require_unread(stuck.torn, await whole_leases(self._store))
        try:
            aside = await heal(self._store, stuck.torn, empty_entry)
        except RunningBrokersError:
            raise stuck.error from None
        if aside:
            logger.warning(
                "metadata entries %d to %d were cut short, as by a loss of power, and were replaced by empty "
                "ones; what they changed is lost, and records of the same seconds may be; kept=%s",
                stuck.torn.start,
                stuck.torn.stop - 1,
                ",".join(aside),
            )

    def _advance(self, image: ClusterImage) -> None:
        old, self.image = self.image, image
        for callback in tuple(self._subscribers):
            try:
                callback(old, image)
            except Exception:
                logger.exception("a subscriber of the metadata log failed version=%d", image.version)
        self._snapshotter.advanced()

    async def _follow(self, interval: float) -> None:
        looks = 0
        while self._unreadable is None:
            await asyncio.sleep(interval)
            looks += 1
            began, began_ms = self._clock.monotonic(), self._clock.time_ms()
            try:
                # A plain look costs one request; every so often it is a whole one, which sees trimming too.
                if looks % LOOKS_PER_CATCH_UP == 0 or await self._store.get(
                    entry_key(self.image.version + 1)
                ):
                    await self.catch_up()
                else:
                    self.complete_as_of, self.complete_as_of_ms = began, began_ms
            except Exception as error:
                if self.unavailable_since is None:
                    self.unavailable_since = self._clock.monotonic()
                    logger.warning("the metadata log could not be followed error=%s", error)
            else:
                if self.unavailable_since is not None:
                    logger.info("the metadata log was followed again version=%d", self.image.version)
                self.unavailable_since = None

    # Writing.

    async def propose(self, decide: Decide) -> ClusterImage | Refusal:
        """Change the cluster.

        `decide(image)` returns the commands that carry out the wish on that image, none if there is
        nothing to do, or why it cannot be. It is called again whenever somebody else changed the cluster
        meanwhile, so it must not keep anything from an earlier call; what it notes in its last call
        holds. Returns the image right after the entry, or the refusal. MetadataUnavailableError if the
        store did not take it in time: then the change may or may not happen, and whether it did is
        certain once a later proposal through this log was answered.
        """
        self._require_open()
        result: asyncio.Future[ClusterImage | Refusal] = asyncio.get_running_loop().create_future()
        self._queue.append(Proposal(decide, result))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write(), name="metadata writer")
        # A caller that gives up takes no other caller's wish with it.
        return await result

    async def allocate_producer_ids(self, broker: int, epoch: int, count: int) -> range | Refusal:
        """A block of producer ids that nobody else was or will be given."""
        block = range(0)

        def decide(image: ClusterImage) -> Sequence[AnyCommand]:
            nonlocal block
            block = range(image.next_producer_id, image.next_producer_id + count)
            return [AllocateProducerIds(broker, epoch, block.start, count)]

        result = await self.propose(decide)
        return result if isinstance(result, Refusal) else block

    async def _write(self) -> None:
        """Turn the queue into entries until it is empty."""
        try:
            while self._queue:
                batch = self._queue[:PROPOSALS_PER_ENTRY_MAX]
                del self._queue[:PROPOSALS_PER_ENTRY_MAX]
                try:
                    await self._write_batch(batch)
                except StoreError as error:
                    message = f"The metadata log cannot be written: {error}"
                    self._fail(batch, MetadataUnavailableError(message))
                except MetadataUnavailableError as error:
                    self._fail(batch, error)
                except FormatError as error:
                    self._give_up(error)
                    message = f"The metadata log cannot be read: {error}"
                    self._fail(batch, MetadataUnavailableError(message))
                except asyncio.CancelledError:
                    self._fail(batch, MetadataUnavailableError("The broker is stopping."))
                    raise
                except Exception as error:
                    logger.exception("a batch of proposals failed")
                    self._fail(batch, error)
        finally:
            self._writing = None

    async def _write_batch(self, batch: list[Proposal]) -> None:
        """Decide and write until every wish of the batch is answered. Wishes that come join in."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._propose_timeout
        attempt = 0
        while True:
            batch[:] = [proposal for proposal in batch if not proposal.is_answered]
            if not batch:
                return
            await asyncio.sleep(max(0.0, self._yield_until - loop.time()))
            base = self.image
            entry = decide_all(base, batch)
            if not entry.commands:
                # Nothing to write: the answers hold if the image they were decided on is the newest.
                if (await self.catch_up()).version != base.version:
                    continue
                if self._doubtful <= base.version:
                    entry.answer()
                    return
                # An entry whose answer never came may still arrive and change what was just decided. An
                # empty one takes its number, so that it arrives now or never.
                entry.image = apply_entry(base, ())
            if await self._create(entry, deadline):
                entry.answer()
                self._wins += 1
                if loop.time() < self._contended_until or self._wins % WINS_IN_A_ROW == 0:
                    self._yield_until = loop.time() + self._writer.yield_seconds()
                return
            attempt += 1
            self._wins = 0
            self._contended_until = loop.time() + CONTENDED_SECONDS
            if loop.time() >= deadline:
                raise StoreUnavailableError("other brokers wrote first every time")
            await asyncio.sleep(self._writer.pause_seconds(attempt))
            room = PROPOSALS_PER_ENTRY_MAX - len(batch)
            batch.extend(self._queue[:room])
            del self._queue[:room]

    async def _create(self, entry: DraftEntry, deadline: float) -> bool:
        """Write it as the next entry. False if another entry has that number: the log is read on."""
        number = entry.image.version
        # Until the image reaches this number, an attempt that failed may still arrive.
        self._doubtful = number
        data = self._writer.encode(number, entry.commands, entry.image.level)
        if not await self._writer.create(number, data, deadline):
            await self.catch_up()
            return False
        if self.image.version < number:
            self._advance(entry.image)
        return True

    def _fail(self, proposals: Sequence[Proposal], error: Exception) -> None:
        for proposal in proposals:
            proposal.fail(error)

    async def snapshot_written(self) -> None:
        """Wait for the snapshot under way, if there is one, and for the trimming that follows it."""
        if self._snapshotter.task is not None:
            await asyncio.shield(self._snapshotter.task)


def _as_exception(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else MetadataUnavailableError("The broker is stopping.")
