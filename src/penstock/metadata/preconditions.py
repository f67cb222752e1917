"""When each command may be proposed, in the order of `commands`.

The proposer runs `check(image, command)` against the newest image before the command becomes part of an
entry. The answer is None or the refusal that the client is given. If others have changed the image meanwhile,
everything is decided again, never forced through.
"""

from collections.abc import Callable
from typing import Any

from penstock.metadata.access_changes import ACCESS_CHECKS
from penstock.metadata.commands import (
    LEVEL_OF,
    AdvanceLogStart,
    AllocateProducerIds,
    AnyCommand,
    AssignLeaders,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    FenceBroker,
    LeaderMove,
    MoveLeader,
    RegisterBroker,
    RemoveBroker,
    RepairPartition,
    SetConfig,
    SetLevel,
    SetReplicas,
    SettlePartitions,
)
from penstock.metadata.image import (
    BROKER_CONFIG,
    GROUP_CONFIG,
    TOPIC_CONFIG,
    BrokerInfo,
    ClusterImage,
    PartitionInfo,
    PartitionKey,
    WalRef,
)
from penstock.metadata.levels import FEATURE, LEVEL_MAX
from penstock.metadata.names import check_new_topic_name
from penstock.metadata.refusal import Refusal
from penstock.wire.errors import ErrorCode

PRODUCER_ID_MAX = 2**63 - 1


def check(image: ClusterImage, command: AnyCommand) -> Refusal | None:
    """Why `command` may not follow `image`, or None."""
    needed = LEVEL_OF.get(type(command), image.level)
    if needed > image.level:
        message = (
            f"This needs feature level {needed}, and the cluster is at {image.level}: raise it with "
            "`penstock cluster upgrade` once every broker runs this version."
        )
        return Refusal(ErrorCode.UNSUPPORTED_VERSION, message)
    refusal: Refusal | None = _CHECKS[type(command)](image, command)
    return refusal


def register_broker(image: ClusterImage, command: RegisterBroker) -> Refusal | None:
    if command.broker < 0:
        return Refusal(ErrorCode.INVALID_REQUEST, f"Broker id {command.broker} is negative.")
    if not command.listeners:
        return Refusal(ErrorCode.INVALID_REQUEST, f"Broker {command.broker} has no listener.")
    old = image.brokers.get(command.broker)
    found = -1 if old is None else old.epoch
    if found != command.previous_epoch:
        return _stale_broker(command.broker, command.previous_epoch, found)
    if old is not None and not old.fenced and command.sealed is None:
        message = f"The log of broker {command.broker} in epoch {found} was not sealed."
        return Refusal(ErrorCode.DUPLICATE_BROKER_REGISTRATION, message)
    return None


def fence_broker(image: ClusterImage, command: FenceBroker) -> Refusal | None:
    return _check_flush_count(command.flush_count) or _check_current(image, command.broker, command.epoch)


def remove_broker(image: ClusterImage, command: RemoveBroker) -> Refusal | None:
    info = _registered(image, command.broker)
    if isinstance(info, Refusal):
        return info
    if info.epoch != command.epoch:
        return _stale_broker(command.broker, command.epoch, info.epoch)
    if not info.fenced:
        return _check_flush_count(-1 if command.flush_count is None else command.flush_count)
    return None


def assign_leaders(image: ClusterImage, command: AssignLeaders) -> Refusal | None:
    seen: set[PartitionKey] = set()
    for move in command.moves:
        if (move.topic_id, move.partition) in seen:
            return Refusal(ErrorCode.INVALID_REQUEST, "A partition is moved twice.")
        seen.add((move.topic_id, move.partition))
        refusal = _check_move(image, command, move)
        if refusal is not None:
            return refusal
    return None


