"""The partitions that are led here: opened and closed as the cluster image says.

A partition without records is open at once. Any other one is recovered first (`takeover`).
"""

from penstock.metadata.image import (
    BROKER_CONFIG,
    TOPIC_CONFIG,
    ClusterImage,
    PartitionInfo,
    PartitionKey,
    TopicInfo,
)
from penstock.storage.ledger.flusher import Flusher
from penstock.storage.ledger.repaired import Repaired
from penstock.storage.ledger.takeover import Takeover
from penstock.storage.partitions.holdings import Holdings, LogPolicies
from penstock.storage.partitions.partition import Partition
from penstock.storage.settling.committing import Committer
from penstock.storage.settling.garbage import Garbage
from penstock.storage.settling.settler import Settler
from penstock.wire.errors import ErrorCode


class Leading:
    def __init__(
        self,
        holdings: Holdings,
        policies: LogPolicies,
        takeover: Takeover,
        committer: Committer,
        settler: Settler,
        garbage: Garbage,
        repaired: Repaired,
    ) -> None:
        self._holdings = holdings
        self._own = holdings.own
        self._partitions = holdings.partitions
        self._policies = policies
        self._takeover = takeover
        self._committer = committer
        self._settler = settler
        self._garbage = garbage
        self._repaired = repaired
        self.flusher: Flusher | None = None
        """Given when the log of this incarnation has begun. Nothing is led before that."""

    def follow(self, new: ClusterImage) -> None:
        """An image older than the last one is passed over."""
        previous = self._holdings.image
        if new.version < previous.version:
            return
        self._holdings.image = new
        self._garbage.follow(previous, new, self._holdings.settings.delete_delay_ms)
        waiting: list[PartitionKey] = []
        defaults_same = all(
            new.configs.get((BROKER_CONFIG, name)) is previous.configs.get((BROKER_CONFIG, name))
            for name in ("", str(self._own.broker))
        )
        for name, topic in new.topics.items():
            config = (TOPIC_CONFIG, name)
            config_same = defaults_same and new.configs.get(config) is previous.configs.get(config)
            if not config_same or previous.topics.get(name) is not topic:
                waiting += self._follow_topic(topic, previous)
        if new.topics is not previous.topics:
            for name, topic in previous.topics.items():
                now = new.topics.get(name)
                if now is None or now.id != topic.id:
                    for index in range(len(topic.partitions)):
                        self._close_partition((topic.id, index), deleted=True)
        if waiting:
            self._takeover.begin(waiting)

    def _follow_topic(self, topic: TopicInfo, previous: ClusterImage) -> list[PartitionKey]:
        """The partitions of it that must be recovered."""
        policy = self._policies.of(self._holdings.image, topic.name)
        waiting = []
        for index, info in enumerate(topic.partitions):
            key = (topic.id, index)
            if not self._leads(info):
                self._close_partition(key)
                continue
            partition = self._partitions.get(key) or self._takeover.waiting.get(key)
            if partition is not None and partition.leader_epoch != info.leader_epoch:
                before = previous.partition(*key)
                if before is not None and (before.manifest, before.wals) == (info.manifest, info.wals):
                    # Nobody else led it in between.
                    partition.leader_epoch = info.leader_epoch
                    partition.lead()
                else:
                    self._close_partition(key)
                    partition = None
            if partition is None:
                partition = self._begin_partition(topic, index, info)
                if key in self._takeover.waiting:
                    waiting.append(key)
            partition.wals = info.wals
            partition.policy = policy
            partition.log_append_time = policy.log_append_time
            if key in self._partitions:
                partition.advance_log_start(info.log_start)
                if not self._committer.take_committed(partition, info.manifest):
                    self._repaired.found(partition)
        return waiting

    def _begin_partition(self, topic: TopicInfo, index: int, info: PartitionInfo) -> Partition:
        """A partition that nothing was written to yet is open at once; another one must be recovered."""
        partition = Partition(topic.id, topic.name, index, info.leader_epoch)
        key = (topic.id, index)
        if info.manifest is None and info.wals == (self._own,) and not info.log_start:
            partition.lead()
            self._partitions[key] = partition
        else:
            self._takeover.waiting[key] = partition
        return partition

    def _leads(self, info: PartitionInfo) -> bool:
        if self.flusher is not None and self.flusher.ended:
            # What it led is closed. Opened anew, a partition whose records are all in the log that ended
            # would be taken for one that nothing was written to.
            return False
        return info.leader == self._own.broker and bool(info.wals) and info.wals[-1] == self._own

    def _close_partition(self, key: PartitionKey, *, deleted: bool = False) -> None:
        self._takeover.drop(key)
        partition = self._partitions.pop(key, None)
        if partition is None:
            return
        self._settler.release(key)
        if deleted:
            delay_ms = partition.policy.file_delete_delay_ms
            self._garbage.release(partition.manifest, delay_ms)
            self._garbage.doom_manifest(partition.manifest_ref, delay_ms)
        else:
            self._garbage.forget(partition.manifest)
        self.stop(partition)

    def close_all(self) -> None:
        """This incarnation is over."""
        for key in [*self._partitions, *self._takeover.waiting]:
            self._close_partition(key)

    def stop(self, partition: Partition) -> None:
        """Accept nothing more, and let those who wait know."""
        partition.closed = True
        assert self.flusher is not None
        self.flusher.refuse(partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        partition.wake()

    def opened(self, key: PartitionKey, partition: Partition) -> None:
        """A partition is recovered."""
        self._partitions[key] = partition
        self._garbage.hold(partition.manifest)
        info = self._holdings.image.partition(*key)
        if info is not None:
            partition.advance_log_start(info.log_start)
            if info.manifest != partition.manifest_ref:
                self._repaired.found(partition)
