"""A disk that is full, gone, failing, or without power; and a clock that jumps."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from conformance.server import ServerFailed
from conformance.sick.disks import memory_disk, real_disk, used_bytes
from conformance.sick.scenes_rot import forget
from conformance.sick.stage import SETTINGS, UNSETTLED, Failed, Stage, on_directory, scene
from conformance.sick.verdict import Expected
from penstock.testing.waiting import until

DISK_MB = 48
DAY_MS = 86_400_000


@scene()
def full_disk_while_settling() -> str:
    """Settling finds no space, four times and more: it leaves nothing behind, and goes on when there is space."""
    with memory_disk(DISK_MB) as disk:
        with on_directory(settings=UNSETTLED, store=disk / "store") as stage:
            places = stage.speaker.create("full", 40)
            stage.speaker.library_write(places, 12, 40_000)
            stage.cluster.kill()
        filler = disk / "filler"
        free = (DISK_MB << 20) - used_bytes(disk)
        filler.write_bytes(bytes(free - (6 << 20)))
        with on_directory(store=disk / "store") as second:
            second.told = stage.told
            second.speaker = second.new_speaker()
            before = used_bytes(disk)
            most = _most_used(disk, 26.0)
            after = used_bytes(disk)
            if after > before + (2 << 20):
                raise Failed(f"{(after - before) >> 20} MB more are used after the failed tries")
            second.check()
            filler.unlink()
            second.wait_for_new("manifests", set(second.files("manifests")), 40)
            second.check_goes_on()
            second.check_whole()
            report = second.audit()
            lost = sum(one["size"] for one in report["orphaned"])
            if lost > 1 << 20 or report["missing"]:
                raise Failed(f"{lost} bytes are orphaned, {report['missing'][:2]} missing")
            return f"{second.told.count} records, used {before >> 20} MB, at most {most >> 20}, then {after >> 20}"


def _most_used(disk: Path, seconds: float) -> int:
    most, deadline = 0, time.monotonic() + seconds
    while time.monotonic() < deadline:
        most = max(most, used_bytes(disk))
        time.sleep(0.1)
    return most


def _power_cut(durability: str) -> str:
    with (
        real_disk(128) as disk,
        on_directory(settings={**UNSETTLED, "durability": durability}, store=disk.folder / "store") as stage,
    ):
        places = stage.speaker.create("power", 3)
        stage.speaker.write(places, 10)
        if durability == "os":
            disk.sync()
        kept = {place: dict(known) for place, known in stage.told.acknowledged.items()}
        stage.speaker.write(places, 10)
        stage.speaker.create("later", 1)
        disk.commit()
        disk.cut()
        time.sleep(1.0)
        stage.cluster.kill()
        disk.unmount()
        disk.mount()
        gone = [
            (place, offset)
            for place, known in stage.told.acknowledged.items()
            for offset in known
            if durability == "os" and offset not in kept[place]
        ]
        stage.cluster.start()
        acknowledged = stage.told.count
        # What nobody synced may be gone, or said to be.
        for place, offset in gone:
            forget(stage, place, offset)
        stage.check(within_s=15)
        readings = stage.read(15)
        survived = sum(len(reading.records) for reading in readings.values())
        stage.check_goes_on()
        stage.check(within_s=15)
        stage.cluster.kill()
        return f"{survived} of {acknowledged} acknowledged records are there"


@scene()
def power_cut_fsync() -> str:
    """The power goes while records are written, with durability=fsync: every acknowledged one is there."""
    return _power_cut("fsync")


@scene()
def power_cut_os() -> str:
    """The same in the default mode: what was synced is there, and the cluster starts."""
    return _power_cut("os")


@scene()
def disk_fails_and_comes_back() -> str:
    """Every call fails with EIO, reads too; then the disk is mounted again, and the broker started."""
    with real_disk(128) as disk, on_directory(settings={**SETTINGS, "durability": "fsync"}, store=disk.folder / "store") as stage:  # fmt: skip
        places = stage.speaker.create("eio", 3)
        stage.settled_write(places, 20)
        stage.speaker.write(places, 5)
        disk.cut()
        taken = stage.speaker.write(places, 1, within_s=5)
        if taken:
            raise Failed(f"{taken} writes were acknowledged by a disk that is gone")
        stage.cluster.kill()
        disk.unmount()
        disk.mount()
        stage.cluster.start()
        stage.check_goes_on()
        stage.check_whole()
        stage.cluster.kill()
        return f"{stage.told.count} records"


@scene(short=True)
def fdatasync_fails() -> str:
    """A sync fails once, and then works: what was not acknowledged is not given another's offset."""
    with on_directory(settings={**UNSETTLED, "durability": "fsync"}, obedient=True) as stage:
        places = stage.speaker.create("sync", 2)
        stage.speaker.write(places, 10)
        _fail(stage, "fdatasync", "EIO")
        stage.speaker.write(places, 1, within_s=2)
        _heal(stage, "fdatasync")
        _restart_if_gone(stage)
        stage.check_goes_on()
        stage.cluster.kill()
        stage.cluster.start()
        stage.check_goes_on()
        stage.check_whole()
        return f"{stage.told.count} records, {len(stage.told.doubtful)} in doubt"


