"""What `penstock users` and `penstock acls` share: a change through brokers, or on the store itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from penstock.metadata.commands import AnyCommand
    from penstock.metadata.image import ClusterImage
    from penstock.metadata.refusal import Refusal

F = TypeVar("F", bound=Callable[..., Any])


def store_option(command: F) -> F:
    return click.option(
        "--store",
        "location",
        metavar="DIR_OR_URL",
        help="Work on the store itself, whether brokers run or not, instead of through --bootstrap.",
    )(command)


def metadata_option(command: F) -> F:
    return click.option(
        "--metadata",
        metavar="etcd://...",
        default="",
        help="With --store, for a cluster that does not exist yet: where its metadata log is to be.",
    )(command)


def change_store(
    location: str, wanted: Callable[[ClusterImage], Sequence[AnyCommand] | Refusal], metadata: str = ""
) -> ClusterImage:
    """Change the cluster that lives in a store. Errors become one sentence."""
    from penstock.clock import SystemClock
    from penstock.cluster.changing import change
    from penstock.cluster.home import HomeError
    from penstock.cluster.metadata_log import MetadataUnavailableError
    from penstock.metadata.codec import FormatError
    from penstock.metadata.refusal import Refusal
    from penstock.storage.stores.objects import StoreError
    from penstock.storage.stores.opening import open_store, shown

    async def run() -> ClusterImage | Refusal:
        store = open_store(location)
        try:
            return await change(store, SystemClock(), wanted, metadata=metadata)
        finally:
            await store.close()

    try:
        outcome = asyncio.run(run())
    except (StoreError, FormatError, HomeError, MetadataUnavailableError) as error:
        raise click.ClickException(f"The store {shown(location)} cannot be changed: {error}") from None
    if isinstance(outcome, Refusal):
        raise click.ClickException(outcome.message or outcome.code.name)
    return outcome


def read_store(location: str) -> ClusterImage:
    """The cluster that lives in a store, as it is."""
    from penstock.admin.stores import opened
    from penstock.cluster.reading import ImageReader

    async def run() -> ClusterImage:
        async with opened(location) as store:
            return await ImageReader(store).refresh()

    return asyncio.run(run())
