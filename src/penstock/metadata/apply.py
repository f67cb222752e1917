"""The effect of each command, in the order of `commands`. Pure, total, and the same for ever.

A command that `preconditions` allowed is applied without a question: entry n+1 was checked against the very
image that entry n left, because only one entry n+1 can be created. So the code here never refuses, and old
entries keep their meaning whatever later preconditions demand.
"""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from penstock.metadata.access_changes import ACCESS_EFFECTS
from penstock.metadata.commands import (
    AdvanceLogStart,
    AllocateProducerIds,
    AnyCommand,
    AssignLeaders,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    FenceBroker,
    MoveLeader,
    RegisterBroker,
    RemoveBroker,
    RepairPartition,
    SetConfig,
    SetLevel,
    SetReplicas,
    SettlePartitions,
)
from penstock.metadata.draft import Draft
from penstock.metadata.image import (
    NO_LEADER,
    TOPIC_CONFIG,
    BrokerInfo,
    ClusterImage,
    PartitionInfo,
    PendingMove,
    TopicInfo,
    WalRef,
)


def apply(image: ClusterImage, command: AnyCommand) -> ClusterImage:
    """The image after an entry that holds this one command."""
    return apply_entry(image, (command,))


def apply_entry(image: ClusterImage, commands: Sequence[AnyCommand]) -> ClusterImage:
    """The image after the next entry, which holds these commands."""
    draft = Draft(image)
    apply_to(draft, commands)
    return draft.image()


def apply_to(draft: Draft, commands: Sequence[AnyCommand]) -> None:
    """Carry out the next entry on a draft: for a tail of many entries."""
    draft.version += 1
    for command in commands:
        perform(draft, command)


def perform(draft: Draft, command: AnyCommand) -> None:
    """Carry out one command of the entry whose number is `draft.version`."""
    _EFFECTS[type(command)](draft, command)


def register_broker(draft: Draft, command: RegisterBroker) -> None:
    old = draft.broker(command.broker)
    draft.put_broker(
        BrokerInfo(
            id=command.broker,
            epoch=draft.version,
            listeners=command.listeners,
            rack=command.rack,
            fenced=False,
            incarnation=command.incarnation,
        )
    )
    empty = None
    if old is not None and not old.fenced and command.sealed is not None:
        empty = _seal(draft, old.wal, command.sealed)
    wal = draft.wal_of(command.broker)
    for name in draft.topic_names():
        for index, partition in enumerate(draft.partitions(name)):
            wals = _without(partition.wals, empty)
            if partition.leader in (command.broker, NO_LEADER):
                draft.put_partition(name, index, _led_by(partition, command.broker, (*wals, wal)))
            elif wals is not partition.wals:
                draft.put_partition(name, index, replace(partition, wals=wals))


def fence_broker(draft: Draft, command: FenceBroker) -> None:
    info = draft.broker(command.broker)
    assert info is not None
    draft.put_broker(replace(info, fenced=True))
    _leave_leaderless(draft, command.broker, _seal(draft, info.wal, command.flush_count))


def remove_broker(draft: Draft, command: RemoveBroker) -> None:
    info = draft.broker(command.broker)
    assert info is not None
    empty = None
    if not info.fenced and command.flush_count is not None:
        empty = _seal(draft, info.wal, command.flush_count)
    draft.drop_broker(command.broker)
    _leave_leaderless(draft, command.broker, empty)


def assign_leaders(draft: Draft, command: AssignLeaders) -> None:
    for move in command.moves:
        name = draft.topic_name(move.topic_id)
        partition = draft.partitions(name)[move.partition]
        earlier = () if move.settled else partition.wals
        partition = _led_by(partition, move.leader, (*earlier, draft.wal_of(move.leader)))
        if move.manifest is not None:
            partition = replace(partition, manifest=move.manifest)
        if move.replicas is not None:
            partition = replace(partition, replicas=move.replicas)
        draft.put_partition(name, move.partition, partition)


def move_leader(draft: Draft, command: MoveLeader) -> None:
    key = (command.topic_id, command.partition)
    old = draft.move(key)
    # A changed failover order without the leader asks for more than one named leader does.
    if old is None or not old.former:
        draft.put_move(key, PendingMove(command.leader))


def set_replicas(draft: Draft, command: SetReplicas) -> None:
    name = draft.topic_name(command.topic_id)
    partition = draft.partitions(name)[command.partition]
    draft.put_partition(name, command.partition, replace(partition, replicas=command.replicas))
    draft.pin_topic(name)
    key = (command.topic_id, command.partition)
    old = draft.move(key)
    move = None
    if partition.leader not in (NO_LEADER, *command.replicas):
        former = old.former if old is not None and old.former else partition.replicas
        move = PendingMove(NO_LEADER, former)
    draft.put_move(key, move)


