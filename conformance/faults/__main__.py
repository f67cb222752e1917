"""Brokers are killed and paused, their store fails and grows slow, and clients notice nothing worse than a
pause. Clients record what they see, and a checker finds what a log that keeps its promises cannot show.

Three brokers run as processes, with a session time-out of 3 s. Beside them run all the while: an idempotent
producer of librdkafka, a bare writer for each partition that sends to the leader and waits for its answer
whatever happens, readers, a group, observers of the ends of partitions, and an administrator who creates and
deletes topics. In each round the leader of a partition is

    killed          kill -9, and started again when the others have noticed
    restarted       kill -9, and started again at once
    paused          SIGSTOP until it is fenced, or until about then, and SIGCONT: records that it acknowledges
                    when it wakes must be in the log
    blinked         SIGSTOP for less than the session time-out
    cut off         its store fails for longer than the session time-out
    stopped         a controlled stop, and a start

or two or all brokers are killed at once, or all are paused, or the store of all of them fails for a while, or
is slow. After a kill, writing and reading must go on for every partition within five seconds; after a pause
as well, and the time that a library itself waits for an answer. `--s3` runs all this on a real S3 server,
where an outage is that the server is killed or hangs. `--broken` runs variants that are broken on purpose:
the checker must find something in each.
"""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext

from conformance import parts
from conformance.cluster.processes import Member
from conformance.cluster.views import wait_for_brokers
from conformance.faults.clients import LIBRARY_TIMEOUT_MS
from conformance.faults.history import Violation
from conformance.faults.world import GO_ON_WITHIN_S, PAUSE_S, SESSION_TIMEOUT_S, Fault, FaultyWorld, report
from conformance.s3.server import S3Server
from conformance.server import ServerFailed, interrupted_cleanly

BLINK_S = 1.0
OUTAGE_S = 4.0
SLOW_SECONDS = "0.02"


def kill(world: FaultyWorld, victim: Member) -> None:
    victim.kill()
    rest = [member.broker for member in world.cluster.running]
    wait_for_brokers(world.cluster.running, (), rest, 15)
    victim.start()


def pause(world: FaultyWorld, victim: Member) -> None:
    if world.chance.random() < 0.5:
        pause_until_fenced(world, victim)
        return
    # It wakes while it is being fenced, or just before or after.
    victim.pause()
    time.sleep(SESSION_TIMEOUT_S + world.chance.uniform(-0.5, 0.5))
    victim.resume()


def pause_until_fenced(world: FaultyWorld, victim: Member) -> None:
    victim.pause()
    rest = [member for member in world.cluster.running if member is not victim]
    wait_for_brokers(rest, (), [member.broker for member in rest], 15)
    time.sleep(world.chance.uniform(0.0, 1.0))
    victim.resume()


def blink(world: FaultyWorld, victim: Member) -> None:
    victim.pause()
    time.sleep(BLINK_S)
    victim.resume()


def restart(world: FaultyWorld, victim: Member) -> None:
    victim.kill()
    victim.start()


def cut_off(world: FaultyWorld, victim: Member) -> None:
    path = world.fault("outage", victim.broker)
    time.sleep(PAUSE_S)
    path.unlink()


def stop(world: FaultyWorld, victim: Member) -> None:
    victim.stop()
    victim.start()


def kill_all(world: FaultyWorld, victim: Member) -> None:
    world.cluster.kill()
    world.cluster.start()


def kill_two(world: FaultyWorld, victim: Member) -> None:
    """One of three is enough: nothing here needs a majority of the brokers."""
    other = next(member for member in world.cluster.members.values() if member is not victim)
    victim.kill()
    other.kill()
    rest = world.cluster.running
    wait_for_brokers(rest, (), [member.broker for member in rest], 15)
    # The last one is seen to serve alone for a while.
    time.sleep(LIBRARY_TIMEOUT_MS / 1000)
    world.cluster.start([victim.broker, other.broker])


def pause_all(world: FaultyWorld, victim: Member) -> None:
    """As when a machine sleeps: nobody is to blame for the silence of the others."""
    for member in world.cluster.running:
        member.pause()
    time.sleep(SESSION_TIMEOUT_S + 1.0)
    for member in world.cluster.running:
        member.resume()


def outage(world: FaultyWorld, victim: Member) -> None:
    path = world.fault("outage", None)
    time.sleep(OUTAGE_S)
    path.unlink()


def store_down(world: FaultyWorld, victim: Member) -> None:
    assert world.store is not None
    world.store.kill()
    time.sleep(OUTAGE_S)
    world.store.start()


def store_hangs(world: FaultyWorld, victim: Member) -> None:
    assert world.store is not None
    world.store.pause()
    time.sleep(OUTAGE_S)
    world.store.resume()


