"""Where a cluster lives: which store belongs to it, and where its metadata log and leases are.

`meta/cluster` in the store, created once, names the cluster. If the metadata log is not in the store itself,
`meta/cluster` also names its place (`metadata`, an etcd:// address without secrets). So every program that
knows the store finds everything: a broker that was not told, the command line, Spark. In etcd `meta/cluster`
names the same cluster, so neither can be taken for another cluster's.

The store's object is created first. A crash in between leaves a store without records that names an empty
etcd; the next broker completes it. If the store does hold write-ahead logs, an empty etcd is a lost or a
wrong one, and nothing is started on it: numbers that were used would be used again.

A loss of power may leave `meta/cluster` torn on a directory. A broker that starts puts there again what a
metadata snapshot in the store says. If the store holds nothing else, it founds the cluster anew.

Addresses change when members of etcd are replaced. A broker that is given other addresses than the store
names, and finds the same cluster there, writes them into the store.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.cluster.second_looks import get_whole
from penstock.cluster.snapshots import SnapshotChain
from penstock.entropy import SYSTEM, Entropy
from penstock.metadata.codec import DamagedError, FormatError, Identity, decode_identity, encode_identity
from penstock.metadata.image import WalRef
from penstock.storage.stores.objects import ObjectStore, StoreError, StoreUnavailableError, Unproven
from penstock.storage.wal.port import WAL_PREFIX

if TYPE_CHECKING:
    from penstock.storage.stores.local import LocalDirectory

logger = logging.getLogger(__name__)

IDENTITY_KEY: Final = "meta/cluster"
_RECORDS: Final = (WAL_PREFIX, "segments/", "manifests/", "meta/log/")


class HomeError(StoreError):
    """The store and the place of the metadata log do not belong together. One sentence for a person."""


class Home(NamedTuple):
    cluster_id: str
    metadata_store: ObjectStore
    """Where the metadata log, its snapshots and the leases are: the store itself, or another one."""


async def join(
    store: ObjectStore, metadata: str, new_id: Callable[[], str], open_elsewhere: Callable[[str], ObjectStore]
) -> Home:
    """Find the cluster that lives in `store`, or found it. `metadata` is where its metadata log is to be;
    "": where it is, or in the store for a new cluster.

    HomeError if this is not one cluster's; FormatError if this version cannot serve it; StoreError.
    """
    try:
        there = await _read(store)
    except DamagedError as error:
        if not error.torn or store.local is None:
            raise
        whole = await named_by_snapshot(store)
        if whole is None:
            await _require_empty(store, error)
            whole = await _new_identity(store, metadata, new_id, open_elsewhere)
        there = await _heal(store, store.local, whole, error)
    if there is None:
        await _require_fit(store, new_id())
        there = await _create(store, await _new_identity(store, metadata, new_id, open_elsewhere))
    return await _found(store, metadata, there, open_elsewhere)


async def _new_identity(
    store: ObjectStore, metadata: str, new_id: Callable[[], str], open_elsewhere: Callable[[str], ObjectStore]
) -> Identity:
    """Of a cluster that is to be founded here."""
    if not metadata:
        return Identity.new(new_id())
    elsewhere = open_elsewhere(metadata)
    try:
        taken = await _read(elsewhere)
        if taken is not None and not await _is_named(store):
            other = taken.cluster_id
            raise HomeError(
                f"{_name(elsewhere, metadata)} holds the metadata log of cluster {other}, which does not "
                "live in this store; give another prefix."
            )
    finally:
        await elsewhere.close()
    return Identity.new(new_id(), _name(elsewhere, metadata))


async def _is_named(store: ObjectStore) -> bool:
    """Whether the store says whose it is."""
    data = await store.get(IDENTITY_KEY)
    return data is not None and not _is_torn(IDENTITY_KEY, data)


async def find(store: ObjectStore, open_elsewhere: Callable[[str], ObjectStore]) -> Home | None:
    """The cluster that lives in `store`, for those who only read."""
    identity = await _read(store)
    if identity is None:
        return None
    return Home(identity.cluster_id, open_elsewhere(identity.metadata) if identity.metadata else store)


async def _found(
    store: ObjectStore, metadata: str, identity: Identity, open_elsewhere: Callable[[str], ObjectStore]
) -> Home:
    if not identity.metadata:
        if metadata:
            raise HomeError(
                f"The cluster {identity.cluster_id} keeps its metadata log in the store; start its brokers "
                "without --metadata."
            )
        return Home(identity.cluster_id, store)
    elsewhere = open_elsewhere(metadata or identity.metadata)
    try:
        name = _name(elsewhere, metadata or identity.metadata)
        there = await _read(elsewhere)
        if there is None:
            await _require_unused(store, elsewhere, identity, name)
            # Without an address of its own: it is where it says.
            there = await _create(elsewhere, Identity.new(identity.cluster_id))
        if there.cluster_id != identity.cluster_id:
            raise HomeError(
                f"{name} holds the metadata log of cluster {there.cluster_id}, and the store holds the "
                f"records of cluster {identity.cluster_id}, whose metadata log is at {identity.metadata}."
            )
        if name != identity.metadata:
            await store.put(IDENTITY_KEY, encode_identity(Identity.new(identity.cluster_id, name)))
    except BaseException:
        await elsewhere.close()
        raise
    return Home(identity.cluster_id, elsewhere)


async def _require_unused(store: ObjectStore, elsewhere: ObjectStore, identity: Identity, name: str) -> None:
    if name != identity.metadata:
        raise HomeError(
            f"The cluster {identity.cluster_id} keeps its metadata log at {identity.metadata}; there is none "
            f"of it at {name}."
        )
    if [info async for info in store.list(WAL_PREFIX)]:
        # A log is begun after the cluster was, so if brokers began both meanwhile, it is there now.
        if (await elsewhere.get(IDENTITY_KEY)) is not None:
            return
        raise HomeError(
            f"The metadata log of cluster {identity.cluster_id} is gone from {name}: the store holds "
            "records, and nothing there says which."
        )


async def _require_fit(store: ObjectStore, token: str) -> None:
    """A cluster can be founded here: nobody else's is, and the store keeps its promises."""
    for prefix in _RECORDS:
        found = [info async for info in store.list(prefix)]
        if found:
            if (await store.get(IDENTITY_KEY)) is not None:
                return  # Another broker founded the cluster meanwhile.
            raise HomeError(
                f"The store holds {found[0].key} of some cluster, and no {IDENTITY_KEY} that says which; a "
                "second cluster cannot live in it. `penstock store repair` says whether a snapshot has it."
            )
    if isinstance(store, Unproven):
        from penstock.storage.stores.proof import prove_create

        await prove_create(store, store.url, token)


