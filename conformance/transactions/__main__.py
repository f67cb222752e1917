"""Every client commits, aborts, times out and is fenced; every client reads the result at both isolation levels.

The scenes of `scenes.py` are played by each client on Apache Kafka and on three Penstock brokers. What must come
of each step stands in the scene; besides, what each client was told must be the same on both, in the client's own
words. Then every reader reads every topic: at read_committed what was committed and nothing else, at
read_uncommitted everything, each in the order in which it was written.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field

from conformance import parts
from conformance.client import BY_NAME, CLIENTS, Client, ClientFailed, Session
from conformance.clients.protocol import Record
from conformance.server import ServerFailed, interrupted_cleanly
from conformance.transactions import asking
from conformance.transactions.places import Place, place_named
from conformance.transactions.scenes import LARGE, MANY, PARTITIONS, SCENES, Stage, Wrong
from penstock.testing.waiting import Late

WRITERS = [client for client in CLIENTS if client.transacts]
READERS = [*WRITERS, BY_NAME["kcat"]]
SHORT = ("confluent-kafka", "aiokafka", "kafka-python")
LARGE_SHORT = 200
STABLE_WITHIN_S = 20.0
READ_WITHIN_S = 10.0
LAST = "the last one"
"""A value that is written to each partition at the end, outside of a transaction: who reads it has read all."""


@dataclass(slots=True)
class Outcome:
    """What came of one place."""

    told: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    """By client and scene."""
    failures: list[str] = field(default_factory=list)
    readings: int = 0


def play(place: Place, client: Client, scenes: Sequence[str], large: int, outcome: Outcome) -> Stage:
    stage = Stage(place, client, {"large": large})
    place.create(stage.topic, PARTITIONS)
    place.create(stage.many, MANY)
    began = time.monotonic()
    for scene in scenes:
        stage.told = outcome.told[client.name, scene] = []
        try:
            SCENES[scene](stage)
        except (Wrong, ClientFailed, Late) as why:
            outcome.failures.append(f"{client.name}, {scene}: {why}")
        finally:
            stage.leave()
    print(f"{client.name} played {len(scenes)} scenes ({time.monotonic() - began:.1f} s)", flush=True)
    return stage


def finish(place: Place, stages: Sequence[Stage], outcome: Outcome) -> None:
    """The last value of each partition, after every transaction has ended."""
    with Session(BY_NAME["confluent-kafka"], place.bootstrap) as session:
        for stage in stages:
            for topic, partitions in ((stage.topic, PARTITIONS), (stage.many, MANY)):
                try:
                    asking.await_stable(place, topic, partitions, STABLE_WITHIN_S)
                except Late as why:
                    outcome.failures.append(str(why))
                for partition in range(partitions):
                    session.produce(topic, partition, "none", [Record(None, LAST.encode())])


def read(reader: Session, stage: Stage, topic: str, partition: int, committed: bool) -> str | None:
    """Why this reader did not see what it must, or None."""
    written = stage.written[topic, partition]
    wanted = [value for value, kept in written if kept or not committed] + [LAST]
    got = reader.consume(topic, partition, 0, len(wanted), READ_WITHIN_S, committed)
    found = [(record.value or b"").decode() for record in got]
    if found == wanted:
        return None
    at = next(
        (at for at, pair in enumerate(zip(found, wanted, strict=False)) if pair[0] != pair[1]), len(found)
    )
    return f"{len(found)} values for {len(wanted)}; number {at} is {found[at : at + 1]}, wanted {wanted[at : at + 1]}"


def read_all(place: Place, readers: Sequence[Client], stages: Sequence[Stage], outcome: Outcome) -> None:
    for client in readers:
        began = time.monotonic()
        with closing(Session(client, place.bootstrap)) as session:
            for stage in stages:
                # One partition of the many is like another.
                for topic, partition in [
                    *((stage.topic, at) for at in range(PARTITIONS)),
                    (stage.many, MANY - 1),
                ]:
                    for committed in (True, False):
                        try:
                            why = read(session, stage, topic, partition, committed)
                        except ClientFailed as failed:
                            why = str(failed)
                        outcome.readings += 1
                        if why is not None:
                            level = "read_committed" if committed else "read_uncommitted"
                            outcome.failures.append(
                                f"{client.name} reads {topic}-{partition} at {level}: {why}"
                            )
                        if session.process.poll() is not None:
                            outcome.failures.append(f"{client.name} ended")
                            return
        print(f"{client.name} read the topics of all ({time.monotonic() - began:.1f} s)", flush=True)


def run(
    place: Place, writers: Sequence[Client], readers: Sequence[Client], scenes: Sequence[str], large: int
) -> Outcome:
    print(f"== {place.name}", flush=True)
    outcome = Outcome()
    stages = []
    for client in writers:
        failed = len(outcome.failures)
        stage = play(place, client, scenes, large, outcome)
        # What a scene left that went wrong need not look like the scene.
        if len(outcome.failures) == failed:
            stages.append(stage)
    finish(place, stages, outcome)
    read_all(place, readers, stages, outcome)
    outcome.failures += place.problems()
    return outcome


def differences(one: Outcome, other: Outcome) -> list[str]:
    """Where clients were told something else."""
    found = []
    for (client, scene), told in one.told.items():
        others = other.told.get((client, scene), [])
        if told != others:
            pairs = [
                f"{mine!r} and {theirs!r}"
                for mine, theirs in zip([*told, *[""] * 99], [*others, *[""] * 99], strict=False)
                if mine != theirs
            ]
            found.append(f"{client}, {scene}: {'; '.join(pairs[:3])}")
    return found


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    summary = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m conformance.transactions", description=summary)
    parser.add_argument(
        "--against",
        default="kafka,penstock",
        metavar="BROKERS",
        help="kafka, penstock, HOST:PORT, or two of them to be compared, separated by a comma (%(default)s)",
    )
    names = ", ".join(client.name for client in WRITERS)
    parser.add_argument("--writers", nargs="+", metavar="CLIENT", help=f"some of: {names}")
    parser.add_argument("--readers", nargs="+", metavar="CLIENT", help="likewise")
    parser.add_argument("--scenes", nargs="+", choices=SCENES, default=list(SCENES), metavar="SCENE")
    parser.add_argument(
        "--short", action="store_true", help="the clients in Python, on Penstock alone: for CI"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = options(arguments)
    default = SHORT if chosen.short else tuple(client.name for client in READERS)
    writers = [client for client in WRITERS if client.name in (chosen.writers or default)]
    readers = [client for client in READERS if client.name in (chosen.readers or default)]
    against = "penstock" if chosen.short and chosen.against == "kafka,penstock" else chosen.against
    outcomes: dict[str, Outcome] = {}
    try:
        for client in dict.fromkeys((*writers, *readers)):
            client.program()
        with interrupted_cleanly():
            for name in against.split(","):
                with place_named(name) as place:
                    large = LARGE_SHORT if chosen.short else LARGE
                    outcomes[name] = run(place, writers, readers, chosen.scenes, large)
    except parts.PartMissing as why:
        return parts.not_run(why)
    except (ServerFailed, Late) as why:
        print(f"FAILED: {why}")
        return 1
    failures = [f"on {name}: {why}" for name, outcome in outcomes.items() for why in outcome.failures]
    if len(outcomes) == 2:
        failures += [f"told differently: {why}" for why in differences(*outcomes.values())]
    for failure in failures:
        print(f"FAILED {failure}")
    readings = sum(outcome.readings for outcome in outcomes.values())
    print(
        f"{len(writers)} clients played {len(chosen.scenes)} scenes on {' and on '.join(outcomes)}, "
        f"{readings} readings of partitions, {len(failures)} failures"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
