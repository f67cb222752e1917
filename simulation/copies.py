"""Old copies: a person, or a service, brings one object back as it was.

A bucket with versions keeps what was overwritten and what was deleted. Who restores one object of it, or a
service that heals itself from a replica that lags, gives brokers a lease, a hint or a stub that was replaced
since, or a flush or an entry that was deleted. Segments and manifests that come back are only garbage.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulation.scene import Scene

FAULTS = ("back", "back", "stale", "stale")
KEPT = ("meta/", "live/", "wal/")
"""What brokers believe by its name alone."""


class Copies:
    """What the objects of one store were before."""

    def __init__(self) -> None:
        self.replaced: dict[str, list[bytes]] = {}
        self.deleted: dict[str, bytes] = {}

    def replace(self, key: str, before: bytes) -> None:
        if key.startswith(KEPT):
            self.replaced.setdefault(key, []).append(before)

    def delete(self, key: str, before: bytes) -> None:
        if key.startswith(KEPT):
            self.deleted[key] = before


def bring_back(scene: Scene, rng: random.Random) -> None:
    """One object is what it was once."""
    shared, copies = scene.shared, scene.shared.copies
    lost = [key for key in copies.deleted if key not in shared.memory.objects]
    if lost and rng.random() < 0.5:
        key = rng.choice(sorted(lost))
        scene.trace.note("faults", f"{key} comes back")
        shared.create(key, copies.deleted[key])
        return
    there = [key for key in copies.replaced if key in shared.memory.objects]
    if there:
        # Of most leases there are many copies, and one of the hint and of each stub.
        key = rng.choice(sorted(there, key=lambda one: (one.startswith("live/"), one)))
        before = copies.replaced[key]
        at = rng.randrange(len(before))
        scene.trace.note("faults", f"{key} is as it was {len(before) - at} times before")
        shared.put(key, before[at])
