"""How a live broker gives partitions to others: it settles all of one first, and a metadata entry gives it
away.

That entry commits the settled records, so it names the manifest that they were computed from. The image may
name another manifest by then, because the partition was repaired. Then the partition is not given away as
settled: a broker that stays settles it anew, and a broker that leaves has the next leader read its log.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from penstock.cluster.metadata_log import MetadataLog, MetadataUnavailableError
from penstock.metadata.commands import AnyCommand, AssignLeaders, LeaderMove, RemoveBroker
from penstock.metadata.image import ClusterImage, ManifestRef, PartitionKey, WalRef
from penstock.metadata.placement import HandOver, successors
from penstock.metadata.refusal import Refusal
from penstock.storage.partitions.answers import Surrendered
from penstock.storage.stores.objects import StoreError

logger = logging.getLogger(__name__)


class Leadership(Protocol):
    """What a broker's membership needs from the ledger, mostly for handing over."""

    @property
    def durable_flushes(self) -> int:
        """So many flushes of the incarnation's log are durable."""

    async def settle(self) -> bool:
        """Settle what was accepted so far, while writes go on."""

    def led(self) -> Iterable[PartitionKey]:
        """The partitions that are open here."""

    async def surrender(self, keys: Iterable[PartitionKey]) -> Mapping[PartitionKey, Surrendered]:
        """Stop accepting writes to these partitions, and settle everything that was accepted. Returns those
        that were settled."""

    def resume(self, keys: Iterable[PartitionKey]) -> None:
        """The partitions stay here after all: accept writes again."""


async def hand_over(
    log: MetadataLog, leadership: Leadership, own: WalRef, plans: Sequence[HandOver], pause_seconds: float
) -> int:
    """Give partitions that the incarnation `own` leads to others. Returns how many went."""
    by_key = {(plan.topic_id, plan.partition): plan for plan in plans if _leads(log.image, own, plan)}
    if not by_key:
        return 0
    try:
        surrendered = await leadership.surrender(list(by_key))
    except Exception:
        leadership.resume(list(by_key))
        raise
    moves = {key: _move(by_key[key], one.manifest) for key, one in surrendered.items() if key in by_key}

    def decide(image: ClusterImage) -> list[AnyCommand]:
        possible = tuple(
            move
            for key, move in moves.items()
            if _leads(image, own, move)
            and image.is_live(move.leader)
            and _replaces(image, move, surrendered[key])
        )
        return [AssignLeaders(own.broker, own.epoch, possible)] if possible else []

    while True:
        try:
            result = await log.propose(decide)
            break
        except MetadataUnavailableError as error:
            # The entry may still arrive. Until it is known whether it did, writing on here could
            # acknowledge records that the next leader never reads; so nothing is resumed yet.
            logger.warning("a hand-over waits for the store error=%s", error)
            await asyncio.sleep(pause_seconds)
    image = log.image if isinstance(result, Refusal) else result
    kept = [key for key in by_key if _stays(image, own, key)]
    if kept:
        leadership.resume(kept)
    gone = len(by_key) - len(kept)
    if gone:
        logger.info("handed partitions over broker=%d partitions=%d kept=%d", own.broker, gone, len(kept))
    return gone


async def surrender_all(leadership: Leadership) -> Mapping[PartitionKey, Surrendered]:
    """Stop all writes. Returns what is settled."""
    try:
        # Most of the work, while writes go on; the rest is what came meanwhile.
        await leadership.settle()
        return await leadership.surrender(leadership.led())
    except (StoreError, MetadataUnavailableError) as error:
        logger.warning("not everything was settled before leaving error=%s", error)
        return {}


def departure(
    image: ClusterImage, own: WalRef, settled: Mapping[PartitionKey, Surrendered], flush_count: int
) -> list[AnyCommand]:
    """The entry by which an incarnation leaves, whose log is sealed and holds `flush_count` flushes."""
    given, left = [], []
    for move in successors(image, own.broker):
        one = settled.get((move.topic_id, move.partition))
        if one is not None and _replaces(image, move, one):
            given.append(msgspec.structs.replace(move, settled=True, manifest=one.manifest))
        else:
            left.append(move)
    commands: list[AnyCommand] = []
    if given:
        commands.append(AssignLeaders(own.broker, own.epoch, tuple(given)))
    commands.append(RemoveBroker(own.broker, own.epoch, flush_count))
    if left:
        commands.append(AssignLeaders(own.broker, own.epoch, tuple(left)))
    return commands


def _stays(image: ClusterImage, own: WalRef, key: PartitionKey) -> bool:
    """Whether the incarnation leads a partition, in whatever epoch. Its next leader may have been fenced in
    the same entry, and the partition given back."""
    info = image.partition(*key)
    return info is not None and info.leader == own.broker and info.wals[-1:] == (own,)


def _leads(image: ClusterImage, own: WalRef, move: LeaderMove | HandOver) -> bool:
    return image.leads(own.broker, own.epoch, move.topic_id, move.partition, move.leader_epoch)


def _replaces(image: ClusterImage, move: LeaderMove, surrendered: Surrendered) -> bool:
    """Whether what was settled still follows on the manifest in the image. A repair may have replaced that
    since; it would be undone."""
    info = image.partition(move.topic_id, move.partition)
    return info is not None and info.manifest == surrendered.base


def _move(plan: HandOver, manifest: ManifestRef | None) -> LeaderMove:
    return LeaderMove(
        plan.topic_id, plan.partition, plan.leader_epoch, plan.leader, True, manifest, plan.replicas
    )