def slow(world: FaultyWorld, victim: Member) -> None:
    path = world.fault("slow", None, SLOW_SECONDS)
    time.sleep(OUTAGE_S)
    path.unlink()


KILL = Fault("kill", kill, GO_ON_WITHIN_S)
# A paused broker still accepts connections: libraries find out when their own patience is at an end.
PAUSE = Fault("pause", pause, GO_ON_WITHIN_S + LIBRARY_TIMEOUT_MS / 1000)
FENCED = Fault("pause until fenced", pause_until_fenced, None)
OTHERS = (
    Fault("blink", blink, GO_ON_WITHIN_S),
    Fault("restart", restart, GO_ON_WITHIN_S),
    # Silent as a paused one is.
    Fault("cut off", cut_off, GO_ON_WITHIN_S + LIBRARY_TIMEOUT_MS / 1000),
    Fault("stop", stop, GO_ON_WITHIN_S),
    Fault("kill all", kill_all, None),
    Fault("kill two", kill_two, GO_ON_WITHIN_S),
    Fault("pause all", pause_all, None),
    Fault("outage", outage, None),
    Fault("slow", slow, None),
)
S3_OTHERS = (
    Fault("store down", store_down, None),
    Fault("blink", blink, GO_ON_WITHIN_S),
    Fault("store hangs", store_hangs, None),
    Fault("restart", restart, GO_ON_WITHIN_S),
    Fault("stop", stop, GO_ON_WITHIN_S),
    Fault("kill all", kill_all, None),
)


def run(
    variant: str, faults: Sequence[Fault], seed: int, store: S3Server | None = None
) -> tuple[FaultyWorld, list[Violation], list[str]]:
    world = FaultyWorld(variant, seed, store)
    with world.cluster:
        world.begin()
        time.sleep(1.0)
        for fault in faults:
            world.round(fault)
        violations = world.finish()
        return world, violations, world.cluster.tracebacks()


def chosen_faults(rounds: int, others: int, only: str | None, chance: random.Random, s3: bool) -> list[Fault]:
    rest = S3_OTHERS if s3 else OTHERS
    if only is not None:
        return [fault for fault in (KILL, PAUSE, *rest) if fault.name == only] * rounds
    faults = [KILL, PAUSE] * rounds + [rest[n % len(rest)] for n in range(others)]
    chance.shuffle(faults)
    return faults


def prove_sound(faults: Sequence[Fault], seed: int, store: S3Server | None) -> bool:
    world, violations, tracebacks = run("sound", faults, seed, store)
    report(world)
    problems = [*map(str, violations), *world.late, *tracebacks]
    for problem in problems[:20]:
        print(f"FAILED: {problem}")
    if not problems:
        print("nothing lost, nothing twice, nothing out of order")
    return not problems


def prove_broken(variant: str, fault: Fault, rounds: int, seed: int) -> bool:
    """The checker finds out within a few rounds."""
    _world, violations, _tracebacks = run(variant, [fault] * rounds, seed)
    kinds = Counter(violation.kind for violation in violations)
    if "lost" in kinds:
        print(f"{variant} was caught: {violations[0]} ({dict(kinds)})")
        return True
    print(f"FAILED: {variant} was not caught: {dict(kinds)}")
    return False


def main(arguments: Sequence[str] | None = None) -> int:
    summary = " ".join((__doc__ or "").split("\n\n")[0].split())
    parser = argparse.ArgumentParser(prog="python -m conformance.faults", description=summary)
    parser.add_argument("--rounds", type=int, default=200, help="of kills, and of pauses (default: 200 each)")
    parser.add_argument("--others", type=int, default=18, help="rounds of the other faults (default: 18)")
    parser.add_argument("--only", metavar="FAULT", help="only rounds of this one: kill, 'pause all', ...")
    parser.add_argument("--s3", action="store_true", help="on an S3 server, which fails too (needs Go)")
    parser.add_argument("--short", action="store_true", help="a few rounds and the broken variants: for CI")
    parser.add_argument("--broken", action="store_true", help="only the variants that are broken on purpose")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    well = True
    with interrupted_cleanly():
        try:
            if not chosen.broken:
                rounds, others = (2, 9) if chosen.short else (chosen.rounds, chosen.others)
                chance = random.Random(chosen.seed)
                faults = chosen_faults(rounds, others, chosen.only, chance, chosen.s3)
                with S3Server() if chosen.s3 else nullcontext() as store:
                    well = prove_sound(faults, chosen.seed, store)
            if chosen.broken or chosen.short:
                well = prove_broken("no-fencing", FENCED, 4, chosen.seed) and well
                well = prove_broken("early-answers", KILL, 2, chosen.seed) and well
        except parts.PartMissing as why:
            return parts.not_run(why)
        except (AssertionError, ServerFailed) as problem:
            print(f"FAILED: {problem}")
            return 1
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
