"""The commands that change the cluster: every entry of the metadata log is a sequence of these.

Each command has its precondition under the same name in `preconditions` and its effect under the same name in
`apply`, in the same order. Commands say what was decided, never how to decide: placement and validation
happen before a command is proposed, so replaying an old log under newer code gives the same image.

A field may be added at the end with a default, and with a feature level of its own (`levels`): below it the
field keeps its default, because a broker that does not know it refuses the entry. A field is never removed
and never changes its meaning. A kind of command that is newer than level 1 names its level in `LEVEL_OF`.
"""

import msgspec

from penstock.metadata.access import AccessRule, DelegationToken, ScramCredential
from penstock.metadata.image import Listener, ManifestRef, WalRef
from penstock.metadata.levels import SECURITY_FROM


class Command(msgspec.Struct, frozen=True, tag_field="kind", omit_defaults=True, forbid_unknown_fields=True):
    """The base of all commands."""


class RegisterBroker(Command, frozen=True, tag="register_broker"):
    """A new incarnation of `broker` takes its lease.

    Its epoch is the number of the entry. `previous_epoch` is the registration that it replaces (-1:
    none), and `sealed` the number of flushes in that incarnation's sealed log, unless it was sealed
    before. The new incarnation keeps what the old one led and takes every partition without a leader.
    """

    broker: int
    listeners: tuple[Listener, ...]
    rack: str | None = None
    incarnation: str = ""
    previous_epoch: int = -1
    sealed: int | None = None


class FenceBroker(Command, frozen=True, tag="fence_broker"):
    """An incarnation lost its lease. Its log was sealed before and holds `flush_count` flushes."""

    broker: int
    epoch: int
    flush_count: int


class RemoveBroker(Command, frozen=True, tag="remove_broker"):
    """A broker leaves and is forgotten.

    `flush_count` is that of its sealed log. It is None for a broker that was fenced before: its count is
    known. Here and above, if all flushes of a log are settled (`wal_start` of SettlePartitions), no partition
    needs it any more.
    """

    broker: int
    epoch: int
    flush_count: int | None = None


