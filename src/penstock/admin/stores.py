"""The store of a cluster, looked at itself: where it is, and whether all is there that the cluster needs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from penstock.client import AnswerError, Client, ClientError

if TYPE_CHECKING:
    from penstock.cluster.audit import Report
    from penstock.storage.stores.objects import DatedStore

GRACE_SECONDS = 3600
"""Settling takes seconds, and readers of deleted records get a minute by default: an hour is beyond doubt."""


def find_store(client: Client, bootstrap: str) -> str:
    """Where the brokers say that the store is; empty if they are not Penstock's. Whoever asks must be allowed
    to see the settings of brokers."""
    from penstock.spark.brokers import ask_store

    try:
        return ask_store(client, bootstrap)
    except AnswerError:
        raise
    except ClientError:
        return ""


async def audit(location: str, grace_seconds: int = GRACE_SECONDS, *, delete_orphans: bool = False) -> Report:
    """Compare the objects in a store with what its cluster needs."""
    from penstock.cluster.audit import Audit

    async with opened(location) as found:
        auditing = Audit(found, time.time_ns() // 1_000_000, grace_seconds * 1000)
        report = await auditing.run()
        if delete_orphans:
            await auditing.delete(report)
        return report


@contextlib.asynccontextmanager
async def opened(location: str) -> AsyncIterator[DatedStore]:
    """The store, while somebody looks at it. Errors become one sentence."""
    from penstock.cluster.reading import NoClusterError
    from penstock.metadata.codec import FormatError
    from penstock.storage.stores.objects import DatedStore, StoreError
    from penstock.storage.stores.opening import open_store, shown

    try:
        found = open_store(location)
        if not isinstance(found, DatedStore):
            raise StoreError("it is no place for records")
        try:
            yield found
        finally:
            await found.close()
    except NoClusterError:
        raise ClientError(f"No Penstock cluster lives in {location}.") from None
    except (StoreError, FormatError) as error:
        raise ClientError(f"The store {shown(location)} cannot be read: {error}") from None
