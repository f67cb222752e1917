"""Moves live pieces out of objects that are mostly dead, so that space comes back (`log.moving`).

A pass moves a bounded number of bytes, of the deadest objects first. It leaves objects that cannot be read
alone for a while, so that they do not keep others from being emptied. Old manifests do not tell the sizes of
their objects; the pass looks at such an object once.

Manifests share objects too: all manifests of one command lie in one. An object of manifests that is mostly
dead is emptied by writing the living ones anew.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping

from penstock.log.moving import Sparse, choose, is_sparse, stretches, worth_moving
from penstock.metadata.image import PartitionKey
from penstock.storage.partitions.holdings import Holdings
from penstock.storage.settling.change import Base, Change
from penstock.storage.settling.committing import Committer
from penstock.storage.settling.garbage import Garbage
from penstock.storage.settling.rewriting import Rewriter, Stretch
from penstock.storage.stores.objects import StoreError, StoreFullError

logger = logging.getLogger(__name__)

_BYTES_PER_PASS = 64 * 1024 * 1024
_SIZES_PER_PASS = 32
_PARTITIONS_PER_STEP = 50  # Handled before other work on the loop gets its turn: about a millisecond.
_RETRY_FIRST_SECONDS = 60.0
_RETRY_MAX_SECONDS = 3600.0
_ALIVE_SECONDS = 30.0
"""How long it is believed that other leaders need an object. A look costs the manifests that changed
meanwhile: fewer than settling wrote."""
_MANIFESTS_EVERY_SECONDS = 60.0


class Mover:
    def __init__(
        self,
        holdings: Holdings,
        garbage: Garbage,
        committer: Committer,
        rewriter: Rewriter,
        cleaning: Collection[PartitionKey],
    ) -> None:
        """`cleaning`: partitions whose segments compaction is on, which are left alone."""
        self._holdings = holdings
        self._store = holdings.store
        self._clock = holdings.clock
        self._settings = holdings.settings
        self._partitions = holdings.partitions
        self._cleaning = cleaning
        self._usage = garbage.usage
        self._garbage = garbage
        self._committer = committer
        self._rewriter = rewriter
        self._failures: dict[str, tuple[float, float]] = {}
        """Objects that could not be looked at or emptied: when to try again, and how long to wait then."""
        self._suspects: list[str] = []
        """Objects of a pass that failed: tried one by one, to find the one that it was."""
        self._manifest_sizes: dict[str, int] = {}
        self._manifests_at = self._clock.monotonic() + _MANIFESTS_EVERY_SECONDS
        self.bytes_moved = 0

    # Segments.

    async def move(self) -> bool:
        """One pass. True if there may be more to move at once."""
        await self._learn_sizes()
        sparse = [one for one in self._usage.sparse() if self._may_try(one.key)]
        if not worth_moving(sparse, self._usage.live_bytes):
            return False
        suspects = set(self._suspects[:1])
        chosen = [one for one in sparse if one.key in suspects] or choose(sparse, _BYTES_PER_PASS)
        chosen = [one for one in chosen if await self._is_dead_elsewhere(one)]
        if not chosen:
            self._suspects = self._suspects[1:]
            return True
        found = await self._stretches({one.key for one in chosen})
        try:
            moved = await self._rewriter.rewrite(found) if found else 0
        except StoreFullError:
            raise
        except StoreError as error:
            self._note_failure(chosen, error)
            return True
        self._suspects = self._suspects[1:]
        if not moved:
            # Compaction is on these partitions, or their indexes cannot be read.
            for one in chosen:
                self._put_off(one.key)
            return False
        self.bytes_moved += sum(segment.size_bytes for stretch in found for segment in stretch.segments)
        return True

    async def _is_dead_elsewhere(self, one: Sparse) -> bool:
        """Whether an object is mostly dead, also counting what partitions need that others lead."""
        elsewhere = await self._garbage.references.live_elsewhere(
            one.key, one.index_key, self._holdings.image
        )
        if elsewhere is None:
            self._put_off(one.key)
            return False
        if not is_sparse(one.live_bytes + elsewhere, one.object_bytes):
            self._failures[one.key] = (self._clock.monotonic() + _ALIVE_SECONDS, _RETRY_FIRST_SECONDS)
            return False
        return True

    async def _stretches(self, keys: Collection[str]) -> list[Stretch]:
        found: list[Stretch] = []
        for at, (key, partition) in enumerate(list(self._partitions.items())):
            if at % _PARTITIONS_PER_STEP == _PARTITIONS_PER_STEP - 1:
                await asyncio.sleep(0)
            manifest, policy = partition.manifest, partition.policy
            if manifest is None or partition.closed or key in self._cleaning:
                continue
            ranges = stretches(
                manifest.segments,
                keys,
                clean_end=manifest.compacted_end if policy.compact else 0,
                bytes_max=min(self._settings.merge_bytes_max, policy.segment_bytes),
                span_ms_max=policy.segment_ms,
            )
            found += (Stretch(partition, manifest.segments[one.start : one.stop]) for one in ranges)
        return found

    def _note_failure(self, chosen: Collection[Sparse], error: StoreError) -> None:
        if len(chosen) > 1:
            self._suspects = [one.key for one in chosen]
            return
        for one in chosen:
            self._put_off(one.key)
            logger.warning("an object could not be emptied key=%s: %s", one.key, error)
        self._suspects = self._suspects[1:]

    def _may_try(self, key: str) -> bool:
        due, _pause = self._failures.get(key, (0.0, 0.0))
        return self._clock.monotonic() >= due

    def _put_off(self, key: str) -> None:
        self._failures = {one: when for one, when in self._failures.items() if one in self._usage}
        _due, pause = self._failures.get(key, (0.0, _RETRY_FIRST_SECONDS))
        self._failures[key] = (self._clock.monotonic() + pause, min(2 * pause, _RETRY_MAX_SECONDS))

    async def _learn_sizes(self) -> None:
        unknown = [key for key in self._usage.unknown() if self._may_try(key)][:_SIZES_PER_PASS]
        sizes = await asyncio.gather(*(self._store.size(key) for key in unknown), return_exceptions=True)
        for key, size in zip(unknown, sizes, strict=True):
            if isinstance(size, int):
                self._usage.learn(key, size)
                self._failures.pop(key, None)
            elif size is None or isinstance(size, StoreError):
                self._put_off(key)
            else:
                raise size

    # Manifests.

    async def move_manifests(self) -> bool:
        """Write the living manifests of objects that are mostly dead anew: whether there were some."""
        if self._clock.monotonic() < self._manifests_at:
            return False
        self._manifests_at = self._clock.monotonic() + _MANIFESTS_EVERY_SECONDS
        live: dict[str, int] = {}
        users: dict[str, list[PartitionKey]] = {}
        for key, partition in self._partitions.items():
            ref = partition.manifest_ref
            if ref is not None and not partition.closed:
                live[ref.key] = live.get(ref.key, 0) + ref.length
                users.setdefault(ref.key, []).append(key)
        sizes = await self._manifest_sizes_of(live)
        sparse = [
            Sparse(key, key, live[key], size) for key, size in sizes.items() if is_sparse(live[key], size)
        ]
        if not worth_moving(sparse, sum(live.values())):
            return False
        keys = [user for one in choose(sparse, _BYTES_PER_PASS) for user in users[one.key]]

        def fold(wanted: Collection[PartitionKey]) -> list[Change]:
            open_now = [self._partitions[key] for key in wanted if key in self._partitions]
            return [
                Change(partition, Base.of(partition), partition.manifest)
                for partition in open_now
                if not partition.closed and partition.manifest is not None
            ]

        with self._committer.attempt() as attempt:
            return bool(await self._committer.commit(attempt, keys, fold))

    async def _manifest_sizes_of(self, keys: Collection[str]) -> Mapping[str, int]:
        """The sizes of objects of manifests, as far as they are known by now."""
        known = {key: size for key, size in self._manifest_sizes.items() if key in keys}
        unknown = [key for key in keys if key not in known][: 4 * _SIZES_PER_PASS]
        sizes = await asyncio.gather(*(self._store.size(key) for key in unknown), return_exceptions=True)
        known.update((key, size) for key, size in zip(unknown, sizes, strict=True) if isinstance(size, int))
        self._manifest_sizes = known
        return known
