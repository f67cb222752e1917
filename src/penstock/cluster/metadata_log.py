"""The shared metadata log: how brokers agree without talking to each other.

Objects in the store, or in etcd where the cluster keeps them there (`home`):

    meta/cluster          what lives here: cluster id and format version
    meta/log/<n>          entry n, created once; whoever creates n + 1 decided on the image of entry n
    meta/snapshot/<k>     the image at some entry, created once; k counts snapshots from 1
    meta/hint             {"snapshot": k}, overwritten; only saves looking

Proposing. The wishes of all local callers that wait are decided in turn on the newest image, each seeing
the effect of those before it, and become one entry. If somebody else created that number first, the log
is read on and everything is decided again after a short random pause. A refusal is final only if the image
it was decided on is still the newest. If the answer to a write is lost, the stored bytes tell: every
proposal names its author, so equal bytes are ours.

Trimming, and why it is safe. Snapshot k says that entries up to the version of snapshot k - 1, its floor,
may be deleted: one whole interval is left for those who lag. But once entry v + 1 is deleted, its number
can be created again, by a broker that slept so long that it believes v to be the end. So an entry counts
only above the floor, and the floor is looked up *after* the entry was created or read: the snapshot that
permits a deletion exists before it and for ever, so a look that finds no newer snapshot proves that the
entry just written or read is the first and only one of its number. A broker that learns that it is below
the floor loads the newest snapshot.

An entry that cannot be read, `tail` says which, ends this end of the log: an image that does not follow the
others' must not be led by. Whoever was given as `on_unreadable` is told once, and nothing is proposed or read
any more.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from penstock.clock import Clock
from penstock.cluster.home import HomeError, join, open_elsewhere
from penstock.cluster.snapshots import SnapshotChain, entry_key
from penstock.cluster.tail import apply_tail, can_be_torn, heal, unreadable
from penstock.entropy import SYSTEM
from penstock.metadata.apply import apply_entry, perform
from penstock.metadata.codec import DamagedError, Entry, FormatError, encode_entry
from penstock.metadata.commands import AllocateProducerIds, AnyCommand
from penstock.metadata.draft import Draft
from penstock.metadata.image import ClusterImage
from penstock.metadata.preconditions import check
from penstock.metadata.proposing import Decide
from penstock.metadata.refusal import Refusal
from penstock.storage.stores.objects import ObjectStore, StoreError, StoreUnavailableError
from penstock.wire.uuids import uuid_text

Subscriber = Callable[[ClusterImage, ClusterImage], None]

# One entry holds at most this many wishes: an entry stays small enough to write and read at once.
PROPOSALS_PER_ENTRY_MAX: Final = 1000
# A tail is applied in steps of this many entries, so that a long one does not hold up the loop.
ENTRIES_PER_STEP_MAX: Final = 200
READS_AT_ONCE_MAX: Final = 32
LOOKS_PER_CATCH_UP: Final = 16
# What reads as damaged is read again: what came over a wire or a bus may have been hurt on its way.
DAMAGE_PAUSES_SECONDS: Final = (0.05, 0.5)
BACKOFF_FIRST_SECONDS: Final = 0.005
BACKOFF_MAX_SECONDS: Final = 0.5

logger = logging.getLogger(__name__)


class MetadataUnavailableError(Exception):
    """The store did not take or give an entry in time. It is not known whether anything changed; a later
    look at the image tells. The message is one sentence for a person."""


class _Proposal:
    __slots__ = ("decide", "result")

    def __init__(self, decide: Decide, result: "asyncio.Future[ClusterImage | Refusal]") -> None:
        self.decide = decide
        self.result = result


class _Plan:
    """What one round of deciding came to."""

    __slots__ = ("accepted", "commands", "image", "refused")

    def __init__(self, image: ClusterImage) -> None:
        self.image = image
        self.commands: list[AnyCommand] = []
        self.accepted: list[_Proposal] = []
        self.refused: list[tuple[_Proposal, Refusal]] = []


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
        self._store = store
        self._clock = clock
        self._poll_interval = poll_interval
        self._propose_timeout = propose_timeout
        self._jitter = jitter or SYSTEM.fraction
        # Uneven, so that brokers rarely write the same snapshot at once; one of them wins if they do.
        self._snapshot_entries = int(snapshot_entries * (1 + self._jitter()))
        self._token = token or (lambda: SYSTEM.token(16))
        self._author = ""
        self._proposed = 0
        self._write_seconds = 0.0
        self._doubtful = 0
        self._chain = SnapshotChain(store)
        self._subscribers: list[Subscriber] = []
        self._queue: list[_Proposal] = []
        self._writer: asyncio.Task[None] | None = None
        self._round: asyncio.Task[None] | None = None
        self._next_round: asyncio.Future[None] | None = None
        self._tail: asyncio.Task[None] | None = None
        self._snapshotter: asyncio.Task[None] | None = None
        self._snapshot_tried_at = 0
        self._closed = False
        self._on_unreadable = on_unreadable
        self._unreadable: str | None = None
        self.unavailable_since: float | None = None
        """When the store began to fail while the log was followed (monotonic), None while it works."""
        self.complete_as_of_ms = 0
        """The last time at which the image is known to have held the whole log. For people."""

    async def open(self) -> ClusterImage:
        """Create or join the cluster that lives in the store, and read its log to the end.

        FormatError if this version cannot serve it; HomeError if the store is another cluster's;
        MetadataUnavailableError if the store fails.
        """
        self._author = self._token().hex()
        try:
            home = await join(self._home, self._metadata, lambda: uuid_text(self._token()), self._elsewhere)
            self._store = home.metadata_store
            self._chain = SnapshotChain(self._store)
            self.image = await self._chain.find() or ClusterImage(cluster_id=home.cluster_id)
            await self._read_on(heals=True)
        except HomeError:
            raise
        except StoreError as error:
            raise MetadataUnavailableError(f"The cluster cannot be opened: {error}") from error
        if self._poll_interval is not None:
            self._tail = asyncio.create_task(self._follow(self._poll_interval), name="metadata tail")
        return self.image

    async def close(self) -> None:
        """Stop following the log. Proposals that wait fail with MetadataUnavailableError."""
        self._closed = True
        tasks = [self._tail, self._writer, self._round, self._snapshotter]
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
        if self._unreadable is not None:
            return
        self._unreadable = str(error)
        logger.error("the metadata log could not be read on version=%d error=%s", self.image.version, error)
        if self._on_unreadable is not None:
            self._on_unreadable(self._unreadable)

    async def _read_on(self, *, heals: bool = False) -> None:
        """Apply entries until there are none, or from the newest snapshot on if they were trimmed. `heals`:
        torn entries at the end are replaced."""
        for pause in (*DAMAGE_PAUSES_SECONDS, None):
            try:
                await self._read_to_end(heals)
                return
            except DamagedError:
                if pause is None:
                    raise
                await asyncio.sleep(pause)

    async def _read_to_end(self, heals: bool) -> None:
        while True:
            began_ms = self._clock.time_ms()
            start = self.image.version
            found, ended = await self._read_entries(start + 1)
            await self._chain.look()
            if self._chain.floor > start:
                image = await self._chain.load()
                if image.version > self.image.version:
                    self._advance(image)
                continue
            # As far as the writer did not apply its own meanwhile.
            tail = apply_tail(self.image, found[self.image.version - start :])
            if tail.image is not self.image:
                self._advance(tail.image)
            if tail.error is not None:
                await self._pass_over(tail.error, tail.torn if heals and ended else range(0))
            elif ended:
                self.complete_as_of_ms = began_ms
                return

    async def _pass_over(self, error: FormatError, torn: range) -> None:
        """Go on after an entry that cannot be read, if that is possible. Else the error is raised."""
        number = self.image.version + 1
        if isinstance(error, DamagedError) and self._chain.version >= number:
            self._advance(await self._chain.load())
            return
        if not torn or not can_be_torn(self._store):
            raise unreadable(error, entry_key(number)) from error
        from penstock.storage.stores.healing import RunningBrokersError

        try:
            aside = await heal(self._store, torn, self._empty_entry)
        except RunningBrokersError:
            raise unreadable(error, entry_key(number)) from error
        if aside:
            logger.warning(
                "metadata entries %d to %d were cut short, as by a loss of power, and were replaced by empty "
                "ones; what they changed is lost, and records of the same seconds may be; kept=%s",
                torn.start,
                torn.stop - 1,
                ",".join(aside),
            )

    def _empty_entry(self, number: int) -> bytes:
        self._proposed += 1
        author = f"{self._author}-{self._proposed}"
        return encode_entry(Entry(number, author, self._clock.time_ms(), []), self.image.level)

    async def _read_entries(self, first: int) -> tuple[list[bytes], bool]:
        """Entries from `first` on, a bounded number, and whether the end was reached.

        Mostly there is nothing new, so one is asked for; but a long tail on a distant store is read many
        entries at a time.
        """
        found: list[bytes] = []
        window = 1
        while len(found) < ENTRIES_PER_STEP_MAX:
            numbers = range(first + len(found), first + len(found) + window)
            if window == 1:
                answers = [await self._store.get(entry_key(numbers.start))]
            else:
                answers = list(await asyncio.gather(*(self._store.get(entry_key(n)) for n in numbers)))
            for data in answers:
                if data is None:
                    return found, True
                found.append(data)
            window = min(2 * window, READS_AT_ONCE_MAX)
        return found, False

    def _advance(self, image: ClusterImage) -> None:
        old, self.image = self.image, image
        for callback in tuple(self._subscribers):
            try:
                callback(old, image)
            except Exception:
                logger.exception("a subscriber of the metadata log failed version=%d", image.version)
        self._maybe_snapshot()

    async def _follow(self, interval: float) -> None:
        looks = 0
        while self._unreadable is None:
            await asyncio.sleep(interval)
            looks += 1
            began_ms = self._clock.time_ms()
            try:
                # A plain look costs one request; every so often it is a whole one, which sees trimming too.
                if looks % LOOKS_PER_CATCH_UP == 0 or await self._store.get(
                    entry_key(self.image.version + 1)
                ):
                    await self.catch_up()
                else:
                    self.complete_as_of_ms = began_ms
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
        self._queue.append(_Proposal(decide, result))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write(), name="metadata writer")
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
            self._writer = None

    async def _write_batch(self, batch: list[_Proposal]) -> None:
        """Decide and write until every wish of the batch is answered. Wishes that come join in."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._propose_timeout
        attempt = 0
        while True:
            batch[:] = [proposal for proposal in batch if not proposal.result.done()]
            if not batch:
                return
            base = self.image
            plan = self._decide(batch)
            if not plan.commands:
                # Nothing to write: the answers hold if the image they were decided on is the newest.
                if (await self.catch_up()).version != base.version:
                    continue
                if self._doubtful <= base.version:
                    self._answer(plan)
                    return
                # An entry whose answer never came may still arrive and change what was just decided. An
                # empty one takes its number, so that it arrives now or never.
                plan.image = apply_entry(base, ())
            if await self._create(plan, deadline):
                self._answer(plan)
                return
            attempt += 1
            if loop.time() >= deadline:
                raise StoreUnavailableError("other brokers wrote first every time")
            # Somebody else made progress. The pause is in proportion to how long a write takes here.
            ceiling = min(BACKOFF_MAX_SECONDS, self._write_seconds * 2.0 ** min(attempt, 4))
            await asyncio.sleep(ceiling * self._jitter())
            room = PROPOSALS_PER_ENTRY_MAX - len(batch)
            batch.extend(self._queue[:room])
            del self._queue[:room]

    def _decide(self, batch: list[_Proposal]) -> _Plan:
        draft = Draft(self.image)
        draft.version += 1
        plan = _Plan(self.image)
        for proposal in batch:
            before = draft.image()
            try:
                wish = proposal.decide(before if plan.commands else self.image)
                refusal = wish if isinstance(wish, Refusal) else None
                commands = () if isinstance(wish, Refusal) else wish
                for command in commands:
                    refusal = check(draft.view(), command)
                    if refusal is not None:
                        break
                    perform(draft, command)
            except Exception as error:
                if not proposal.result.done():
                    proposal.result.set_exception(error)
                draft = Draft(before)
                continue
            if refusal is not None:
                plan.refused.append((proposal, refusal))
                draft = Draft(before)
            else:
                plan.accepted.append(proposal)
                plan.commands.extend(commands)
        plan.image = draft.image() if plan.commands else self.image
        return plan

    async def _create(self, plan: _Plan, deadline: float) -> bool:
        """Write the plan as the next entry. False if another entry has that number: the log is read on."""
        number = plan.image.version
        self._proposed += 1
        entry = Entry(number, f"{self._author}-{self._proposed}", self._clock.time_ms(), plan.commands)
        data = encode_entry(entry, plan.image.level)
        attempt = 0
        started = self._clock.monotonic()
        # Until the image reaches this number, an attempt that failed may still arrive.
        self._doubtful = number
        while True:
            try:
                created = await self._store.create(entry_key(number), data)
                if not created:
                    # Perhaps by our own earlier attempt, whose answer was lost.
                    created = await self._store.get(entry_key(number)) == data
                if created:
                    await self._chain.look()
                self._write_seconds = self._clock.monotonic() - started
                break
            except StoreUnavailableError:
                attempt += 1
                pause = self._backoff(attempt)
                if asyncio.get_running_loop().time() + pause >= deadline:
                    raise
                await asyncio.sleep(pause)
        if created and self._chain.floor >= number:
            # The number was used, trimmed and now created again: we were far behind, and it does not count.
            await self._store.delete(entry_key(number))
            created = False
        if not created:
            await self.catch_up()
            return False
        if self.image.version < number:
            self._advance(plan.image)
        return True

    def _answer(self, plan: _Plan) -> None:
        for proposal in plan.accepted:
            if not proposal.result.done():
                proposal.result.set_result(plan.image)
        for proposal, refusal in plan.refused:
            if not proposal.result.done():
                proposal.result.set_result(refusal)

    def _fail(self, proposals: Sequence[_Proposal], error: Exception) -> None:
        for proposal in proposals:
            if not proposal.result.done():
                proposal.result.set_exception(error)

    def _backoff(self, attempt: int) -> float:
        ceiling: float = min(BACKOFF_MAX_SECONDS, BACKOFF_FIRST_SECONDS * 2.0 ** min(attempt, 16))
        return ceiling * self._jitter()

    # Snapshots.

    async def snapshot_written(self) -> None:
        """Wait for the snapshot under way, if there is one, and for the trimming that follows it."""
        if self._snapshotter is not None:
            await asyncio.shield(self._snapshotter)

    def _maybe_snapshot(self) -> None:
        last = max(self._chain.version, self._snapshot_tried_at)
        if self.image.version - last >= self._snapshot_entries and self._snapshotter is None:
            self._snapshot_tried_at = self.image.version
            self._snapshotter = asyncio.create_task(self._snapshot(), name="metadata snapshot")

    async def _snapshot(self) -> None:
        """Write a snapshot and trim the log. A failure costs nothing but a longer tail; it is tried again."""
        try:
            await self._chain.look()
            image = self.image
            if image.version - self._chain.version < self._snapshot_entries:
                return
            if await self._chain.create(image):
                deleted = await self._chain.trim()
                logger.info("wrote a metadata snapshot version=%d trimmed=%d", image.version, deleted)
        except (StoreError, FormatError) as error:
            logger.warning("a metadata snapshot was not written error=%s", error)
        finally:
            self._snapshotter = None


def _as_exception(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else MetadataUnavailableError("The broker is stopping.")