def _check_move(image: ClusterImage, command: AssignLeaders, move: LeaderMove) -> Refusal | None:
    partition = _partition(image, move.topic_id, move.partition)
    if isinstance(partition, Refusal):
        return partition
    if partition.leader_epoch != move.leader_epoch:
        return _stale_leader(move.leader_epoch, partition)
    if not image.is_live(move.leader):
        return Refusal(ErrorCode.BROKER_NOT_AVAILABLE, f"Broker {move.leader} is not alive.")
    if image.is_live(partition.leader):
        # Its write-ahead log is not sealed, so only the leader knows that nothing more comes.
        if partition.leader != command.broker or not move.settled:
            message = f"Broker {partition.leader} is alive and leads the partition; it must hand it over."
            return Refusal(ErrorCode.INVALID_REQUEST, message)
        return _check_current(image, command.broker, command.epoch)
    if move.settled:
        message = "Only the leader of a partition can say that all of it is settled."
        return Refusal(ErrorCode.INVALID_REQUEST, message)
    return None


def move_leader(image: ClusterImage, command: MoveLeader) -> Refusal | None:
    partition = _partition(image, command.topic_id, command.partition)
    if isinstance(partition, Refusal):
        return partition
    if partition.leader_epoch != command.leader_epoch:
        return _stale_leader(command.leader_epoch, partition)
    if not image.is_live(partition.leader):
        return Refusal(ErrorCode.LEADER_NOT_AVAILABLE, "The partition has no leader to hand it over.")
    if partition.leader == command.leader:
        message = f"Broker {command.leader} leads the partition already."
        return Refusal(ErrorCode.ELECTION_NOT_NEEDED, message)
    if not image.is_live(command.leader):
        return Refusal(ErrorCode.BROKER_NOT_AVAILABLE, f"Broker {command.leader} is not alive.")
    return None


def set_replicas(image: ClusterImage, command: SetReplicas) -> Refusal | None:
    partition = _partition(image, command.topic_id, command.partition)
    if isinstance(partition, Refusal):
        return partition
    return check_assignment(image, command.partition, command.replicas)


def create_topic(image: ClusterImage, command: CreateTopic) -> Refusal | None:
    refusal = check_new_topic_name(image, command.name)
    if refusal is not None:
        return refusal
    if command.topic_id in image.names:
        return Refusal(ErrorCode.INVALID_REQUEST, "The topic id is in use.")
    if not command.replicas:
        message = "Number of partitions was set to an invalid non-positive value."
        return Refusal(ErrorCode.INVALID_PARTITIONS, message)
    refusal = _check_configs(TOPIC_CONFIG, command.configs) if command.configs else None
    return refusal or _check_assignments(image, 0, command.replicas, None)


