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
from .ward import Ward

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
    stores = [open_store(str(tmp_path)) for _ in range(4)]
    logs = [
        MetadataLog(store, SystemClock(), snapshot_entries=10, poll_interval=0.01) for store in stores[:3]
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
    late = MetadataLog(stores[3], SystemClock())
    assert await late.open() == images[0]
    await late.close()
    for store in stores:
        await store.close()


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


async def test_what_others_put_into_the_directories_of_a_store_is_left_alone(tmp_path: Path) -> None:
    """A file manager's notes, a person's, and what a repair of the file system found."""
    ward = Ward("directory", tmp_path)
    await ward.fill()
    expected = await ward.read("orders")
    await ward.kill()
    strays = []
    for folder in [ward.root, *(path for path in ward.root.rglob("*") if path.is_dir())]:
        for name in (".DS_Store", "notes.txt", "lost+found/#12/x y"):
            stray = folder / name
            stray.parent.mkdir(parents=True, exist_ok=True)
            stray.write_bytes(b"not ours")
            strays.append(stray)
    assert len(strays) > 30
    await ward.start()
    assert await ward.read("orders") == expected
    await ward.write("orders", 0, [b"more"])
    assert await ward.ledger.settle()
    assert (await ward.scrub()).exit_code == 0
    await ward.kill()
    assert all(stray.exists() for stray in strays)


async def read(root: Path) -> ClusterImage:
    log = MetadataLog(open_store(str(root)), SystemClock())
    image = await log.open()
    await log.close()
    return image
