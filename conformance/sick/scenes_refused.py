"""A store that refuses for a while: an unreadable object is unknown, not gone, and is asked for again."""

import random
import shutil
import time

from conformance.s3.proxy import Bursts, Rule
from conformance.server import ServerFailed
from conformance.sick.stage import SETTINGS, Failed, Stage, on_directory, on_s3, scene
from penstock.testing.waiting import until

HEALS_WITHIN_S = 20.0
PREFIXES = ("manifests/", "segments/", "wal/", "meta/", "live/")


def _heals(stage: Stage) -> float:
    """Seconds until every place takes a write again."""
    began = time.monotonic()
    stage.check_goes_on(1, HEALS_WITHIN_S)
    return time.monotonic() - began


@scene()
def manifests_moved_away() -> str:
    """Manifests cannot be found while a broker starts and sweeps, and then can: nothing may be deleted."""
    with on_directory() as stage:
        stage.settled_write(stage.speaker.create("away", 3), 40)
        segments = set(stage.files("segments"))
        stage.cluster.kill()
        manifests, aside = stage.objects / "manifests", stage.objects.parent / "aside"
        shutil.move(manifests, aside)
        stage.cluster.start()
        stage.sweep()
        gone = segments - set(stage.files("segments"))
        shutil.copytree(aside, manifests, dirs_exist_ok=True)
        took = _heals(stage)
        stage.check_whole()
        if gone:
            raise Failed(f"{len(gone)} of {len(segments)} segments were deleted meanwhile")
        return f"{stage.told.count} records, served {took:.1f} s after they came back"


@scene(s3=True)
def manifests_refused_beyond_the_sweep() -> str:
    """The same with a 403 of the service, for longer than a broker waits before it sweeps."""
    with on_s3() as stage:
        stage.settled_write(stage.speaker.create("refused", 3), 40)
        stage.cluster.kill()
        with stage.proxy.sick(Rule("refuse", "GET", "manifests/")):
            stage.cluster[1].spawn()
            stage.sweep()
        stage.cluster[1].wait_until_serving()
        took = _heals(stage)
        stage.check_whole()
        return f"{stage.told.count} records, served {took:.1f} s after the last refusal"


@scene(s3=True)
def refused_while_a_broker_starts() -> str:
    """401, 403 or 503 for two seconds, for one prefix after the other, just when partitions are opened."""
    took, ended = [], 0
    with on_s3() as stage:
        stage.settled_write(stage.speaker.create("opened", 4), 20)
        for number, prefix in enumerate(("manifests/", "segments/", "wal/")):
            stage.speaker.write(list(stage.told.acknowledged), 2)
            stage.cluster.kill()
            with stage.proxy.sick(Rule("refuse", prefix=prefix, status=(403, 401, 503)[number % 3])):
                stage.cluster[1].spawn()
                time.sleep(3.0)
            ended += _served_at_last(stage)
            took.append(_heals(stage))
        stage.check_whole()
    return f"{stage.told.count} records, served at most {max(took):.1f} s after refusals, {ended} starts given up"


def _served_at_last(stage: Stage) -> int:
    """A broker may give up its start, with a sentence; whoever watches over processes starts it again."""
    try:
        stage.cluster[1].wait_until_serving()
    except ServerFailed as why:
        if "Traceback" in str(why):
            raise
        stage.cluster[1].start()
        return 1
    return 0


@scene(s3=True)
def refused_now_and_then() -> str:
    """For a minute each prefix is refused for one to three seconds now and then, while partitions move, and
    brokers are killed and paused."""
    chance = random.Random(5)
    with on_s3(3) as stage:
        places = stage.speaker.create("moving", 6)
        rules = [
            Rule("refuse", prefix=prefix, status=status) for prefix in PREFIXES for status in (403, 401, 503)
        ]
        deadline = time.monotonic() + 60
        rounds = 0
        with Bursts(stage.proxy, rules, 5, (0.5, 2.0)):
            while time.monotonic() < deadline:
                rounds += 1
                stage.speaker.write(places, 3, within_s=8)
                disturb(stage, chance)
        for member in stage.cluster.members.values():
            if not member.running:
                member.start()
        until(lambda: len(stage.cluster.running) == 3, 10, "three brokers")
        took = _heals(stage)
        stage.check_whole(60)
        figures = dict(stage.proxy.faults)
        return f"{stage.told.count} records, {rounds} rounds, {figures}, served {took:.1f} s after"


def disturb(stage: Stage, chance: random.Random) -> None:
    """Kill, pause or start one broker; two stay."""
    stopped = [member for member in stage.cluster.members.values() if not member.running]
    if stopped:
        # It may not come to serve while it is refused: whoever watches over processes starts it again.
        stopped[0].spawn()
        time.sleep(chance.uniform(0.5, 2.0))
        return
    victim = chance.choice(stage.cluster.running)
    if chance.random() < 0.5:
        victim.kill()
    else:
        victim.pause()
        time.sleep(chance.uniform(0.5, 5.0))
        victim.resume()


@scene(short=True)
def pauses_and_kills_on_a_directory() -> str:
    """Three brokers, killed and paused in turn under writers: the same verdict without any sickness."""
    chance = random.Random(6)
    with on_directory(3, SETTINGS) as stage:
        places = stage.speaker.create("paused", 6)
        for _ in range(6):
            stage.speaker.write(places, 3, within_s=15)
            disturb(stage, chance)
        for member in stage.cluster.members.values():
            if not member.running:
                member.start()
        _heals(stage)
        stage.check_whole()
        return f"{stage.told.count} records"