def create_topic(draft: Draft, command: CreateTopic) -> None:
    draft.put_topic(
        TopicInfo(
            id=command.topic_id,
            name=command.name,
            partitions=tuple(_new_partition(draft, replicas) for replicas in command.replicas),
            pinned=command.pinned,
        )
    )
    draft.put_config(TOPIC_CONFIG, command.name, dict(command.configs))


def delete_topic(draft: Draft, command: DeleteTopic) -> None:
    draft.drop_topic(draft.topic_name(command.topic_id))


def create_partitions(draft: Draft, command: CreatePartitions) -> None:
    new = [_new_partition(draft, replicas) for replicas in command.replicas]
    draft.add_partitions(draft.topic_name(command.topic_id), new)


def set_config(draft: Draft, command: SetConfig) -> None:
    values = draft.config(command.resource_type, command.name)
    for name, value in command.changes.items():
        if value is None:
            values.pop(name, None)
        else:
            values[name] = value
    draft.put_config(command.resource_type, command.name, values)


def allocate_producer_ids(draft: Draft, command: AllocateProducerIds) -> None:
    draft.put("next_producer_id", command.first + command.count)


def settle_partitions(draft: Draft, command: SettlePartitions) -> None:
    for settled in command.partitions:
        name = draft.topic_name(settled.topic_id)
        partition = draft.partitions(name)[settled.partition]
        changed = replace(
            partition,
            manifest=partition.manifest if settled.manifest is None else settled.manifest,
            log_start=partition.log_start if settled.log_start is None else settled.log_start,
            wals=tuple(wal for wal in partition.wals if wal not in settled.dropped),
        )
        draft.put_partition(name, settled.partition, changed)
    if command.wal_start is not None:
        draft.start_wal(WalRef(command.broker, command.epoch), command.wal_start)


def advance_log_start(draft: Draft, command: AdvanceLogStart) -> None:
    for item in command.partitions:
        name = draft.topic_name(item.topic_id)
        partition = draft.partitions(name)[item.partition]
        draft.put_partition(name, item.partition, replace(partition, log_start=item.log_start))


def set_level(draft: Draft, command: SetLevel) -> None:
    draft.put("level", command.level)
    draft.put("level_since", draft.version)


def repair_partition(draft: Draft, command: RepairPartition) -> None:
    name = draft.topic_name(command.topic_id)
    partition = draft.partitions(name)[command.partition]
    draft.put_partition(name, command.partition, replace(partition, manifest=command.manifest))


def _new_partition(draft: Draft, replicas: tuple[int, ...]) -> PartitionInfo:
    leader = draft.first_live(replicas)
    wals = () if leader == NO_LEADER else (draft.wal_of(leader),)
    return PartitionInfo(leader=leader, leader_epoch=0, replicas=replicas, wals=wals)


def _led_by(partition: PartitionInfo, leader: int, wals: tuple[WalRef, ...]) -> PartitionInfo:
    return replace(partition, leader=leader, leader_epoch=partition.leader_epoch + 1, wals=wals)


def _seal(draft: Draft, wal: WalRef, flush_count: int) -> WalRef | None:
    """Seal a log. One in which everything is settled is returned, to be struck from all partitions."""
    if flush_count <= draft.wal_start(wal):
        draft.retire_wal(wal)
        return wal
    draft.seal(wal, flush_count)
    return None


def _without(wals: tuple[WalRef, ...], empty: WalRef | None) -> tuple[WalRef, ...]:
    if empty is None or empty not in wals:
        return wals
    return tuple(wal for wal in wals if wal != empty)


def _leave_leaderless(draft: Draft, broker: int, empty: WalRef | None) -> None:
    """What the broker led waits for a leader. The leader epoch grows when it gets one."""
    draft.drop_moves_to(broker)
    for name in draft.topic_names():
        for index, partition in enumerate(draft.partitions(name)):
            wals = _without(partition.wals, empty)
            if partition.leader == broker:
                draft.put_partition(name, index, replace(partition, leader=NO_LEADER, wals=wals))
            elif wals is not partition.wals:
                draft.put_partition(name, index, replace(partition, wals=wals))


_EFFECTS: dict[type[Any], Callable[[Draft, Any], None]] = {
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
    **ACCESS_EFFECTS,
}
