"""A file system in memory: the view of the processes of its machine, and the state that a power cut leaves.

Contents are on disk as far as a file was synced. Unsynced contents may survive a power cut too, in part, with
holes, or not at all. A sync that failed leaves its bytes in the page cache as if they had been written: they
are read, and never reach the disk. Names are kept in a journal, as ext4, XFS and btrfs do it. If a directory
is synced, all changes before its own last one are synced too. A power cut undoes some of the newest, in
order.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from penstock.metadata.image import WalRef

if TYPE_CHECKING:
    from simulation.loop import Process, World
    from simulation.trace import Trace

ROOT = "/store"
SECTOR_BYTES = 512
"""What a disk writes wholly or not at all."""

OnFlush = Callable[[WalRef, int, bytes], None]
OnCreate = Callable[[str, str, bytes], None]


class Node:
    """A file or a directory."""

    __slots__ = ("_dirty", "_on_disk", "data", "entries", "locks", "modified", "number")

    def __init__(self, number: int, *, directory: bool, modified: float) -> None:
        self.number = number
        self.entries: dict[str, Node] | None = {} if directory else None
        self.data = bytearray()
        self.locks: dict[OpenNode, bool] = {}
        """Who holds a lock, and whether nobody else may."""
        self.modified = modified
        self._on_disk = bytearray()
        self._dirty: list[tuple[int, int]] = []
        """What was written since the last sync, in order."""

    def write(self, contents: bytes, position: int) -> None:
        data = self.data
        if len(data) < position:
            data.extend(bytes(position - len(data)))
        data[position : position + len(contents)] = contents
        self._dirty.append((position, position + len(contents)))

    def truncate(self, length: int) -> None:
        del self.data[length:]
        del self._on_disk[length:]
        self._dirty = [(start, min(end, length)) for start, end in self._dirty if start < length]

    def sync(self) -> None:
        for start, end in self._dirty:
            self._put(start, self.data[start:end])
        self._dirty.clear()

    def fail_to_sync(self) -> None:
        """The pages count as written now, and are not."""
        self._dirty.clear()

    def drop_cached(self, position: int) -> None:
        """Forget what is in memory and not still to be written: what is read then is what the disk has."""
        kept = [(start, bytes(self.data[start:end])) for start, end in self._dirty]
        size = len(self.data)
        self.data[position:] = self._on_disk[position:size]
        self.data.extend(bytes(size - len(self.data)))
        for start, contents in kept:
            self.data[start : start + len(contents)] = contents

    def rot(self, at: int, bit: int) -> None:
        """One bit is not what it was, on disk and in memory."""
        self.data[at] ^= 1 << bit
        if at < len(self._on_disk):
            self._on_disk[at] ^= 1 << bit

    def lose_power(self, rng: random.Random) -> None:
        """Keep what the disk has, and whatever of the rest it happens to have."""
        dirty, self._dirty = self._dirty, []
        chance = rng.random()
        if chance < 0.65:
            left = rng.randrange(sum(end - start for start, end in dirty) + 1) if chance > 0.3 else 0
            for start, end in dirty:
                kept = min(left, end - start)
                if not kept:
                    break
                left -= kept
                self._put(start, self.data[start : start + kept])
        else:
            before = bytes(self._on_disk)
            for start, end in dirty:
                self._put(start, self.data[start:end])
            for start, end in dirty if chance < 0.9 else ():
                if end > start:
                    at = rng.randrange(start, end) // SECTOR_BYTES * SECTOR_BYTES
                    size = min(len(self._on_disk) - at, SECTOR_BYTES)
                    self._put(at, before[at : at + size].ljust(size, b"\0"))
        self.data = bytearray(self._on_disk)
        self.locks.clear()

    def _put(self, start: int, contents: bytes | bytearray) -> None:
        disk = self._on_disk
        if len(disk) < start:
            disk.extend(bytes(start - len(disk)))
        disk[start : start + len(contents)] = contents


class OpenNode:
    """A descriptor."""

    __slots__ = ("node", "path", "process")

    def __init__(self, node: Node, path: str, process: Process) -> None:
        self.node = node
        self.path = path
        self.process = process


class _Named(NamedTuple):
    """A change of names, which happens wholly or not at all."""

    source: str | None
    target: str | None
    node: Node
    before: Node | None
    """What had the name `target`."""


class Disk:
    """What all processes see. Every node is found by its path at once."""

    def __init__(self, world: World, trace: Trace) -> None:
        self.world = world
        self.trace = trace
        self.boots = 1
        self._numbers = itertools.count(1)
        self.root = self.node(directory=True)
        self._paths: dict[str, Node] = {"": self.root}
        self._journal: list[_Named] = []
        """Changes of names since the last power cut."""
        self._kept = 0
        """How many of them a power cut leaves alone."""
        self._touched: dict[str, int] = {}
        """By directory, up to where the journal must be kept for its names to be."""
        self.on_flush: OnFlush = lambda wal, number, contents: None
        self.on_create: OnCreate = lambda operation, key, contents: None

    @property
    def boot(self) -> bytes:
        return self.boots.to_bytes(16, "big")

    def node(self, *, directory: bool) -> Node:
        return Node(next(self._numbers), directory=directory, modified=self.time())

    def time(self) -> float:
        return 1_700_000_000 + self.world.time()

    def path(self, key: str) -> str:
        return f"{ROOT}/{key}"

    def find(self, path: str) -> Node:
        node = self._paths.get(path)
        if node is None:
            raise os_error(errno.ENOENT)
        return node

    def has(self, path: str) -> bool:
        return path in self._paths

    def add(self, path: str, node: Node) -> None:
        """Give a node a name; what had it before is replaced."""
        before = self._paths.get(path)
        self._attach(path, node)
        self._note(_Named(None, path, node, before))

    def remove(self, path: str) -> None:
        node = self.find(path)
        self._detach(path)
        self._note(_Named(path, None, node, None))

    def rename(self, source: str, target: str) -> None:
        node, before = self.find(source), self._paths.get(target)
        self._detach(source)
        self._attach(target, node)
        self._note(_Named(source, target, node, before))

    def sync_names(self, path: str) -> None:
        """All changes up to the last one of this directory are there for good."""
        self._kept = max(self._kept, self._touched.get(path, 0))

    def _note(self, change: _Named) -> None:
        self._journal.append(change)
        for path in (change.source, change.target):
            if path is not None:
                self._touched[path.rpartition("/")[0]] = len(self._journal)

    def _attach(self, path: str, node: Node) -> None:
        above, name = self._parent(path)
        above[name] = node
        self._paths[path] = node
        if node.entries:
            for below, child in list(node.entries.items()):
                self._attach(f"{path}/{below}", child)

    def _detach(self, path: str) -> None:
        above, name = self._parent(path)
        node = above.pop(name)
        del self._paths[path]
        if node.entries:
            for known in [known for known in self._paths if known.startswith(f"{path}/")]:
                del self._paths[known]

    def _parent(self, path: str) -> tuple[dict[str, Node], str]:
        """The entries of the directory that `path` is or would be in, and its name there."""
        above, _, name = path.rpartition("/")
        node = self.find(above)
        if node.entries is None:
            raise os_error(errno.ENOTDIR)
        node.modified = self.time()
        return node.entries, name

    def stored(self) -> Iterator[tuple[str, Node]]:
        """All files of the store that are finished, by key."""
        for path, node in self._paths.items():
            if node.entries is None and path.startswith(f"{ROOT}/"):
                yield path[len(ROOT) + 1 :], node

    def lose_power(self, rng: random.Random) -> None:
        """What is there when the machine starts again."""
        self.boots += 1
        for _ in range(rng.randint(0, len(self._journal) - self._kept) if rng.random() < 0.7 else 0):
            change = self._journal.pop()
            if change.target is not None:
                self._detach(change.target)
                if change.before is not None:
                    self._attach(change.target, change.before)
            if change.source is not None:
                self._attach(change.source, change.node)
        self._journal.clear()
        self._touched.clear()
        self._kept = 0
        nodes = {node.number: node for node in self._paths.values() if node.entries is None}
        for number in sorted(nodes):
            nodes[number].lose_power(rng)


def os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
