"""Does a store keep the one promise that everything here rests on: of many creates of a key, one wins?

Services differ, and some that speak the protocol check first and write then. So before a cluster is founded
on a service of another maker, writers race for a few keys. A store that lets two of them win, or lets a later
one overwrite the first, is refused. This can miss a fault that happens once in a thousand races;
`conformance.s3` races for hundreds of rounds.
"""

import asyncio

from penstock.storage.stores.objects import ObjectStore, StoreError

ROUNDS = 8
WRITERS = 8


class UnfitStoreError(StoreError):
    """The store cannot be relied upon. The message is one sentence for a person."""


async def prove_create(store: ObjectStore, name: str, token: str) -> None:
    """Raises UnfitStoreError; StoreError if the store fails. `name` is how a person calls the store; `token`
    is what nobody else has."""
    keys = [f"meta/probe/{token}/{number}" for number in range(ROUNDS)]
    try:
        for key in keys:
            values = [f"{key} writer {number}".encode() for number in range(WRITERS)]
            won = await asyncio.gather(*(store.create(key, value) for value in values))
            again = await store.create(key, b"too late")
            kept = await store.get(key)
            if won.count(True) != 1 or again or kept != values[won.index(True)]:
                raise UnfitStoreError(
                    f"{name} let {won.count(True) + again} of {WRITERS + 1} writers create the same object: "
                    "its conditional writes (If-None-Match) are not atomic, and no cluster can live on it."
                )
    finally:
        await asyncio.gather(*(store.delete(key) for key in keys), return_exceptions=True)
