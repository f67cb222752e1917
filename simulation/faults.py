"""A seeded choice of faults and of their times; each ends after a while."""

from __future__ import annotations

import asyncio
import math
import random
from typing import TYPE_CHECKING

from penstock.log.segment import TRAILER_SIZE
from simulation import copies, elsewhere
from simulation.machines import Machine
from simulation.transactions import faults as transactional
from simulation.transactions.faults import Aim

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

OF_SOME_WORLDS = ("jump", "sleep", "footer")
"""Clocks jump, machines are suspended, and objects cannot be judged."""

SICK = ("denied", "denied all", "locked out", "full", "read only", "doubt", "twice", "flips", "short", "rot")
"""What happens to stores of every kind."""
DIRECTORY = ("power", "sync", "sync")
"""What happens to directories."""
ALL_KINDS = frozenset(
    KINDS + SICK + DIRECTORY + OF_SOME_WORLDS + elsewhere.FAULTS + copies.FAULTS + transactional.KINDS
)
TAKES_TRANSACTIONS = ("rot",)
"""What destroys records for good: nobody promises that a transaction ends then."""
STRIKES_WITHIN = 4
"""How many times as long as until the next fault a strike waits for its moment."""
PREFIXES = ("", "manifests/", "manifests/", "segments/", "wal/", "meta/")
"""What a broker may not have for a while."""


