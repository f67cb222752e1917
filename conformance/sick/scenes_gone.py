"""Files that are gone: nothing is taken for shorter or for new because of it, and brought back all is whole."""

import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from conformance.server import ServerFailed
from conformance.sick import rot
from conformance.sick.scenes_repair import HURT, store_command
from conformance.sick.scenes_rot import CASE_CHARACTERS, Remains, each_case, is_whole, killed_broker, wal_file
from conformance.sick.stage import SETTINGS, UNSETTLED, Failed, Stage, on_directory, on_s3, scene
from conformance.sick.verdict import Expected
from penstock.testing.waiting import until

TOPICS = 14
SNAPSHOTS = {"metadata.snapshot.entries": "5"}


def _entry(number: int) -> Callable[[Stage], list[Path]]:
    return lambda stage: [stage.files("meta/log")[number]]


def _newest_snapshot(stage: Stage) -> list[Path]:
    return [stage.files("meta/snapshot")[-1]]


def _metadata_log(stage: Stage) -> list[Path]:
    return [stage.objects / "meta" / "log", stage.objects / "meta" / "snapshot"]


def _open_marker(stage: Stage) -> list[Path]:
    return list((stage.objects / "wal").rglob("open"))


def _lease(stage: Stage) -> dict[str, Any]:
    """What broker 1 last said of itself."""
    lease = json.loads((stage.objects / "live" / "1").read_bytes())
    assert isinstance(lease, dict)
    return lease


def _topics(stage: Stage) -> set[str]:
    with stage.speaker.client() as client:
        return {str(topic.name) for topic in client.metadata().topics}


def _contents(stage: Stage) -> dict[Path, bytes]:
    """What a broker that refuses to start leaves alone."""
    return {path: path.read_bytes() for prefix in ("meta", "segments", "manifests") for path in stage.files(prefix)}  # fmt: skip


def _case(remains: Remains, choose: Callable[[Stage], list[Path]], *, may_refuse: bool) -> int:
    with remains.copied() as stage:
        stage.cluster.start()
        for number in range(TOPICS):
            stage.speaker.create(f"more-{number}")
        # What nobody has read, nobody misses.
        until(lambda: _lease(stage)["version"] >= int(stage.files("meta/log")[-1].name), 10, "a heartbeat")
        stage.cluster.kill()
        gone = [path for path in choose(stage) if path.exists()]
        kept = stage.cluster.folder / "kept"
        kept.mkdir()
        for number, path in enumerate(gone):
            shutil.move(path, kept / str(number))
        left = _contents(stage)
        try:
            stage.cluster.start()
        except ServerFailed as why:
            _judge_refusal(stage, str(why), left, may_refuse)
            for number, path in enumerate(gone):
                shutil.move(kept / str(number), path)
            stage.cluster.start()
        lost = {f"more-{number}" for number in range(TOPICS)} - _topics(stage)
        if lost:
            raise Failed(f"a broker went on with another history, without the topics {sorted(lost)}")
        stage.check(Expected())
        stage.check_goes_on(within_s=10)
        return 0


def _judge_refusal(stage: Stage, said: str, left: dict[Path, bytes], may_refuse: bool) -> None:
    if not may_refuse:
        raise Failed(f"a broker did not start, though nothing was lost: {said.splitlines()[-1]}")
    if "Traceback" in said:
        raise Failed(f"a traceback instead of a sentence: {said.splitlines()[-1]}")
    if _contents(stage) != left:
        raise Failed("a broker that refused to start wrote to the store")


@scene(short=True)
def metadata_gone_and_brought_back() -> str:
    """An entry, a snapshot or all of the metadata log is gone: a broker that starts takes no other history for this
    one. Brought back, everything is there."""
    with killed_broker({**SETTINGS, **SNAPSHOTS}, settled=True) as remains:
        cases = {
            "an entry": lambda: _case(remains, _entry(-2), may_refuse=True),
            "the newest entry": lambda: _case(remains, _entry(-1), may_refuse=True),
            "an entry below a snapshot": lambda: _case(remains, _entry(0), may_refuse=False),
            "the newest snapshot": lambda: _case(remains, _newest_snapshot, may_refuse=False),
            "entries and snapshots": lambda: _case(remains, _metadata_log, may_refuse=True),
        }
        return each_case(cases)


@scene(short=True)
def marker_of_a_log_gone() -> str:
    """A copy that was made while a log was sealed has neither of its markers: nobody can have acknowledged since."""
    with killed_broker(UNSETTLED) as remains:
        return each_case({"open": lambda: _case(remains, _open_marker, may_refuse=False)})


def _closed(stage: Stage) -> list[str]:
    return [reading.closed for reading in stage.read(3).values() if reading.closed]


def _heartbeats(stage: Stage, count: int) -> None:
    """What was written since the last heartbeat, nobody misses."""
    enough = _lease(stage)["counter"] + count
    until(lambda: _lease(stage)["counter"] >= enough, 10, "heartbeats")


