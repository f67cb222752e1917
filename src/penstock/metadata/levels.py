"""Feature levels: the forms that all brokers of a cluster can read, and so any of them may write.

A new cluster begins at the newest level. An older cluster stays at its level until an administrator raises it
(`SetLevel`): until then brokers of two versions are one cluster, and the older can come back. A level never
goes back. A broker refuses a cluster whose level it does not know.

    1   entries and snapshots in frames of version 1, manifests of format 1
    2   frames of version 2, which tell a torn entry from a rotten one; manifests of format 2, which name
        hurt ranges. Brokers of level 1 drop the unknown fields of an entry, but refuse such a frame: so none
        of them reads half of a later command.
    3   transactions are served; access rules, credentials and quotas are commands of the log

Until the level is 2, nothing may be written that a broker of level 1 would read only in part.
"""

from typing import Final

LEVEL_MIN: Final = 1
LEVEL_MAX: Final = 3
"""The newest level that this version can read and write."""

TRANSACTIONS_FROM: Final = 3
"""Until then a partition may get a leader that writes no markers."""
SECURITY_FROM: Final = 3
"""Until then a broker may be among the others that knows no access rules, and would let everybody in."""

FEATURE: Final = "penstock.version"
"""What the level is called where Kafka's tools show it."""

TRANSACTION_FEATURE: Final = "transaction.version"
"""Kafka's name for what clients may expect of transactions. From version 2 on, those that know it have the
next epoch with each transaction (KIP-890). It comes with the level, and cannot be set by itself."""
TRANSACTION_VERSION: Final = 2

GROUP_FEATURE: Final = "group.version"
"""Kafka's name for the protocols of groups. From version 1 on there is the `consumer` protocol (KIP-848),
which is served at every level."""
GROUP_VERSION: Final = 1


def transaction_version(level: int) -> int:
    """What clients may expect of transactions at this level; 0: nothing."""
    return TRANSACTION_VERSION if level >= TRANSACTIONS_FROM else 0


def finalized(level: int) -> dict[str, int]:
    """What is in force at this level, by the name of the feature; 0: it is not there."""
    return {FEATURE: level, TRANSACTION_FEATURE: transaction_version(level), GROUP_FEATURE: GROUP_VERSION}
