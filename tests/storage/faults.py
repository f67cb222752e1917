"""Disks that fail: full, read-only, dead in the middle of a write, or without power."""

from __future__ import annotations

import errno
import os
import random
import stat
from collections.abc import Sequence
from pathlib import Path

from penstock.storage.stores.files import Files
from penstock.wire.buffers import Buffer


def _oserror(number: int) -> OSError:
    return OSError(number, os.strerror(number))


class FaultyFiles(Files):
    """A disk that runs out of space, turns read-only, or dies after so many bytes."""

    def __init__(self) -> None:
        self.bytes_left: int | None = None
        """How much may still be written before ENOSPC; overwriting what is there needs nothing."""
        self.read_only = False
        self.dies_after: int | None = None
        """Once so many bytes are written, nothing works any more, as if the process were gone."""
        self.dies_after_write = False
        """The next write is whole, and nobody hears of it any more."""
        self.dead = False
        self.sync_fails = False

    def _check(self, *, writes: bool) -> None:
        if self.dead:
            raise _oserror(errno.EIO)
        if writes and self.read_only:
            raise _oserror(errno.EROFS)

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        writes = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        self._check(writes=writes)
        if flags & os.O_CREAT and self.bytes_left is not None and self.bytes_left <= 0:
            raise _oserror(errno.ENOSPC)
        return super().open(path, flags, mode)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        self._check(writes=True)
        joined = b"".join(buffers)
        allowed = len(joined)
        if self.dies_after is not None:
            allowed = min(allowed, self.dies_after)
            self.dies_after -= allowed
        if self.bytes_left is not None:
            room = max(self.size(fd) - position, 0) + self.bytes_left
            allowed = min(allowed, room)
            self.bytes_left -= max(0, position + allowed - max(self.size(fd), position))
        written = super().pwritev(fd, (joined[:allowed],), position) if allowed else 0
        if self.dies_after == 0 and allowed < len(joined):
            self.dead = True
            raise _oserror(errno.EIO)
        if not written and joined:
            raise _oserror(errno.ENOSPC)
        if self.dies_after_write and written == len(joined):
            self.dead = True
        return written

    def ftruncate(self, fd: int, length: int) -> None:
        self._check(writes=True)
        freed = self.size(fd) - length
        super().ftruncate(fd, length)
        if self.bytes_left is not None:
            self.bytes_left += freed

    def fdatasync(self, fd: int) -> None:
        self._check(writes=False)
        if self.sync_fails:
            raise _oserror(errno.EIO)
        super().fdatasync(fd)

    def link(self, source: str, target: str) -> None:
        self._check(writes=True)
        super().link(source, target)

    def rename(self, source: str, target: str) -> None:
        self._check(writes=True)
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self._check(writes=True)
        super().unlink(path)

    def mkdir(self, path: str) -> None:
        self._check(writes=True)
        super().mkdir(path)

    def exists(self, path: str) -> bool:
        return not self.dead and super().exists(path)


