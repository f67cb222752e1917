"""One process's way to a file system that several broker processes share.

A process may be stopped for a while, or killed, between any two system calls. There a protocol of several
calls (append, then look for the seal) can go wrong. Calls fail at times, before they did anything or after
they did it, in part or whole.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import random
from collections.abc import Sequence

from penstock.log.flush import FLUSH_HEADER_SIZE, FlushError, decode_flush_header
from penstock.metadata.image import WalRef
from penstock.storage.stores.files import FileInfo, Files, Inode
from penstock.wire.buffers import Buffer
from simulation.filesystem import ROOT, Disk, Node, OpenNode, os_error
from simulation.loop import Crashed, Process
from simulation.weather import SLOW_FROM_SECONDS, Weather

COLD = 0.1
"""The share of reads that the page cache does not have."""
BRIEF_SECONDS = 0.02

READS, WRITES, NAMES = "reads", "writes", "names"
"""What a call does: names change on a full disk too, on a read-only one nothing does."""


class SimulatedFiles(Files):
    """The system calls of one process."""

    def __init__(self, disk: Disk, process: Process, weather: Weather, rng: random.Random) -> None:
        self._disk = disk
        self._process = process
        self._weather = weather
        self._rng = rng
        self._open: dict[int, OpenNode] = {}
        self._fds = itertools.count(1000)

    def _call(self, name: str, path: str, doing: str = READS) -> bool:
        """Before a call is carried out. True: it is to fail after it was."""
        if self._process.dead:
            raise Crashed
        weather = self._weather
        if weather.calm:
            return False
        rng, world = self._rng, self._disk.world
        chance = rng.random()
        if chance < weather.stops:
            seconds = rng.random() * (BRIEF_SECONDS if rng.random() < 0.5 else weather.stop_seconds)
            self._disk.trace.note(self._process.name, f"stopped for {seconds:.3f} s before {name} {path}")
            weather.troubled_at = world.time() + seconds
            world.preempt(self._process, seconds)
        elif weather.latency >= SLOW_FROM_SECONDS and chance > 0.95:
            weather.troubled_at = world.time() + weather.latency
            world.preempt(self._process, weather.latency * rng.random())
        if weather.fair:
            return False
        number = self._errno(path, doing)
        if number:
            weather.troubled_at = world.time()
            self._disk.trace.note(self._process.name, f"{name} {path}: {errno.errorcode[number]}")
            raise os_error(number)
        if rng.random() < weather.lost / 4:
            weather.troubled_at = world.time()
            self._disk.trace.note(self._process.name, f"{name} {path} fails when it is done")
            return True
        return False

    def _errno(self, path: str, doing: str) -> int:
        """How the call fails without having done anything; 0 if it does not."""
        weather = self._weather
        if weather.denied is not None and path.startswith(weather.denied, len(ROOT) + 1):
            return errno.EACCES
        if doing != READS and weather.read_only:
            return errno.EROFS
        if doing == WRITES and weather.full:
            return errno.ENOSPC
        if weather.out or self._rng.random() < weather.refused / 4:
            return errno.EIO
        return 0

    def boot_id(self) -> bytes:
        return self._disk.boot

    # Files.

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        disk = self._disk
        self._call("open", path, NAMES if flags & os.O_CREAT else READS)
        if flags & os.O_CREAT and not disk.has(path):
            node = disk.node(directory=False)
            disk.add(path, node)
        elif flags & os.O_CREAT and flags & os.O_EXCL:
            raise os_error(errno.EEXIST)
        else:
            node = disk.find(path)
        if flags & os.O_TRUNC:
            node.truncate(0)
        fd = next(self._fds)
        self._open[fd] = OpenNode(node, path, self._process)
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

    def allocate(self, fd: int, length: int) -> None:
        opened = self._open[fd]
        self._call("allocate", opened.path, WRITES)
        opened.node.write(bytes(length - len(opened.node.data)), len(opened.node.data))

    def pwritev(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        opened = self._open[fd]
        fails = self._call("write", opened.path, WRITES)
        contents = b"".join(buffers)
        if fails:
            contents = contents[: self._rng.randrange(len(contents) + 1)]
        self.write_to(opened, contents, position)
        if fails:
            raise os_error(errno.ENOSPC if self._rng.random() < 0.5 else errno.EIO)
        return len(contents)

    def write_to(self, opened: OpenNode, contents: bytes, position: int) -> None:
        opened.node.write(contents, position)
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
            raise os_error(errno.EAGAIN)
        left = self._shortened(sum(map(len, buffers)))
        count = 0
        for buffer in buffers:
            part = self._seen(opened, position + count, min(len(buffer), left - count))
            buffer[: len(part)] = part
            count += len(part)
        return count

    def pread(self, fd: int, length: int, position: int) -> bytes:
        opened = self._open[fd]
        self._call("read", opened.path)
        return bytes(self._seen(opened, position, self._shortened(length)))

    def _shortened(self, length: int) -> int:
        """How much one call reads: the system may give less than it is asked for."""
        if length > 1 and self._weather.short and self._rng.random() < self._weather.short:
            return self._rng.randrange(1, length)
        return length

    def _seen(self, opened: OpenNode, position: int, length: int) -> bytearray:
        """What arrives of what is stored."""
        read = opened.node.data[position : position + length]
        flips = self._weather.flips
        if flips and read and self._rng.random() < flips:
            self._weather.troubled_at = self._disk.world.time()
            read[self._rng.randrange(len(read))] ^= 1 << self._rng.randrange(8)
        return read

    def size(self, fd: int) -> int:
        return len(self._open[fd].node.data)

    def size_of(self, path: str) -> int:
        self._call("look at", path)
        return len(self._disk.find(path).data)

    def inode(self, file: str | int) -> Inode:
        node = self._disk.find(file) if isinstance(file, str) else self._open[file].node
        return 0, node.number

    def has_name(self, fd: int, path: str) -> bool:
        return self._disk.has(path) and self._disk.find(path) is self._open[fd].node

    def ftruncate(self, fd: int, length: int) -> None:
        opened = self._open[fd]
        self._call("truncate", opened.path, NAMES)
        opened.node.truncate(length)

    def fdatasync(self, fd: int) -> None:
        opened = self._open[fd]
        fails = self._call("sync", opened.path, WRITES)
        if fails or (self._weather.sync_fails and self._rng.random() < self._weather.sync_fails):
            self._weather.troubled_at = self._disk.world.time()
            self._disk.trace.note(self._process.name, f"sync {opened.path} failed")
            opened.node.fail_to_sync()
            raise os_error(errno.EIO)
        opened.node.sync()

    def drop_cached(self, fd: int, position: int) -> None:
        self._open[fd].node.drop_cached(position)

    def sync_directory(self, path: str) -> None:
        if self._call("sync", path, NAMES):
            raise os_error(errno.EIO)
        self._disk.find(path)
        self._disk.sync_names(path)

    # Names.

    def link(self, source: str, target: str) -> None:
        fails = self._call("link", target, NAMES)
        disk = self._disk
        node = disk.find(source)
        if disk.has(target):
            raise os_error(errno.EEXIST)
        disk.add(target, node)
        key = target[len(ROOT) + 1 :]
        disk.trace.note(self._process.name, f"create {key} {len(node.data)}")
        if key.startswith("meta/"):
            disk.on_create("create", key, bytes(node.data))
        if fails:
            raise os_error(errno.EIO)

    def rename(self, source: str, target: str) -> None:
        fails = self._call("rename", target, NAMES)
        disk = self._disk
        disk.find(source)
        if disk.has(target) and disk.find(target).entries:
            raise os_error(errno.ENOTEMPTY)
        disk.rename(source, target)
        disk.trace.note(self._process.name, f"rename to {target.removeprefix(ROOT)}")
        if fails:
            raise os_error(errno.EIO)

    def unlink(self, path: str) -> None:
        self._call("unlink", path, NAMES)
        self._disk.remove(path)
        self._disk.trace.note(self._process.name, f"delete {path.removeprefix(ROOT)}")

    def mkdir(self, path: str) -> None:
        self._call("mkdir", path, NAMES)
        if self._disk.has(path):
            raise os_error(errno.EEXIST)
        self._disk.add(path, self._disk.node(directory=True))

    def restrict(self, path: str) -> None:
        """There is nobody else."""

    def rmdir(self, path: str) -> None:
        self._call("rmdir", path, NAMES)
        if self._disk.find(path).entries:
            raise os_error(errno.ENOTEMPTY)
        self._disk.remove(path)

    def exists(self, path: str) -> bool:
        """As access(2) does it: a call that fails says no."""
        try:
            self._call("look for", path)
        except OSError:
            return False
        return self._disk.has(path)

    def listdir(self, path: str) -> list[str]:
        self._call("list", path)
        return list(self._directory(path))

    def entries(self, path: str) -> list[FileInfo]:
        self._call("list", path)
        return [
            FileInfo(name, below.entries is not None, len(below.data), below.modified)
            for name, below in self._directory(path).items()
        ]

    def _directory(self, path: str) -> dict[str, Node]:
        entries = self._disk.find(path).entries
        if entries is None:
            raise os_error(errno.ENOTDIR)
        return entries