class LeaderMove(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One partition gets a leader. `leader_epoch` is the one that ends.

    A partition whose leader is alive is given away by that leader only, `settled`: it stopped
    accepting, and `manifest` covers every record. `replicas` changes the failover order with it.
    """

    topic_id: bytes
    partition: int
    leader_epoch: int
    leader: int
    settled: bool = False
    manifest: ManifestRef | None = None
    replicas: tuple[int, ...] | None = None


class AssignLeaders(Command, frozen=True, tag="assign_leaders"):
    """Leadership moves. Proposed by the incarnation (broker, epoch)."""

    broker: int
    epoch: int
    moves: tuple[LeaderMove, ...]


class MoveLeader(Command, frozen=True, tag="move_leader"):
    """The leader of a partition, alive, is asked to hand it to `leader`. It does so by AssignLeaders."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    leader: int


class SetReplicas(Command, frozen=True, tag="set_replicas"):
    """The failover order of one partition changes. A leader that is not in it is asked to hand over."""

    topic_id: bytes
    partition: int
    replicas: tuple[int, ...]


class CreateTopic(Command, frozen=True, tag="create_topic"):
    """A topic appears, one failover order per partition. `pinned`: a user chose them."""

    topic_id: bytes
    name: str
    replicas: tuple[tuple[int, ...], ...]
    configs: dict[str, str] = {}
    pinned: bool = False


class DeleteTopic(Command, frozen=True, tag="delete_topic"):
    topic_id: bytes


class CreatePartitions(Command, frozen=True, tag="create_partitions"):
    """Partitions `first`, `first` + 1, ... appear, one failover order each."""

    topic_id: bytes
    first: int
    replicas: tuple[tuple[int, ...], ...]


class SetConfig(Command, frozen=True, tag="set_config"):
    """Dynamic settings of one resource change; None removes one, so that its default holds again."""

    resource_type: int
    name: str
    changes: dict[str, str | None]


class AllocateProducerIds(Command, frozen=True, tag="allocate_producer_ids"):
    """The ids `first` to `first + count - 1` belong to the incarnation (broker, epoch) alone."""

    broker: int
    epoch: int
    first: int
    count: int


class Settled(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a leader settled of one partition.

    `manifest` replaces the manifest (None: it stays, because the dropped logs held nothing of this
    partition). `dropped` are logs of earlier incarnations that the partition no longer needs.
    """

    topic_id: bytes
    partition: int
    leader_epoch: int
    manifest: ManifestRef | None = None
    dropped: tuple[WalRef, ...] = ()
    log_start: int | None = None


class SettlePartitions(Command, frozen=True, tag="settle_partitions"):
    """Records moved from write-ahead logs into segments, for partitions that (broker, epoch) leads.

    `wal_start`: that many leading flushes of the incarnation's own log hold nothing unsettled now.
    """

    broker: int
    epoch: int
    partitions: tuple[Settled, ...]
    wal_start: int | None = None


class LogStart(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    topic_id: bytes
    partition: int
    leader_epoch: int
    log_start: int


class AdvanceLogStart(Command, frozen=True, tag="advance_log_start"):
    """Records below `log_start` are gone, for partitions that (broker, epoch) leads."""

    broker: int
    epoch: int
    partitions: tuple[LogStart, ...]


class SetLevel(Command, frozen=True, tag="set_level"):
    """The feature level rises. `readers` are the incarnations that said that they can read it: all that are
    alive, or nobody could tell that one of them did not."""

    level: int
    readers: tuple[WalRef, ...] = ()


class RepairPartition(Command, frozen=True, tag="repair_partition"):
    """The hurt parts of a partition were healed, or cut out. `manifest` differs from `base` only in where
    records lie and which of them are there. It ends at the same offset, with the same state.

    A repair of the store proposes it, whether the partition has a leader or not. A leader goes on from the
    new manifest.
    """

    topic_id: bytes
    partition: int
    base: ManifestRef
    manifest: ManifestRef


class SetAcls(Command, frozen=True, tag="set_acls"):
    """These access rules hold. Those that held before hold on."""

    rules: tuple[AccessRule, ...]


class RemoveAcls(Command, frozen=True, tag="remove_acls"):
    """These access rules hold no longer, if they did."""

    rules: tuple[AccessRule, ...]


class SetScramCredential(Command, frozen=True, tag="set_scram_credential"):
    """A user gets a password for a mechanism, or another one."""

    user: str
    mechanism: int
    credential: ScramCredential


class RemoveScramCredential(Command, frozen=True, tag="remove_scram_credential"):
    user: str
    mechanism: int


class SetQuota(Command, frozen=True, tag="set_quota"):
    """Quotas of one entity change; None removes one. The entity is a user, a client id, both, or an address;
    "" is the default of a kind."""

    user: str | None
    client_id: str | None
    address: str | None
    changes: dict[str, float | None]


class SetDelegationToken(Command, frozen=True, tag="set_delegation_token"):
    """A delegation token appears, or gets another time to expire at.

    `base_ms` is the time at which the token that this one was made from expires; -1: it is a new one.
    """

    token: DelegationToken
    base_ms: int = -1


class RemoveDelegationToken(Command, frozen=True, tag="remove_delegation_token"):
    token_id: str


AnyCommand = (
    RegisterBroker
    | FenceBroker
    | RemoveBroker
    | AssignLeaders
    | MoveLeader
    | SetReplicas
    | CreateTopic
    | DeleteTopic
    | CreatePartitions
    | SetConfig
    | AllocateProducerIds
    | SettlePartitions
    | AdvanceLogStart
    | SetLevel
    | RepairPartition
    | SetAcls
    | RemoveAcls
    | SetScramCredential
    | RemoveScramCredential
    | SetQuota
    | SetDelegationToken
    | RemoveDelegationToken
)

ACCESS_COMMANDS: tuple[type[Command], ...] = (
    SetAcls,
    RemoveAcls,
    SetScramCredential,
    RemoveScramCredential,
    SetQuota,
    SetDelegationToken,
    RemoveDelegationToken,
)
"""Their preconditions and effects are side by side in `access_changes`."""

LEVEL_OF: dict[type[Command], int] = {RepairPartition: 2, **dict.fromkeys(ACCESS_COMMANDS, SECURITY_FROM)}
"""The feature level from which a kind of command may be written; those that are not here may be at any level.
SetLevel is one of these: its entry is in the frame of the new level, which brokers below it refuse."""
