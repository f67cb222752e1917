"""Clients that stay for longer than their logins last (KIP-368).

Each is a member of a group of its own on the listener where a login lasts for some seconds. A client that can logs in
anew on the open connection. Others are cut off when they next ask, come back, and must miss nothing either.
"""

import contextlib
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from conformance.client import BY_NAME, Session
from conformance.clients.protocol import Record
from conformance.groups.members import History, Member
from conformance.security.stage import LOGIN_LASTS_MS, Stage
from penstock.testing.waiting import Late, until

TOPIC = "again"
WRITER = "confluent-kafka"
LOGINS = 4
"""How many times over a login ends meanwhile."""
START_S = 40.0
PAUSE_S = 0.2
ON_OPEN_CONNECTIONS = frozenset(("confluent-kafka", "kafka-python", "franz-go", "sarama", "kafkajs", "java"))
"""Those that log in anew on an open connection."""


def connections(pid: int, bootstrap: str) -> set[int]:
    """The ports from which a process is connected to this listener."""
    port = int(bootstrap.rpartition(":")[2])
    own = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            own.add(str(link.readlink()))
    # Java's sockets are of the newer kind whatever the address is.
    tables = [Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table]
    return {
        int(row[1].partition(":")[2], 16)
        for row in rows
        if int(row[2].partition(":")[2], 16) == port and row[3] == "01" and f"socket:[{row[9]}]" in own
    }


def logins_again(ready: Stage, clients: Sequence[str], mechanism: str) -> dict[str, str]:
    """By client: what went wrong, or nothing."""
    topic = f"{TOPIC}-{mechanism}"
    file = ready.security("SASL_SSL", mechanism).write(ready.folder / f"{topic}.json")
    histories = {name: History() for name in clients}
    with contextlib.ExitStack() as open_ones:
        writer = open_ones.enter_context(Session(BY_NAME[WRITER], ready.login, file))
        writer.create(topic, 1)
        writer.flood(topic, [Record(None, b"first")])
        members = {}
        for name, history in histories.items():
            members[name] = member = Member(name, name, "classic", ready.brief, history, file)
            open_ones.callback(member.close)
            member.join(f"{topic}-{name}", topic)
        for member in members.values():
            with contextlib.suppress(Late):
                until(partial(_has_read, member, 1), START_S, "the first record")
        before = {name: connections(member.process.pid, ready.brief) for name, member in members.items()}
        deadline = time.monotonic() + LOGINS * LOGIN_LASTS_MS / 1000
        count = 1
        while time.monotonic() < deadline:
            writer.flood(topic, [Record(None, b"%d" % count)])
            count += 1
            time.sleep(PAUSE_S)
        after = {name: connections(member.process.pid, ready.brief) for name, member in members.items()}
        return {name: _judge(one, before[name], after[name], count) for name, one in members.items()}


def _read(member: Member) -> int:
    return len(member.history.consumed().get(0, ()))


def _has_read(member: Member, count: int) -> bool:
    return member.failure is not None or _read(member) >= count


def _judge(member: Member, before: set[int], after: set[int], count: int) -> str:
    try:
        until(partial(_has_read, member, count), START_S, "the last record")
    except Late:
        return f"read {_read(member)} of {count} records; {member.complaint}"
    if member.failure:
        return member.failure
    if not before:
        return "was not connected"
    kept = before & after
    if member.name in ON_OPEN_CONNECTIONS and kept != before:
        return f"kept {len(kept)} of {len(before)} connections"
    if member.name not in ON_OPEN_CONNECTIONS and kept:
        return f"{len(kept)} of {len(before)} connections outlived their logins"
    return ""
