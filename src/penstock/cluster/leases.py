"""Which brokers are silent, judged by the observer's own clock.

A broker overwrites `live/<broker>` with its epoch and a counter that grows. An observer never compares clocks
with it: it notes when it first saw a counter, and how long it has seen no other. A read counts for the moment
it began, so an observer that was itself paused between reading and judging judges nothing wrong. While the
observer cannot read or write the store, no silence counts, because no broker can be heard.

Nothing here is needed for safety: a broker that is fenced by mistake finds its log sealed and registers
again. This module only decides how soon a dead broker's partitions move.

If the operating system says that a broker's process has ended, the observer need not wait out its silence. It
gives the broker a moment in which it may be started again, and then counts it as silent.

How often to listen: a silence counts from when the last heartbeat was seen, so a heartbeat that is seen late
delays a takeover. Heartbeats come at even times. So an observer listens when the next one is due, closely
until it comes, then not until the one after is due. If none comes, it listens again at the very moment at
which the time-out is over.
"""

import contextlib
from collections.abc import Iterable
from typing import Final
from zlib import crc32

import msgspec

from penstock.metadata.image import BrokerInfo, ClusterImage, WalRef
from penstock.storage.stores.objects import ObjectStore

# So long a process that ended may take to be started again before others take over what it led: a supervisor
# does it in less, and then nothing moves. It is also more than the time between heartbeats: one that is heard
# is never taken for dead, whatever the system says.
GONE_SECONDS = 1.0
GONE_PART = 1.25

# From this part of an interval after a heartbeat on, the next is listened for, in steps of that part.
DUE_PART = 0.9
STEP_PART = 0.05
# By then it is not just a bit late, and there is no hurry before the time-out.
LATE_PART = 1.5

# Brokers below this rank watch everybody; the others only watch those, so that the number of reads grows
# with the number of brokers and not with its square.
WATCHERS = 2


class Lease(msgspec.Struct, frozen=True):
    """A broker's own report. Epoch, counter and level count; the rest is for people who ask for the cluster's
    state. Unknown fields are passed over, unlike those of the log: a later version may say more here."""

    epoch: int
    counter: int
    version: int = 0
    """The entry of the metadata log that its image has come to."""
    time_ms: int = 0
    """When it said so, by its own clock."""
    complete_as_of_ms: int = 0
    """When it last knew that its image held the whole log, by its own clock."""
    level: int = 1
    """The newest feature level that it knows. It is said here and not in the log: brokers of level 1 say
    nothing, and would drop what a registration says beyond what they know."""
    flushes: int = 0
    """So many flushes of its write-ahead log are durable."""
    boot: str = ""
    """If not empty, they are durable only as long as the machine runs: while its boot has this id."""


class _Stored(Lease, frozen=True):
    checksum: int = -1
    """Of the rest. Only a whole lease proves how far the metadata log and the broker's own log reach."""


LEASE_PREFIX: Final = "live/"


def lease_key(broker: int) -> str:
    return f"{LEASE_PREFIX}{broker}"


def encode_lease(lease: Lease) -> bytes:
    return msgspec.json.encode(_Stored(**msgspec.structs.asdict(lease), checksum=_sum(lease)))


def _sum(lease: Lease) -> int:
    fields = msgspec.structs.astuple(lease)[: len(Lease.__struct_fields__)]
    return crc32(msgspec.json.encode(fields))


def decode_lease(data: bytes | None) -> Lease | None:
    """What a broker last said; None if it said nothing that can be read."""
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=Lease)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


async def whole_leases(store: ObjectStore) -> dict[str, Lease]:
    """What brokers last said, by the key of each, where nothing of it is hurt. StoreError."""
    keys = [info.key async for info in store.list(LEASE_PREFIX)]
    leases = {key: _whole(await store.get(key)) for key in keys}
    return {key: lease for key, lease in leases.items() if lease is not None}


def _whole(data: bytes | None) -> Lease | None:
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
        lease = msgspec.json.decode(data or b"", type=_Stored)
        return lease if lease.checksum == _sum(lease) else None
    return None


async def flushes_said(store: ObjectStore, wal: WalRef, boot: bytes) -> int:
    """How many flushes a log must hold, by what its broker last said. `boot`: the present one, where logs lie
    on a machine. StoreError."""
    lease = _whole(await store.get(lease_key(wal.broker)))
    if lease is None or lease.epoch != wal.epoch:
        return 0
    if lease.boot and (not any(boot) or lease.boot != boot.hex()):
        return 0  # The machine may have lost its power since.
    return lease.flushes


class _Heard(msgspec.Struct):
    epoch: int
    lease: Lease | None
    since: float
    until: float
    look_at: float = 0.0
    """When to listen again."""


