"""Writers of one metadata log in etcd, while etcd's leader is killed again and again."""

import asyncio

from conformance.etcd.server import Etcd
from penstock.clock import SystemClock
from penstock.cluster.metadata_log import MetadataLog, MetadataUnavailableError
from penstock.cluster.reading import ImageReader
from penstock.metadata.commands import RegisterBroker
from penstock.metadata.image import ClusterImage, Listener
from penstock.storage.stores.memory import MemoryStore

WRITERS = 4


class Race:
    """Writers of one metadata log. Each of their changes takes a number that no other change may get."""

    def __init__(self, etcd: Etcd) -> None:
        self._etcd = etcd
        self._store = MemoryStore()
        self._logs = [
            MetadataLog(
                self._store,
                SystemClock(),
                metadata=f"{etcd.url}/log",
                poll_interval=0.2,
                snapshot_entries=100,
            )
            for _ in range(WRITERS)
        ]
        self._given: list[int] = []
        self._doubtful = 0
        self._done = asyncio.Event()

    async def run(self, kills: int) -> list[str]:
        """What is wrong."""
        try:
            epochs = [await self._begin(number) for number in range(WRITERS)]
            writing = [asyncio.create_task(self._write(number, epochs[number])) for number in range(WRITERS)]
            for _ in range(kills):
                await self._kill_leader()
            self._done.set()
            await asyncio.gather(*writing)
            images = [await log.catch_up() for log in self._logs]
            images.append(await ImageReader(self._store).refresh())
        finally:
            for log in self._logs:
                await log.close()
        last, answered = images[0], len(self._given)
        print(
            f"log: {answered} changes by {WRITERS} writers over {kills} deaths of the leader, {self._doubtful} not "
            f"answered in time, {last.version} entries"
        )
        problems = []
        if any(image != last for image in images):
            problems.append("the writers and a reader do not have the same image")
        if len(set(self._given)) != answered:
            problems.append(f"{answered - len(set(self._given))} changes got a number that another one had")
        if not answered <= last.next_producer_id <= answered + self._doubtful:
            problems.append(f"{answered} changes were answered, and the log holds {last.next_producer_id}")
        return problems

    async def _begin(self, number: int) -> int:
        await self._logs[number].open()
        command = RegisterBroker(number, (Listener("PLAINTEXT", "127.0.0.1", 9000 + number),))
        image = await self._logs[number].propose(lambda _image: [command])
        assert isinstance(image, ClusterImage)
        return image.brokers[number].epoch

    async def _write(self, number: int, epoch: int) -> None:
        while not self._done.is_set():
            try:
                block = await self._logs[number].allocate_producer_ids(number, epoch, 1)
            except MetadataUnavailableError:
                self._doubtful += 1
                continue
            assert isinstance(block, range), f"a change was refused: {block.message}"
            self._given.append(block.start)

    async def _kill_leader(self) -> None:
        await asyncio.sleep(1.0)
        leader = await asyncio.to_thread(self._etcd.wait)
        self._etcd.kill(leader)
        await asyncio.to_thread(self._etcd.wait)
        await asyncio.sleep(1.0)
        self._etcd.start(leader)
