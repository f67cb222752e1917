"""Kafka Streams with exactly_once_v2: Kafka's StreamsSmokeTest and StreamsEosTest while a broker is killed.

Both are the programs of Kafka's system tests. The smoke test writes numbers, lets an application aggregate them in
windows, and compares every result with its own. The other lets applications compute minima and sums that hold for
exactly-once alone: a driver writes, applications are killed and started again, and a verifier reads all topics.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from conformance import parts
from conformance.parts import Artifact
from conformance.server import ServerFailed, interrupted_cleanly
from conformance.transactions.places import Place, place_named
from conformance.transactions.programs import Program, bounce
from penstock.testing.waiting import Late

KAFKA = "org.apache.kafka"
EOS_VERSION = "4.2.0"
"""The last version whose test jar has StreamsEosTest."""
SMOKE = f"{KAFKA}.streams.tests.StreamsSmokeTest"
EOS = f"{KAFKA}.streams.tests.StreamsEosTest"
SMOKE_TOPICS = (
    *("data", "echo", "min", "min-suppressed", "min-raw", "max", "sum", "sws-raw", "sws-suppressed"),
    *("dif", "cnt", "avg", "wcnt", "tagg"),
)
EOS_TOPICS = ("data", "echo", "min", "sum", "repartition", "max", "cnt")
PARTITIONS = 5
STARTED_WITHIN_S = 120.0
SMOKE_WITHIN_S = 900.0
SMOKE_KILLS = {2: 10.0, 1: 20.0}
"""Brokers that are killed while its driver writes, which takes half a minute, and how long after the one before."""
SMOKE_SHORT_KILLS = {2: 10.0}
VERIFIED_WITHIN_S = 700.0
EOS_S = 45.0
"""So long the driver of StreamsEosTest writes."""
EOS_SHORT_S = 15.0


def classpath(version: str) -> str:
    tests = (
        Artifact(KAFKA, "kafka-streams", version),
        Artifact(KAFKA, "kafka-streams", version, "test"),
        Artifact(KAFKA, "kafka-clients", version, "test"),
    )
    artifacts = (*parts.kafka_artifacts(version), *tests)
    return parts.classpath(f"the tests of Kafka Streams {version}", f"streams-tests-{version}", artifacts)


def properties(place: Place, folder: Path, name: str) -> str:
    path = folder / f"{name}.properties"
    settings = {
        "bootstrap.servers": place.bootstrap,
        "processing.guarantee": "exactly_once_v2",
        "application.id": "EosTest" if name.startswith("eos") else "SmokeTest",
        "state.dir": str(folder / name),
        "session.timeout.ms": "10000",
        "acceptable.recovery.lag": "9223372036854775807",
        "replication.factor": "1",
    }
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return str(path)


def smoke(place: Place, folder: Path, kills: Mapping[int, float]) -> list[str]:
    jars = classpath(parts.KAFKA_NEWEST)
    for topic in SMOKE_TOPICS:
        place.create(topic, PARTITIONS)
    with ExitStack() as stack:
        application = Program("the application", jars, SMOKE, properties(place, folder, "smoke"), "process")
        stack.enter_context(application)
        application.await_said("STARTED", STARTED_WITHIN_S)
        driver = Program("the driver", jars, SMOKE, properties(place, folder, "smoke-driver"), "run")
        stack.enter_context(driver)
        for broker, rest_s in kills.items():
            time.sleep(rest_s)
            bounce(place, broker)
        code = driver.await_end(SMOKE_WITHIN_S)
        said = driver.said
    if code != 0 or "SUCCESS" not in said or "FAILURE" in said or "PROCESSED-LESS" in said:
        return [f"StreamsSmokeTest ended with {code}: {said[-1500:]}"]
    verdict = next(line for line in said.splitlines() if "SUCCESS" in line)
    print(f"StreamsSmokeTest: {verdict}, {len(kills)} brokers killed", flush=True)
    return []


def eos(place: Place, folder: Path, seconds: float) -> list[str]:
    jars = classpath(EOS_VERSION)
    for topic in EOS_TOPICS:
        place.create(topic, PARTITIONS)
    with ExitStack() as stack:
        driver = stack.enter_context(
            Program("the driver", jars, EOS, properties(place, folder, "eos-driver"), "run")
        )
        applications = []
        for number in (1, 2):
            where = properties(place, folder, f"eos-{number}")
            one = stack.enter_context(Program(f"application {number}", jars, EOS, where, "process-complex"))
            one.await_said("StateChange: REBALANCING -> RUNNING", STARTED_WITHIN_S)
            applications.append(one)
        for number, broker in enumerate((2, 3)):
            time.sleep(seconds / 3)
            bounce(place, broker)
            applications[number].restart()
        time.sleep(seconds / 3)
        driver.stop()
        written = next((line for line in reversed(driver.said.splitlines()) if "records" in line), "")
        where = properties(place, folder, "eos-verifier")
        # The verifier waits until the applications are gone, and reads the input up to their last offsets.
        for one in applications:
            one.stop()
        verifier = stack.enter_context(Program("the verifier", jars, EOS, where, "verify-complex"))
        code = verifier.await_end(VERIFIED_WITHIN_S)
        said = verifier.said
    if code != 0 or "ALL-RECORDS-DELIVERED" not in said or "FAIL" in said:
        return [f"StreamsEosTest ended with {code}: {said[-1500:]}"]
    print(f"StreamsEosTest: ALL-RECORDS-DELIVERED ({written.strip()})", flush=True)
    return []


def main(arguments: Sequence[str] | None = None) -> int:
    summary = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m conformance.transactions.streams", description=summary)
    parser.add_argument(
        "--against", default="penstock", metavar="BROKERS", help="penstock or kafka (%(default)s)"
    )
    parser.add_argument("--only", choices=("smoke", "eos"))
    parser.add_argument("--short", action="store_true", help="fewer kills, and less time for StreamsEosTest")
    options = parser.parse_args(arguments)
    problems: list[str] = []
    try:
        with interrupted_cleanly():
            if options.only != "eos":
                kills = SMOKE_SHORT_KILLS if options.short else SMOKE_KILLS
                with place_named(options.against) as place, tempfile.TemporaryDirectory() as folder:
                    problems += smoke(place, Path(folder), kills) + place.problems()
            if options.only != "smoke":
                with place_named(options.against) as place, tempfile.TemporaryDirectory() as folder:
                    problems += (
                        eos(place, Path(folder), EOS_SHORT_S if options.short else EOS_S) + place.problems()
                    )
    except parts.PartMissing as why:
        return parts.not_run(why)
    except (ServerFailed, Late) as why:
        problems.append(str(why))
    for problem in problems:
        print(f"FAILED: {problem}")
    print(f"Kafka Streams, exactly_once_v2, brokers killed: {len(problems)} failures")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
