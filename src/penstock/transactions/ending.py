"""How a transaction ended, as the coordinator tells it to the partitions that are part of it."""

from typing import NamedTuple


class Ending(NamedTuple):
    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int
    """The leader epoch of the coordinator's partition: a coordinator that was replaced is refused."""
    version: int
    """The transaction version of the client that began it: from 2 on, each end has an epoch of its own."""
