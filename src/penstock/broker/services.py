"""The services that the handlers of one broker share. Each is built here, once, from its needs.

A service is built on its first use, so a broker answers its first requests before it has loaded the code that
others need. Services with background work are also started here: `start` says that the broker serves, and
`stop` stops the started services, the last one first.
"""

from __future__ import annotations

import asyncio
from functools import cached_property, partial
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock.metadata.image import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from penstock.broker.context import Broker
    from penstock.broker.fetch.sessions import Sessions
    from penstock.broker.groups.coordinator import GroupCoordinator
    from penstock.broker.peers.peers import Peers
    from penstock.broker.produce.producer_ids import ProducerIds
    from penstock.broker.produce.route import Routes
    from penstock.broker.security.tokens import ExpiredTokens
    from penstock.broker.topics.demands import TopicDemands
    from penstock.broker.topics.kept_answers import KeptAnswers
    from penstock.broker.topics.replicas import Replicas
    from penstock.broker.transactions.asking import Admission
    from penstock.broker.transactions.coordinator import TransactionCoordinator
    from penstock.entropy import Entropy
    from penstock.logging_in import Step
    from penstock.metadata.configs import TopicConfigs
    from penstock.metadata.image import ClusterImage
    from penstock.security.delegation import TokensByHmac
    from penstock.settings.clients import ClientSecurity
    from penstock.wire.schema import ApiMessage


class Service(Protocol):
    """A service that keeps something at work between requests."""

    async def stop(self) -> None:
        """Nothing of it outlives this."""


class _Coordination(NamedTuple):
    """A coordinator that works as soon as this broker leads a partition of its topic, asked or not."""

    topic: str
    module: str
    build: Callable[[Services], Service]


_COORDINATIONS = (
    _Coordination(OFFSETS_TOPIC, "penstock.broker.groups.coordinator", attrgetter("groups")),
    _Coordination(TRANSACTIONS_TOPIC, "penstock.broker.transactions.coordinator", attrgetter("transactions")),
)


