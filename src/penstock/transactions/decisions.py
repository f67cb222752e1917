"""From the decision how a transaction ends to its completion.

Prepare* is written, and answered when it is durable. Its markers are an errand, which is handed out when the
decision is durable and never before. The shard is told of each partition that has its marker; after the last
one it writes Complete*. An end that concerns no partition is complete at once. After a load every Prepare*
has its markers sent again.
"""

from collections.abc import Collection

from penstock.shards.shard import Ticket
from penstock.transactions.core import Context, Marking, Told, ignore, nothing
from penstock.transactions.ending import Ending
from penstock.transactions.parking import Parking
from penstock.transactions.transaction import Place, State, Transaction, completed
from penstock.wire.errors import ErrorCode

_COMPLETE_AGAIN_MS = 100
"""After this long a completion is written again that could not be written."""


class Decisions:
    __slots__ = ("_c", "_coordinator_epoch", "_parking", "_to_mark")

    def __init__(self, context: Context, parking: Parking, coordinator_epoch: int) -> None:
        self._c = context
        self._parking = parking
        self._coordinator_epoch = coordinator_epoch
        self._to_mark: dict[str, set[Place]] = {}
        """By id whose end is decided and durable: the partitions that are not known to have its marker."""

    def decide(self, transactional_id: str, prepared: Transaction, ticket: Ticket | None, told: Told) -> None:
        """Write how a transaction ends. When that is durable the sender is answered and markers are sent."""
        done, failed = (nothing, ignore) if ticket is None else self._c.to_answer(ticket, told, Told)
        if not prepared.places:
            self._c.write(transactional_id, completed(prepared, self._c.now.wall_ms), done, failed)
            return

        def durable() -> None:
            done()
            self.mark(transactional_id, prepared)

        self._c.write(transactional_id, prepared, durable, failed)

    def mark(self, transactional_id: str, prepared: Transaction) -> None:
        """The decision is durable: have the markers written."""
        if prepared.places:
            self._to_mark[transactional_id] = set(prepared.places)
            self._c.errands.append(Marking(transactional_id, self.ending(prepared), prepared.places))
        else:
            self._complete(transactional_id)

    def ending(self, prepared: Transaction) -> Ending:
        return Ending(
            producer_id=prepared.producer_id,
            producer_epoch=prepared.epoch,
            committed=prepared.state is State.PREPARE_COMMIT,
            coordinator_epoch=self._coordinator_epoch,
            version=prepared.client_version,
        )

    def marked(self, transactional_id: str, ending: Ending, places: Collection[Place]) -> None:
        """These partitions have the marker, or need none because they are gone."""
        left = self._to_mark.get(transactional_id)
        if left is not None and self.ending(self._c.known[transactional_id]) == ending:
            left.difference_update(places)
            if not left:
                del self._to_mark[transactional_id]
                self._complete(transactional_id)

    def _complete(self, transactional_id: str) -> None:
        """Every partition has its marker."""

        def failed(_code: ErrorCode) -> None:
            # The markers stay. Only that they are there is to be written down.
            again_at = self._c.now.ms + _COMPLETE_AGAIN_MS
            self._c.timers.schedule(("complete", transactional_id), again_at, again)

        def again() -> None:
            known = self._c.known.get(transactional_id)
            if known is not None and known.is_prepared and transactional_id not in self._to_mark:
                self._complete(transactional_id)

        done = completed(self._c.known[transactional_id], self._c.now.wall_ms)
        self._c.write(transactional_id, done, nothing, failed)
        self._parking.release(transactional_id)
