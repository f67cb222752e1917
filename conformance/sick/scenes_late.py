"""A store that answers late, twice, half, wrongly, or not at all."""

import itertools
import random
import threading
import time
from dataclasses import replace

from conformance.s3.proxy import Rule
from conformance.sick.scenes_refused import disturb
from conformance.sick.stage import SETTINGS, Failed, Stage, on_s3, scene
from conformance.sick.verdict import Expected, Place
from penstock.testing.waiting import until

SLOW_PUT_S = 30.0
OTHERS_WITHIN_S = 3.0
"""A slow request may not hold up the others for longer."""


def _doubtful(stage: Stage, places: list[Place], trigger: Rule) -> None:
    """The next entry of the metadata log fails in doubt, and takes effect when `trigger` fits a request."""
    with stage.proxy.sick(Rule("hold", "PUT", "meta/log/")):
        stage.speaker.write(places, 3)
        until(lambda: stage.proxy.held, 30, "an entry of the metadata log")
        with stage.proxy.sick(trigger):
            until(lambda: trigger.hits > 0, 60, f"the next {trigger.method} of {trigger.prefix}")
            time.sleep(3.0)


def _doubt_scene(configs: dict[str, str], trigger: Rule, expected: Expected | None = None) -> str:
    with on_s3() as stage:
        places = stage.speaker.create("doubt", 2, configs)
        stage.settled_write(places, 5)
        for _ in range(2):
            _doubtful(stage, places, replace(trigger))
            stage.check(expected)
            stage.cluster.kill()
            stage.cluster.start()
            stage.check(expected)
            stage.check_goes_on()
        stage.wait_quiet("manifests")
        stage.cluster.kill()
        stage.cluster.start()
        stage.check(expected)
        return f"{stage.told.count} records"


@scene(s3=True)
def settle_in_doubt_during_the_next_settle() -> str:
    """A settle's entry takes effect while the next settle's manifest is being written."""
    return _doubt_scene({}, Rule("release", "PUT", "manifests/", seconds=(1.0, 1.0), times=1))


@scene(s3=True)
def settle_in_doubt_before_the_next_segment() -> str:
    """The same while the next settle's segment is being written."""
    return _doubt_scene({}, Rule("release", "PUT", "segments/", seconds=(1.0, 1.0), times=1))


@scene(s3=True)
def settle_in_doubt_during_retention() -> str:
    """The same where retention deletes all the while."""
    configs = {"retention.bytes": "2000", "internal.segment.bytes": "1000"}
    trigger = Rule("release", "PUT", "manifests/", seconds=(1.0, 1.0), times=1)
    return _doubt_scene(configs, trigger, Expected(deleted=True))


@scene(s3=True)
def settle_in_doubt_during_compaction() -> str:
    """The same while compaction, which began on what was settled before, writes its own manifest."""
    configs = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "segment.ms": "100",
        # Compaction takes the first records while the entry that settles the later ones is in doubt, and waits
        # for its turn.
        "min.compaction.lag.ms": "6000",
    }
    with on_s3(1, {**SETTINGS, "log.cleaner.backoff.ms": "200", "wal.settle.interval.ms": "500"}) as stage:
        places = stage.speaker.create("doubt", 2, configs)
        stage.settled_write(places, 20)
        _doubtful(stage, places, Rule("release", "PUT", "manifests/", seconds=(1.5, 1.5), times=1))
        stage.check()
        stage.cluster.kill()
        stage.cluster.start()
        stage.check()
        stage.check_goes_on()
        stage.check_whole()
        return f"{stage.told.count} records"


@scene(s3=True)
def settle_in_doubt_takes_effect_at_any_time() -> str:
    """The same at a moment that nothing chose: with the next entry of all."""
    return _doubt_scene({}, Rule("release", "PUT", "meta/log/", seconds=(0.0, 0.5), times=1))


