"""File systems of a scene's own, which can be full, cut off, read-only, or lose power. Root can mount them.

A power cut is a real one to the file system: ext4 is told to go down without writing its journal. So all
unsynced bytes are gone, and every call fails with EIO until it is mounted again.
"""

import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SHUTDOWN = (2 << 30) | (4 << 16) | (ord("X") << 8) | 125
"""EXT4_IOC_SHUTDOWN, which is _IOR('X', 125, __u32)."""
_WITHOUT_JOURNAL = 2


class NoDisk(Exception):
    """A file system cannot be mounted here; the message says why."""


def _run(*command: str) -> None:
    if shutil.which(command[0]) is None:
        raise NoDisk(f"{command[0]} is not on the PATH")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoDisk(f"{' '.join(command[:3])} failed: {done.stderr.strip()}")


@contextmanager
def memory_disk(megabytes: int) -> Iterator[Path]:
    """A small tmpfs."""
    with tempfile.TemporaryDirectory(prefix="conformance-disk-") as folder:
        _run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", folder)
        try:
            yield Path(folder)
        finally:
            _run("umount", "-l", folder)


class RealDisk:
    """ext4 in a file."""

    def __init__(self, image: Path, folder: Path) -> None:
        self._image = image
        self.folder = folder

    def mount(self) -> None:
        # Dirty pages are written back after a day here: a power cut takes what nobody synced.
        _run("mount", "-o", "loop,commit=300,noauto_da_alloc", str(self._image), str(self.folder))

    def unmount(self) -> None:
        _run("umount", str(self.folder))

    def sync(self) -> None:
        fd = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(fd)
            _run("sync", "-f", str(self.folder))
        finally:
            os.close(fd)

    def commit(self) -> None:
        """Write the journal: files that were made have names then, and the bytes of those that nobody synced are
        not written, as the system's own rhythm may have it."""
        fd = os.open(self.folder / "other", os.O_WRONLY | os.O_CREAT)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def cut(self) -> None:
        """Now."""
        fd = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", _WITHOUT_JOURNAL))
        except OSError as error:
            raise NoDisk(f"ext4 cannot be told to go down here: {error}") from error
        finally:
            os.close(fd)


@contextmanager
def real_disk(megabytes: int) -> Iterator[RealDisk]:
    with tempfile.TemporaryDirectory(prefix="conformance-disk-") as folder:
        image, mounted = Path(folder) / "image", Path(folder) / "mounted"
        mounted.mkdir()
        with image.open("wb") as file:
            file.truncate(megabytes << 20)
        _run("mkfs.ext4", "-q", str(image))
        disk = RealDisk(image, mounted)
        disk.mount()
        try:
            yield disk
        finally:
            _run("umount", "-l", str(mounted))


def used_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return (found.f_blocks - found.f_bfree) * found.f_frsize
