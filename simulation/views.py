"""The answers of brokers about the cluster (P1, P2, P5), each checked by itself and against the one log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.wire.api.metadata import MetadataRequest, MetadataResponse
from penstock.wire.errors import ErrorCode
from simulation.machines import PORT, host_of

if TYPE_CHECKING:
    from simulation.scene import Scene

NOBODY = -1


class Views:
    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.created: dict[str, float] = {}
        """Topics that somebody was told exist, and since when."""
        self.deletions: set[str] = set()
        """Topics that somebody asked to delete."""
        self.answers = 0

    def metadata_told(
        self, broker: int, request: MetadataRequest, answer: MetadataResponse, asked_at: float
    ) -> None:
        fail = self._scene.checker.fail
        self.answers += 1
        listed = [one.node_id for one in answer.brokers]
        by = f"b{broker}, asked at {asked_at:.4f}, lists {listed}"
        if len(set(listed)) != len(listed):
            fail("P1 list", f"{by}: one of them twice")
        for one in answer.brokers:
            if (one.host, one.port) != (host_of(one.node_id), PORT):
                fail("P1 list", f"{by}, but broker {one.node_id} at {one.host}:{one.port}")
        if answer.controller_id not in listed and (listed or answer.controller_id != NOBODY):
            fail("P1 controller", f"{by}, but controller {answer.controller_id}")
        for topic in answer.topics:
            for partition in topic.partitions:
                named = {partition.leader_id, *partition.isr_nodes} - {NOBODY}
                if not named <= set(listed):
                    fail("P1 leader", f"{by}, but {topic.name}-{partition.partition_index} names {named}")
                if partition.leader_id == NOBODY and not partition.error_code:
                    fail(
                        "P1 leader", f"{by}; {topic.name}-{partition.partition_index} has none, and no error"
                    )
        if request.topics is not None:
            self._whole(by, request, answer, asked_at, broker)

    def _whole(
        self, by: str, request: MetadataRequest, answer: MetadataResponse, asked_at: float, broker: int
    ) -> None:
        assert request.topics is not None
        wanted = sorted(str(one.name) for one in request.topics)
        if wanted != sorted(str(one.name) for one in answer.topics):
            self._scene.checker.fail("P5 whole", f"{by}: {wanted} was asked for, not {answer.topics}")
        for topic in answer.topics:
            name = str(topic.name)
            if topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or name in self.deletions:
                continue
            since = self.created.get(name)
            if since is not None and since < asked_at and self._scene.reads_well(broker, asked_at):
                self._scene.checker.fail(
                    "P1 topic", f"{by}, and no topic {name}, which was there at {since:.4f}"
                )

    def named(self, by: int, broker: int, host: str, port: int, what: str) -> None:
        """An answer without a list named a broker: it must be one that lived in an image not long ago."""
        fail = self._scene.checker.fail
        if (host, port) != (host_of(broker), PORT):
            fail("P1 address", f"b{by} named broker {broker} as {what}, at {host}:{port}")
        images = self._scene.checker.images
        newest = self._scene.checker.version
        oldest = max(0, newest - IMAGES_BACK)
        if not any(images[version].is_live(broker) for version in range(oldest, newest + 1)):
            fail("P1 named", f"b{by} named broker {broker} as {what}, which is not alive")


IMAGES_BACK = 100
"""An answer may be as old as the time it took; the log does not grow by more in that time."""
