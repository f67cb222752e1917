"""What goes wrong, and when: a seeded choice of faults, each of which ends after a while."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from simulation.machines import Machine

if TYPE_CHECKING:
    from simulation.scene import Scene

KINDS = (
    "crash",
    "crash",
    "pause",
    "pause",
    "pause",
    "stop",
    "outage",
    "outage all",
    "slow",
    "flaky",
    "cut",
    "clock",
)


class Faults:
    def __init__(self, scene: Scene, rng: random.Random, every: float) -> None:
        self._scene = scene
        self._rng = rng
        self._every = every
        self._kinds = rng.sample(KINDS, rng.randint(1, len(KINDS)))
        """Not every world has every fault: some are only found where another does not hide them."""
        self._under_way: dict[asyncio.Task[None], None] = {}

    async def run(self, seconds: float) -> None:
        """Make things go wrong for so long, then make everything well again."""
        until = self._scene.world.time() + seconds
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / self._every))
            if self._scene.world.time() >= until:
                break
            task = asyncio.create_task(self._one(self._rng.choice(self._kinds)))
            self._under_way[task] = None
            task.add_done_callback(self._under_way.pop)
        for task in list(self._under_way):
            task.cancel()
        self.heal()

    def heal(self) -> None:
        scene = self._scene
        scene.trace.note("faults", "everything is well again")
        for machine in scene.machines.values():
            weather = machine.weather
            weather.out = False
            weather.refused = weather.lost = weather.late = weather.stops = 0.0
            weather.latency = scene.latency
            if machine.paused:
                machine.resume()
            if not machine.up:
                machine.start()
        for client in scene.clients:
            for machine in scene.machines.values():
                scene.network.heal(client.name, machine.host)

    async def _one(self, kind: str) -> None:
        machine = self._rng.choice(list(self._scene.machines.values()))
        match kind:
            case "crash":
                await self._crash(machine)
            case "pause":
                await self._pause(machine)
            case "stop":
                await self._stop(machine)
            case "outage":
                await self._outage([machine])
            case "outage all":
                await self._outage(list(self._scene.machines.values()))
            case "slow":
                await self._slow(machine)
            case "flaky":
                await self._flaky(machine)
            case "cut":
                await self._cut(machine)
            case "clock":
                machine.clock.wall_ahead += self._rng.uniform(-20, 20)

    def _length(self) -> float:
        """Around the session time-out, where it hurts, and shorter and longer at times."""
        times = self._rng.choice((0.1, 0.5, 1.0, 1.5, 2.0, 3.0)) * self._rng.uniform(0.6, 1.2)
        return times * self._scene.session_seconds

    async def _crash(self, machine: Machine) -> None:
        if not machine.up:
            return
        machine.crash()
        await asyncio.sleep(self._length())
        if not machine.up:
            machine.start()

    async def _pause(self, machine: Machine) -> None:
        process = machine.process
        if process is None or machine.paused:
            return
        machine.pause()
        await asyncio.sleep(self._length())
        if machine.process is process and machine.paused:
            machine.resume()

    async def _stop(self, machine: Machine) -> None:
        if not machine.serving or machine.stopping or machine.paused:
            return
        machine.stop()
        await asyncio.sleep(self._length())
        if not machine.up:
            machine.start()

    async def _outage(self, machines: list[Machine]) -> None:
        for machine in machines:
            machine.weather.out = True
        self._scene.trace.note("faults", f"outage for {[machine.host for machine in machines]}")
        await asyncio.sleep(self._length())
        self._scene.trace.note("faults", f"no outage any more for {[machine.host for machine in machines]}")
        for machine in machines:
            machine.weather.out = False

    async def _slow(self, machine: Machine) -> None:
        machine.weather.latency = self._rng.choice((0.2, 1.0, 3.0))
        await asyncio.sleep(self._length())
        machine.weather.latency = self._scene.latency
        machine.weather.troubled_at = self._scene.world.time()

    async def _flaky(self, machine: Machine) -> None:
        weather = machine.weather
        weather.refused = self._rng.choice((0.0, 0.1, 0.4))
        weather.lost = self._rng.choice((0.0, 0.1, 0.3))
        weather.late = self._rng.choice((0.0, 0.1, 0.3))
        await asyncio.sleep(self._length())
        weather.refused = weather.lost = weather.late = 0.0

    async def _cut(self, machine: Machine) -> None:
        client = self._rng.choice(self._scene.clients)
        self._scene.trace.note("faults", f"cut {client.name} off {machine.host}")
        self._scene.network.cut(client.name, machine.host)
        await asyncio.sleep(self._length())
        self._scene.network.heal(client.name, machine.host)