class Faults:
    def __init__(self, scene: Scene, rng: random.Random, every: float, only: tuple[str, ...] = ()) -> None:
        """`only`: these kinds of faults, and all of them."""
        self._scene = scene
        self._rng = rng
        self._every = every
        kinds = KINDS + SICK + (DIRECTORY if scene.truth.on_directory else ())
        if scene.variety.ages:
            kinds = tuple(kind for kind in kinds if kind != "clock")
        self._aim = Aim(scene, rng) if scene.variety.transactions else None
        if scene.variety.transactions:
            kinds = tuple(kind for kind in kinds if kind not in TAKES_TRANSACTIONS)
        self._kinds = list(only) or rng.sample(kinds, rng.randint(1, len(kinds)))
        """Not every world has every fault: some are only found where another does not hide them."""
        if not only:
            self._kinds += self._of_this_world()
        if not only and scene.variety.sleeps and rng.random() < 0.5:
            # Who sleeps past its session is asked again only where nothing else keeps clients from it.
            self._kinds = ["sleep"]
        self._rot_left = rng.choice((1, 1, 2))
        self._under_way: dict[asyncio.Task[None], None] = {}

    def _of_this_world(self) -> list[str]:
        variety, found = self._scene.variety, []
        if variety.etcd:
            found += self._rng.sample(elsewhere.FAULTS, self._rng.randint(1, len(elsewhere.FAULTS)))
        if variety.jumps:
            found += ["jump", "jump"]
        if variety.sleeps:
            found += ["sleep", "sleep"]
        if variety.footers:
            found += ["footer", "footer"]
        if variety.copies and not self._scene.truth.on_directory:
            found += copies.FAULTS
        if variety.transactions:
            aimed = transactional.KINDS
            found += self._rng.sample(aimed, self._rng.randint(1, len(aimed)))
        return found

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
            for weather in (machine.weather, machine.elsewhere):
                if weather.latency > scene.latency:
                    weather.troubled_at = scene.world.time()  # What was asked before takes its time.
                weather.clear(scene.latency)
            machine.weather.stops = 0.0
            if machine.paused:
                machine.resume()
            if not machine.up:
                machine.start()
        for client in scene.clients:
            for machine in scene.machines.values():
                scene.network.heal(client.name, machine.host)
        scene.network.heal_all()

    async def _one(self, kind: str) -> None:
        machine = self._rng.choice(list(self._scene.machines.values()))
        match kind:
            case "crash":
                await self.crash(machine)
            case "pause":
                await self.pause(machine)
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
            case "jump":
                machine.clock.jump(self._rng)
                self._scene.trace.note("faults", f"the clock of {machine.host} jumps")
            case "sleep":
                await self._sleep(machine)
            case "rot":
                self._rot()
            case "back":
                copies.bring_back(self._scene, self._rng)
            case "footer":
                await self._footer()
            case "locked out":
                await self._locked_out(machine)
            case "power":
                await self._power()
            case "aim":
                if self._aim is not None:
                    await self._aim.strike(self, self._every * STRIKES_WITHIN)
            case "peer cut" | "peer break" | "peer slow":
                await transactional.apart(self._scene, machine, self._rng, kind, self.length())
            case _ if kind in elsewhere.FAULTS:
                if self._scene.elsewhere is not None:
                    await self._scene.elsewhere.fault(kind, machine, self._rng, self.length())
            case _:
                await self._sick(kind, machine)

    async def _sick(self, kind: str, machine: Machine) -> None:
        machines = list(self._scene.machines.values()) if kind == "denied all" else [machine]
        prefix = self._rng.choice(PREFIXES)
        share = self._rng.choice((0.05, 0.3))
        self._scene.trace.note("faults", f"{kind} {prefix} for {[one.host for one in machines]}")
        for one in machines:
            weather = one.weather
            match kind:
                case "denied" | "denied all":
                    weather.denied = prefix
                case "full":
                    weather.full = True
                case "read only":
                    weather.read_only = True
                case "doubt":
                    weather.late_prefix = self._rng.choice(("", "meta/log/", "meta/log/"))
                    weather.late = 1.0 if weather.late_prefix else share
                    weather.late_seconds = self._rng.choice((4.0, 8.0, 20.0))
                    weather.latency = self._rng.choice((self._scene.latency, 0.5))
                case "twice":
                    weather.twice = share
                case "sync":
                    weather.sync_fails = share
                case "flips":
                    weather.flips = share / 5
                    weather.flipped_at = math.inf
                case "short":
                    weather.short = share
                case "stale":
                    weather.stale = self._rng.choice((0.3, 1.0))
        await asyncio.sleep(self.length())
        self._scene.trace.note("faults", f"no {kind} any more for {[one.host for one in machines]}")
        for one in machines:
            one.weather.clear(self._scene.latency)
            one.weather.troubled_at = self._scene.world.time()
            if kind == "flips":
                one.weather.flipped_at = self._scene.world.time()
        if kind == "sync" and self._rng.random() < 0.5:
            # Only now is it seen that the disk does not have what failed to be synced: if somebody counted
            # it, it is about to be settled from memory.
            await asyncio.sleep(self._rng.random() * self._scene.session_seconds)
            await self._power()

    async def _locked_out(self, machine: Machine) -> None:
        """A broker starts, and is not allowed to read what it needs, for longer than garbage is kept."""
        if machine.up:
            machine.crash()
        machine.weather.denied = self._rng.choice(("manifests/", "manifests/", "segments/", "wal/"))
        self._scene.trace.note("faults", f"{machine.host} is locked out of {machine.weather.denied}")
        machine.start()
        await asyncio.sleep(self._rng.uniform(1.0, 5.0) * self._scene.session_seconds)
        self._scene.trace.note("faults", f"{machine.host} is not locked out any more")
        machine.weather.denied = None
        machine.weather.troubled_at = self._scene.world.time()

    def _rot(self) -> None:
        """A bit that is stored changes. What belongs to groups is left alone: their members have no other."""
        scene = self._scene
        if not self._rot_left:
            return
        image = scene.checker.image
        name = scene.truth.choose(self._rng, image)
        if name is None:
            return
        self._rot_left -= 1
        owners = scene.truth.owners(image, name)
        owned = owners | scene.checker.partitions_in(scene.truth.get(name) or b"")
        scene.checker.hurt.update(dict.fromkeys(owned, 0))
        if name.startswith("manifests/"):
            scene.checker.closed |= owners
        scene.truth.rot(name, self._rng)

    async def _footer(self) -> None:
        """Nobody can tell any more what an object holds: its footer rots, and who wrote it is gone. No record
        is hurt, because readers do not need footers."""
        scene = self._scene
        name = scene.truth.choose_footer(self._rng)
        if name is None:
            return
        scene.truth.rot(name, self._rng, last=TRAILER_SIZE)
        await self.crash(scene.machines[int(name.split("/")[1])])

    async def _power(self) -> None:
        """All machines of the directory lose their power at once."""
        scene = self._scene
        if scene.kind == "os" and scene.variety.transactions:
            return  # It takes records from the middle of a log, and with them who ends a transaction.
        for machine in scene.machines.values():
            if machine.up:
                machine.crash()
            machine.weather.clear(scene.latency)
        scene.trace.note("faults", "the power is cut")
        await asyncio.sleep(0.01)  # What was on its way to clients arrives.
        for machine in scene.machines.values():
            if machine.up:
                machine.crash()
        scene.disk.lose_power(self._rng)
        scene.checker.log_is_cut(scene.truth.get)
        if scene.kind == "os":
            # Settled is what the log that is left refers to: an entry whose name was not synced may be gone.
            scene.checker.power_lost(scene.truth.settled(scene.checker.image))
        await asyncio.sleep(self._rng.random() * self.length())
        for machine in scene.machines.values():
            if not machine.up:
                machine.start()

    def length(self) -> float:
        """Around the session time-out, where it hurts, and shorter and longer at times."""
        times = self._rng.choice((0.1, 0.5, 1.0, 1.5, 2.0, 3.0)) * self._rng.uniform(0.6, 1.2)
        return times * self._scene.session_seconds

    async def crash(self, machine: Machine) -> None:
        if not machine.up:
            return
        machine.crash()
        await asyncio.sleep(self.length())
        if not machine.up:
            machine.start()

    async def pause(self, machine: Machine) -> None:
        process = machine.process
        if process is None or machine.paused:
            return
        machine.pause()
        await asyncio.sleep(self.length())
        if machine.process is process and machine.paused:
            machine.resume()

    async def _sleep(self, machine: Machine) -> None:
        process = machine.process
        if process is None or machine.paused:
            return
        machine.sleep()
        await asyncio.sleep(self.length() + self._rng.choice((0.0, 1.5)) * self._scene.session_seconds)
        if machine.process is process and machine.paused:
            machine.resume()

    async def _stop(self, machine: Machine) -> None:
        if not machine.serving or machine.stopping or machine.paused:
            return
        machine.stop()
        await asyncio.sleep(self.length())
        if not machine.up:
            machine.start()

    async def _outage(self, machines: list[Machine]) -> None:
        for machine in machines:
            machine.weather.out = True
        self._scene.trace.note("faults", f"outage for {[machine.host for machine in machines]}")
        await asyncio.sleep(self.length())
        self._scene.trace.note("faults", f"no outage any more for {[machine.host for machine in machines]}")
        for machine in machines:
            machine.weather.out = False

    async def _slow(self, machine: Machine) -> None:
        machine.weather.latency = self._rng.choice((0.2, 1.0, 3.0))
        await asyncio.sleep(self.length())
        machine.weather.latency = self._scene.latency
        machine.weather.troubled_at = self._scene.world.time()

    async def _flaky(self, machine: Machine) -> None:
        weather = machine.weather
        weather.refused = self._rng.choice((0.0, 0.1, 0.4))
        weather.lost = self._rng.choice((0.0, 0.1, 0.3))
        weather.late = self._rng.choice((0.0, 0.1, 0.3))
        await asyncio.sleep(self.length())
        weather.refused = weather.lost = weather.late = 0.0

    async def _cut(self, machine: Machine) -> None:
        client = self._rng.choice(self._scene.clients)
        self._scene.trace.note("faults", f"cut {client.name} off {machine.host}")
        self._scene.network.cut(client.name, machine.host)
        await asyncio.sleep(self.length())
        self._scene.network.heal(client.name, machine.host)
