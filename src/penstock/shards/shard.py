"""A shard is one partition of an internal topic as a state machine.

Its records say what happened; its state is what they mean. The shell hands a shard events (a request, a
timer, the result of a write) together with `now`. The shard gives back `Effects`: the answers, the records to
append, and the time to be woken. It does not wait, reads no clock and touches no storage. The shell is
`broker/shards`.

**The life of a shard.** The shell loads its records in the order of the log; `loaded` begins to serve. For
each batch the shell reports `durable` or `failed` before the shard hands out the next one. If its partition
gets another leader, the shell calls `unload` and throws the shard away.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.log.guards import Guard

Ticket = int
"""Names one request that waits for its answer. Chosen by the caller, unique among those that wait."""


class Now(NamedTuple):
    ms: int
    """Milliseconds that never go back: deadlines."""
    wall_ms: int
    """Milliseconds since the epoch: timestamps in records, retention."""


class Record(NamedTuple):
    """A record to append: bytes, ready for a batch."""

    key: bytes
    value: bytes | None


class Producer(NamedTuple):
    """Whose transaction a batch belongs to."""

    id: int
    epoch: int
    guard: Guard | None = None
    """What lets the batch in if it is the first of its transaction."""


class Batch(NamedTuple):
    """Records to append together, all or nothing."""

    records: Sequence[Record]
    producer: Producer | None = None


class Effects(NamedTuple):
    answers: Sequence[tuple[Ticket, object]]
    """Messages, or values that the asker makes messages of."""
    batch: Batch | None
    """To be appended now; report `durable` or `failed` before any other batch is handed out."""
    wake_at: int | None
    """Call `tick` at this `Now.ms`, or a little later."""
    errands: Sequence[object] = ()
    """What is to be done elsewhere, such as asking another broker. The coordinator runs them, and tells their
    end by an event of the shard's own."""


class Shard(Protocol):
    """The methods that the shell asks of every shard. Requests are methods of the shard's own: `(now, ticket,
    ...) -> Effects`."""

    def load(self, key: bytes, value: bytes | None, producer_id: int) -> None:
        """One record of the log. `producer_id`: that of its batch if the batch is transactional, else -1."""

    def load_marker(self, producer_id: int, *, committed: bool) -> None:
        """The end of a transaction whose records are in this partition."""

    def loaded(self, now: Now) -> Effects:
        """The log has been read to its end: begin to serve."""

    def durable(self, now: Now) -> Effects:
        """The batch that was handed out last is on storage to stay."""

    def failed(self, now: Now, code: ErrorCode) -> Effects:
        """The batch that was handed out last is not on storage, and will not be."""

    def tick(self, now: Now) -> Effects:
        """The time has come that the shard wanted to be woken at."""

    def unload(self, now: Now) -> Effects:
        """The partition has another leader: everybody who waits is sent there."""


def error_after_append(code: ErrorCode) -> ErrorCode:
    """What clients are told when the write behind their answer failed: Kafka's mapping."""
    match code:
        case (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            | ErrorCode.NOT_ENOUGH_REPLICAS
            | ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            | ErrorCode.REQUEST_TIMED_OUT
        ):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        case ErrorCode.NOT_LEADER_OR_FOLLOWER | ErrorCode.KAFKA_STORAGE_ERROR:
            return ErrorCode.NOT_COORDINATOR
        case ErrorCode.MESSAGE_TOO_LARGE | ErrorCode.RECORD_LIST_TOO_LARGE | ErrorCode.INVALID_FETCH_SIZE:
            return ErrorCode.UNKNOWN_SERVER_ERROR
    return code
