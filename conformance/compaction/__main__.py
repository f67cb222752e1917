"""Key compaction while a topic is written and read: each key comes down to its last value, at its own offset.

One idempotent producer writes numbered updates to each partition, in order. So the number of an update is
also its offset, and every reader can tell from the record alone whether it lies where it was written. A
consumer reads along from the beginning, and the broker is killed now and then with kill -9, whether it cleans
or not. In the end every partition must hold exactly the last update of each key: nothing less, and nothing
more. Keys whose last update was a tombstone are found as such, and are gone once delete.retention.ms has
passed and the partition was cleaned again. Readers that begin inside of a gap get the next record after it
(`updates.py`).

Then every client of the matrix reads a compacted partition (`readers.py`), and LogCompactionTester, the
torture test that Apache Kafka ships, runs against the same kind of broker.
"""

import argparse
import re
import subprocess
import sys

from conformance import parts
from conformance.compaction.readers import readers_run
from conformance.compaction.updates import BROKER_SETTINGS, Broken, Plan, updates_run
from conformance.server import ServerFailed, interrupted_cleanly
from conformance.target import add_against, server_named

TESTER_SETTINGS = {
    # The tester names no topic settings but the policy, so segments must be small for everybody.
    "log.segment.bytes": "1048576",
    "log.roll.ms": "1000",
    "log.cleaner.backoff.ms": "500",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "offsets.topic.replication.factor": "1",
}
TESTER_TIMEOUT_S = 900.0


def tester_run(against: str, messages: int, sleep_s: int) -> None:
    """Apache Kafka's own test of log compaction."""
    with server_named(against, TESTER_SETTINGS) as server:
        command = [
            *parts.java(parts.kafka_classpath(parts.KAFKA_NEWEST), heap_mb=256),
            "org.apache.kafka.tools.LogCompactionTester",
            *("--bootstrap-server", server.bootstrap, "--messages", str(messages), "--topics", "2"),
            *("--duplicates", "20", "--percent-deletes", "10", "--compression-type", "lz4"),
            *("--sleep", str(sleep_s)),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TESTER_TIMEOUT_S, check=False)
        for line in done.stdout.splitlines():
            print(f"LogCompactionTester: {line}", flush=True)
        if done.returncode != 0 or "Data verification is completed" not in done.stdout:
            raise Broken(f"LogCompactionTester ended with {done.returncode}: {done.stderr.strip()[-500:]}")
        reduction = re.search(r"\(([\d.]+)% reduction\)", done.stdout)
        if reduction is None or float(reduction[1]) < 50:
            raise Broken("LogCompactionTester found little compacted: it would have passed without a cleaner")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m conformance.compaction", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--updates", type=int, default=10_000_000, help="updates in all")
    parser.add_argument("--keys", type=int, default=10_000, help="keys in all")
    parser.add_argument("--partitions", type=int, default=2, help="partitions that they are spread over")
    parser.add_argument("--kills", type=int, default=2, help="how often the broker is killed meanwhile")
    parser.add_argument("--messages", type=int, default=200_000, help="for each topic of LogCompactionTester")
    parser.add_argument("--only", choices=("updates", "readers", "tester"), help="only one of the parts")
    add_against(parser)
    asked = parser.parse_args()
    plan = Plan(asked.updates // asked.partitions, asked.keys // asked.partitions, asked.partitions)
    try:
        with interrupted_cleanly():
            if asked.only in (None, "updates"):
                updates_run(asked.against, plan, asked.kills)
            if asked.only in (None, "readers"):
                with server_named(asked.against, BROKER_SETTINGS) as server:
                    problems = readers_run(server)
                if problems:
                    raise Broken(f"{len(problems)} clients cannot read a compacted partition")
            if asked.only in (None, "tester"):
                tester_run(asked.against, asked.messages, 20)
    except parts.PartMissing as why:
        return parts.not_run(why)
    except (Broken, ServerFailed) as why:
        print(f"failed: {why}", file=sys.stderr)
        return 1
    print("compaction holds")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
