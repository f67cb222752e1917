"""The producer of Flink's sink resumes a transaction that a failed one left, and commits it, maybe twice.

It is the connector's own class. It sets producer id and epoch in a Kafka producer without asking the broker, and
sends the end of the transaction. What it is told of the second commit must be the same on Apache Kafka.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence

from conformance import parts
from conformance.parts import Artifact
from conformance.server import ServerFailed, interrupted_cleanly
from conformance.transactions import asking
from conformance.transactions.places import Place, place_named
from conformance.transactions.reading import read_topic
from penstock.testing.waiting import Late

FLINK = "org.apache.flink"
CONNECTOR = "5.0.0-2.2"
CORE = "2.2.0"
TOPIC, ID = "resumed", "flink-sink-0-1"
RECORDS = 20
TIMEOUT_S = 180.0
STABLE_WITHIN_S = 20.0
PLAYED_MAX = 3
"""What Apache Kafka tells of the second commit hangs on whether the markers of the first are written by then, which a
busy machine delays: a difference is one if it is there each time."""


def program() -> list[str]:
    artifacts = (
        Artifact("org.slf4j", "slf4j-simple", parts.SLF4J),
        Artifact(FLINK, "flink-connector-kafka", CONNECTOR),
        Artifact(FLINK, "flink-core", CORE),
    )
    classpath = parts.classpath("Flink's Kafka connector", f"flink-{CONNECTOR}-{CORE}", artifacts)
    source = parts.CLIENTS / "flink" / "Resume.java"
    classes = parts.PARTS / "flink-client"
    compiled = classes / "Resume.class"
    if not compiled.exists() or compiled.stat().st_mtime < source.stat().st_mtime:
        classes.mkdir(parents=True, exist_ok=True)
        command = ["javac", "-nowarn", "-cp", classpath, "-d", str(classes), str(source)]
        parts.fetch("the Flink program", command, parts.ROOT)
    return [*parts.java(classpath + os.pathsep + str(classes), heap_mb=256), "Resume"]


def run(place: Place) -> tuple[list[str], list[str]]:
    """What the producers were told, and what is wrong."""
    place.create(TOPIC, 2)
    command = [*program(), place.bootstrap, TOPIC, ID, str(RECORDS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode != 0:
        return [], [f"the program ended with {done.returncode}: {done.stderr.strip()[-800:]}"]
    told = [line for line in done.stdout.splitlines() if line.startswith(("first", "again"))]
    print(f"{place.name}: {', '.join(told)}", flush=True)
    problems = [] if "first: committed" in told else [f"it could not commit what was left: {told}"]
    asking.await_stable(place, TOPIC, 2, STABLE_WITHIN_S)
    read = read_topic(place, TOPIC, 2)
    values = sorted(value.decode() for records in read.values() for _, value in records)
    if values != sorted(f"resumed {number}" for number in range(RECORDS)):
        problems.append(f"{len(values)} values are committed of {RECORDS}")
    return told, problems + place.problems()


def main(arguments: Sequence[str] | None = None) -> int:
    summary = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m conformance.transactions.flink", description=summary)
    parser.add_argument(
        "--against", default="kafka,penstock", metavar="BROKERS", help="(default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    told: dict[str, list[str]] = {}
    problems: list[str] = []
    try:
        program()
        with interrupted_cleanly():
            for _ in range(PLAYED_MAX):
                for name in options.against.split(","):
                    with place_named(name) as place:
                        told[name], wrong = run(place)
                        problems += [f"on {name}: {problem}" for problem in wrong]
                if _alike(told):
                    break
    except parts.PartMissing as why:
        return parts.not_run(why)
    except (ServerFailed, Late) as why:
        problems.append(str(why))
    if not _alike(told):
        problems.append(f"the producers were told differently: {told}")
    for problem in problems:
        print(f"FAILED: {problem}")
    print(f"Flink's producer resumed a transaction on {' and on '.join(told)}, {len(problems)} failures")
    return 1 if problems else 0


def _alike(told: dict[str, list[str]]) -> bool:
    return len({tuple(words) for words in told.values()}) <= 1


if __name__ == "__main__":
    sys.exit(main())
