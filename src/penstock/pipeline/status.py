"""Reports of pipelines in the store: the run, the positions of its outputs, and how it ended.

    spark/pipelines/<name>         a run's last word about itself, overwritten about every second

A report decides nothing: an output goes on from its checkpoint. A run that was killed wrote no last word: its
process is gone, or it has been silent for too long.
"""

import os
import socket
from pathlib import Path
from typing import Literal

import msgspec

from penstock.storage.stores.blocking import BlockingStore

PREFIX = "spark/pipelines/"
SILENT_SECONDS = 15.0
"""A run reports every second. Far more than a pause of its process or of the store is not a pause."""

State = Literal["starting", "running", "finished", "stopped", "failed"]
Positions = dict[str, dict[str, int]]


class OutputStatus(msgspec.Struct, kw_only=True):
    name: str
    kind: str
    """table, topic or dead letters."""
    target: str
    checkpoint: str
    topics: list[str] = []
    batches: int = 0
    rows_in: int = 0
    rows_out: int = 0
    """Of this run."""
    rows_in_per_second: float = 0.0
    lag: int | None = None
    positions: Positions = {}
    error: str | None = None


class Status(msgspec.Struct, kw_only=True):
    pipeline: str
    run: str
    state: State
    file: str
    host: str
    pid: int
    process_started: int
    """As the kernel counts, so that another process with the same number is not taken for this one."""
    master: str
    once: bool
    location: str
    started_ms: int
    reported_ms: int
    outputs: list[OutputStatus] = []
    error: str | None = None

    @property
    def ended(self) -> bool:
        return self.state in ("finished", "stopped", "failed")

    def dead_letters(self) -> int:
        return sum(one.rows_out for one in self.outputs if one.kind == "dead letters")


def key_of(pipeline: str) -> str:
    return f"{PREFIX}{pipeline}"


def write(store: BlockingStore, status: Status) -> None:
    store.run(store.store.put(key_of(status.pipeline), msgspec.json.encode(status)))


def read(store: BlockingStore, pipeline: str) -> Status | None:
    data = store.run(store.store.get(key_of(pipeline)))
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=Status)
    except msgspec.DecodeError:
        return None


def crashed(status: Status, now_ms: int) -> bool:
    """Whether a run that did not say that it ended has ended nevertheless."""
    if status.ended:
        return False
    if status.host == socket.gethostname():
        return process_started(status.pid) != status.process_started
    return now_ms - status.reported_ms > SILENT_SECONDS * 1000


def process_started(pid: int) -> int:
    """When a process was started; 0 if there is none, and where that cannot be told, 1."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return 0 if fields[0] == "Z" else int(fields[19])
    except FileNotFoundError:
        if Path("/proc/self").exists():
            return 0
    except (OSError, IndexError, ValueError):
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return 0
    except OSError:
        pass
    return 1
