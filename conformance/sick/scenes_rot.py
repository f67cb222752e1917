"""A stopped broker's files rot: one bit, a cut tail, an empty file. Then it starts again."""

import copy
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from conformance.server import ServerFailed
from conformance.sick import rot
from conformance.sick.stage import SETTINGS, UNSETTLED, Failed, Stage, on_directory, scene
from conformance.sick.verdict import Expected, Place, Told
from penstock.testing.waiting import Late, until

RECORDS = 20
PARTITIONS = 3
RANDOM_FLIPS = 6
CASE_CHARACTERS = 120
WORDS = ("damage", "hurt", "corrupt", "checksum", "rot")


@dataclass(frozen=True, slots=True)
class Remains:
    """The store of a broker that was killed, and what its clients were told."""

    store: Path
    told: Told
    settings: Mapping[str, str]

    @contextmanager
    def copied(self) -> Iterator[Stage]:
        """A cluster on a copy of it that is not started yet."""
        with tempfile.TemporaryDirectory(prefix="conformance-rot-") as folder:
            store = Path(folder) / "store"
            shutil.copytree(self.store, store)
            with on_directory(settings=self.settings, store=store, start=False) as stage:
                stage.told = copy.deepcopy(self.told)
                stage.speaker = stage.new_speaker()
                yield stage


@contextmanager
def killed_broker(settings: Mapping[str, str], *, settled: bool = False) -> Iterator[Remains]:
    with tempfile.TemporaryDirectory(prefix="conformance-rot-") as folder:
        store = Path(folder) / "store"
        with on_directory(settings=settings, store=store) as stage:
            places = stage.speaker.create("rot", PARTITIONS)
            if settled:
                stage.settled_write(places, RECORDS)
            else:
                stage.speaker.write(places, RECORDS)
            stage.cluster.kill()
            yield Remains(store, stage.told, settings)


def judge_rot(stage: Stage, expected: Expected, *, says: bool = True) -> int:
    """Start on rotten files, read, go on, start again, read again; how many records are said to be hurt."""
    stage.cluster.start()
    hurt = stage.check(expected, within_s=8)
    if hurt and says and not stage.said(*WORDS):
        raise Failed(f"{hurt} records are hurt, and no line of the broker's log says so")
    stage.check_goes_on(within_s=10)
    stage.cluster.kill()
    stage.cluster.start()
    return max(hurt, stage.check(expected, within_s=8))


def each_case(cases: Mapping[str, Callable[[], int]]) -> str:
    """Play all of them; the figures, or what is wrong with each."""
    wrong, hurt = [], 0
    for name, play in cases.items():
        try:
            hurt += play()
        except (Failed, Late, ServerFailed) as why:
            wrong.append(f"[{name}] {_short(why)}")
    if wrong:
        raise Failed(f"{len(wrong)} of {len(cases)}: " + " ".join(wrong))
    return f"{len(cases)} cases, {hurt} records said to be hurt, none lost in silence"


def _short(why: Exception) -> str:
    lines = [line for line in str(why).splitlines() if line.strip()]
    return (
        lines[0][:CASE_CHARACTERS] if isinstance(why, Failed) else f"{lines[0]} {lines[-1]}"[:CASE_CHARACTERS]
    )


def _wal_flips(settings: Mapping[str, str], seed: int) -> str:
    with killed_broker(settings) as remains:
        file = wal_file(remains.store)
        stored = file.read_bytes()
        chance = random.Random(seed)
        places = rot.wal_places(stored)
        places |= {f"byte {at}": at for at in chance.sample(range(len(stored)), RANDOM_FLIPS)}

        def case(name: str, at: int) -> int:
            with remains.copied() as stage:
                rot.flip(wal_file(stage.objects), at)
                # The file's header is redundant, or all behind it is hurt; else one flush, and what follows it
                # in the same batch of requests.
                most = None if at < rot.flushes(stored)[0].start else 3
                return judge_rot(stage, Expected(whole=False, hurt_max=most))

        return each_case({name: _bound(case, name, at) for name, at in places.items()})


def _bound(case: Callable[[str, int], int], name: str, at: int) -> Callable[[], int]:
    return lambda: case(name, at)


def wal_file(store: Path) -> Path:
    """The only write-ahead file that has records."""
    files = [path for path in (store / "wal").rglob("*") if path.is_file() and path.name.isdecimal()]
    return max(files, key=lambda path: path.stat().st_size)


@scene(short=True)
def wal_bit_flips_os() -> str:
    return _wal_flips(UNSETTLED, seed=1)


@scene()
def wal_bit_flips_fsync() -> str:
    return _wal_flips({**UNSETTLED, "durability": "fsync"}, seed=2)


@scene(short=True)
def wal_tail_cut_or_zeroed() -> str:
    """The last flush may be gone: a process that is killed in the midst of writing leaves the same. All before
    it is there."""
    with killed_broker(UNSETTLED) as remains:
        stored = wal_file(remains.store).read_bytes()
        last = rot.flushes(stored)[-1]
        newest = _newest(remains.told)

        def case(change: Callable[[Path], None]) -> int:
            with remains.copied() as stage:
                change(wal_file(stage.objects))
                (stage.objects / "live" / "1").unlink()  # A heartbeat may have counted the last flush.
                forget(stage, *newest)
                return judge_rot(stage, Expected(whole=False, hurt_max=0))

        def cut(length: int) -> Callable[[], int]:
            return lambda: case(lambda path: _truncate(path, length))

        def zero(start: int, end: int) -> Callable[[], int]:
            return lambda: case(lambda path: _zero(path, start, end))

        lengths = {last.start, last.start + 20, last.start + 52, last.index_start - 5, last.end - 1}
        cases = {f"cut at {length}": cut(length) for length in sorted(lengths)}
        cases["last flush zeroed"] = zero(last.start, last.end)
        cases["last index zeroed"] = zero(last.index_start, last.end)
        return each_case(cases)


