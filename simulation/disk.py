"""A file system in memory that several broker processes share, and one process's way to it.

Between any two system calls a process may be stopped for a while, or killed: that is where a protocol of
several calls (append, then look for the seal) can go wrong. Calls fail at times, before they did anything or
after they did it, in part or whole.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import random
from collections.abc import Callable, Sequence

from penstock.log.flush import FLUSH_HEADER_SIZE, FlushError, decode_flush_header
from penstock.metadata.image import WalRef
from penstock.storage.files import Entry, Files
from penstock.wire.buffers import Buffer
from simulation.loop import Crashed, Process, World
from simulation.store import Weather
from simulation.trace import Trace

ROOT = "/store"
COLD = 0.1
"""The share of reads that the page cache does not have."""
BRIEF_SECONDS = 0.02
SLOW_FROM_SECONDS = 0.1
"""From here on a store counts as slow, and a call may take as long as its latency."""

OnFlush = Callable[[WalRef, int, bytes], None]
OnCreate = Callable[[str, str, bytes], None]


class Node:
    """A file or a directory."""

    __slots__ = ("data", "entries", "locks", "modified", "number")

    def __init__(self, number: int, *, directory: bool, modified: float) -> None:
        self.number = number
        self.entries: dict[str, Node] | None = {} if directory else None
        self.data = bytearray()
        self.locks: dict[_Open, bool] = {}
        """Who holds a lock, and whether nobody else may."""
        self.modified = modified


class Disk:
    """What all processes see."""

    def __init__(self, world: World, trace: Trace) -> None:
        self.world = world
        self.trace = trace
        self._numbers = itertools.count(1)
        self.root = self.node(directory=True)
        self.boot = bytes(15) + b"\1"
        self.on_flush: OnFlush = lambda wal, number, contents: None
        self.on_create: OnCreate = lambda operation, key, contents: None

    def node(self, *, directory: bool) -> Node:
        return Node(next(self._numbers), directory=directory, modified=self.time())

    def time(self) -> float:
        return 1_700_000_000 + self.world.time()

    def find(self, path: str) -> Node:
        node = self.root
        for name in path.split("/"):
            if not name:
                continue
            entries = node.entries
            if entries is None:
                raise _error(errno.ENOTDIR)
            found = entries.get(name)
            if found is None:
                raise _error(errno.ENOENT)
            node = found
        return node

    def parent(self, path: str) -> tuple[dict[str, Node], str]:
        """The entries of the directory that `path` is or would be in, and its name there."""
        above, _, name = path.rstrip("/").rpartition("/")
        node = self.find(above) if above.strip("/") else self.root
        if node.entries is None:
            raise _error(errno.ENOTDIR)
        node.modified = self.time()
        return node.entries, name


class _Open:
    __slots__ = ("node", "path", "process")

    def __init__(self, node: Node, path: str, process: Process) -> None:
        self.node = node
        self.path = path
        self.process = process


class SimulatedFiles(Files):
    """The system calls of one process."""

    def __init__(self, disk: Disk, process: Process, weather: Weather, rng: random.Random) -> None:
        self._disk = disk
        self._process = process
        self._weather = weather
        self._rng = rng
        self._open: dict[int, _Open] = {}
        self._fds = itertools.count(1000)

    def _call(self, name: str, path: str, *, can_fail: bool = True) -> bool:
        """Before a call is carried out. True: it is to fail after it was."""
        weather, rng = self._weather, self._rng
        world = self._disk.world
        if self._process.dead:
            raise Crashed
        chance = rng.random()
        if chance < weather.stops:
            seconds = rng.random() * (BRIEF_SECONDS if rng.random() < 0.5 else weather.stop_seconds)
            self._disk.trace.note(self._process.name, f"stopped for {seconds:.3f} s before {name} {path}")
            weather.troubled_at = world.time() + seconds
            world.preempt(self._process, seconds)
        elif weather.latency >= SLOW_FROM_SECONDS and chance > 0.95:
            weather.troubled_at = world.time() + weather.latency
            world.preempt(self._process, weather.latency * rng.random())
        if not can_fail:
            return False
        if weather.out or rng.random() < weather.refused / 4:
            weather.troubled_at = world.time()
            self._disk.trace.note(self._process.name, f"{name} {path} refused")
            raise _error(errno.EIO)
        if rng.random() < weather.lost / 4:
            weather.troubled_at = world.time()
            self._disk.trace.note(self._process.name, f"{name} {path} fails when it is done")
            return True
        return False

    def boot_id(self) -> bytes:
        return self._disk.boot

    # Files.

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        self._call("open", path)
        disk = self._disk
        if flags & os.O_CREAT:
            entries, name = disk.parent(path)
            node = entries.get(name)
            if node is not None and flags & os.O_EXCL:
                raise _error(errno.EEXIST)
            if node is None:
                node = entries[name] = disk.node(directory=False)
        else:
            node = disk.find(path)
        if flags & os.O_TRUNC:
            node.data = bytearray()
        fd = next(self._fds)
        self._open[fd] = _Open(node, path, self._process)
        return fd

    def close(self, fd: int) -> None:
        opened = self._open.pop(fd)
        opened.node.locks.pop(opened, None)

    def flock(self, fd: int, operation: int) -> None:
        opened = self._open[fd]
        self._call("lock", opened.path)
        exclusive = bool(operation & fcntl.LOCK_EX)
        for other, alone in opened.node.locks.items():
            if other is not opened and not other.process.dead and (alone or exclusive):
                raise BlockingIOError(errno.EAGAIN, "somebody else holds a lock")
        opened.node.locks[opened] = exclusive

    def pwritev(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        opened = self._open[fd]
        fails = self._call("write", opened.path)
        contents = b"".join(buffers)
        if fails:
            contents = contents[: self._rng.randrange(len(contents) + 1)]
        self.write_to(opened, contents, position)
        if fails:
            raise _error(errno.EIO)
        return len(contents)

    def write_to(self, opened: _Open, contents: bytes, position: int) -> None:
        data = opened.node.data
        if len(data) < position:
            data.extend(bytes(position - len(data)))
        data[position : position + len(contents)] = contents
        opened.node.modified = self._disk.time()
        self._tell_flush(opened.path, contents)

    def _tell_flush(self, path: str, contents: bytes) -> None:
        if path.startswith(f"{ROOT}/wal/") and len(contents) >= FLUSH_HEADER_SIZE:
            try:
                header = decode_flush_header(contents)
            except FlushError:
                return
            if len(contents) < header.size:
                return
            _, _, _, broker, epoch, _file = path.split("/")
            self._disk.trace.note(
                self._process.name, f"flush {broker}/{epoch}/{header.number} {len(contents)}"
            )
            self._disk.on_flush(WalRef(int(broker), int(epoch)), header.number, contents)

    def preadv(self, fd: int, buffers: Sequence[bytearray | memoryview], position: int, flags: int) -> int:
        opened = self._open[fd]
        self._call("read", opened.path)
        if flags and self._rng.random() < COLD:
            raise _error(errno.EAGAIN)
        count = 0
        for buffer in buffers:
            part = opened.node.data[position + count : position + count + len(buffer)]
            buffer[: len(part)] = part
            count += len(part)
        return count

    def pread(self, fd: int, length: int, position: int) -> bytes:
        opened = self._open[fd]
        self._call("read", opened.path)
        return bytes(opened.node.data[position : position + length])

    def copy_range(self, source: int, target: int, length: int, source_at: int, target_at: int) -> int:
        raise _error(errno.EOPNOTSUPP)

    def size(self, fd: int) -> int:
        return len(self._open[fd].node.data)

    def inode(self, path: str) -> int:
        return self._disk.find(path).number

    def ftruncate(self, fd: int, length: int) -> None:
        opened = self._open[fd]
        self._call("truncate", opened.path)
        del opened.node.data[length:]

    def fdatasync(self, fd: int) -> None:
        if self._call("sync", self._open[fd].path):
            raise _error(errno.EIO)

    def drop_cached(self, fd: int, position: int) -> None:
        """What is written to this disk is on it."""

    def sync_directory(self, path: str) -> None:
        if self._call("sync", path):
            raise _error(errno.EIO)

    # Names.

    def link(self, source: str, target: str) -> None:
        fails = self._call("link", target)
        disk = self._disk
        node = disk.find(source)
        entries, name = disk.parent(target)
        if name in entries:
            raise _error(errno.EEXIST)
        entries[name] = node
        key = target.removeprefix(f"{ROOT}/")
        disk.trace.note(self._process.name, f"create {key} {len(node.data)}")
        if key.startswith("meta/"):
            disk.on_create("create", key, bytes(node.data))
        if fails:
            raise _error(errno.EIO)

    def rename(self, source: str, target: str) -> None:
        fails = self._call("rename", target)
        entries, name = self._disk.parent(source)
        node = entries.get(name)
        if node is None:
            raise _error(errno.ENOENT)
        there, other = self._disk.parent(target)
        old = there.get(other)
        if old is not None and old.entries:
            raise _error(errno.ENOTEMPTY)
        del entries[name]
        there[other] = node
        self._disk.trace.note(self._process.name, f"rename to {target.removeprefix(ROOT)}")
        if fails:
            raise _error(errno.EIO)

    def unlink(self, path: str) -> None:
        self._call("unlink", path)
        entries, name = self._disk.parent(path)
        if name not in entries:
            raise _error(errno.ENOENT)
        del entries[name]
        self._disk.trace.note(self._process.name, f"delete {path.removeprefix(ROOT)}")

    def mkdir(self, path: str) -> None:
        self._call("mkdir", path)
        entries, name = self._disk.parent(path)
        if name in entries:
            raise _error(errno.EEXIST)
        entries[name] = self._disk.node(directory=True)

    def rmdir(self, path: str) -> None:
        self._call("rmdir", path)
        entries, name = self._disk.parent(path)
        node = entries.get(name)
        if node is None:
            raise _error(errno.ENOENT)
        if node.entries:
            raise _error(errno.ENOTEMPTY)
        del entries[name]

    def exists(self, path: str) -> bool:
        """As access(2) does it: a call that fails says no."""
        try:
            self._call("look for", path)
            self._disk.find(path)
            return True
        except OSError:
            return False

    def listdir(self, path: str) -> list[str]:
        self._call("list", path)
        node = self._disk.find(path)
        if node.entries is None:
            raise _error(errno.ENOTDIR)
        return list(node.entries)

    def entries(self, path: str) -> list[Entry]:
        self._call("list", path)
        node = self._disk.find(path)
        if node.entries is None:
            raise _error(errno.ENOTDIR)
        return [
            Entry(name, below.entries is not None, len(below.data), below.modified)
            for name, below in node.entries.items()
        ]


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
