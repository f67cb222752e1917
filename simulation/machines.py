"""The brokers: real ones, `penstock.node` and all below it, each a process of the simulated world."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial

from penstock.entropy import Entropy
from penstock.metadata.image import ClusterImage
from penstock.node.node import Node, StartError
from penstock.settings import Settings
from penstock.storage.stores.objects import ObjectStore
from simulation.clocks import MachineClock
from simulation.loop import Process, World
from simulation.network import Network, SimulatedServer
from simulation.trace import Trace
from simulation.weather import Weather

START_AGAIN_SECONDS = 1.0
"""What a supervisor waits before it starts a broker again that could not start."""
START_SECONDS_MAX = 10.0
"""Longer than two proposals may take: where the store is slow, others may be faster all through the first."""
PORT = 9092

OpenStore = Callable[[Process, Weather, Entropy], ObjectStore]
OpenElsewhere = Callable[[Process, Weather], ObjectStore]


class SeededEntropy(random.Random):
    """What a process asks its system for, the same in each run of a seed."""

    def token(self, size: int) -> bytes:
        return self.randbytes(size)

    def fraction(self) -> float:
        return self.random()


class Machine:
    """Where one broker runs, again and again. Its `weather` is its way to the store."""

    def __init__(
        self,
        world: World,
        network: Network,
        trace: Trace,
        broker: int,
        settings: Settings,
        open_store: OpenStore,
        rng: random.Random,
        weather: Weather,
        seed: int,
    ) -> None:
        self.broker = broker
        self.host = host_of(broker)
        self.settings = settings
        self.weather = weather
        self.elsewhere = Weather(latency=weather.latency)
        """Its way to etcd, where the metadata log is there."""
        self.open_elsewhere: OpenElsewhere | None = None
        self.clock = MachineClock(world, rng)
        self._seed = seed
        self.process: Process | None = None
        self.node: Node | None = None
        self.serving = False
        """Its last start ended well, and it was not ended since."""
        self.stopping = False
        self.paused = False
        self.paused_at = -1e9
        self.on_image: Callable[[Machine, ClusterImage], None] = lambda machine, image: None
        self.on_slow_start: Callable[[str], None] = lambda text: None
        self.on_bug: Callable[[str], None] = lambda text: None
        self._world = world
        self._network = network
        self._trace = trace
        self._open_store = open_store
        self._starts = 0
        self._seen: ClusterImage | None = None

    @property
    def up(self) -> bool:
        return self.process is not None

    @property
    def image(self) -> ClusterImage | None:
        """What the broker that runs now knows."""
        incarnation = self.node._incarnation if self.node is not None else None
        metadata = incarnation._metadata if incarnation is not None else None
        return metadata.image if metadata is not None else None

    def start(self) -> None:
        assert self.process is None
        self._starts += 1
        self.process = process = self._world.process(f"{self.host}.{self._starts}", self.host)
        self.stopping = False
        self._trace.note("faults", f"start {process.name}")
        process.after = self._look
        process.spawn(self._run(process))

    def crash(self) -> None:
        """kill -9."""
        process = self.process
        assert process is not None
        self._trace.note("faults", f"crash {process.name}")
        self._world.crash(process)
        self._network.reset(process)
        self._gone()

    def pause(self) -> None:
        assert self.process is not None
        self._trace.note("faults", f"pause {self.process.name}")
        self.paused = True
        self.paused_at = self._world.time()
        self.process.pause()

    def sleep(self) -> None:
        """The machine is suspended: unlike in a pause, its clock and its timers stand still."""
        assert self.process is not None
        self.pause()
        self._trace.note("faults", f"{self.host} sleeps")
        self._world.put_to_sleep(self.process)

    def resume(self) -> None:
        """End a pause, or a sleep."""
        assert self.process is not None
        self._trace.note("faults", f"resume {self.process.name}")
        self.paused = False
        if self.process.asleep is not None:
            self.clock.slept(self._world.time() - self.paused_at)
            self._world.wake(self.process, self._world.time() - self.paused_at)
        self.process.resume()

    def stop(self) -> None:
        """SIGTERM: a controlled stop."""
        assert self.process is not None and self.node is not None
        self._trace.note("faults", f"stop {self.process.name}")
        self.stopping = True
        self.process.post(self.node.stop)

    async def _run(self, process: Process) -> None:
        entropy = SeededEntropy(f"{self._seed}/{process.name}/entropy")
        elsewhere = self.open_elsewhere
        while True:
            began = self._world.time()
            self.node = node = Node(
                self.settings,
                self.clock,
                lambda settings: self._open_store(process, self.weather, entropy),
                partial(SimulatedServer, self._network),
                entropy,
                None if elsewhere is None else lambda location: elsewhere(process, self.elsewhere),
            )
            try:
                await node.start()
                break
            except StartError as error:
                self._trace.note(process.name, f"did not start: {error}")
                if self.stopping:
                    self._gone()
                    return
                await asyncio.sleep(START_AGAIN_SECONDS)
            except Exception as error:
                # A process that ends with a traceback: what a supervisor would start again, and a bug.
                self.on_bug(f"{process.name} could not start: {type(error).__name__}: {error}")
                return
        took = self._world.time() - began
        self._trace.note(process.name, f"serves after {took:.3f} s")
        if took > START_SECONDS_MAX and self._undisturbed(began):
            self.on_slow_start(f"{process.name} served only after {took:.1f} s")
        self.serving = True
        why = await node.run()
        self._trace.note(process.name, f"ended: {why or 'stopped'}")
        process.dead = True
        self._network.reset(process)
        self._gone()

    def _undisturbed(self, since: float) -> bool:
        """Nothing was wrong with this machine and its store, whatever was wrong with others."""
        return self.paused_at < since and all(
            weather.troubled_at < since and weather.latency < 0.1
            for weather in (self.weather, self.elsewhere)
        )

    def _gone(self) -> None:
        self.process = self.node = None
        self.serving = self.paused = False

    def _look(self) -> None:
        # After every step of the broker: `image`, without the calls.
        node = self.node
        incarnation = node._incarnation if node is not None else None
        metadata = incarnation._metadata if incarnation is not None else None
        if metadata is not None and metadata.image is not self._seen:
            self._seen = metadata.image
            self.on_image(self, metadata.image)


def host_of(broker: int) -> str:
    return f"b{broker}"