@scene(short=True)
def read_only_and_unreadable_for_a_while() -> str:
    """Writing fails with EROFS, then reading with EIO, for longer than a session: healed, it is whole."""
    with on_directory(obedient=True) as stage:
        places = stage.speaker.create("calls", 2)
        stage.settled_write(places, 20)
        for calls, code in ((("pwritev", "link", "rename", "unlink"), "EROFS"), (("pread", "preadv"), "EIO")):
            for call in calls:
                _fail(stage, call, code)
            time.sleep(5.0)
            stage.check(Expected(whole=False), within_s=5)
            for call in calls:
                _heal(stage, call)
            _restart_if_gone(stage)
            stage.check_goes_on()
        stage.check_whole()
        return f"{stage.told.count} records"


@scene()
def writes_fail_now_and_then() -> str:
    """Three writes in ten fail: a producer sends again, in its epoch. In another one nobody would know what it sent."""
    with on_directory(settings=UNSETTLED, obedient=True) as stage:
        places = stage.speaker.create("again", 4)
        stage.speaker.library_write(places, 20)
        (stage.faults / "fail-pwritev").write_text("EIO 0.3")
        with ThreadPoolExecutor(2) as pool:
            # Writers beside each other: while a flush fails, the next batches of its producers are on their way.
            others = pool.submit(stage.new_speaker().write, places, 40)
            pool.submit(stage.speaker.library_write, places, 1000, pace_s=0.002).result()
            others.result()
        _heal(stage, "pwritev")
        stage.check_goes_on()
        stage.check_whole()
        failures = stage.count_said("a flush failed and was undone")
        epochs = {epoch for place in places for _producer, epoch in stage.speaker.epochs(place)}
        if not failures or epochs - {-1, 0}:
            raise Failed(f"producers began epochs {sorted(epochs)} after failures: {failures}")
        return f"{stage.told.count} records, failures were told {failures} times"


@scene(short=True)
def clock_jumps() -> str:
    """The wall clock jumps by a day, forwards and back, under two brokers that settle and take over."""
    # A broker refuses records from its future, as Kafka does: here it may not.
    settings = {**SETTINGS, "log.message.timestamp.after.max.ms": str(7 * DAY_MS)}
    with on_directory(2, settings, obedient=True) as stage:
        places = stage.speaker.create("clock", 4)
        for number, shift in enumerate((DAY_MS, -DAY_MS, 0)):
            (stage.faults / "clock").write_text(str(shift))
            stage.speaker.write(places, 10)
            member = stage.cluster[1 + number % 2]
            member.kill()
            stage.speaker.write(places, 3)
            member.start()
        stage.wait_quiet("manifests")
        stage.check_goes_on()
        stage.check_whole()
        return f"{stage.told.count} records"


def _fail(stage: Stage, call: str, code: str) -> None:
    (stage.faults / f"fail-{call}").write_text(code)


def _heal(stage: Stage, call: str) -> None:
    (stage.faults / f"fail-{call}").unlink()


def _restart_if_gone(stage: Stage) -> None:
    """A broker whose log cannot be trusted any more may end; whoever watches over processes starts it again."""
    time.sleep(1.0)
    for member in stage.cluster.members.values():
        if not member.running:
            member.kill()
            until(lambda: _starts(stage), 20, "a start")


def _starts(stage: Stage) -> bool:
    try:
        stage.cluster[1].start()
    except ServerFailed:
        return False
    return True
