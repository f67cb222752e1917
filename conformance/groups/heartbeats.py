"""A thousand groups of five members heartbeat over sockets; nothing is written for it, and CPU is measured.

Half of the groups are classic, half speak the consumer protocol. When all have joined and the store is at
rest, two windows of the same length follow: one in which members are silent and one in which they heartbeat.
The store may change in the second only as in the first (leases, checkpoints), and `__consumer_offsets` must
not grow by a record. A commit at the end must show up in the store: the proof that a write would have been
seen.
"""

import argparse
import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from conformance import parts
from conformance.client import BY_NAME, ClientFailed, Session
from conformance.groups.offsets import await_coordinators, commit_plainly, find_topic, log_ends
from conformance.groups.raw import NONE, ClassicMember, ConsumerMember, Member, Refused
from conformance.server import Running, Server, ServerFailed, interrupted_cleanly
from conformance.target import add_against, server_named

GROUPS, MEMBERS_EACH = 1_000, 5
GROUPS_SHORT = 100
WINDOW_S, WINDOW_SHORT_S = 30.0, 15.0
INTERVAL_S = 3.0
"""Between two heartbeats of a member: the default of most clients."""
JOINING_AT_ONCE = 25
"""Groups that join at the same time."""
REST_S = 12.0
"""Without a change the store is at rest: longer than records stay in the write-ahead log."""
REST_TIMEOUT_S = 120.0
SESSION_MS = 300_000
TOPIC = "heartbeats"

SETTINGS = {
    "group.initial.rebalance.delay.ms": "500",  # so that the five members make one generation
    "group.max.session.timeout.ms": str(SESSION_MS),
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.max.session.timeout.ms": str(SESSION_MS),
    "max.connections": "20000",
}
# What brokers write from time to time whatever their clients do: the lease of a Penstock broker (whose next
# version lies in tmp/ for a moment, as does everything before it gets its name), Kafka's checkpoints and quorum.
KEPT_BY_THE_BROKER = (
    "*/store/live/*",
    "*/store/tmp/*",
    "*checkpoint*",
    "*__cluster_metadata*",
    "*/output.log",
)

