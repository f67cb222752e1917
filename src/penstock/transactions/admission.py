"""What clients of each version are told when the coordinator does not let their records into a transaction.

The coordinator answers as AddPartitionsToTxn does. A client that produces or commits offsets does not know
all of these codes: which of them it takes for a reason to try again, to abort, or to give up depends on the
version that it speaks.
"""

from enum import Enum
from typing import NamedTuple

from penstock.wire.errors import ErrorCode


class Manner(Enum):
    """How a client's records get into a transaction. The version of its request says so."""

    VERIFIED_PLAINLY = 1
    """The client added the partition before. It does not know TRANSACTION_ABORTABLE."""
    VERIFIED = 2
    """The client added the partition before."""
    ADDED = 3
    """The first records add the partition (transaction version 2)."""

    @property
    def adds(self) -> bool:
        return self is Manner.ADDED

    @property
    def client_version(self) -> int:
        """The transaction version of such a client."""
        return 2 if self.adds else 1


def manner_of_produce(version: int) -> Manner:
    if version >= 12:
        return Manner.ADDED
    return Manner.VERIFIED if version >= 11 else Manner.VERIFIED_PLAINLY


def manner_of_offsets(version: int) -> Manner:
    if version >= 5:
        return Manner.ADDED
    return Manner.VERIFIED if version >= 4 else Manner.VERIFIED_PLAINLY


class Denial(NamedTuple):
    code: ErrorCode
    message: str | None = None


_AWAY = frozenset(
    (
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    )
)
"""Nobody could be asked."""


def denied(code: ErrorCode, manner: Manner) -> ErrorCode:
    """The code of the coordinator as any client of this manner is told it."""
    match code:
        case ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        case ErrorCode.TRANSACTION_ABORTABLE if manner is Manner.VERIFIED_PLAINLY:
            return ErrorCode.INVALID_TXN_STATE
        case ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            # The other broker does not take this one for a broker. That is no business of a client.
            return ErrorCode.INVALID_TXN_STATE
    return code


def denied_produce(code: ErrorCode, manner: Manner) -> Denial:
    """What Produce answers. Clients that do not know better retry NOT_ENOUGH_REPLICAS as they should, without
    looking for another leader."""
    code = denied(code, manner)
    if code in _AWAY or (code is ErrorCode.CONCURRENT_TRANSACTIONS and not manner.adds):
        return Denial(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            "Unable to verify the partition has been added to the transaction. "
            f"Underlying error: {code.name}",
        )
    if code is ErrorCode.INVALID_TXN_STATE:
        return Denial(code, "Partition was not added to the transaction")
    return Denial(code)


def denied_offsets(code: ErrorCode, manner: Manner) -> ErrorCode:
    """What TxnOffsetCommit answers. Clients retry COORDINATOR_LOAD_IN_PROGRESS without looking for another
    coordinator."""
    code = denied(code, manner)
    return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if code is ErrorCode.NETWORK_EXCEPTION else code