class Services:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._to_stop: list[Service] = []
        self._asleep = list(_COORDINATIONS)
        self._unsubscribe: Callable[[], None] | None = None

    @cached_property
    def topic_configs(self) -> TopicConfigs:
        from penstock.metadata.configs import TopicConfigs

        return TopicConfigs(self._broker.broker_id, self._broker.settings.given)

    @cached_property
    def topic_demands(self) -> TopicDemands:
        from penstock.broker.topics.demands import TopicDemands

        return TopicDemands(self.topic_configs)

    @cached_property
    def replicas(self) -> Replicas:
        from penstock.broker.topics.replicas import Replicas

        return Replicas(self._broker.broker_id, self._broker.ledger)

    @cached_property
    def metadata_answers(self) -> KeptAnswers:
        from penstock.broker.topics.kept_answers import KeptAnswers

        return KeptAnswers()

    @cached_property
    def fetch_sessions(self) -> Sessions:
        from penstock.broker.fetch.sessions import Sessions

        slots = self._broker.settings.max_incremental_fetch_session_cache_slots
        return Sessions(slots, self._broker.entropy)

    @cached_property
    def produce_routes(self) -> Routes:
        from penstock.broker.produce.route import Routes

        return Routes()

    @cached_property
    def producer_ids(self) -> ProducerIds:
        from penstock.broker.produce.producer_ids import ProducerIds

        broker = self._broker
        return ProducerIds(broker.metadata, broker.broker_id, broker.broker_epoch, broker.tasks)

    @cached_property
    def peers(self) -> Peers:
        from penstock.broker.peers.link import dial, tls_dial
        from penstock.broker.peers.peers import Peers
        from penstock.settings.clients import ClientSecurity
        from penstock.settings.doors import inter_broker

        broker = self._broker
        ours = inter_broker(broker.settings, broker.settings.given)
        steps = None
        if ours.mechanism is not None:
            security = ClientSecurity(
                tls=ours.tls, mechanism=ours.mechanism, user=ours.user, password=ours.password
            )
            steps = partial(_log_in, security, broker.entropy)
        peers = Peers(
            f"broker-{broker.broker_id}",
            ours.listener,
            lambda: broker.image,
            broker.clock,
            dial if ours.tls is None else tls_dial(ours.tls),
            steps,
        )
        self._to_stop.append(peers)
        return peers

    @cached_property
    def groups(self) -> GroupCoordinator:
        from penstock.broker.groups.coordinator import GroupCoordinator

        broker = self._broker
        bytes_max = partial(self._bytes_max, OFFSETS_TOPIC)
        groups = GroupCoordinator(broker, lambda: broker.settings, bytes_max, broker.entropy)
        groups.start()
        self._to_stop.append(groups)
        return groups

    @cached_property
    def transactions(self) -> TransactionCoordinator:
        from penstock.broker.transactions.coordinator import TransactionCoordinator
        from penstock.broker.transactions.markers import append_markers
        from penstock.broker.transactions.sending import MarkerSender

        broker = self._broker
        sender = MarkerSender(broker, lambda: self.peers, partial(append_markers, broker))
        self._to_stop.append(sender)
        bytes_max = partial(self._bytes_max, TRANSACTIONS_TOPIC)
        transactions = TransactionCoordinator(
            broker, lambda: broker.settings, bytes_max, self.producer_ids.take, sender.send
        )
        transactions.start()
        self._to_stop.append(transactions)
        return transactions

    def _bytes_max(self, topic: str, image: ClusterImage) -> int:
        """What the topic takes in one batch."""
        return self.topic_configs.get(image, topic).max_message_bytes

    @cached_property
    def admission(self) -> Admission:
        from penstock.broker.transactions.asking import Admission

        return Admission(self._broker, lambda: self.transactions)

    @cached_property
    def tokens_by_hmac(self) -> TokensByHmac:
        from penstock.security.delegation import TokensByHmac

        return TokensByHmac(self._broker.settings.delegation_token_secret_key or "")

    @cached_property
    def expired_tokens(self) -> ExpiredTokens:
        from penstock.broker.security.tokens import ExpiredTokens

        tokens = ExpiredTokens(self._broker)
        self._to_stop.append(tokens)
        return tokens

    @property
    def groups_at_work(self) -> GroupCoordinator | None:
        """The coordinator of groups, if it was needed so far."""
        return self.__dict__.get("groups")

    @property
    def transactions_at_work(self) -> TransactionCoordinator | None:
        """The coordinator of transactions, if it was needed so far."""
        return self.__dict__.get("transactions")

    # -- life ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """The broker serves. It coordinates as soon as it leads a partition of a topic for that."""
        if self._broker.settings.delegation_token_secret_key:
            _ = self.expired_tokens
        metadata = self._broker.metadata
        self._unsubscribe = metadata.subscribe(self._follow)
        self._follow(metadata.image, metadata.image)

    async def stop(self) -> None:
        """Nothing of a service outlives this."""
        self._stop_following()
        while self._to_stop:
            await self._to_stop.pop().stop()

    def _follow(self, old: ClusterImage, new: ClusterImage) -> None:
        for one in list(self._asleep):
            topic = new.topics.get(one.topic)
            if topic is not None and any(p.leader == self._broker.broker_id for p in topic.partitions):
                self._asleep.remove(one)
                self._broker.tasks.spawn(self._wake(one))
        if not self._asleep:
            self._stop_following()

    def _stop_following(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None

    async def _wake(self, coordination: _Coordination) -> None:
        # The modules are loaded by a thread: the first records should not have to wait for them.
        await asyncio.to_thread(import_module, coordination.module)
        coordination.build(self)


def _log_in(security: ClientSecurity, entropy: Entropy) -> Generator[Step, ApiMessage, int]:
    from penstock.logging_in import login_steps

    return login_steps(security, entropy.token(24))