def forget(stage: Stage, place: Place, offset: int) -> None:
    """A record that may be there or not, from now on."""
    stage.told.doubtful.add(stage.told.acknowledged[place].pop(offset))


def _newest(told: Told) -> tuple[Place, int]:
    """Where the last record went: the writer takes the partitions in turn."""
    place = Place("rot", PARTITIONS - 1)
    return place, max(told.acknowledged[place])


def _truncate(path: Path, length: int) -> None:
    with path.open("r+b") as file:
        file.truncate(length)


def _zero(path: Path, start: int, end: int) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(bytes(end - start))


@scene(short=True)
def newest_metadata_entry_torn() -> str:
    """After a power cut the newest file of the metadata log is empty, or cut: what it said did not happen, and
    the cluster starts."""
    with killed_broker(UNSETTLED) as remains:

        def case(length: int | None) -> int:
            with remains.copied() as stage:
                stage.cluster.start()
                leases = {path: path.read_bytes() for path in stage.files("live")}
                stage.speaker.create("last", 1)
                stage.cluster.kill()
                for path, lease in leases.items():
                    path.write_bytes(lease)  # Nobody says that it was read.
                newest = stage.files("meta/log")[-1]
                size = newest.stat().st_size
                if length is None:
                    _zero(newest, 0, size)
                else:
                    _truncate(newest, min(length, size - 1))
                return judge_rot(stage, Expected(), says=False)

        lengths = (0, 1, 8, 40, 1 << 30)
        cases: dict[str, Callable[[], int]] = {f"cut at {n}": _whole(case, n) for n in lengths}
        return each_case({**cases, "zeroed": _whole(case, None)})


def _whole(case: Callable[[int | None], int], length: int | None) -> Callable[[], int]:
    return lambda: case(length)


@scene(short=True)
def settled_objects_flipped_and_healed() -> str:
    """A bit in a segment, its index or a manifest: readers are told, others go on; healed, it is whole."""
    with killed_broker(SETTINGS, settled=True) as remains:
        chance = random.Random(3)

        def case(prefix: str, at: float | None) -> int:
            with remains.copied() as stage:
                path = stage.files(prefix)[-1]
                size = path.stat().st_size
                where = chance.randrange(size) if at is None else int(at * (size - 1))
                rot.flip(path, where)
                stage.cluster.start()
                hurt = stage.check(Expected(whole=False), within_s=8)
                rot.flip(path, where)
                until(lambda: is_whole(stage), 15, "wholeness after the bit was flipped back")
                stage.check_goes_on(within_s=10)
                return hurt

        def bound(prefix: str, at: float | None) -> Callable[[], int]:
            return lambda: case(prefix, at)

        cases = {f"{prefix} at {at}": bound(prefix, at) for prefix in ("segments", "manifests") for at in (0.0, 0.5, 0.97, None)}  # fmt: skip
        return each_case(cases)


def is_whole(stage: Stage) -> bool:
    try:
        stage.check(within_s=5)
    except Failed:
        return False
    return True


@scene()
def metadata_flipped_and_healed() -> str:
    """A bit in an entry or a snapshot: the broker says so and does not serve another truth; healed, it serves."""
    with killed_broker({**UNSETTLED, "metadata.snapshot.entries": "5"}) as remains:
        chance = random.Random(4)

        def case(prefix: str, which: int) -> int:
            with remains.copied() as stage:
                stage.cluster.start()
                for number in range(8):
                    stage.speaker.create(f"more-{number}")
                stage.cluster.kill()
                path = stage.files(prefix)[which]
                at, bit = rot.flip_somewhere(path, chance)
                try:
                    stage.cluster.start()
                except ServerFailed as why:
                    if "Traceback" in str(why):
                        raise Failed(f"a traceback instead of a sentence: {_short(why)}") from None
                else:
                    stage.check(Expected(whole=False), within_s=5)
                stage.cluster.kill()
                rot.flip(path, at, bit)
                stage.cluster.start()
                stage.check()
                stage.check_goes_on(within_s=10)
                return 0

        def bound(prefix: str, which: int) -> Callable[[], int]:
            return lambda: case(prefix, which)

        cases: dict[str, Callable[[], int]] = {}
        for prefix, which in (("meta/log", -1), ("meta/log", -2), ("meta/log", 0), ("meta/snapshot", -1)):
            for number in range(2):
                cases[f"{prefix} {which} {number}"] = bound(prefix, which)
        return each_case(cases)


@scene()
def torn_log_then_sweep() -> str:
    """A log with a torn tail is opened, and half a minute later the sweep looks for garbage: what was settled
    before stays."""
    with killed_broker(SETTINGS, settled=True) as remains, remains.copied() as stage:
        stage.cluster.start()
        stage.speaker.write(list(stage.told.acknowledged), 5)
        stage.cluster.kill()
        file = wal_file(stage.objects)
        last = rot.flushes(file.read_bytes())[-1] if rot.FLUSH_MAGIC in file.read_bytes() else None
        if last is not None:
            _truncate(file, last.start + 30)
            forget(stage, *_newest(stage.told))
        stage.cluster.start()
        stage.sweep()
        stage.check_whole()
        stage.check_goes_on()
        return f"{stage.told.count} records"
