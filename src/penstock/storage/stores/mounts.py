"""The kind of file system on which a directory lies.

A store on a directory rests on two guarantees of a kernel for the processes of one machine: all of them see a
linked or renamed name at once, and a lock is held until its process ends. A network file system caches names
on each machine. A broker there may still see its log open after another machine sealed it, and acknowledge
records that nobody will read. So such a directory is refused, unless `store.network.enable` says that all
brokers of the cluster run on this machine. Then all see the same names, and a warning says what stays open:
the server alone decides what it keeps after a loss of power.

A file system that is not listed here counts as local.
"""

import os
import re

_ESCAPED = re.compile(r"\\([0-7]{3})")

NETWORK = frozenset(
    (
        "9p", "afs", "beegfs", "ceph", "cephfs", "cifs", "coda", "davfs", "glusterfs", "gpfs", "lustre",
        "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "pvfs2", "smb2", "smb3", "smbfs", "wekafs",
        "fuse.blobfuse", "fuse.blobfuse2", "fuse.ceph", "fuse.ceph-fuse", "fuse.cephfs", "fuse.curlftpfs",
        "fuse.davfs", "fuse.davfs2", "fuse.gcsfuse", "fuse.geesefs", "fuse.glusterfs", "fuse.goofys",
        "fuse.juicefs", "fuse.mfs", "fuse.moosefs", "fuse.mount-s3", "fuse.mountpoint-s3", "fuse.rclone",
        "fuse.s3fs", "fuse.seaweedfs", "fuse.smbnetfs", "fuse.sshfs",
    )
)  # fmt: skip


def filesystem_of(path: str, mounts: str) -> str:
    """The type of the file system that an absolute path without links lies on, as the kernel calls it; "" if
    that is not told. `mounts` is the text of /proc/self/mountinfo."""
    longest, kind = -1, ""
    for line in mounts.splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split(" ")
        if not separator or len(fields) < 5:
            continue
        point = _ESCAPED.sub(lambda found: chr(int(found[1], 8)), fields[4])
        # Of those mounted at one place, the last one is seen.
        if _holds(point, path) and len(point) >= longest:
            longest, kind = len(point), after.split(" ")[0]
    return kind


def is_network(kind: str) -> bool:
    return kind in NETWORK


def resting_place(path: str) -> str:
    """Where a directory is, or will be when it is made."""
    path = os.path.realpath(path)
    while not os.path.exists(path) and path != "/":
        path = os.path.dirname(path)
    return path


def _holds(point: str, path: str) -> bool:
    return path == point or path.startswith(point if point.endswith("/") else f"{point}/")
