"""A topic is deleted while transactions write to it: they end without it, and nothing waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulation.admin import Admin
from simulation.client import Unreachable
from simulation.topics import Topic

if TYPE_CHECKING:
    from simulation.scene import Scene

LIFE_SECONDS_MAX = 10.0


class Remover(Admin):
    def __init__(self, scene: Scene, name: str, topic: Topic) -> None:
        super().__init__(scene, name, 0.2)
        self._topic = topic

    async def run(self) -> None:
        await self.pause(self.rng.random() * LIFE_SECONDS_MAX)
        # From here on it may be gone at any time, whatever becomes of the request.
        self.scene.checker.deleted.add(self._topic.id)
        while True:
            try:
                if await self.delete(self._topic):
                    return
            except Unreachable:
                pass
            await self.pause(0.2)
