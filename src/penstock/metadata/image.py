"""The cluster as one immutable value.

Everything a broker says about the cluster is computed from one `ClusterImage`: the fold of the metadata
log up to entry `version`. Two brokers at the same version hold equal images.

An image is never changed. A new one shares every part that did not change with the one before it, by
identity: `new.topics[name] is old.topics[name]` says that nothing about that topic changed, so whatever
was computed from it (an encoded Metadata answer, typed configs) may be kept. The mappings are plain
dicts for speed; nobody writes to them after the image was built.

Terms. A broker's *epoch* is the number of the log entry that registered it. An *incarnation* is one
registration of one broker: (broker, epoch), and it owns exactly one write-ahead log, named by a `WalRef`.
A partition's *leader epoch* grows by one each time it gets a leader, be it another broker or a new
incarnation of the same one. `replicas` is the failover order; storage is shared, so any broker may lead
any partition, and the first live broker of that order is the preferred one.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, NamedTuple

import msgspec

from penstock.metadata.access import AccessRule, DelegationToken, QuotaEntity, ScramCredential

NO_LEADER = -1
NO_CONTROLLER = -1

# Kafka's ConfigResource types, as they travel in DescribeConfigs and AlterConfigs.
TOPIC_CONFIG = 2
BROKER_CONFIG = 4
BROKER_LOGGER_CONFIG = 8
CLIENT_METRICS_CONFIG = 16
GROUP_CONFIG = 32

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset((OFFSETS_TOPIC, TRANSACTIONS_TOPIC))

PartitionKey = tuple[bytes, int]
"""The id of a topic, and which of its partitions."""


class Listener(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An address at which clients reach a broker."""

    name: str
    host: str
    port: int
    protocol: str = "PLAINTEXT"


