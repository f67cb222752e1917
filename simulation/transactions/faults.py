"""Faults aimed at transactions: brokers that do not reach each other, and deaths at the worst moments.

The moments are read off the flushes that take effect in the store. A coordinator wrote that a transaction is
prepared, or complete; a leader wrote a marker. Right then the broker that wrote it, or another one, is
killed, paused or cut off.
"""

from __future__ import annotations

import asyncio
import random
import re
from typing import TYPE_CHECKING

from penstock.metadata.image import WalRef
from penstock.transactions.transaction import State
from simulation.machines import Machine

if TYPE_CHECKING:
    from simulation.faults import Faults
    from simulation.scene import Scene

KINDS = ("aim", "aim", "aim", "peer cut", "peer break", "peer slow")

_STATE = re.compile(rb"\x00\x00\x00.tx-[a-z0-9]+.{1,2}\x00\x01.{14}(.)", re.DOTALL)
"""A record of an id: key, size and version of the value, producer id, epoch and time-out; then its state."""
_MARKER = re.compile(rb"\x08\x00\x00\x00([\x00\x01])\x0c\x00\x00", re.DOTALL)
"""The key and the beginning of the value of a marker, with their sizes."""
_PREPARED = (State.PREPARE_COMMIT, State.PREPARE_ABORT)
_COMPLETE = (State.COMPLETE_COMMIT, State.COMPLETE_ABORT)

PREPARE, MARKER, COMPLETE = "prepare", "marker", "complete"


def stages_in(contents: bytes) -> list[str]:
    """What a flush holds of the ends of transactions."""
    found = []
    for state in _STATE.findall(contents):
        if state[0] in _PREPARED:
            found.append(PREPARE)
        elif state[0] in _COMPLETE:
            found.append(COMPLETE)
    if _MARKER.search(contents) is not None:
        found.append(MARKER)
    return found


class Aim:
    """Waits for the next flush of a kind, and strikes."""

    def __init__(self, scene: Scene, rng: random.Random) -> None:
        self._scene = scene
        self._rng = rng
        self._waiting: list[tuple[str, asyncio.Future[int]]] = []
        scene.checker.on_flush.append(self._look)

    def _look(self, wal: WalRef, contents: bytes) -> None:
        if self._waiting:
            stages = stages_in(contents)
            for one in list(self._waiting):
                stage, struck = one
                if stage in stages and not struck.done():
                    self._waiting.remove(one)
                    struck.set_result(wal.broker)

    async def strike(self, faults: Faults, seconds: float) -> None:
        """Within so long."""
        rng = self._rng
        stage = rng.choice((PREPARE, MARKER, MARKER, COMPLETE))
        struck: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append((stage, struck))
        try:
            async with asyncio.timeout(seconds):
                broker = await struck
        except TimeoutError:
            self._waiting = [one for one in self._waiting if one[1] is not struck]
            return
        machines = self._scene.machines
        machine = machines[broker] if rng.random() < 0.6 else rng.choice(list(machines.values()))
        await asyncio.sleep(rng.choice((0.0, 0.0, 0.002, 0.01)) * rng.random())
        self._scene.trace.note("faults", f"b{broker} wrote a {stage}; {machine.host} is struck")
        match rng.choice(("crash", "crash", "pause", "cut")):
            case "crash":
                await faults.crash(machine)
            case "pause":
                await faults.pause(machine)
            case _:
                await apart(self._scene, machine, rng, "peer cut", faults.length())


async def apart(scene: Scene, machine: Machine, rng: random.Random, kind: str, seconds: float) -> None:
    """A broker does not reach others for so long, or only late."""
    network = scene.network
    others = [one.host for one in scene.machines.values() if one is not machine]
    if not others:
        return
    chosen = rng.sample(others, rng.randint(1, len(others)))
    ways = [way for other in chosen for way in ((machine.host, other), (other, machine.host))]
    if rng.random() < 0.3:
        ways = ways[::2]
    scene.trace.note("faults", f"{kind} {ways}")
    if kind == "peer break":
        for way in ways:
            network.break_off(*way)
        return
    late = rng.choice((0.05, 0.5, 2.0))
    for way in ways:
        if kind == "peer cut":
            network.cut(*way)
        else:
            network.slow_down(*way, late)
    await asyncio.sleep(seconds)
    scene.trace.note("faults", f"no {kind} any more {ways}")
    for way in ways:
        network.heal(*way)
        network.speed_up(*way)
