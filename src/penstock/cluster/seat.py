"""One incarnation's place in the cluster: heartbeats, the watch over others and balancing share it."""

from typing import NamedTuple, Protocol

from penstock.clock import Clock
from penstock.cluster.metadata_log import MetadataLog
from penstock.metadata.image import ClusterImage, WalRef
from penstock.storage.stores.objects import ObjectStore


class Times(NamedTuple):
    """In seconds."""

    session_timeout: float = 9.0
    heartbeat_interval: float = 1.0
    balance_interval: float | None = 5.0
    """None: leaders are not moved back."""


class Logs(Protocol):
    """The write-ahead logs of all brokers, as far as a broker that replaces another needs them."""

    boot: str
    """If not empty, what is durable in them is so only while the machine's boot has this id."""

    async def seal(self, broker: int, epoch: int) -> int:
        """After it returns, nobody can acknowledge a write to that incarnation's log. Returns how many
        flushes the log holds. May be called again, and by several brokers at once."""

    async def read_ahead(self, broker: int, epoch: int) -> None:
        """That incarnation may soon be replaced: read now what a takeover would wait for."""


class ProcessTable(Protocol):
    """Which broker processes run on this machine. Only for speed."""

    def announce(self, broker: int, epoch: int) -> None:
        """From now on this incarnation can be seen to run, until it ends."""

    def withdraw(self) -> None:
        """It need not be seen any more."""

    def is_gone(self, broker: int, epoch: int) -> bool:
        """Whether an incarnation's process has ended. False also if that cannot be told."""

    def forget(self, broker: int, epoch: int) -> None:
        """That incarnation is known to be over."""


class Seat:
    def __init__(
        self,
        broker: int,
        log: MetadataLog,
        store: ObjectStore,
        clock: Clock,
        logs: Logs,
        times: Times,
        processes: ProcessTable | None = None,
    ) -> None:
        """`store` is where leases are. `processes`: where all brokers are processes of one machine."""
        self.broker = broker
        self.epoch = -1
        """-1: not registered yet."""
        self.log = log
        self.store = store
        self.clock = clock
        self.logs = logs
        self.times = times
        self.processes = processes

    @property
    def own(self) -> WalRef:
        return WalRef(self.broker, self.epoch)

    def is_taken(self, image: ClusterImage) -> bool:
        """Whether this incarnation still holds its lease."""
        return image.is_current(self.broker, self.epoch)
