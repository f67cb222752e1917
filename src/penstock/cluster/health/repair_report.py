"""The result of a repair: what was done or would be, what is left, and what a person can do about that."""

from typing import Final

import msgspec

from penstock.cluster.health.findings import Finding, Unread

BACKUP: Final = "More than one bit is hurt, or it is gone: bring the object back from a backup."
LEVEL: Final = (
    "The cluster's feature level is too low for repairs: `penstock cluster upgrade` raises it, once every "
    "broker runs this version."
)
TORN: Final = (
    "It was not synced when the power went. The first broker that starts, while no other runs, sets it aside."
)
START: Final = (
    "Start the cluster: a broker opens the partition without these records, says so to those who ask for "
    "them, and settles the rest. Then `penstock store repair --cut` leaves them out. If one of them ended a "
    "transaction, `penstock transactions find-hanging` names it; `transactions abort` ends it, so that its "
    "records do not count."
)

GONE: Final = (
    "Bring it back from a backup: brokers wait for it, and do not open the partitions that it may hold "
    "records of. With --cut they open them without these records, and say so to those who ask for them."
)


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """One repair that was made, or would be."""

    how: str
    key: str
    detail: str = ""
    topic: str = ""
    partition: int = -1
    start: int = -1
    end: int = -1

    @property
    def sentence(self) -> str:
        whose = f"{self.topic}-{self.partition} " if self.topic else ""
        span = f"offsets {self.start} to {self.end - 1} " if self.start >= 0 else ""
        return f"{whose}{span}({self.key}): {self.how}{', ' + self.detail if self.detail else ''}"


class Left(msgspec.Struct, frozen=True):
    """Damage that stays, and what a person can do about it."""

    finding: Finding
    advice: str


class RepairReport(msgspec.Struct):
    cluster_id: str = ""
    version: int = 0
    applied: bool = False
    """Whether the steps were taken, or are what would be done."""
    steps: list[Step] = []
    left: list[Left] = []
    unread: list[Unread] = []

    @property
    def exit_code(self) -> int:
        if self.left or (self.steps and not self.applied):
            return 1
        return 2 if self.unread else 0
