"""A repair that is killed at any of its writes: the next one finishes it, and nothing is lost meanwhile."""

import contextlib
import errno
import shutil
from collections.abc import Sequence
from pathlib import Path

from penstock.clock import SystemClock
from penstock.cluster.health.findings import Report
from penstock.cluster.health.repair import Repair
from penstock.storage.stores.directory import DirectoryStore
from penstock.storage.stores.files import Files
from penstock.storage.stores.memory import MemoryStore
from penstock.storage.stores.objects import DatedStore, StoreError
from penstock.wire.buffers import Buffer

from .test_repair import TOPICS, drop_old_logs, positions
from .ward import Records, Ward

KILLS_MAX = 400


class Life:
    """So many writes are left. No later one has an effect, which is all that the store sees of a death."""

    def __init__(self, writes: int) -> None:
        self._left = writes
        self.is_over = False

    def write(self) -> bool:
        self.is_over = self.is_over or not self._left
        self._left -= 1
        return not self.is_over

    def must_write(self) -> None:
        if not self.write():
            raise OSError(errno.EINVAL, "dead")


class MortalStore(MemoryStore):
    def __init__(self, objects: dict[str, bytes], life: Life) -> None:
        super().__init__()
        self.objects = objects
        self._life = life

    def _write(self) -> None:
        if not self._life.write():
            raise StoreError("dead")

    async def create(self, key: str, *parts: Buffer) -> bool:
        self._write()
        return await super().create(key, *parts)

    async def put(self, key: str, *parts: Buffer) -> None:
        self._write()
        await super().put(key, *parts)

    async def delete(self, key: str) -> None:
        self._write()
        await super().delete(key)


class MortalFiles(Files):
    def __init__(self, life: Life) -> None:
        self._life = life

    def pwritev(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        """Half of it, with the last breath."""
        if not self._life.is_over and not self._life.write():
            whole = b"".join(buffers)
            super().pwritev(fd, (whole[: len(whole) // 2],), position)
        if self._life.is_over:
            raise OSError(errno.EINVAL, "dead")
        return super().pwritev(fd, buffers, position)

    def link(self, source: str, target: str) -> None:
        self._life.must_write()
        super().link(source, target)

    def rename(self, source: str, target: str) -> None:
        self._life.must_write()
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self._life.must_write()
        super().unlink(path)


class Saved:
    """What a store holds, to be brought back."""

    def __init__(self, ward: Ward, folder: Path) -> None:
        self._root = ward.root if ward.on_directory else None
        self._folder = folder / "saved"
        self._objects = ward.objects
        self._whole = dict(ward.objects)
        if self._root is not None:
            shutil.copytree(self._root, self._folder)

    def bring_back(self) -> None:
        if self._root is None:
            self._objects.clear()
            self._objects.update(self._whole)
        else:
            shutil.rmtree(self._root)
            shutil.copytree(self._folder, self._root)

    def mortal(self, life: Life) -> DatedStore:
        if self._root is None:
            return MortalStore(self._objects, life)
        return DirectoryStore(str(self._root), files=MortalFiles(life))


async def hurt(ward: Ward) -> None:
    """A store without its broker, which is hurt in each of the ways that are repaired."""
    await ward.fill()
    await drop_old_logs(ward)
    key, places = await positions(ward, "orders", 0)
    position, size = places[2]
    await ward.overwrite(key, position + 61, b"?" * (size - 61))  # To be cut out.
    key, places = await positions(ward, "orders", 1)
    await ward.flip(key, places[4][0] + 70, 3)
    key, _places = await positions(ward, "other", 0)
    await ward.flip(key, len(await ward.get(key)) - 1)
    await ward.kill()
    await ward.start()
    await ward.kill()
    image = await ward.image()
    wal = min(image.wal_uses)
    ward.leave_presence(wal)
    logged = [key for key in await ward.keys(f"wal/{wal.broker}/{wal.epoch}/") if key[-1].isdecimal()]
    logged = [key for key in logged if len(await ward.get(key)) > 8]
    await ward.flip(logged[-1], len(await ward.get(logged[-1])) // 2, 1)
    ref = image.topics["orders"].partitions[1].manifest
    assert ref is not None
    await ward.flip(ref.key, ref.start + 40, 3)
    entry = (await ward.keys("meta/log/"))[2]
    await ward.flip(entry, len(await ward.get(entry)) - 3, 2)


def named(report: Report) -> set[tuple[str, int, int]]:
    return {
        (one.topic, one.partition, offset) for one in report.damaged for offset in range(one.start, one.end)
    }


async def read(ward: Ward) -> dict[tuple[str, int], Records]:
    """Of a store without its broker."""
    await ward.start()
    found = {place: await ward.read(*place) for place in TOPICS}
    await ward.kill()
    return found


async def test_another_repair_finishes_what_was_begun(ward: Ward, tmp_path: Path) -> None:
    await hurt(ward)
    saved = Saved(ward, tmp_path)
    before = named(await ward.scrub())
    done = await ward.repair(cut=True)
    assert done.exit_code == 0 and {one.how for one in done.steps} >= {"cut", "corrected", "moved"}, done
    whole = await read(ward)
    for writes in range(KILLS_MAX):
        saved.bring_back()
        life = Life(writes)
        store = saved.mortal(life)
        with contextlib.suppress(StoreError):
            await Repair(store, SystemClock(), apply=True, cut=True).run()
        await store.close()
        if not life.is_over:
            break
        assert named(await ward.scrub()) <= before, writes
        again = await ward.repair(cut=True)
        assert again.exit_code == 0, (writes, again)
        assert await read(ward) == whole, writes
    assert writes >= len(done.steps), "it was killed at each write"
