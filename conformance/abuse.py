"""Hostile bytes of every kind, while a healthy client runs beside them and must notice nothing.

The broker must stay up, its memory flat, and the healthy client's answers right and in time. The client
produces and reads back throughout, first alone, then beside the attacks of `attacks.py`. Its latencies are
printed for both.
"""

import argparse
import random
import statistics
import sys
import threading
import time

from conformance import parts
from conformance.attacks import ATTACKS, PLAIN, RECOMPRESS, Attacker
from conformance.server import Server, ServerFailed, interrupted_cleanly
from conformance.target import add_against, server_named
from conformance.wire import batches
from conformance.wire.batches import Item
from conformance.wire.connection import ANSWER_TIMEOUT_S, Closed, Connection, Silent

HEALTHY, LARGE = "abuse-healthy", "abuse-large"
PAUSE_S = 0.01
ALONE_S = 3.0
MEGABYTE = 1 << 20


class Unwell(Exception):
    """The healthy client noticed."""


class HealthyClient(threading.Thread):
    """Produces a record and reads it back, a hundred times a second, and keeps how long each took."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self.connection = Connection(server.host, server.port)
        self.latencies_ms: list[float] = []
        self.failure: str | None = None
        self.ended = threading.Event()
        self.sent = 0

    def run(self) -> None:
        try:
            while not self.ended.wait(PAUSE_S):
                began = time.monotonic()
                self._round_trip()
                self.latencies_ms.append((time.monotonic() - began) * 1000)
        except Exception as why:
            self.failure = f"record {self.sent}: {type(why).__name__} {why}"

    def _round_trip(self) -> None:
        value = b"healthy %d" % self.sent
        offset = produce(self.connection, HEALTHY, batches.batch([Item(value, b"k")]))
        if offset != self.sent:
            raise Unwell(f"acknowledged at {offset}")
        answer = fetch(self.connection, HEALTHY, self.sent)
        if [held for _, held in batches.records(answer)] != [value]:
            raise Unwell("other bytes came back")
        self.sent += 1

    def window(self) -> list[float]:
        """The latencies since the last call, with the round trip under way, which belongs to them."""
        under_way = self.sent
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while self.sent == under_way and self.failure is None and time.monotonic() < deadline:
            time.sleep(PAUSE_S / 4)
        taken, self.latencies_ms = self.latencies_ms, []
        return taken


def produce(connection: Connection, topic: str, records: bytes) -> int:
    data = {"PartitionData": [{"Index": 0, "Records": records}]}
    body = {"Acks": -1, "TimeoutMs": 5000, "TopicData": [{"Name": topic, **data}]}
    part = connection.call("Produce", 8, body)["Responses"][0]["PartitionResponses"][0]
    if part["ErrorCode"] != 0:
        raise Unwell(f"Produce answers error {part['ErrorCode']}")
    offset: int = part["BaseOffset"]
    return offset


def fetch(connection: Connection, topic: str, offset: int) -> dict[str, object]:
    asked = {"Partition": 0, "FetchOffset": offset, "PartitionMaxBytes": MEGABYTE}
    body = {"MaxWaitMs": 500, "MinBytes": 1, "Topics": [{"Topic": topic, "Partitions": [asked]}]}
    part = connection.call("Fetch", 11, body)["Responses"][0]["Partitions"][0]
    if part["ErrorCode"] != 0:
        raise Unwell(f"Fetch answers error {part['ErrorCode']}")
    return batches.split(part["Records"])[0]


def prepare(server: Server) -> None:
    with Connection(server.host, server.port) as connection:
        topics = [
            {"Name": name, "NumPartitions": 1, "ReplicationFactor": 1} for name in (HEALTHY, LARGE, PLAIN)
        ]
        topics.append(
            {
                "Name": RECOMPRESS,
                "NumPartitions": 1,
                "ReplicationFactor": 1,
                "Configs": [{"Name": "compression.type", "Value": "lz4"}],
            }
        )
        answer = connection.call("CreateTopics", 5, {"Topics": topics, "TimeoutMs": 10_000})
        for topic in answer["Topics"]:
            if topic["ErrorCode"] != 0:
                raise Unwell(f"{topic['Name']} could not be created: error {topic['ErrorCode']}")
        deadline = time.monotonic() + 10
        while True:
            try:
                produce(connection, LARGE, batches.batch([Item(random.Random(1).randbytes(900_000))]))
                return
            except Unwell:  # the leader of a new topic may not lead yet
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


def line(name: str, latencies: list[float], rss_bytes: int) -> str:
    if not latencies:
        return f"{name:<22} the healthy client got no answer  RSS {rss_bytes / MEGABYTE:6.0f} MB"
    ordered = sorted(latencies)
    p99 = ordered[int(len(ordered) * 0.99)]
    return (
        f"{name:<22} p50 {statistics.median(ordered):6.1f} ms  p99 {p99:6.1f} ms  max {ordered[-1]:6.1f} ms  "
        f"({len(ordered)} round trips)  RSS {rss_bytes / MEGABYTE:6.0f} MB"
    )


def judge(name: str, client: HealthyClient, server: Server, latency_ms: float) -> list[str]:
    """What the healthy client noticed since it was last asked."""
    latencies = client.window()
    print(line(name, latencies, server.rss_bytes()), flush=True)
    if client.failure:
        return [f"{name}: the healthy client failed: {client.failure}"]
    if not latencies or max(latencies) > latency_ms:
        return [f"{name}: the healthy client waited longer than {latency_ms:.0f} ms"]
    return []


def chosen(options: argparse.Namespace) -> list[str]:
    return options.attacks or list(ATTACKS)


def run(server: Server, options: argparse.Namespace) -> list[str]:
    """What went wrong, one sentence each."""
    prepare(server)
    client = HealthyClient(server)
    client.start()
    time.sleep(1.0)  # let the broker reach its working size before that is measured
    client.window()
    time.sleep(ALONE_S)
    alone = client.window()
    calm_bytes = peak_bytes = server.rss_bytes()
    print(line("alone", alone, calm_bytes), flush=True)
    attacker = Attacker(server, random.Random(options.seed))
    wrong: list[str] = []
    share_s = options.seconds / len(chosen(options))
    for name in chosen(options):
        began = time.monotonic()
        while time.monotonic() - began < share_s and server.alive():
            ATTACKS[name](attacker)
            peak_bytes = max(peak_bytes, server.rss_bytes() if server.alive() else 0)
        if not server.alive():
            return [f"the broker ended during {name}:\n{server.tail()}"]
        wrong += judge(name, client, server, options.latency_ms)
        if client.failure:
            return wrong
    attacker.release()
    time.sleep(1.0)  # the broker notices that hundreds have gone, and that must not be noticed either
    wrong += judge("afterwards", client, server, options.latency_ms)
    after_bytes = server.rss_bytes()
    client.ended.set()
    client.join(10)
    print(
        f"RSS {calm_bytes / MEGABYTE:.0f} MB before, {peak_bytes / MEGABYTE:.0f} MB at most, "
        f"{after_bytes / MEGABYTE:.0f} MB after"
    )
    if after_bytes - calm_bytes > options.growth_mb * MEGABYTE:
        wrong.append(f"memory grew by more than {options.growth_mb} MB")
    if peak_bytes - calm_bytes > options.peak_mb * MEGABYTE:
        wrong.append(f"memory rose by more than {options.peak_mb} MB for a while")
    with Connection(server.host, server.port) as connection:
        for offset in range(client.sent):
            held = [value for _, value in batches.records(fetch(connection, HEALTHY, offset))]
            if held != [b"healthy %d" % offset]:
                wrong.append(f"afterwards record {offset} of the healthy client reads {held!r}")
                break
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.abuse", description=__doc__.splitlines()[0])
    add_against(parser)
    parser.add_argument(
        "--seconds", type=float, default=60, help="how long all attacks together (default 60)"
    )
    parser.add_argument(
        "--attacks", nargs="+", choices=ATTACKS, metavar="ATTACK", help=f"some of: {', '.join(ATTACKS)}"
    )
    parser.add_argument(
        "--latency-ms", type=float, default=1000, help="no round trip may take longer (default 1000)"
    )
    parser.add_argument(
        "--growth-mb", type=int, default=64, help="memory may have grown by so much afterwards (default 64)"
    )
    parser.add_argument("--peak-mb", type=int, default=256, help="and by so much for a while (default 256)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    try:
        with interrupted_cleanly(), server_named(options.against) as server:
            wrong = run(server, options)
    except parts.PartMissing as why:
        return parts.not_run(why)
    except (ServerFailed, Unwell, Closed, Silent) as why:
        print(f"abuse: {str(why) or type(why).__name__}", file=sys.stderr)
        return 2
    for each in wrong:
        print(f"FAILED {each}")
    print(f"{len(chosen(options))} kinds of abuse with seed {options.seed}, {len(wrong)} failures")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
