"""Files that are gone: nothing is taken for shorter or for new because of it, and brought back all is whole."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from conformance.server import ServerFailed
from conformance.sick.scenes_repair import HURT, store_command
from conformance.sick.scenes_rot import CASE_CHARACTERS, Remains, each_case, is_whole, killed_broker
from conformance.sick.stage import SETTINGS, UNSETTLED, Failed, Stage, on_s3, scene
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


def _read_by_brokers(stage: Stage) -> int:
    """The entry of the metadata log that broker 1 says it has come to."""
    version = json.loads((stage.objects / "live" / "1").read_bytes())["version"]
    assert isinstance(version, int)
    return version


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
        until(lambda: _read_by_brokers(stage) >= int(stage.files("meta/log")[-1].name), 10, "a heartbeat")
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


def _object_gone(*, comes_back: bool) -> int:
    with on_s3(1, UNSETTLED) as stage:
        places = stage.speaker.create("gone", 3)
        stage.speaker.write(places, 10)
        stage.cluster.kill()
        objects = stage.files("wal")
        gone = objects[len(objects) // 2]
        kept = gone.read_bytes()
        gone.unlink()
        stage.cluster.start()
        if not stage.check(Expected(whole=False), within_s=5) or not stage.said("is missing"):
            raise Failed("nobody was told of what is gone")
        if comes_back:
            gone.write_bytes(kept)
            until(lambda: is_whole(stage), 30, "wholeness after it was brought back")
            lost = 0
        else:
            code, said = store_command(stage, "repair", "--apply", "--cut")
            if code != HURT:
                raise Failed(f"repair --cut ended with {code}: {said[-CASE_CHARACTERS:]}")
            until(lambda: not _closed(stage), 30, "partitions that open without what is gone")
            lost = stage.check(Expected(whole=False, hurt_max=1), within_s=5)
        stage.check_goes_on(within_s=10)
        return lost


@scene(s3=True)
def object_of_a_log_gone_on_s3() -> str:
    """One object in the midst of a dead broker's log is gone: the log does not end there. Brokers wait for it, until
    it comes back or is cut out."""
    return each_case(
        {
            "it comes back": lambda: _object_gone(comes_back=True),
            "it is cut out": lambda: _object_gone(comes_back=False),
        }
    )
