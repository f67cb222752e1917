"""The same log on a real directory, and between real processes."""

import asyncio
import subprocess
import sys
from pathlib import Path

from penstock.clock import SystemClock
from penstock.cluster.metadata_log import MetadataLog
from penstock.metadata.image import ClusterImage, derive
from penstock.storage.stores.opening import open_store

from .rig import creating, registering

TOPICS = 60

CHILD = """
import asyncio, sys
from penstock.clock import SystemClock
from penstock.cluster.metadata_log import MetadataLog
from penstock.storage.stores.opening import open_store
from tests.cluster.rig import creating, registering

async def main(root, broker, topics):
    log = MetadataLog(open_store(root), SystemClock(), snapshot_entries=20)
    await log.open()
    await log.propose(registering(broker))
    results = []
    for start in range(0, topics, 5):
        names = [f"b{broker}-t{n}" for n in range(start, start + 5)]
        results += await asyncio.gather(*(log.propose(creating(name)) for name in names))
    await log.snapshot_written()
    await log.close()
    print(sum(type(result).__name__ == "ClusterImage" for result in results))

asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
"""


async def test_brokers_on_one_directory(tmp_path: Path) -> None:
    logs = [
        MetadataLog(open_store(str(tmp_path)), SystemClock(), snapshot_entries=10, poll_interval=0.01)
        for _ in range(3)
    ]
    for number, log in enumerate(logs, 1):
        await log.open()
        await log.propose(registering(number))
    await asyncio.gather(*(logs[n % 3].propose(creating(f"t{n}")) for n in range(TOPICS)))
    images = [await log.catch_up() for log in logs]
    assert images[0] == images[1] == images[2] == derive(images[0])
    assert len(images[0].topics) == TOPICS
    for log in logs:
        await log.close()
    late = MetadataLog(open_store(str(tmp_path)), SystemClock())
    assert await late.open() == images[0]
    await late.close()


def test_processes_on_one_directory(tmp_path: Path) -> None:
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path), str(broker), str(TOPICS)],
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            text=True,
        )
        for broker in (1, 2, 3)
    ]
    assert [child.communicate()[0].strip() for child in children] == [str(TOPICS)] * 3
    image = asyncio.run(read(tmp_path))
    assert len(image.topics) == 3 * TOPICS
    assert sum(image.leader_counts.values()) == 3 * TOPICS
    assert image == derive(image)


async def read(root: Path) -> ClusterImage:
    log = MetadataLog(open_store(str(root)), SystemClock())
    image = await log.open()
    await log.close()
    return image
