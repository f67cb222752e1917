"""etcd, for worlds that keep their metadata log and leases in it, and its own faults.

It is a store of its own: it may be out while records are read and written, and the reverse. Its creates are
linearizable, as the port promises. A request that timed out may have taken effect, and may do so later. A
cluster of etcd that lost its leader answers no request for some seconds.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from simulation.loop import Process
from simulation.machines import Machine
from simulation.store import SharedStore, StoreView
from simulation.weather import Weather

if TYPE_CHECKING:
    from simulation.scene import Scene

FAULTS = ("etcd out", "etcd leader", "etcd leader", "etcd flaky", "etcd doubt", "etcd slow", "etcd denied")
NO_LEADER_SECONDS_MAX = 6.0


class Elsewhere:
    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.shared = SharedStore(scene.world, scene.trace, "etcd")
        self.shared.on_effect = scene.checker.effect

    def open(self, process: Process, weather: Weather) -> StoreView:
        return StoreView(
            self.shared, process, weather, random.Random(f"{self._scene.seed}/{process.name}/etcd")
        )

    def get(self, key: str) -> bytes | None:
        return self.shared.memory.objects.get(key)

    async def fault(self, kind: str, machine: Machine, rng: random.Random, seconds: float) -> None:
        """One fault, from its beginning to its end."""
        scene = self._scene
        everybody = kind == "etcd leader"
        machines = list(scene.machines.values()) if everybody else [machine]
        scene.trace.note("faults", f"{kind} for {[one.host for one in machines]}")
        for one in machines:
            _spoil(one.elsewhere, kind, rng)
        await asyncio.sleep(rng.random() * NO_LEADER_SECONDS_MAX if everybody else seconds)
        scene.trace.note("faults", f"no {kind} any more for {[one.host for one in machines]}")
        for one in machines:
            one.elsewhere.clear(scene.latency)
            one.elsewhere.troubled_at = scene.world.time()


def _spoil(weather: Weather, kind: str, rng: random.Random) -> None:
    match kind:
        case "etcd out":
            weather.out = True
        case "etcd leader":
            # Some of what was under way when the leader was lost is in the log of the next one.
            weather.late, weather.late_seconds = 0.2, NO_LEADER_SECONDS_MAX
            weather.refused = 0.8
        case "etcd flaky":
            weather.refused, weather.lost, weather.late = (rng.choice((0.0, 0.1, 0.3)) for _ in range(3))
        case "etcd doubt":
            weather.late_prefix = rng.choice(("meta/log/", "meta/log/", ""))
            weather.late = 1.0 if weather.late_prefix else 0.3
            weather.late_seconds = rng.choice((4.0, 8.0))
        case "etcd slow":
            weather.latency = rng.choice((0.2, 1.0, 3.0))
        case "etcd denied":
            weather.denied = ""
