"""A rolling upgrade: three brokers of an earlier version become three of this one, under clients.

One of them is replaced first, works for a while beside the others, and is taken back: until the feature level
is raised, either version reads what the other wrote. Then all are replaced one by one, stopped in order or
killed. The level cannot be raised while an old one is left; then it is raised. From there on a broker of the
earlier version is refused, with one sentence. All of it for the last version of each feature level.

The answers to clients are checked as in `conformance.faults`: every record that was acknowledged is there
once, in order; a group resumes where it committed. Brokers settle, write snapshots and compact every few
moments, so each version also reads the segments and snapshots of the other.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from conformance import earlier, parts
from conformance.cluster.processes import Cluster, Member
from conformance.faults.world import SETTINGS, World
from conformance.server import ServerFailed, interrupted_cleanly
from penstock.cli.cluster import Features, features
from penstock.client import Client
from penstock.metadata.levels import LEVEL_MAX

CHANGING = {
    **SETTINGS,
    "offsets.topic.num.partitions": "3",
    "wal.settle.interval.ms": "700",
    "log.cleaner.backoff.ms": "1000",
    "metadata.snapshot.entries": "10",
}
REFUSED_WITHIN_S = 30.0
_REFUSALS = ("this version of Penstock reads format 1", "this version of Penstock knows levels 1 to 2")


class Rolling(World):
    """Brokers of two versions."""

    def __init__(self, level: int, rest_s: float) -> None:
        super().__init__(Cluster(3, CHANGING, program=[sys.executable, "-m", "penstock"]))
        self._level = level
        self._rest_s = rest_s
        self._old = earlier.unpack(self.cluster.folder / "earlier", level)
        self._new = parts.ROOT / "src"

    def begin(self) -> None:
        for member in self.cluster.members.values():
            member.environment = earlier.environment(self._old)
        super().begin()
        self.come_to_rest()

    def come_to_rest(self, within_s: float = 30.0) -> None:
        """Let them work for a while, too."""
        super().come_to_rest(within_s)
        time.sleep(self._rest_s)

    def replace(self, broker: int, source: Path, *, kill: bool) -> None:
        member = self.cluster[broker]
        (member.kill if kill else member.stop)()
        member.environment = earlier.environment(source)
        member.start()
        # Whether it is the version it should be, it says itself. The first one advertised no features.
        expected = LEVEL_MAX if source == self._new else self._level
        assert (levels(member).newest or 1) == expected, f"broker {broker} is the wrong version"
        self.come_to_rest()
        how = "killed" if kill else "stopped"
        version = "the earlier" if source == self._old else "this"
        print(
            f"broker {broker} was {how} and is of {version} version now; {len(self.history.writes)} writes",
            flush=True,
        )

    def take_back(self, broker: int) -> None:
        self.replace(broker, self._new, kill=False)
        self.replace(broker, self._old, kill=True)

    def roll(self) -> None:
        for broker in self.cluster.members:
            answer = upgrade(self.cluster.bootstrap, "--to", str(LEVEL_MAX))
            assert answer.returncode != 0, "the level was raised beside old brokers"
            self.replace(broker, self._new, kill=broker % 2 == 0)
        self._require_level(self._level)

    def _require_level(self, level: int) -> None:
        found = {member.address: levels(member).level for member in self.cluster.running}
        assert set(found.values()) == {level}, f"brokers are at levels {found}, not {level}"

    def raise_level(self) -> None:
        for options in (["--dry-run"], []):
            answer = upgrade(self.cluster.bootstrap, *options)
            assert answer.returncode == 0, f"the level was not raised: {answer.stdout}{answer.stderr}"
        self.come_to_rest()
        self._require_level(LEVEL_MAX)
        print(f"the feature level is {LEVEL_MAX}", flush=True)

    def refuse_old(self, broker: int) -> None:
        """A broker of the earlier version cannot come back, and does no harm."""
        member = self.cluster[broker]
        member.stop()
        member.environment = earlier.environment(self._old)
        member.spawn()
        code = member.wait(REFUSED_WITHIN_S)
        said = member.tail(3)
        assert code not in (None, 0), f"a broker of the earlier version ended with {code}: {said}"
        assert any(why in said for why in _REFUSALS), said
        print(f"a broker of the earlier version was refused: {said.splitlines()[-1]}", flush=True)
        member.environment = earlier.environment(self._new)
        member.start()
        self.come_to_rest()


def levels(member: Member) -> Features:
    with Client(member.address) as client:
        return features(client.any())


def upgrade(bootstrap: str, *options: str) -> subprocess.CompletedProcess[str]:
    """`penstock cluster upgrade` of this version."""
    command = [sys.executable, "-m", "penstock", "cluster", "upgrade", "--bootstrap", bootstrap, *options]
    environment = earlier.environment(parts.ROOT / "src")
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def run(level: int, rest_s: float) -> bool:
    print(f"from the last version of feature level {level}", flush=True)
    world = Rolling(level, rest_s)
    with world.cluster:
        world.begin()
        world.take_back(1)
        world.roll()
        world.raise_level()
        world.refuse_old(3)
        found = [str(violation) for violation in world.finish()]
        found += [*world.late, *world.cluster.tracebacks()]
    acknowledged = sum(write.offset is not None for write in world.history.writes)
    resumes = len(world.history.resumes)
    print(f"{acknowledged} records acknowledged, {resumes} times a group resumed, {len(found)} violations")
    for problem in found[:20]:
        print(problem)
    assert acknowledged and resumes, "nothing was written, or no group resumed"
    return not found


def main(arguments: Sequence[str] | None = None) -> int:
    summary = " ".join((__doc__ or "").split("\n\n")[0].split())
    parser = argparse.ArgumentParser(prog="python -m conformance.upgrade", description=summary)
    parser.add_argument("--short", action="store_true", help="a moment between two steps: for CI")
    chosen = parser.parse_args(arguments)
    rest_s = 1.0 if chosen.short else 8.0
    with interrupted_cleanly():
        try:
            well = all(run(level, rest_s) for level in earlier.REVISIONS)
        except parts.PartMissing as why:
            return parts.not_run(why)
        except (AssertionError, ServerFailed) as problem:
            print(f"FAILED: {problem}")
            return 1
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