Files = dict[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Window:
    """What a stretch of time did."""

    seconds: float
    cpu_s: float
    heartbeats: int
    files: tuple[str, ...]
    """Files that were added or changed, other than those kept by the broker. One that goes is no write: a log
    whose records were settled is removed when its time is over, whatever is sent meanwhile."""
    bytes_added: int
    records_added: int


class Heartbeats:
    def __init__(self, server: Server, groups: int, window_s: float, interval_s: float) -> None:
        self.server = server
        self.window_s = window_s
        self.interval_s = interval_s
        self.members: list[Member] = []
        names = [f"heartbeats-{number}" for number in range(groups)]
        self.classic, self.consumer = names[::2], names[1::2]

    async def join(self) -> None:
        began = time.monotonic()
        limit = asyncio.Semaphore(JOINING_AT_ONCE)

        async def one_group(name: str, join: Callable[[str], Awaitable[Sequence[Member]]]) -> None:
            async with limit:
                self.members += await join(name)

        await asyncio.gather(
            *(one_group(name, self._join_classic) for name in self.classic),
            *(one_group(name, self._join_consumer) for name in self.consumer),
        )
        took = time.monotonic() - began
        groups = len(self.classic) + len(self.consumer)
        print(f"{len(self.members):,} members joined {groups:,} groups ({took:.0f} s)", flush=True)

    async def _join_classic(self, name: str) -> list[ClassicMember]:
        new = [
            ClassicMember(self.server.host, self.server.port, name, TOPIC, SESSION_MS)
            for _ in range(MEMBERS_EACH)
        ]
        await asyncio.gather(*(member.connect() for member in new))
        await asyncio.gather(*(member.join() for member in new))
        while len({member.generation for member in new}) > 1:  # somebody came too late for the first one
            behind = [member for member in new if await member.heartbeat() != NONE]
            await asyncio.gather(*(member.join() for member in behind))
        return new

    async def _join_consumer(self, name: str) -> list[ConsumerMember]:
        new = [ConsumerMember(self.server.host, self.server.port, name, TOPIC) for _ in range(MEMBERS_EACH)]
        await asyncio.gather(*(member.connect() for member in new))
        await asyncio.gather(*(member.join() for member in new))
        while True:
            owned = [partition for member in new for partition in member.owned]
            everybody = all(member.owned for member in new)
            if everybody and len(set(owned)) == MEMBERS_EACH and len({member.epoch for member in new}) == 1:
                return new
            await asyncio.sleep(0.2)
            for member in new:
                await member.heartbeat()

    async def rest(self) -> None:
        """Wait until what the joins wrote has been stored for good."""
        deadline = time.monotonic() + REST_TIMEOUT_S
        before, since = self.files(), time.monotonic()
        while time.monotonic() - since < REST_S:
            if time.monotonic() > deadline:
                raise ServerFailed("the store did not come to rest")
            await asyncio.sleep(1)
            now = self.files()
            if now != before:
                before, since = now, time.monotonic()

    async def window(self, heartbeats: bool) -> Window:
        files, ends, cpu = self.files(), await asyncio.to_thread(log_ends, self.server), self.cpu_s()
        sent = sum(member.heartbeats for member in self.members)
        began = time.monotonic()
        if heartbeats:
            await self._beat(began)
        else:
            await asyncio.sleep(self.window_s)
        took, spent = time.monotonic() - began, self.cpu_s() - cpu
        after = self.files()
        changed = tuple(sorted(path for path, state in after.items() if files.get(path) != state))
        grown = sum(size for size, _ in after.values()) - sum(size for size, _ in files.values())
        new_ends = await asyncio.to_thread(log_ends, self.server)
        answered = sum(member.heartbeats for member in self.members) - sent
        return Window(took, spent, answered, changed, grown, sum(new_ends.values()) - sum(ends.values()))

    async def _beat(self, began: float) -> None:
        """Every member at its own moment of each interval, until the window is over and all is answered."""
        last: dict[int, asyncio.Future[bytes]] = {}
        spacing = self.interval_s / len(self.members)
        for turn in range(int(self.window_s / spacing)):
            ahead = began + turn * spacing - time.monotonic()
            if ahead > 0.001:
                await asyncio.sleep(ahead)
            at = turn % len(self.members)
            answer = self.members[at].steady_heartbeat()
            answer.add_done_callback(self.members[at].count)
            last[at] = answer
        await asyncio.wait_for(asyncio.gather(*last.values(), return_exceptions=True), 60)
        left = began + self.window_s - time.monotonic()
        if left > 0:
            await asyncio.sleep(left)

    def files(self) -> Files:
        """Size and time of every file of the broker, but for those it keeps for itself."""
        found = {}
        for folder, _, names in os.walk(self.server.folder):
            for name in names:
                path = Path(folder) / name
                if any(fnmatch(str(path), pattern) for pattern in KEPT_BY_THE_BROKER):
                    continue
                try:
                    state = path.stat()
                except FileNotFoundError:
                    continue
                found[str(path.relative_to(self.server.folder))] = state.st_size, state.st_mtime_ns
        return found

    def cpu_s(self) -> float:
        """Seconds of CPU that the broker's process has used, in user and system mode."""
        fields = Path(f"/proc/{self.server.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def refusals(self) -> Counter[int]:
        total: Counter[int] = Counter()
        for member in self.members:
            total.update(member.refusals)
        return total

    async def check_that_a_write_shows(self) -> bool:
        topic = await asyncio.to_thread(find_topic, self.server, TOPIC)
        files, ends = self.files(), await asyncio.to_thread(log_ends, self.server)
        await asyncio.to_thread(commit_plainly, self.server, "a-group-of-its-own", topic, {0: 0})
        after = await asyncio.to_thread(log_ends, self.server)
        return self.files() != files and sum(after.values()) - sum(ends.values()) == 1


async def run(server: Server, groups: int, window_s: float, interval_s: float) -> list[str]:
    """What is wrong; figures are printed."""
    with Session(BY_NAME["confluent-kafka"], server.bootstrap) as session:
        session.create(TOPIC, MEMBERS_EACH)
    await_coordinators(server, [f"heartbeats-{number}" for number in range(groups)])
    load = Heartbeats(server, groups, window_s, interval_s)
    await load.join()
    await load.rest()
    idle = await load.window(heartbeats=False)
    busy = await load.window(heartbeats=True)
    shows = await load.check_that_a_write_shows()
    for member in load.members:
        member.wire.close()
    for name, window in (("silent", idle), ("heartbeating", busy)):
        print(
            f"{name} {window.seconds:.1f} s: {window.heartbeats:,} heartbeats "
            f"({window.heartbeats / window.seconds:,.0f}/s), "
            f"CPU {100 * window.cpu_s / window.seconds:.1f} %, "
            f"{len(window.files)} files changed, {window.bytes_added} bytes added, "
            f"{window.records_added} records in __consumer_offsets"
        )
    each_us = 1e6 * (busy.cpu_s - idle.cpu_s) / max(busy.heartbeats, 1)
    print(f"{each_us:.0f} µs of the broker's CPU a heartbeat; {server.rss_bytes() >> 20} MiB resident")
    return judge(load, idle, busy, shows)


def judge(load: Heartbeats, idle: Window, busy: Window, shows: bool) -> list[str]:
    failures = []
    expected = int(load.window_s / load.interval_s) * len(load.members)
    if busy.heartbeats < 0.95 * expected:
        failures.append(f"{busy.heartbeats:,} of {expected:,} heartbeats were answered")
    if load.refusals():
        failures.append(f"heartbeats were refused: {dict(load.refusals())}")
    written = sorted(set(busy.files) - set(idle.files))
    if written:
        failures.append(f"heartbeats changed {len(written)} files: {written[:5]}")
    if busy.bytes_added > max(idle.bytes_added, 0):
        failures.append(f"heartbeats added {busy.bytes_added} bytes")
    if busy.records_added:
        failures.append(f"heartbeats added {busy.records_added} records to __consumer_offsets")
    if not shows:
        failures.append("a commit did not show in the store: this run proves nothing")
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m conformance.groups.heartbeats", description=__doc__.splitlines()[0]
    )
    add_against(parser)
    parser.add_argument("--groups", type=int, help=f"of {MEMBERS_EACH} members each (default: {GROUPS:,})")
    parser.add_argument(
        "--interval", type=float, default=INTERVAL_S, metavar="SECONDS", help="between heartbeats"
    )
    parser.add_argument("--short", action="store_true", help=f"{GROUPS_SHORT} groups, for each push")
    options = parser.parse_args()
    groups = options.groups or (GROUPS_SHORT if options.short else GROUPS)
    try:
        server = server_named(options.against, SETTINGS)
        if isinstance(server, Running):
            raise ServerFailed("the store and the CPU of a broker that is not ours cannot be seen from here")
        with interrupted_cleanly(), server:
            window_s = WINDOW_SHORT_S if options.short else WINDOW_S
            failures = asyncio.run(run(server, groups, window_s, options.interval))
    except parts.PartMissing as why:
        return parts.not_run(why)
    except (ServerFailed, ClientFailed, Refused) as why:
        print(f"heartbeats: {why}", file=sys.stderr)
        return 2
    for failure in failures:
        print(f"FAILED {failure}")
    print(
        f"{groups:,} groups, {groups * MEMBERS_EACH:,} members against {server.name}, {len(failures)} failures"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
