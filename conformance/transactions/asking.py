"""Plain questions about transactions: the state of an id, the ends of a partition, what a group has committed."""

from typing import Any

from conformance.transactions.places import Place
from conformance.wire.connection import Closed, Connection, Silent
from penstock.testing.waiting import Late, until

GROUP, TRANSACTION = 0, 1
LATEST = -1
PENDING = 88
"""UNSTABLE_OFFSET_COMMIT: a transaction is about to decide."""
NOT_READY = (14, 15, 16)
"""Loading, not available, not here."""
NOT_LED = (5, 6)
ANSWERED_WITHIN_S = 60.0


def coordinator(place: Place, kind: int, key: str) -> Connection:
    """A connection to whoever coordinates; the caller closes it."""
    found: list[Connection] = []

    def ask() -> bool:
        for host, port in place.addresses:
            try:
                with Connection(host, port) as connection:
                    body = {"KeyType": kind, "CoordinatorKeys": [key]}
                    (named,) = connection.call("FindCoordinator", 4, body)["Coordinators"]
                if named["ErrorCode"] == 0:
                    found.append(Connection(named["Host"], named["Port"]))
                    return True
            except (Closed, Silent, OSError):
                continue
        return False

    until(ask, ANSWERED_WITHIN_S, f"a coordinator of {key}", every_s=0.1)
    return found[0]


def described(place: Place, id: str) -> dict[str, Any]:
    """What the coordinator says of a transactional id."""
    answers: list[dict[str, Any]] = []

    def ask() -> bool:
        with coordinator(place, TRANSACTION, id) as connection:
            body = {"TransactionalIds": [id]}
            (answer,) = connection.call("DescribeTransactions", 0, body)["TransactionStates"]
        answers.append(answer)
        return answer["ErrorCode"] not in NOT_READY

    until(ask, ANSWERED_WITHIN_S, f"a description of {id}", every_s=0.1)
    return answers[-1]


def state(place: Place, id: str) -> str:
    answer = described(place, id)
    return str(answer["TransactionState"]) if answer["ErrorCode"] == 0 else f"error {answer['ErrorCode']}"


def committed(place: Place, group: str, topic: str, partition: int, stable: bool = True) -> int | str:
    """The offset of a group; "pending" while a transaction may still change it."""
    answers: list[dict[str, Any]] = []

    def ask() -> bool:
        asked = {"Name": topic, "PartitionIndexes": [partition]}
        body = {"Groups": [{"GroupId": group, "Topics": [asked]}], "RequireStable": stable}
        with coordinator(place, GROUP, group) as connection:
            (answer,) = connection.call("OffsetFetch", 8, body)["Groups"]
        answers.append(answer)
        return answer["ErrorCode"] not in NOT_READY

    until(ask, ANSWERED_WITHIN_S, f"the offset of {group}", every_s=0.1)
    if answers[-1]["ErrorCode"]:
        return f"error {answers[-1]['ErrorCode']}"
    found = answers[-1]["Topics"][0]["Partitions"][0]
    if found["ErrorCode"] == PENDING:
        return "pending"
    return int(found["CommittedOffset"]) if not found["ErrorCode"] else f"error {found['ErrorCode']}"


def ends(place: Place, topic: str, partition: int) -> tuple[int, int]:
    """The last stable offset and the high watermark."""
    return _end(place, topic, partition, 1), _end(place, topic, partition, 0)


def _end(place: Place, topic: str, partition: int, isolation: int) -> int:
    found: list[int] = []

    def ask() -> bool:
        for host, port in place.addresses:
            asked = [{"PartitionIndex": partition, "Timestamp": LATEST}]
            topics = [{"Name": topic, "Partitions": asked}]
            body = {"ReplicaId": -1, "IsolationLevel": isolation, "Topics": topics}
            try:
                with Connection(host, port) as connection:
                    answer = connection.call("ListOffsets", 5, body)["Topics"][0]["Partitions"][0]
            except (Closed, Silent, OSError):
                continue
            if answer["ErrorCode"] == 0:
                found.append(answer["Offset"])
                return True
        return False

    until(ask, ANSWERED_WITHIN_S, f"the end of {topic}-{partition}", every_s=0.1)
    return found[0]


def await_stable(place: Place, topic: str, partitions: int, within_s: float) -> None:
    """`Late` unless the last stable offset of each partition reaches its end."""
    for partition in range(partitions):
        told: list[tuple[int, int]] = []

        def equal(partition: int = partition, told: list[tuple[int, int]] = told) -> bool:
            told.append(ends(place, topic, partition))
            return told[-1][0] == told[-1][1]

        try:
            until(equal, within_s, "it", every_s=0.2)
        except Late:
            raise Late(
                f"{topic}-{partition}: after {within_s:.0f} s the last stable offset is {told[-1][0]}, the end {told[-1][1]}"
            ) from None
