"""Where the tables of a topic are: pipelines write it down in the store, and readers look there.

    spark/records/<topic>/<pipeline>/<output>     an Iceberg table that holds the records of the topic

It says where a table is, and nothing of what is in it: that is in the table. Properties of a catalog are not
written down, because there may be secrets among them.
"""

import msgspec

from penstock.storage.stores.blocking import BlockingStore

PREFIX = "spark/records/"


class Place(msgspec.Struct, frozen=True):
    path: str
    name: str
    """Of the table, in its catalog."""
    catalog_given: bool = False
    """The catalog is not the file beside the table: a reader must be told of it."""


def write(store: BlockingStore, topic: str, pipeline: str, output: str, place: Place) -> None:
    key = f"{PREFIX}{topic}/{pipeline}/{output}"
    store.run(store.store.put(key, msgspec.json.encode(place)))


def places_of(store: BlockingStore, topic: str) -> list[Place]:
    """In the order of the names of pipelines and outputs."""

    async def collect() -> list[bytes | None]:
        keys = sorted([info.key async for info in store.store.list(f"{PREFIX}{topic}/")])
        return [await store.store.get(key) for key in keys]

    return [msgspec.json.decode(one, type=Place) for one in store.run(collect()) if one is not None]
