"""Bringing a partition forward: the state at the end of its manifest, then batch after batch of its logs."""

from collections.abc import Callable, Iterable

from penstock.log.extents import Extents
from penstock.log.manifest import Manifest
from penstock.log.partition import PartitionLog
from penstock.log.replaying import Damaged, Replay
from penstock.storage.reader.contents import Block


class GapError(Exception):
    """Records are missing between two batches, and no damaged flush explains it."""


def restore(log: PartitionLog, manifest: Manifest) -> None:
    """Put a new partition into the state at the end of its manifest."""
    log.next_offset = manifest.end_offset
    log.producer_entries = dict(manifest.producers)
    log.epochs = manifest.epochs
    log.ongoing = dict(manifest.ongoing)
    log.aborted = list(manifest.aborted)


def replay_log(
    replay: Replay,
    found: Iterable[Block | Damaged],
    extents: Extents,
    file_of: Callable[[str], int],
    *,
    gaps: bool = True,
) -> None:
    """Take over what a log holds beyond what is there. The places of its batches are added to `extents`, with
    the number that `file_of` gives to their file. Without `gaps`, GapError if records are missing: they may
    be in a manifest that the caller does not know yet. What came before the gap was taken then."""
    for one in found:
        if isinstance(one, Damaged):
            replay.damaged(*one)
            continue
        file = file_of(one.key)
        for header, position, control in one.block.batches():
            if not gaps and not replay.expects(header.base_offset, proven=one.proven):
                raise GapError
            if replay.takes(header, control, one.time_ms, proven=one.proven):
                extents.append(
                    header.base_offset,
                    header.last_offset,
                    header.max_timestamp,
                    one.position + position,
                    header.size,
                    file,
                )
