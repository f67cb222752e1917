"""The contents of the flushes of a write-ahead log, for the partitions that a caller wants."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.log.flush import FlushBlock, iter_blocks
from penstock.log.replaying import Damaged
from penstock.metadata.image import PartitionKey
from penstock.storage.wal.port import ScannedFlush
from penstock.wire.batch import HEADER, HEADER_SIZE, BatchHeader


class Block(NamedTuple):
    """A partition's block in a flush."""

    key: str
    position: int
    """Where the flush begins in the object `key`."""
    time_ms: int
    proven: bool
    """False: salvaged, and whose it is may have been hurt."""
    block: FlushBlock


class LogContents:
    """For each wanted partition, in the order of the log: its blocks, and damaged flushes that may have held
    one. A torn flush may have held more than is left of it: it is listed before and after the blocks that are
    left."""

    def __init__(self, wanted: Iterable[PartitionKey] = ()) -> None:
        self._of: dict[PartitionKey, list[Block | Damaged]] = {key: [] for key in wanted}

    def __len__(self) -> int:
        """How many blocks and damaged flushes are kept, for all partitions."""
        return sum(map(len, self._of.values()))

    def of(self, key: PartitionKey) -> Sequence[Block | Damaged]:
        return self._of[key]

    def add(self, flush: ScannedFlush) -> None:
        _index(flush, self._of)

    def want(self, keys: Iterable[PartitionKey], flushes: Iterable[ScannedFlush]) -> None:
        """Keep what concerns these partitions, too. `flushes` are those that were added before."""
        fresh: dict[PartitionKey, list[Block | Damaged]] = {key: [] for key in keys if key not in self._of}
        if fresh:
            for flush in flushes:
                _index(flush, fresh)
            self._of.update(fresh)

    def forget_settled(self, key: PartitionKey, end_offset: int) -> None:
        """A manifest covers this partition up to `end_offset`."""
        found = self._of[key]
        first = next((at for at, one in enumerate(found) if _is_beyond(one, end_offset)), len(found))
        # A damaged flush before the first block that is left may have held what lies between.
        while first and isinstance(found[first - 1], Damaged):
            first -= 1
        self._of[key] = found[first:]


def _index(flush: ScannedFlush, of: dict[PartitionKey, list[Block | Damaged]]) -> None:
    damage = flush.damage
    if damage is None:
        for block in iter_blocks(flush.blocks):
            wanted = of.get((block.topic_id, block.partition))
            if wanted is not None:
                wanted.append(Block(flush.key, flush.position, flush.time_ms, True, block))
        return
    damaged = Damaged(flush.number, damage)
    known: set[PartitionKey] = set()
    for block in iter_blocks(flush.blocks):
        key = (block.topic_id, block.partition)
        wanted = of.get(key)
        if wanted is not None:
            known.add(key)
            if damage.torn:
                wanted.append(damaged)
            wanted.append(Block(flush.key, flush.position, flush.time_ms, damage.torn, block))
    for key, wanted in of.items():
        if damage.torn or key not in known:
            wanted.append(damaged)


def _is_beyond(one: Block | Damaged, end_offset: int) -> bool:
    if isinstance(one, Damaged):
        return False
    headers = one.block.headers
    last = BatchHeader._make(HEADER.unpack_from(headers, len(headers) - HEADER_SIZE))
    return last.last_offset >= end_offset