def delete_topic(image: ClusterImage, command: DeleteTopic) -> Refusal | None:
    if command.topic_id not in image.names:
        return Refusal(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
    return None


def create_partitions(image: ClusterImage, command: CreatePartitions) -> Refusal | None:
    topic = image.topic_by_id(command.topic_id)
    if topic is None:
        return Refusal(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
    if command.first != len(topic.partitions):
        message = f"The topic {topic.name} has {len(topic.partitions)} partition(s), not {command.first}."
        return Refusal(ErrorCode.INVALID_PARTITIONS, message)
    if not command.replicas:
        message = f"Topic already has {len(topic.partitions)} partition(s)."
        return Refusal(ErrorCode.INVALID_PARTITIONS, message)
    factor = len(topic.partitions[0].replicas)
    return _check_assignments(image, command.first, command.replicas, factor)


def set_config(image: ClusterImage, command: SetConfig) -> Refusal | None:
    if command.resource_type == TOPIC_CONFIG:
        if command.name not in image.topics:
            return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{command.name}' does not exist.")
    elif command.resource_type == BROKER_CONFIG:
        if command.name and not (command.name.isdecimal() and int(command.name) in image.brokers):
            return Refusal(ErrorCode.INVALID_REQUEST, f"Broker {command.name} is not registered.")
    elif command.resource_type == GROUP_CONFIG:
        if not command.name:
            return Refusal(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
    else:
        return Refusal(ErrorCode.INVALID_REQUEST, f"Resource type {command.resource_type} has no settings.")
    values = dict(image.config(command.resource_type, command.name))
    for name, value in command.changes.items():
        if value is None:
            values.pop(name, None)
        else:
            values[name] = value
    return _check_configs(command.resource_type, values)


def allocate_producer_ids(image: ClusterImage, command: AllocateProducerIds) -> Refusal | None:
    if command.first != image.next_producer_id:
        message = f"The next producer id is {image.next_producer_id}, not {command.first}."
        return Refusal(ErrorCode.INVALID_REQUEST, message)
    if command.count <= 0 or command.first + command.count > PRODUCER_ID_MAX:
        return Refusal(ErrorCode.INVALID_REQUEST, f"There are no {command.count} producer ids to give.")
    return _check_current(image, command.broker, command.epoch)


def settle_partitions(image: ClusterImage, command: SettlePartitions) -> Refusal | None:
    refusal = _check_current(image, command.broker, command.epoch)
    own = WalRef(command.broker, command.epoch)
    if refusal is None and command.wal_start is not None and command.wal_start < image.wal_starts.get(own, 0):
        refusal = Refusal(ErrorCode.INVALID_REQUEST, "The start of a write-ahead log cannot go back.")
    for settled in command.partitions:
        if refusal is not None:
            break
        partition = _led(image, command.broker, settled.topic_id, settled.partition, settled.leader_epoch)
        if isinstance(partition, Refusal):
            refusal = partition
        elif own in settled.dropped:
            refusal = Refusal(ErrorCode.INVALID_REQUEST, "A leader still writes to its own log.")
        elif settled.log_start is not None and settled.log_start < partition.log_start:
            refusal = _log_start_back(settled.log_start, partition)
    return refusal


def advance_log_start(image: ClusterImage, command: AdvanceLogStart) -> Refusal | None:
    refusal = _check_current(image, command.broker, command.epoch)
    for item in command.partitions:
        if refusal is not None:
            break
        partition = _led(image, command.broker, item.topic_id, item.partition, item.leader_epoch)
        if isinstance(partition, Refusal):
            refusal = partition
        elif item.log_start < partition.log_start:
            refusal = _log_start_back(item.log_start, partition)
    return refusal


def set_level(image: ClusterImage, command: SetLevel) -> Refusal | None:
    problem = None
    if command.level > LEVEL_MAX:
        problem = f"This broker only supports versions 1-{LEVEL_MAX}."
    elif command.level < image.level:
        problem = (
            f"It is at {image.level}, and what was written since cannot be read by brokers of a lower level."
        )
    elif command.level == image.level:
        problem = "It is there already."
    for info in image.live_brokers:
        if problem is None and info.wal not in command.readers:
            problem = f"Broker {info.id} does not support it."
    if problem is None:
        return None
    message = f"Invalid update version {command.level} for feature {FEATURE}. {problem}"
    return Refusal(ErrorCode.INVALID_UPDATE_VERSION, message)


def repair_partition(image: ClusterImage, command: RepairPartition) -> Refusal | None:
    partition = _partition(image, command.topic_id, command.partition)
    if isinstance(partition, Refusal):
        return partition
    if partition.manifest != command.base:
        message = "The partition was settled, merged or cleaned meanwhile; look at it again."
        return Refusal(ErrorCode.INVALID_UPDATE_VERSION, message)
    return None


def check_assignment(
    image: ClusterImage, index: int, replicas: tuple[int, ...], factor: int | None = None
) -> Refusal | None:
    """Whether brokers may be the failover order of partition `index`, in Kafka's order and words."""
    problem = None
    ordered = sorted(replicas)
    if not replicas:
        problem = "The manual partition assignment includes an empty replica list."
    for at, broker in enumerate(ordered):
        if broker not in image.brokers:
            problem = (
                f"The manual partition assignment includes broker {broker}, but no such broker is registered."
            )
        elif at and ordered[at - 1] == broker:
            problem = f"The manual partition assignment includes the broker {broker} more than once."
        if problem is not None:
            break
    if problem is None and factor is not None and len(replicas) != factor:
        problem = (
            f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this "
            f"is not consistent with previous partitions, which have {factor} replica(s)."
        )
    if problem is None and not any(image.is_live(broker) for broker in replicas):
        problem = (
            f"All brokers specified in the manual partition assignment for partition {index} are fenced or "
            f"in controlled shutdown."
        )
    return None if problem is None else Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)


def _check_assignments(
    image: ClusterImage, first: int, assignments: tuple[tuple[int, ...], ...], factor: int | None
) -> Refusal | None:
    for index, replicas in enumerate(assignments, first):
        refusal = check_assignment(image, index, replicas, factor)
        if refusal is not None:
            return refusal
        factor = len(replicas)
    return None


def _check_configs(resource_type: int, values: dict[str, str]) -> Refusal | None:
    from penstock.metadata.config_changes import problem_code, settings_problem

    problem = settings_problem(resource_type, values)
    return None if problem is None else Refusal(problem_code(resource_type), problem)


def _check_flush_count(flush_count: int) -> Refusal | None:
    if flush_count < 0:
        return Refusal(ErrorCode.INVALID_REQUEST, "The broker's log was not sealed.")
    return None


def _registered(image: ClusterImage, broker: int) -> BrokerInfo | Refusal:
    info = image.brokers.get(broker)
    if info is None:
        return Refusal(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {broker} is not currently registered")
    return info


def _check_current(image: ClusterImage, broker: int, epoch: int) -> Refusal | None:
    """Whether the incarnation holds its lease."""
    info = _registered(image, broker)
    if isinstance(info, Refusal):
        return info
    if info.epoch != epoch:
        return _stale_broker(broker, epoch, info.epoch)
    if info.fenced:
        return Refusal(ErrorCode.STALE_BROKER_EPOCH, f"Broker {broker} was fenced in epoch {epoch}.")
    return None


def _partition(image: ClusterImage, topic_id: bytes, index: int) -> PartitionInfo | Refusal:
    if topic_id not in image.names:
        return Refusal(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
    partition = image.partition(topic_id, index)
    if partition is None:
        message = f"Topic {image.names[topic_id]} has no partition {index}."
        return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
    return partition


def _led(
    image: ClusterImage, broker: int, topic_id: bytes, index: int, leader_epoch: int
) -> PartitionInfo | Refusal:
    partition = _partition(image, topic_id, index)
    if isinstance(partition, Refusal):
        return partition
    if partition.leader != broker:
        message = f"Broker {broker} does not lead the partition; broker {partition.leader} does."
        return Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)
    if partition.leader_epoch != leader_epoch:
        return _stale_leader(leader_epoch, partition)
    return partition


def _stale_broker(broker: int, epoch: int, found: int) -> Refusal:
    return Refusal(ErrorCode.STALE_BROKER_EPOCH, f"Broker {broker} is in epoch {found}, not {epoch}.")


def _stale_leader(leader_epoch: int, partition: PartitionInfo) -> Refusal:
    message = f"The partition is in leader epoch {partition.leader_epoch}, not {leader_epoch}."
    return Refusal(ErrorCode.FENCED_LEADER_EPOCH, message)


def _log_start_back(log_start: int, partition: PartitionInfo) -> Refusal:
    message = f"The log starts at {partition.log_start} and cannot go back to {log_start}."
    return Refusal(ErrorCode.OFFSET_OUT_OF_RANGE, message)


_CHECKS: dict[type[Any], Callable[[ClusterImage, Any], Refusal | None]] = {
    RegisterBroker: register_broker,
    FenceBroker: fence_broker,
    RemoveBroker: remove_broker,
    AssignLeaders: assign_leaders,
    MoveLeader: move_leader,
    SetReplicas: set_replicas,
    CreateTopic: create_topic,
    DeleteTopic: delete_topic,
    CreatePartitions: create_partitions,
    SetConfig: set_config,
    AllocateProducerIds: allocate_producer_ids,
    SettlePartitions: settle_partitions,
    AdvanceLogStart: advance_log_start,
    SetLevel: set_level,
    RepairPartition: repair_partition,
    **ACCESS_CHECKS,
}
