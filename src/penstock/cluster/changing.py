"""A change of the cluster that is made on its store, whether brokers run or not.

The first user has to exist before the first broker lets anybody in. A store without a cluster gets one, as by
its first broker: at the newest feature level.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock.cluster.metadata_log import MetadataLog
from penstock.metadata.commands import AnyCommand, SetLevel
from penstock.metadata.levels import LEVEL_MAX
from penstock.metadata.refusal import Refusal

if TYPE_CHECKING:
    from penstock.clock import Clock
    from penstock.metadata.image import ClusterImage
    from penstock.storage.stores.objects import ObjectStore

Change = Callable[["ClusterImage"], Sequence[AnyCommand] | Refusal]


async def change(
    store: ObjectStore, clock: Clock, wanted: Change, *, metadata: str = ""
) -> ClusterImage | Refusal:
    """The image with the change, or why it was refused. StoreError, FormatError, HomeError or
    MetadataUnavailableError, as by a broker that starts."""
    log = MetadataLog(store, clock, metadata=metadata)
    try:
        await log.open()

        def decide(image: ClusterImage) -> Sequence[AnyCommand] | Refusal:
            commands = wanted(image)
            if isinstance(commands, Refusal) or image.version or not commands:
                return commands
            return [SetLevel(LEVEL_MAX), *commands]

        return await log.propose(decide)
    finally:
        await log.close()
