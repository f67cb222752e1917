"""The differences between worlds beside their faults, drawn apart from all other choices of a seed."""

from __future__ import annotations

import random

import msgspec

RECORDS = ("objects", "os", "fsync")
"""Where records are: in an object store, or in a directory with this durability."""
ETCD = "etcd+"
KINDS = (*RECORDS, *(f"{ETCD}{kind}" for kind in RECORDS))
"""With the metadata log and the leases there too, or in etcd."""

HOURS_MAX = 10.0
"""Wall clocks are wrong by so many hours at most, either way: by less than a producer or a record is kept."""

OF_TRANSACTIONS = frozenset(("aim", "peer cut", "peer break", "peer slow"))
"""Faults of worlds with transactions: brokers die at the worst moments, and do not reach each other."""

OF_COPIES = frozenset(("back", "stale"))
"""Faults of worlds in which the store shows what was."""


class Variety(msgspec.Struct, frozen=True):
    etcd: bool
    """The metadata log and the leases are in etcd."""
    recreates: bool
    """A topic is deleted and created again while it is used."""
    moves: bool
    """Partitions are given to other brokers."""
    ages: bool
    """A topic keeps its records for some seconds, and wall clocks differ by little."""
    jumps: bool
    """Wall clocks jump by hours, and no two clocks are equally fast."""
    sleeps: bool
    """Machines are suspended, and their clocks with them."""
    footers: bool
    """Footers of segments rot, so that it cannot be told for good whether these objects are needed."""
    copies: bool
    """Old copies of objects come back, and lists are late."""
    transactions: bool
    """Clients write, consume and copy in transactions."""


def variety_of(seed: int, kind: str | None, only: tuple[str, ...]) -> Variety:
    """`kind`, `only`: what a person asked for."""
    rng = random.Random(f"{seed}/worlds")
    etcd, recreates, moves, sleeps = (rng.random() < share for share in (0.35, 0.3, 0.3, 0.3))
    clocks = rng.random()
    jumps = clocks > 0.8 or "jump" in only
    footers = rng.random() < 0.15 or "footer" in only
    transactions = rng.random() < 0.3 if not only else not OF_TRANSACTIONS.isdisjoint(only)
    copies = rng.random() < 0.2 or not OF_COPIES.isdisjoint(only)
    return Variety(
        etcd=etcd if kind is None else kind.startswith(ETCD),
        recreates=recreates and not transactions,
        moves=moves,
        ages=clocks < 0.15 and not jumps and "clock" not in only,
        jumps=jumps,
        sleeps=sleeps,
        footers=footers,
        copies=copies,
        transactions=transactions,
    )