@scene(s3=True)
def writes_come_back_after_deletion() -> str:
    """Each object that is deleted is written once more by a request that was tried again long before."""
    settings = {**SETTINGS, "log.segment.delete.delay.ms": "200"}
    with on_s3(2, settings) as stage:
        places = stage.speaker.create("ghosts", 4)
        with stage.proxy.sick(Rule("haunt", "PUT", "wal/"), Rule("haunt", "PUT", "segments/"), Rule("haunt", "PUT", "manifests/")):  # fmt: skip
            for number in range(4):
                stage.speaker.write(places, 10)
                stage.wait_quiet("manifests", 1.0)
                if number == 2:
                    stage.cluster[1].kill()
                    stage.cluster[1].start()
        if not stage.proxy.faults["came back"]:
            raise Failed("nothing came back, so nothing was tried")
        stage.cluster.kill()
        stage.cluster.start()
        stage.check_goes_on()
        stage.check_whole()
        missing = stage.audit()["missing"]
        if missing:
            raise Failed(f"store audit misses {missing[:2]}")
        return f"{stage.told.count} records, {dict(stage.proxy.faults)}"


@scene(s3=True)
def answers_flipped_and_cut() -> str:
    """Of all answers to GET a part has a flipped bit, or ends half-way: a reader gets the record or an error, and
    when it is over everything is whole."""
    with on_s3(1, {**SETTINGS, "tail.cache.bytes": "1", "segment.cache.bytes": "1"}) as stage:
        places = stage.speaker.create("flipped", 3)
        stage.settled_write(places, 40)
        with stage.proxy.sick(Rule("flip", "GET", share=0.3), Rule("cut", "GET", share=0.2)):
            stage.speaker.write(places, 3)
            hurt = stage.check(Expected(whole=False))
            stage.cluster.kill()
            stage.cluster[1].spawn()
            time.sleep(4.0)
        if not stage.cluster[1].running:
            stage.cluster[1].spawn()
        stage.cluster[1].wait_until_serving()
        stage.check_goes_on()
        stage.check_whole()
        return (
            f"{stage.told.count} records, {hurt} answered with an error meanwhile, {dict(stage.proxy.faults)}"
        )


@scene(s3=True)
def storm() -> str:
    """Everything at once for a minute: delays that reorder, repeats, lost answers, refusals, cut and flipped
    bodies, brokers that are killed and paused."""
    chance = random.Random(7)
    rules = (
        Rule("refuse", share=0.01, status=503),
        Rule("refuse", share=0.01, status=403),
        Rule("lose", share=0.02),
        Rule("drop", share=0.02),
        Rule("repeat", "PUT", share=0.05, seconds=(0.5, 10.0)),
        Rule("flip", "GET", share=0.03),
        Rule("cut", "GET", share=0.03),
        Rule("haunt", "PUT", share=0.2),
        Rule("delay", share=0.2, seconds=(0.0, 0.6)),
    )
    with on_s3(3) as stage:
        places = stage.speaker.create("storm", 6)
        deadline = time.monotonic() + 60
        with stage.proxy.sick(*rules):
            while time.monotonic() < deadline:
                stage.speaker.write(places, 3, within_s=8)
                disturb(stage, chance)
        for member in stage.cluster.members.values():
            if not member.running:
                member.start()
        stage.check_goes_on(within_s=40)
        stage.check_whole(60)
        return f"{stage.told.count} records, {dict(stage.proxy.faults)}"


@scene(s3=True, alone=True)
def one_slow_put() -> str:
    """One PUT of the write-ahead log takes half a minute; writers of other partitions wait for a moment."""
    with on_s3() as stage:
        places = stage.speaker.create("slow", 8)
        stage.speaker.write(places, 3)
        stage.speaker.waits.clear()
        speakers = [stage.new_speaker() for _ in places]
        ending = threading.Event()

        def act(number: int) -> None:
            while not ending.is_set():
                speakers[number].write([places[number]], 1)

        threads = [threading.Thread(target=act, args=(number,), daemon=True) for number in range(len(places))]
        slow = Rule("delay", "PUT", "wal/", seconds=(SLOW_PUT_S, SLOW_PUT_S), times=1)
        with stage.proxy.sick(slow):
            for thread in threads:
                thread.start()
            time.sleep(12.0)
            ending.set()
            for thread in threads:
                thread.join(60)
        waits = sorted(itertools.chain.from_iterable(speaker.waits for speaker in speakers))
        p99 = waits[len(waits) * 99 // 100]
        stage.check_whole()
        figures = f"{len(waits)} acknowledgements, median {waits[len(waits) // 2] * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms, longest {waits[-1]:.1f} s"  # fmt: skip
        if waits[-1] > OTHERS_WITHIN_S:
            raise Failed(f"others waited: {figures}")
        return figures