class BrokerInfo(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One registered broker. A fenced one is remembered but leads nothing and is not listed as alive."""

    id: int
    epoch: int
    listeners: tuple[Listener, ...]
    rack: str | None = None
    fenced: bool = False
    incarnation: str = ""

    def listener(self, name: str) -> Listener | None:
        """Where clients of the listener called `name` reach this broker, or None if it has no such one."""
        for listener in self.listeners:
            if listener.name == name:
                return listener
        return None

    @property
    def wal(self) -> "WalRef":
        return WalRef(self.id, self.epoch)


class WalRef(msgspec.Struct, frozen=True, array_like=True, order=True, forbid_unknown_fields=True):
    """The write-ahead log of one incarnation."""

    broker: int
    epoch: int


class ManifestRef(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where a partition's manifest lies: `length` bytes from `start` of the object `key`."""

    key: str
    start: int
    length: int


class PartitionInfo(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One partition.

    `wals` are the incarnations whose log may hold records of this partition that its manifest does not
    cover, oldest first; while the partition has a leader, the leader's own is last. Records are read
    from the manifest, then from those logs in that order.
    """

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    log_start: int = 0
    manifest: ManifestRef | None = None
    wals: tuple[WalRef, ...] = ()


class TopicInfo(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One topic. `pinned`: a user chose the replicas, so balancing leaves their order alone."""

    id: bytes
    name: str
    partitions: tuple[PartitionInfo, ...]
    pinned: bool = False

    @property
    def internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


class PendingMove(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A partition that its leader, which is alive, is asked to hand to another broker.

    `leader` is the broker that should lead it. NO_LEADER means the first live broker of its failover order,
    which was changed to one without its leader; `former` is then the order before that. A cancellation
    returns to it.
    """

    leader: int
    former: tuple[int, ...] = ()


class ListedBy(NamedTuple):
    """The values of a mapping know their keys, so a snapshot lists the values alone."""

    key: str


class StoredImage(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the image that snapshots hold. A field that is added here, with a default, is stored and
    drafted like the others; it only needs its commands besides.

    A mapping is stored as the list of its values (`ListedBy`), or of its items as flat tuples.
    """

    version: int = 0
    cluster_id: str = ""
    next_producer_id: int = 0
    brokers: Annotated[Mapping[int, BrokerInfo], ListedBy("id")] = {}
    topics: Annotated[Mapping[str, TopicInfo], ListedBy("name")] = {}
    configs: Mapping[tuple[int, str], Mapping[str, str]] = {}
    sealed: Mapping[WalRef, int] = {}
    """The agreed number of flushes of each sealed log that some partition still needs. What a woken
    broker appended beyond it was never acknowledged and is never read."""
    wal_starts: Mapping[WalRef, int] = {}
    """Per log still needed, how many of its leading flushes hold nothing unsettled (0 if absent)."""
    moves: Mapping[PartitionKey, PendingMove] = {}
    """By topic id and partition, what leaders are asked to hand over. Forgotten when the leader changes."""
    level: int = 1
    """The feature level: what all brokers of the cluster can read, and so what any of them may write."""
    level_since: int = 0
    """The entry that set the level; 0: it is the first one."""
    access_rules: Annotated[Mapping[AccessRule, AccessRule], ListedBy("itself")] = {}
    credentials: Mapping[tuple[str, int], ScramCredential] = {}
    """By user and mechanism."""
    quotas: Mapping[QuotaEntity, Mapping[str, float]] = {}
    """By entity (`QuotaEntity`) and key."""
    tokens: Annotated[Mapping[str, DelegationToken], ListedBy("token_id")] = {}


class ClusterImage(StoredImage, frozen=True, kw_only=True):
    """The cluster after entry `version` of the metadata log.

    The fields that this class adds follow from those that are stored, and are kept so that no question about
    the cluster needs a walk over all partitions; `derive` in this module is their definition.
    """

    names: Mapping[bytes, str] = {}
    """The names of topics by their ids."""
    live_brokers: tuple[BrokerInfo, ...] = ()
    """The brokers that hold their lease, by id. Exactly these are listed to clients."""
    leader_counts: Mapping[int, int] = {}
    """How many partitions each broker leads; a broker that leads none may be absent."""
    wal_uses: Mapping[WalRef, int] = {}
    """How many partitions name each write-ahead log."""
    folded_names: Mapping[str, str] = {}
    """Topic names that have '.' or '_', by their form with '.' written as '_'. No two may share one."""

    @property
    def controller_id(self) -> int:
        """The lowest-numbered live broker, or -1 while nobody is alive."""
        return self.live_brokers[0].id if self.live_brokers else NO_CONTROLLER

    def topic(self, name: str) -> TopicInfo | None:
        return self.topics.get(name)

    def topic_by_id(self, topic_id: bytes) -> TopicInfo | None:
        name = self.names.get(topic_id)
        return None if name is None else self.topics[name]

    def partition(self, topic_id: bytes, index: int) -> PartitionInfo | None:
        topic = self.topic_by_id(topic_id)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return topic.partitions[index]

    def is_live(self, broker: int) -> bool:
        info = self.brokers.get(broker)
        return info is not None and not info.fenced

    def is_current(self, broker: int, epoch: int) -> bool:
        """Whether this incarnation is the broker's present one and holds its lease."""
        info = self.brokers.get(broker)
        return info is not None and info.epoch == epoch and not info.fenced

    def leads(self, broker: int, epoch: int, topic_id: bytes, index: int, leader_epoch: int) -> bool:
        """Whether this incarnation leads the partition in this leader epoch."""
        if not self.is_current(broker, epoch):
            return False
        partition = self.partition(topic_id, index)
        return partition is not None and partition.leader == broker and partition.leader_epoch == leader_epoch

    def config(self, resource_type: int, name: str) -> Mapping[str, str]:
        """The dynamic settings of one resource; the broker named "" is the default of all brokers."""
        return self.configs.get((resource_type, name), _NO_CONFIG)

    def broker_configs(self, broker: int) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """The dynamic settings of one broker, and those of all brokers."""
        return self.config(BROKER_CONFIG, str(broker)), self.config(BROKER_CONFIG, "")

    def shown_replicas(self, partition: PartitionInfo) -> tuple[int, ...]:
        """What clients are told: the failover order, with a leader from outside of it in front.

        That happens only when no broker of the order is alive and another one took over.
        """
        leader = partition.leader
        if leader == NO_LEADER or leader in partition.replicas:
            return partition.replicas
        return (leader, *partition.replicas)

    def isr(self, partition: PartitionInfo) -> tuple[int, ...]:
        """The live brokers of `shown_replicas`."""
        return tuple(broker for broker in self.shown_replicas(partition) if self.is_live(broker))

    def offline_replicas(self, partition: PartitionInfo) -> tuple[int, ...]:
        return tuple(broker for broker in partition.replicas if not self.is_live(broker))


_NO_CONFIG: Mapping[str, str] = {}


def fold_name(name: str) -> str:
    """The form in which topic names must differ."""
    return name.replace(".", "_")


def has_fold(name: str) -> bool:
    """Whether another name could have the same folded form."""
    return "." in name or "_" in name


def live(brokers: Iterable[BrokerInfo]) -> tuple[BrokerInfo, ...]:
    return tuple(sorted((b for b in brokers if not b.fenced), key=lambda b: b.id))


def derive(image: ClusterImage) -> ClusterImage:
    """The image with every derived field computed from scratch: for snapshots, and to check `apply`."""
    leader_counts: dict[int, int] = {}
    wal_uses: dict[WalRef, int] = {}
    for topic in image.topics.values():
        for partition in topic.partitions:
            if partition.leader != NO_LEADER:
                leader_counts[partition.leader] = leader_counts.get(partition.leader, 0) + 1
            for wal in partition.wals:
                wal_uses[wal] = wal_uses.get(wal, 0) + 1
    return msgspec.structs.replace(
        image,
        names={topic.id: name for name, topic in image.topics.items()},
        live_brokers=live(image.brokers.values()),
        leader_counts=leader_counts,
        wal_uses=wal_uses,
        folded_names={fold_name(name): name for name in image.topics if has_fold(name)},
    )
