"""What metrics cost: a broker that is watched beside one that is not, in one run.

    python -m benchmarks.metrics                  in process, then with clients over sockets
    python -m benchmarks.metrics --rounds 20      more rounds, a narrower spread

In process: small Produce requests are handed to two brokers on one event loop, in turns, one of them with meters;
the ratio is that of processor time. With clients: two broker processes, one of them with `--http` and scraped every
two seconds, and `benchmarks.load` at one and then at the other; the ratio is that of the brokers' processor time for a
request. A ratio above 1 means that metrics cost that much. Each figure is the median of its rounds.

Ends with 1 if a ratio is above the limit beyond doubt: when three rounds of four say so.
"""

import argparse
import asyncio
import contextlib
import gc
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conformance.parts import ROOT, PartMissing, not_run
from conformance.server import ServerFailed, interrupted_cleanly
from tests.broker.rig import Rig

from benchmarks.checks import Tree, quartiles, verdict
from benchmarks.load import measure
from penstock.broker.dispatch import make_handle
from penstock.broker.metering import Meters
from penstock.storage.ledger.flush_times import FlushTimes
from penstock.testing.ports import consecutive
from penstock.wire.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from penstock.wire.batch import Record, build_batch
from penstock.wire.codec import encode
from penstock.wire.exchange import Reply
from penstock.wire.headers import request_header

LIMIT = 1.02
LOADS = ("1K-d1", "1K-pipe64", "1K-8x5")
REQUESTS = 1000
IN_FLIGHT = (1, 32)
WARM_S = 0.5
SCRAPE_SECONDS = 2.0


class Bench:
    """One broker without sockets, and the requests that it is handed."""

    def __init__(self, rig: Rig, watched: bool) -> None:
        self._rig = rig
        if watched:
            flusher = rig.broker.ledger._flusher
            assert flusher is not None
            flusher.watch(FlushTimes())
        batch = build_batch([Record(value=b"x" * 1000)])
        data = [TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch)])]
        body = encode(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=data), 9)
        self._frame = memoryview(bytearray(request_header(0, 9, 1, "bench") + body))

    @classmethod
    async def open(cls, folder: Path, *, watched: bool) -> "Bench":
        rig = await Rig.start(folder)
        rig.broker.meters = Meters(timed=watched)
        rig._handle = make_handle(rig.broker)
        await rig.topic("t")
        return cls(rig, watched)

    async def run(self, requests: int, in_flight: int) -> float:
        """Microseconds of this thread for a request."""
        began = time.thread_time()
        for _ in range(requests // in_flight):
            answers = [self._rig.handle(self._frame) for _ in range(in_flight)]
            last = answers[-1]
            assert isinstance(last, Reply)
            while not last.done:  # noqa: ASYNC110  The broker works in the turns of the loop.
                await asyncio.sleep(0)
        return (time.thread_time() - began) / requests * 1e6

    async def close(self) -> None:
        await self._rig.close()


async def in_process(folder: Path, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """By the number of requests in flight: pairs of costs, the watched broker's first."""
    brokers = [await Bench.open(folder / name, watched=name == "watched") for name in ("watched", "plain")]
    found: dict[str, list[tuple[float, float]]] = {}
    gc.disable()
    for in_flight in IN_FLIGHT:
        pairs = found[f"in process, {in_flight} in flight"] = []
        for number in range(rounds + 2):
            order = (0, 1) if number % 2 else (1, 0)
            costs = [0.0, 0.0]
            for which in order:
                costs[which] = await brokers[which].run(REQUESTS, in_flight)
                gc.collect()
            if number >= 2:  # The first ones load code and warm caches.
                pairs.append((costs[0], costs[1]))
    gc.enable()
    for broker in brokers:
        await broker.close()
    return found


@contextlib.contextmanager
def scraped(address: str | None) -> Any:
    """Somebody asks for metrics meanwhile, as a collector does."""
    over = threading.Event()

    def once() -> None:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
            answer.read()

    def scrape() -> None:
        while not over.wait(SCRAPE_SECONDS):
            once()

    thread = threading.Thread(target=scrape, daemon=True)
    if address is not None:
        once()  # The first one loads code.
        thread.start()
    yield
    over.set()
    if address is not None:
        thread.join()


def one_load(load: str, seconds: float, *, watched: bool) -> float:
    """Microseconds of the broker's processor time for a request."""
    with consecutive(1) as port:
        address = f"127.0.0.1:{port}" if watched else None
        settings = {"http.address": address} if address else {}
        with Tree("watched" if watched else "plain", ROOT / "src", settings) as tree, scraped(address):
            result = measure(tree.bootstrap, load, seconds, tree.pid, (f"--warm={WARM_S}",))
    cost: float = result["broker_cpu_us_per_request"]
    return cost


def with_clients(rounds: int, seconds: float, loads: Sequence[str]) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {f"client, {load}": [] for load in loads}
    for number in range(rounds):
        for load in loads:
            costs = {
                watched: one_load(load, seconds, watched=watched)
                for watched in ((True, False) if number % 2 else (False, True))
            }
            found[f"client, {load}"].append((costs[True], costs[False]))
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    return found


def line(name: str, pairs: Sequence[tuple[float, float]], limit: float) -> str:
    ratios = sorted(watched / plain for watched, plain in pairs)
    low, middle, high = quartiles(ratios)
    watched, plain = (statistics.median(side) for side in zip(*pairs, strict=True))
    return (
        f"{name:26} {plain:7.2f} -> {watched:7.2f} us/request   cost x {middle:.3f} ({low:.3f} to {high:.3f})   "
        f"{verdict(ratios, limit)}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    summary = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.metrics", description=summary)
    parser.add_argument("--rounds", type=int, default=8, help="with clients (default: %(default)s)")
    parser.add_argument("--rounds-in-process", type=int, default=150)
    parser.add_argument("--seconds", type=float, default=2.0, help="each load in each round (default: 2)")
    parser.add_argument("--limit", type=float, default=LIMIT, help="the ratio allowed (default: %(default)s)")
    parser.add_argument("loads", nargs="*", metavar="LOAD", help=f"default: {' '.join(LOADS)}")
    chosen = parser.parse_args(arguments)
    with interrupted_cleanly(), tempfile.TemporaryDirectory(prefix="benchmark-metrics-") as folder:
        try:
            found = asyncio.run(in_process(Path(folder), chosen.rounds_in_process))
            if chosen.rounds:
                found |= with_clients(chosen.rounds, chosen.seconds, chosen.loads or LOADS)
        except PartMissing as why:
            return not_run(why)
        except (ServerFailed, RuntimeError) as why:
            print(f"metrics: {why}", file=sys.stderr)
            return 2
    for name, pairs in found.items():
        print(line(name, pairs, chosen.limit))
    dearer = [
        name
        for name, pairs in found.items()
        if verdict(sorted(a / b for a, b in pairs), chosen.limit) == "DEARER"
    ]
    return 1 if dearer else 0


if __name__ == "__main__":
    sys.exit(main())