class VolatileFiles(Files):
    """A disk that remembers what was synced: `lose_power` makes a copy with nothing else in it.

    Contents survive as far as the file was synced, names as far as their directory was. What was not
    synced may survive too, wholly or in part, and a random generator decides that; without one, none does.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        self._kept = root.parent / f"{root.name}.kept"
        self._kept.mkdir(parents=True)
        root.mkdir(parents=True, exist_ok=True)
        self._is_directory: dict[int, bool] = {}
        for path in (root, *root.rglob("*")):
            if path.is_dir():
                self._names[path.stat().st_ino] = self._entries(str(path))
            else:
                self._contents[path.stat().st_ino] = path.read_bytes()

    def fdatasync(self, fd: int) -> None:
        super().fdatasync(fd)
        # The descriptor may be one for writing only.
        self._contents[os.fstat(fd).st_ino] = Path(f"/proc/self/fd/{fd}").read_bytes()

    def sync_directory(self, path: str) -> None:
        super().sync_directory(path)
        self._names[os.stat(path).st_ino] = self._entries(path)

    def _entries(self, path: str) -> dict[str, int]:
        entries = {}
        for name in os.listdir(path):
            info = os.lstat(f"{path}/{name}")
            entries[name] = info.st_ino
            self._is_directory[info.st_ino] = stat.S_ISDIR(info.st_mode)
        return entries

    def unlink(self, path: str) -> None:
        # The number of a file that is gone must not be given to another one meanwhile.
        number = os.stat(path).st_ino
        if not (self._kept / str(number)).exists():
            os.link(path, self._kept / str(number))
        super().unlink(path)

    def lose_power(self, target: Path, rng: random.Random | None = None) -> None:
        """What a machine finds that starts again after the power failed now, as a new directory."""
        target.mkdir(parents=True)
        self._restore(self._root, os.stat(self._root).st_ino, target, rng)

    def _restore(self, path: Path | None, number: int, target: Path, rng: random.Random | None) -> None:
        names = dict(self._names.get(number, {}))
        present = self._entries(str(path)) if path is not None and path.exists() else {}
        if rng is not None:
            for name in sorted(set(names) | set(present)):
                if names.get(name) != present.get(name) and rng.random() < 0.5:
                    if name in present:
                        names[name] = present[name]
                    else:
                        del names[name]
        for name, child in names.items():
            now = path / name if path is not None else None
            if self._is_directory[child]:
                (target / name).mkdir()
                self._restore(self._directory(child), child, target / name, rng)
            else:
                current = now.read_bytes() if present.get(name) == child and now is not None else None
                (target / name).write_bytes(self._content(child, current, rng))

    def _directory(self, number: int) -> Path | None:
        for path in self._root.rglob("*"):
            if path.is_dir() and path.stat().st_ino == number:
                return path
        return None

    def _content(self, number: int, current: bytes | None, rng: random.Random | None) -> bytes:
        synced = self._contents.get(number, b"")
        if rng is None or current is None or current == synced:
            return synced
        # The rest may be there, in part, with sectors that were not written.
        end = rng.randint(len(synced), max(len(current), len(synced)))
        content = bytearray(current[:end])
        for _ in range(rng.randint(0, 3)):
            if end > len(synced):
                at = max(rng.randrange(len(synced), end) // 512 * 512, len(synced))
                hole = min(end, at // 512 * 512 + 512) - at
                content[at : at + hole] = bytes(hole)
        content[: len(synced)] = synced if current[: len(synced)] != synced else content[: len(synced)]
        return bytes(content)


class ForgetfulFiles(Files):
    """A disk that fails to sync once, as Linux tells it: what was written since the last sync stays in
    memory, looks clean, and is not on the disk. The next sync succeeds. Dropping it from memory shows the
    disk."""

    def __init__(self) -> None:
        self.sync_fails = False
        self.below = ""
        """Which files it fails for: a part of their paths."""
        self._synced: dict[int, bytes] = {}
        self._lost: set[int] = set()

    def fdatasync(self, fd: int) -> None:
        number = os.fstat(fd).st_ino
        if self.sync_fails and self.below in os.readlink(f"/proc/self/fd/{fd}"):
            self.sync_fails = False
            self._lost.add(number)
            raise _oserror(errno.EIO)
        if number not in self._lost:
            self._synced[number] = Path(f"/proc/self/fd/{fd}").read_bytes()

    def drop_cached(self, fd: int, position: int) -> None:
        number = os.fstat(fd).st_ino
        if number in self._lost:
            self._show_disk(Path(f"/proc/self/fd/{fd}"), number)

    def forget(self, root: Path) -> None:
        """The same for all files, as a loss of power does it."""
        for path in root.rglob("*"):
            if path.stat().st_ino in self._lost:
                self._show_disk(path, path.stat().st_ino)

    def _show_disk(self, path: Path, number: int) -> None:
        written, synced = path.read_bytes(), self._synced.get(number, b"")
        # Space was given to the rest, and nothing was written there.
        path.write_bytes(synced + bytes(len(written) - len(synced)))