async def _create(store: ObjectStore, identity: Identity) -> Identity:
    """The identity that is there afterwards: this one, or that of whoever was first."""
    await store.create(IDENTITY_KEY, encode_identity(identity))
    there = await _read(store)
    if there is None:
        raise StoreUnavailableError(f"{IDENTITY_KEY} was written and cannot be read back")
    return there


async def _read(store: ObjectStore) -> Identity | None:
    """The identity that is there; None if there is none."""
    return await get_whole(store, IDENTITY_KEY, decode_identity)


# A torn identity.


def _is_torn(_key: str, data: bytes) -> bool:
    try:
        decode_identity(data)
    except FormatError as error:
        return isinstance(error, DamagedError) and error.torn
    return False


async def named_by_snapshot(store: ObjectStore) -> Identity | None:
    """What a snapshot says of the cluster whose metadata log is in the store; None if there is none."""
    chain = SnapshotChain(store)
    image = await chain.find()
    if image is None and chain.ordinal:
        image = await chain.load()
    return Identity.new(image.cluster_id) if image is not None and image.cluster_id else None


async def _require_empty(store: ObjectStore, error: DamagedError) -> None:
    for prefix in _RECORDS:
        async for _info in store.list(prefix):
            if await _is_named(store):
                return  # Another broker healed it meanwhile.
            raise error


async def newest_log(store: ObjectStore) -> WalRef | None:
    """The write-ahead log with the greatest epoch of all that ever were: seals stay. StoreError."""
    newest = None
    async for info in store.list(WAL_PREFIX):
        match info.key.split("/"):
            case [_, broker, epoch, _] if broker.isdecimal() and epoch.isdecimal():
                if newest is None or int(epoch) > newest.epoch:
                    newest = WalRef(int(broker), int(epoch))
    return newest


async def _heal(
    store: ObjectStore, local: "LocalDirectory", whole: Identity, error: DamagedError
) -> Identity:
    """Put `whole` in the place of the torn identity, unless another broker was first: what is there then."""
    from penstock.storage.stores.healing import RunningBrokersError, replace_torn

    replacements = {IDENTITY_KEY: encode_identity(whole)}
    try:
        aside = await local.run(replace_torn, local, replacements, None, None, _is_torn)
    except RunningBrokersError:
        raise error from None
    if aside:
        logger.warning(
            "%s was torn, as by a loss of power, and was written anew cluster_id=%s kept=%s",
            IDENTITY_KEY, whole.cluster_id, aside[0],
        )  # fmt: skip
    there = await _read(store)
    if there is None:
        raise error
    return there


def _name(store: ObjectStore, location: str) -> str:
    """The one spelling of a place."""
    return getattr(store, "url", location)


def open_elsewhere(location: str, *, idle_max: int | None = None, entropy: Entropy = SYSTEM) -> ObjectStore:
    """A place for metadata alone. `idle_max`: how many connections stay open between requests."""
    if not location.startswith(("etcd://", "etcds://")):
        raise HomeError(
            f"The metadata log is kept in the store or in etcd://HOST:PORT,..., not in {location!r}."
        )
    from penstock.storage.stores.etcd import EtcdStore

    if idle_max is None:
        return EtcdStore(location, entropy=entropy)
    return EtcdStore(location, idle_max=idle_max, entropy=entropy)
