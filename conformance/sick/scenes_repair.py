"""`penstock store scrub` finds rot, and `penstock store repair` heals it, or cuts it out when told to."""

import random
import subprocess
from functools import partial
from pathlib import Path

from conformance.cluster.processes import penstock
from conformance.sick import rot
from conformance.sick.scenes_rot import CASE_CHARACTERS, Remains, each_case, is_whole, killed_broker
from conformance.sick.stage import SETTINGS, UNSETTLED, Failed, Stage, on_directory, on_s3, scene
from conformance.sick.verdict import Expected
from penstock.testing.waiting import until

WHOLE, HURT = 0, 1
DESTROYED_BYTES = 40
BATCH_RECORDS_MAX = 200


def store_command(stage: Stage, *arguments: str) -> tuple[int, str]:
    """Exit code and words of `penstock store`."""
    command = [penstock(), "store", *arguments, "--store", stage.cluster.store, "--json"]
    environment = stage.cluster[1].environment
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def _demand(stage: Stage, expected: int, *arguments: str) -> str:
    code, said = store_command(stage, *arguments)
    if code != expected:
        raise Failed(
            f"store {' '.join(arguments)} ended with {code}, not {expected}: {said[-CASE_CHARACTERS:]}"
        )
    return said


def _heal(remains: Remains, prefix: str, at: float) -> int:
    with remains.copied() as stage:
        path = _largest(stage, prefix)
        rot.flip(path, int(at * (path.stat().st_size - 1)))
        said = _demand(stage, HURT, "scrub")
        # The end of a segment is its footer, which no reader of records needs.
        if prefix == "segments" and at < 0.5 and '"rot"' not in said:
            raise Failed(f"store scrub does not name the topic: {said[-CASE_CHARACTERS:]}")
        _demand(stage, WHOLE, "repair", "--apply")
        _demand(stage, WHOLE, "scrub")
        stage.cluster.start()
        stage.check()
        stage.check_goes_on(within_s=10)
        return 0


def _largest(stage: Stage, prefix: str) -> Path:
    files = [path for path in stage.files(prefix) if path.stat().st_size > 100]
    return max(files, key=lambda path: path.stat().st_size)


@scene(short=True)
def flipped_bits_are_repaired() -> str:
    """One bit in a segment, a manifest or a write-ahead file: scrub names it, repair heals it, all is whole."""
    with killed_broker(SETTINGS, settled=True) as settled, killed_broker(UNSETTLED) as unsettled:
        cases = {
            f"{prefix} at {at}": (lambda remains=remains, prefix=prefix, at=at: _heal(remains, prefix, at))
            for remains, prefix in ((settled, "segments"), (unsettled, "wal"))
            for at in (0.05, 0.4, 0.99)
        }
        return each_case(cases)


@scene()
def what_is_destroyed_is_cut_out_when_told_to() -> str:
    """Bytes of a segment are overwritten: readers of them are told; repair leaves them alone, and with --cut takes
    out the smallest range. Offsets around it stay."""
    with on_directory() as stage:
        places = stage.speaker.create("rot", 3)
        for _ in range(3):
            # The log that the records were in is deleted when a later one is settled: nothing else has them then.
            stage.settled_write(places, 20)
        stage.cluster.kill()
        path = min(stage.files("segments"), key=lambda found: found.stat().st_mtime)
        destroyed = random.Random(8).randbytes(DESTROYED_BYTES)
        with path.open("r+b") as file:
            file.seek(200)
            file.write(destroyed)
        _demand(stage, HURT, "scrub")
        _demand(stage, HURT, "repair", "--apply")
        stage.cluster.start()
        hurt = stage.check(Expected(whole=False, hurt_max=BATCH_RECORDS_MAX))
        if not hurt:
            raise Failed("nobody was told of what is destroyed")
        stage.check_goes_on()
        _demand(stage, WHOLE, "repair", "--apply", "--cut")
        stage.cluster.kill()
        stage.cluster.start()
        readings = stage.read()
        cut = [
            (place, offset)
            for place, known in stage.told.acknowledged.items()
            for offset in known
            if offset not in readings[place].records
        ]
        if len(cut) > BATCH_RECORDS_MAX:
            raise Failed(f"{len(cut)} records were cut out, where {DESTROYED_BYTES} bytes were destroyed")
        stage.check(Expected(gone=cut))
        stage.check_goes_on()
        return f"{hurt} of {stage.told.count} records were hurt, {len(cut)} are cut out"


@scene(s3=True)
def objects_of_a_log_rot_on_s3() -> str:
    """A bit in an object of a dead broker's log on S3: the records in it are read or said to be hurt, all others
    are read, and no offset is given twice."""
    chance = random.Random(9)
    with on_s3(1, UNSETTLED) as stage:
        places = stage.speaker.create("rot", 3)
        hurt = 0
        for _ in range(5):
            stage.speaker.write(places, 10)
            stage.cluster.kill()
            newest = max(stage.files("wal"), key=lambda path: path.stat().st_mtime).parent
            files = [path for path in newest.iterdir() if path.is_file() and path.stat().st_size > 150]
            path = chance.choice(sorted(files))
            at, bit = rot.flip_somewhere(path, chance)
            stage.cluster[1].spawn()
            stage.cluster[1].wait_until_serving()
            hurt += stage.check(Expected(whole=False, hurt_max=3 + hurt), within_s=10)
            stage.check_goes_on(1, within_s=10)
            if path.exists():
                rot.flip(path, at, bit)
        return f"{stage.told.count} records, {hurt} said to be hurt"


def _brought_back(which: float) -> int:
    with on_s3(1, UNSETTLED) as stage:
        places = stage.speaker.create("back", 3)
        stage.speaker.write(places, 10)
        stage.cluster.kill()
        objects = [path for path in stage.files("wal") if path.stat().st_size > 100]
        hurt = objects[int(which * (len(objects) - 1))]
        kept = hurt.read_bytes()
        hurt.write_bytes(kept[: len(kept) // 3])
        stage.cluster.start()
        said = stage.check(Expected(whole=False, hurt_max=1), within_s=5)
        if not said:
            raise Failed("nobody was told of what is cut short")
        # The log is settled, and deleted: what comes back is not what a broker deletes just then.
        until(lambda: not hurt.exists(), 20, "the end of the log that was taken over")
        hurt.parent.mkdir(parents=True, exist_ok=True)
        hurt.write_bytes(kept)
        store_command(stage, "repair", "--apply")
        until(lambda: is_whole(stage), 20, "wholeness after it was brought back and repaired")
        stage.check_goes_on(within_s=10)
        stage.cluster.kill()
        stage.cluster.start()
        stage.check()
        return 0


@scene(s3=True)
def rotten_object_brought_back_on_s3() -> str:
    """An object of a dead broker's log is cut short, and taken for lost. A copy is brought back, and a repair puts its
    records where they were: between others, or at an end that nobody knew."""
    return each_case({f"at {which}": partial(_brought_back, which) for which in (0.5, 1.0)})
