"""All transactional ids that this broker coordinates: those whose partition of `__transaction_state` it
leads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING

from penstock.broker.shards.coordinator import Coordinator, LeadingBroker
from penstock.broker.transactions.turns import Turns
from penstock.metadata.image import TRANSACTIONS_TOPIC
from penstock.metadata.levels import TRANSACTIONS_FROM
from penstock.transactions.core import Codes, Marking, Told
from penstock.transactions.shard import TransactionShard
from penstock.transactions.timeouts import Timing
from penstock.transactions.transaction import Given, Place
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.shards.live import LiveShard
    from penstock.metadata.image import ClusterImage
    from penstock.settings import Settings
    from penstock.storage.ledger.ledger import Partition

Send = Callable[["LiveShard[TransactionShard]", Marking], None]
"""Have the markers of a transaction written, and tell its shard."""


class TransactionCoordinator(Coordinator[TransactionShard]):
    def __init__(
        self,
        broker: LeadingBroker,
        settings: Callable[[], Settings],
        topic_bytes_max: Callable[[ClusterImage], int],
        new_producer_id: Callable[[], int | None],
        send: Send,
    ) -> None:
        """`settings`: those in force, as of the newest image. `topic_bytes_max`: what the topic takes in
        one batch."""
        super().__init__(TRANSACTIONS_TOPIC, broker)
        self._settings = settings
        self._topic_bytes_max = topic_bytes_max
        self._new_producer_id = new_producer_id
        self._send = send
        self.beginnings = Turns()
        """Who begins a producer for a transactional id, in turn. A client that got no answer asks again, on
        another connection. If that request overtook the first, the first would fence the client that made
        both."""

    # -- requests ------------------------------------------------------------------------------------

    def init_producer_id(
        self, transactional_id: str, timeout_ms: int, given: Given | None
    ) -> Told | Awaitable[Told]:
        event = TransactionShard.init_producer_id
        return self.call(transactional_id, Told, Told, event, transactional_id, timeout_ms, given)

    def add_partitions(
        self,
        transactional_id: str,
        given: Given,
        places: Collection[Place],
        *,
        verify_only: bool,
        client_version: int,
    ) -> Codes | Awaitable[Codes]:
        """The codes that AddPartitionsToTxn answers from version 4 on. `verify_only`: nothing is added."""
        return self.call(
            transactional_id,
            Codes,
            lambda code: dict.fromkeys(places, code),
            TransactionShard.add_partitions,
            transactional_id,
            given,
            places,
            verify_only=verify_only,
            client_version=client_version,
        )

    def end(self, transactional_id: str, given: Given, *, commit: bool, bump: bool) -> Told | Awaitable[Told]:
        event = TransactionShard.end
        return self.call(
            transactional_id, Told, Told, event, transactional_id, given, commit=commit, bump=bump
        )

    # -- shards --------------------------------------------------------------------------------------

    def _shard(self, key: str) -> LiveShard[TransactionShard] | ErrorCode:
        if self._metadata.image.level < TRANSACTIONS_FROM:
            # Somebody created the topic. A partition may still get a leader that knows no markers.
            return ErrorCode.NOT_COORDINATOR
        return super()._shard(key)

    def new_shard(self, partition: Partition, image: ClusterImage) -> TransactionShard:
        shard = TransactionShard(partition.leader_epoch, self._timing(), self._new_producer_id)
        shard.set_topic_bytes_max(self._topic_bytes_max(image))
        return shard

    def bring_up_to_date(self, shard: TransactionShard, image: ClusterImage) -> None:
        shard.set_timing(self._timing())
        shard.set_topic_bytes_max(self._topic_bytes_max(image))

    def image_changed(self, image: ClusterImage) -> None:
        timing = self._timing()
        topic_bytes_max = self._topic_bytes_max(image)
        for live in self.live_shards():
            live.shard.set_timing(timing)
            live.shard.set_topic_bytes_max(topic_bytes_max)

    def run_errand(self, live: LiveShard[TransactionShard], errand: object) -> None:
        assert isinstance(errand, Marking)
        self._send(live, errand)

    def _timing(self) -> Timing:
        settings = self._settings()
        return Timing(
            settings.transaction_abort_timed_out_transaction_cleanup_interval_ms,
            settings.transaction_remove_expired_transaction_cleanup_interval_ms,
            settings.transactional_id_expiration_ms,
        )