class LeaseTable:
    """The heartbeats that one observer has heard from the other brokers."""

    def __init__(self, broker: int, heartbeat_interval: float, timeout: float, look_interval: float) -> None:
        """Times in seconds. `look_interval`: between looks for one that is late."""
        self._me = broker
        self._heartbeat = heartbeat_interval
        self._timeout = timeout
        self._look_interval = look_interval
        # Two heartbeats in a row were missed: such a broker no longer counts as one that watches others.
        self._doubt = 2.5 * heartbeat_interval
        self._gone_grace = min(timeout, max(GONE_SECONDS, GONE_PART * heartbeat_interval))
        self._heard: dict[int, _Heard] = {}
        self._gone: dict[int, tuple[int, float]] = {}

    def watched(self, image: ClusterImage) -> list[BrokerInfo]:
        """The brokers to listen for: everybody else for the first few, the first few for everybody else."""
        others = [info for info in image.live_brokers if info.id != self._me]
        first = [info for info in image.live_brokers if not self._is_doubtful(info)][:WATCHERS]
        if any(info.id == self._me for info in first):
            return others
        # Those in doubt are listened for by all: they may be the first few of before.
        return [info for info in others if info in first or self._is_doubtful(info)]

    def hear(self, info: BrokerInfo, lease: Lease | None, began: float, ended: float) -> None:
        """The lease of `info` was read between `began` and `ended`."""
        heard = self._heard.get(info.id)
        if heard is None or heard.epoch != info.epoch or heard.lease != lease:
            due = ended + DUE_PART * self._heartbeat
            self._heard[info.id] = _Heard(info.epoch, lease, ended, ended, due)
            return
        heard.until = max(heard.until, began)
        heard.look_at = ended + STEP_PART * self._heartbeat
        if ended - heard.since >= LATE_PART * self._heartbeat:
            heard.look_at = ended + self._look_interval
            over = heard.since + self._timeout
            if ended < over < heard.look_at:
                heard.look_at = over

    def due(self, watched: Iterable[BrokerInfo], now: float) -> list[BrokerInfo]:
        """Those of `watched` to listen for now."""
        return [info for info in watched if self._look_at(info) <= now]

    def pause(self, watched: Iterable[BrokerInfo], now: float) -> float:
        """For how many seconds there is nobody to listen for."""
        looks = [self._look_at(info) - now for info in watched]
        return min(max(0.0, min(looks, default=self._look_interval)), self._look_interval)

    def _look_at(self, info: BrokerInfo) -> float:
        heard = self._heard.get(info.id)
        return heard.look_at if heard is not None and heard.epoch == info.epoch else 0.0

    def note(self, info: BrokerInfo, gone: bool, now: float) -> None:
        """Whether the process of this incarnation has ended."""
        if not gone:
            self._gone.pop(info.id, None)
        elif self._gone.get(info.id, (-1, 0.0))[0] != info.epoch:
            self._gone[info.id] = (info.epoch, now)

    def excuse(self, now: float) -> None:
        """The store could not be read or written: whoever was silent meanwhile may not have been."""
        for heard in self._heard.values():
            heard.since = heard.until = now
            heard.look_at = now + self._look_interval

    def forget(self, live: Iterable[BrokerInfo]) -> None:
        """Keep only those that are alive."""
        ids = {info.id for info in live}
        for known in (self._heard, self._gone):
            for broker in [broker for broker in known if broker not in ids]:
                del known[broker]

    def silence(self, info: BrokerInfo) -> float:
        """For how many seconds nothing was heard from this incarnation."""
        heard = self._heard.get(info.id)
        return heard.until - heard.since if heard is not None and heard.epoch == info.epoch else 0.0

    def late(self, image: ClusterImage) -> list[BrokerInfo]:
        """The brokers whose heartbeat did not come: they may be silent for long."""
        return [info for info in image.live_brokers if self.silence(info) >= LATE_PART * self._heartbeat]

    def overdue(self, image: ClusterImage, stagger: float, now: float) -> list[BrokerInfo]:
        """The brokers that it is this observer's turn to fence.

        The lowest-numbered broker that is not itself silent goes first; each next one waits `stagger`
        longer, in case those before it do not act.
        """
        silent = {info.id: late for info in image.live_brokers if (late := self._late(info, now)) >= 0}
        rank = sum(1 for info in image.live_brokers if info.id < self._me and info.id not in silent)
        return [info for info in image.live_brokers if silent.get(info.id, -1.0) >= rank * stagger]

    def _late(self, info: BrokerInfo, now: float) -> float:
        """For how many seconds a broker is silent beyond its time; negative if it is not."""
        late = self.silence(info) - self._timeout
        epoch, since = self._gone.get(info.id, (-1, 0.0))
        if epoch == info.epoch:
            heard = self._heard.get(info.id)
            if heard is not None and heard.epoch == epoch:
                since = max(since, heard.since)
            late = max(late, now - since - self._gone_grace)
        return late

    def _is_doubtful(self, info: BrokerInfo) -> bool:
        return self.silence(info) > self._doubt
