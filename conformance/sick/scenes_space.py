"""Which objects are kept, and which space comes back: retention by size, garbage beside rot."""

import time

from conformance.faults.clients import leaders
from conformance.sick import rot
from conformance.sick.stage import SETTINGS, Failed, on_directory, scene
from conformance.sick.verdict import Expected
from penstock.client import Client
from penstock.testing.waiting import until
from penstock.wire.api.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)

RETAINED_BYTES = 1_500_000
SEGMENT_BYTES = 1 << 20
BATCH_BYTES = 200_000


@scene(short=True)
def retention_by_size() -> str:
    """Twenty batches of 200 KB, retention.bytes=1500000 and a check each second: about that much stays."""
    # Checks come between settlings, as by default: what is not settled yet is counted once.
    with on_directory(settings={**SETTINGS, "wal.settle.interval.ms": "10000"}) as stage:
        configs = {"retention.bytes": str(RETAINED_BYTES), "segment.bytes": str(SEGMENT_BYTES)}
        (place,) = stage.speaker.create("retained", 1, configs)
        for _ in range(20):
            stage.speaker.write([place], 1, BATCH_BYTES)
            time.sleep(0.2)
        time.sleep(14.0)
        stage.check(Expected(deleted=True))
        start, end = stage.speaker.bounds(place)
        kept = (end - start) * BATCH_BYTES
        if not RETAINED_BYTES - BATCH_BYTES <= kept <= RETAINED_BYTES + 2 * SEGMENT_BYTES + BATCH_BYTES:
            raise Failed(f"{end - start} batches of {end} are kept, {kept} bytes, of {RETAINED_BYTES} wanted")
        return f"{end - start} of {end} batches are kept, {kept} bytes"


@scene()
def garbage_beside_a_rotten_manifest() -> str:
    """A manifest of broker 1 rots; broker 2 goes on to delete what is garbage, and nothing that 1 needs."""
    settings = {**SETTINGS, "auto.leader.rebalance.enable": "false"}
    with on_directory(2, settings, start=False) as stage:
        stage.cluster.start([1])
        ours = stage.speaker.create("ours", 1)
        theirs = stage.speaker.create("theirs", 1)
        stage.settled_write([*ours, *theirs], 30, 2000)
        stage.cluster.start([2])
        _move(stage.bootstrap, "theirs", 2)
        stage.settled_write(theirs, 20, 2000)
        stage.settled_write(ours, 5)
        # Each settling of broker 1 writes a new manifest: the newest is the one that counts.
        path = max(stage.files("manifests/1"), key=lambda found: found.stat().st_mtime)
        rot.flip(path, path.stat().st_size // 2)
        stage.speaker.create("short-lived", 1)
        _move(stage.bootstrap, "short-lived", 2)
        stage.speaker.delete("theirs")
        before = set(stage.files("segments/2"))
        time.sleep(2.5)
        took = until(
            lambda: not before & set(stage.files("segments/2")), 15, "the deletion of broker 2's segments"
        )
        rot.flip(path, path.stat().st_size // 2)
        stage.check_goes_on()
        stage.check_whole()
        return f"{len(before)} segments were deleted after {took + 2.5:.1f} s"


def _move(bootstrap: str, topic: str, broker: int) -> None:
    """Make a broker the leader of a topic's only partition."""
    part = ReassignablePartition(partition_index=0, replicas=[broker])
    request = AlterPartitionReassignmentsRequest(
        timeout_ms=20_000, topics=[ReassignableTopic(name=topic, partitions=[part])]
    )
    with Client(bootstrap) as client:
        client.controller().ask(request, AlterPartitionReassignmentsResponse)
    until(lambda: leaders(bootstrap, topic).get(0) == broker, 20, f"broker {broker} as leader of {topic}")