EMPTIED = -1


class Gone(NamedTuple):
    path: Path
    records: int | None
    """As many may be lost with it; None: all."""
    left: int = 0
    """So many bytes of it stay; EMPTIED: none, but the file does."""


Chosen = Callable[[Stage], Gone]
OnStore = Callable[..., AbstractContextManager[Stage]]


def _log_gone(on_store: OnStore, choose: Chosen, *, comes_back: bool) -> int:
    with on_store(1, UNSETTLED) as stage:
        places = stage.speaker.create("gone", 3)
        for _ in range(10):
            stage.speaker.write(places, 1)
        _heartbeats(stage, 2)
        stage.cluster.kill()
        gone = choose(stage)
        kept = gone.path.read_bytes()
        gone.path.unlink()
        if gone.left:
            gone.path.write_bytes(kept[: gone.left] if gone.left != EMPTIED else b"")
        stage.cluster.start()
        if not stage.check(Expected(whole=False), within_s=5) or not stage.said("is missing"):
            raise Failed("nobody was told of what is gone")
        code, said = store_command(stage, "scrub")
        if code != HURT:
            raise Failed(f"scrub ended with {code}: {said[-CASE_CHARACTERS:]}")
        if comes_back:
            gone.path.write_bytes(kept)
            until(lambda: is_whole(stage), 30, "wholeness after it was brought back")
            lost = 0
        else:
            code, said = store_command(stage, "repair", "--apply", "--cut")
            if code != HURT:
                raise Failed(f"repair --cut ended with {code}: {said[-CASE_CHARACTERS:]}")
            until(lambda: not _closed(stage), 30, "partitions that open without what is gone")
            lost = stage.check(Expected(whole=False, hurt_max=gone.records), within_s=5)
        stage.check_goes_on(within_s=10)
        return lost


def _middle_object(stage: Stage) -> Gone:
    objects = stage.files("wal")
    return Gone(objects[len(objects) // 2], 1)


def _newest_object(stage: Stage) -> Gone:
    return Gone([path for path in stage.files("wal") if path.name.isdecimal()][-1], 1)


def _whole_file(stage: Stage) -> Gone:
    return Gone(wal_file(stage.objects), None)


def _emptied_file(stage: Stage) -> Gone:
    return Gone(wal_file(stage.objects), None, EMPTIED)


def _last_flushes(stage: Stage) -> Gone:
    """The last three, each of one record, cut off between two flushes."""
    path = wal_file(stage.objects)
    return Gone(path, 3, rot.flushes(path.read_bytes())[-3].start)


def _each_way(on_store: OnStore, chosen: Mapping[str, Chosen]) -> str:
    cases = {}
    for name, choose in chosen.items():
        cases[f"{name} comes back"] = partial(_log_gone, on_store, choose, comes_back=True)
        cases[f"{name} is cut out"] = partial(_log_gone, on_store, choose, comes_back=False)
    return each_case(cases)


@scene()
def end_of_a_log_gone() -> str:
    """The only file of a dead broker's log is gone, or cut short between two flushes: the broker had said how many it
    wrote, so the log does not end there. Brokers wait for it, until it comes back or is cut out."""
    return _each_way(
        on_directory,
        {"the file": _whole_file, "an emptied file": _emptied_file, "what was cut off": _last_flushes},
    )


@scene(s3=True)
def object_of_a_log_gone_on_s3() -> str:
    """One object of a dead broker's log is gone, in its midst or at its end: the log does not end there."""
    return _each_way(on_s3, {"one in the midst": _middle_object, "the newest": _newest_object})


@scene(s3=True)
def metadata_of_an_older_backup_on_s3() -> str:
    """The metadata log and the leases are those of an older backup, and a broker had registered since: nobody starts
    with that history. Brought back, everything is there."""
    with on_s3(1, UNSETTLED) as stage:
        places = stage.speaker.create("older", 3)
        stage.speaker.write(places, 5)
        stage.cluster.kill()
        older, newer = stage.cluster.folder / "older", stage.cluster.folder / "newer"
        for name in ("meta", "live"):
            shutil.copytree(stage.objects / name, older / name)
        stage.cluster.start()
        stage.speaker.write(places, 5)
        stage.cluster.kill()
        for name in ("meta", "live"):
            shutil.move(stage.objects / name, newer / name)
            shutil.copytree(older / name, stage.objects / name)
        left = _contents(stage)
        try:
            stage.cluster.start()
        except ServerFailed as why:
            _judge_refusal(stage, str(why), left, may_refuse=True)
        else:
            raise Failed("a broker went on with an older history")
        for name in ("meta", "live"):
            shutil.rmtree(stage.objects / name)
            shutil.move(newer / name, stage.objects / name)
        stage.cluster.start()
        stage.check_goes_on()
        stage.check_whole()
        return f"{stage.told.count} records"
