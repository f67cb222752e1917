"""A directory on a network file system is found out, and refused."""

import logging
from pathlib import Path

import pytest

from penstock.node.node import Node, StartError
from penstock.settings import load
from penstock.storage.stores.directory import DirectoryStore
from penstock.storage.stores.files import Files
from penstock.storage.stores.mounts import filesystem_of, is_network

MOUNTS = """\
22 1 252:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
23 22 0:21 / /proc rw,nosuid - proc proc rw
30 22 0:40 / /mnt/share rw,relatime shared:9 master:3 - nfs4 server:/export rw,vers=4.2
31 30 252:2 / /mnt/share/local rw - xfs /dev/vdb rw
32 22 0:41 / /mnt/with\\040space rw - cifs //server/share rw
33 22 0:42 / /home/me/remote rw - fuse.sshfs me@host: rw
34 22 0:43 / /mnt/over rw - ext4 /dev/vdc rw
35 22 0:44 / /mnt/over rw - ceph 10.0.0.1:/ rw
36 22 0:45 / /var/lib/docker/merged rw - overlay overlay rw
a line that is none
"""


@pytest.mark.parametrize(
    ("path", "kind", "network"),
    [
        ("/data", "ext4", False),
        ("/", "ext4", False),
        ("/mnt/share", "nfs4", True),
        ("/mnt/share/a/b", "nfs4", True),
        ("/mnt/shared", "ext4", False),
        ("/mnt/share/local/x", "xfs", False),
        ("/mnt/with space/x", "cifs", True),
        ("/home/me/remote/x", "fuse.sshfs", True),
        ("/mnt/over/x", "ceph", True),
        ("/var/lib/docker/merged/data", "overlay", False),
    ],
)
def test_what_a_directory_lies_on(path: str, kind: str, network: bool) -> None:
    assert filesystem_of(path, MOUNTS) == kind
    assert is_network(kind) is network


def test_where_nothing_is_told_nothing_is_known() -> None:
    assert filesystem_of("/data", "") == "" and not is_network("")


class Mounted(Files):
    def __init__(self, path: Path, kind: str) -> None:
        point = str(path).replace(" ", "\\040")  # as the kernel writes it
        self._text = f"1 0 0:1 / / rw - ext4 /dev/vda1 rw\n2 1 0:2 / {point} rw - {kind} somewhere rw\n"

    def mounts(self) -> str:
        return self._text


def node_on(directory: Path, kind: str, *settings: str) -> Node:
    store = directory / "not" / "there yet"
    chosen = load([f"store={store}", "listeners=PLAINTEXT://127.0.0.1:0", *settings])
    return Node(
        chosen, open_store=lambda given: DirectoryStore(given.store, files=Mounted(directory.resolve(), kind))
    )


async def test_a_network_file_system_is_refused_in_one_sentence(tmp_path: Path) -> None:
    node = node_on(tmp_path, "nfs4")
    with pytest.raises(StartError) as refused:
        await node.start()
    said = str(refused.value)
    assert "nfs4" in said and "store.network.enable" in said and "\n" not in said
    assert not list(tmp_path.iterdir()), "nothing was written there"


async def test_it_may_be_allowed_and_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node = node_on(tmp_path, "nfs4", "store.network.enable=true")
    with caplog.at_level(logging.WARNING):
        await node.start()
    assert [record.message for record in caplog.records if "network file system type=nfs4" in record.message]
    await node.kill()


async def test_a_local_one_is_not_spoken_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node = node_on(tmp_path, "xfs")
    with caplog.at_level(logging.WARNING):
        await node.start()
    assert not caplog.records
    await node.kill()
