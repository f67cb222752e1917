"""Fills the families of `families` from the parts of a broker. Nothing is counted here: it is looked up.

Each function yields the families of one part. A part that is not there (no incarnation serves) yields nothing
of its own, so that a scrape at any moment has what is known.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from penstock import __version__
from penstock.broker.registry import APIS
from penstock.monitor import families as f
from penstock.storage.partitions.traffic import OTHER
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.broker.metering import Meters
    from penstock.monitor.families import Family
    from penstock.monitor.lag import Census
    from penstock.monitor.monitor import Counted
    from penstock.monitor.store_meter import StoreMeter
    from penstock.server.server import Server
    from penstock.storage.ledger.flush_times import FlushTimes
    from penstock.storage.ledger.ledger import Ledger
    from penstock.tally import Histogram

CONNECTION_CLOSED = "CONNECTION_CLOSED"
_PAGE_BYTES = resource.getpagesize()

Samples = Iterable[tuple[tuple[str, ...], float]]


def of_process(counted: Counted, http_refused: int, scrape_seconds: float) -> Iterator[Metric]:
    times = os.times()
    yield one(f.CPU, times.user + times.system)
    resident = _resident_bytes()
    if resident is not None:
        yield one(f.RESIDENT, resident)
    yield one(f.STARTED, counted.started_at)
    yield one(f.FILES_MAX, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield histogram(f.STALLS, {(): counted.stalls.late})
    yield one(f.HTTP_REFUSED, http_refused)
    yield one(f.SCRAPE_SECONDS, scrape_seconds)


def open_files() -> Metric | None:
    """How many descriptors are open. Thousands take a while to list, so a thread does it."""
    try:
        return one(f.OPEN_FILES, len(os.listdir("/proc/self/fd")))
    except OSError:
        return None


def of_requests(meters: Meters) -> Iterator[Metric]:
    yield counter(
        f.REQUESTS,
        (
            ((APIS[key].name, str(version)), meter.requests)
            for (key, version), meter in sorted(meters.requests.items())
        ),
    )
    errors = {(APIS[key].name, _code_name(code)): count for (key, code), count in meters.errors.items()}
    errors |= {(APIS[key].name, CONNECTION_CLOSED): count for key, count in meters.closed.items()}
    yield counter(f.REQUEST_ERRORS, sorted(errors.items()))
    yield histogram(
        f.REQUEST_SECONDS, {(APIS[key].name,): times for key, times in sorted(meters.times.items())}
    )
    yield one(f.REQUESTS_REFUSED, meters.unknown)
    yield one(f.THROTTLED, meters.throttled)
    yield one(f.THROTTLE_SECONDS, meters.throttled_ms / 1000)


def of_stores(meters: Iterable[StoreMeter]) -> Iterator[Metric]:
    used = [meter for meter in meters if meter.times]
    yield histogram(
        f.STORE_SECONDS,
        {(meter.name, kind): times for meter in used for kind, times in meter.times.items() if times.sum},
    )
    yield counter(
        f.STORE_ERRORS,
        (((meter.name, kind), count) for meter in used for kind, count in meter.errors.items()),
    )
    yield counter(
        f.STORE_BYTES,
        (
            sample
            for meter in used
            for sample in (
                ((meter.name, "read"), meter.bytes_read),
                ((meter.name, "written"), meter.bytes_written),
            )
        ),
    )


def of_flushes(times: FlushTimes) -> Iterator[Metric]:
    yield histogram(f.FLUSH_WAIT, {(): times.wait})
    yield histogram(f.FLUSH_SECONDS, {(): times.write})
    yield histogram(f.FLUSH_BYTES, {(): times.bytes}, f.BYTES_BITS, 1)


def of_broker(broker: Broker, ready: bool) -> Iterator[Metric]:
    image, clock = broker.image, broker.clock
    yield gauge(f.BUILD, [((__version__, str(broker.broker_id), image.cluster_id), 1)])
    yield one(f.READY, int(ready))
    fenced = sum(info.fenced for info in image.brokers.values())
    live = len(image.brokers) - fenced
    yield gauge(f.BROKERS, [(("live",), live), (("fenced",), fenced)])
    partitions = sum(len(topic.partitions) for topic in image.topics.values())
    led = sum(
        count
        for leader, count in image.leader_counts.items()
        if leader in image.brokers and not image.brokers[leader].fenced
    )
    yield one(f.TOPICS, len(image.topics))
    yield one(f.PARTITIONS, partitions)
    yield one(f.LEADERLESS, partitions - led)
    yield one(f.IMAGE_VERSION, image.version)
    yield one(f.IMAGE_AGE, max(0, clock.time_ms() - broker.metadata.complete_as_of_ms) / 1000)
    if broker.membership is not None:
        yield one(f.LEASE_AGE, clock.monotonic() - broker.membership.heartbeats.heard_at)
    yield one(f.LEVEL, image.level)


def of_ledger(ledger: Ledger, tail_reads: int) -> Iterator[Metric]:
    counters = ledger.counters()
    for family, name in _LEDGER:
        yield one(family, counters[name])
    lags = ledger.lags()
    yield one(f.SETTLE_LAG, lags.settle_seconds)
    yield one(f.MERGE_LAG, lags.merge_seconds)
    yield one(f.UNMERGED, lags.unmerged_partitions)
    yield one(f.OPENING, lags.opening_partitions)
    blocks_asked = counters["block_requests"]
    yield counter(
        f.CACHE_READS,
        [
            (("tail", "yes"), tail_reads),
            (("tail", "no"), counters["store_reads"]),
            (("blocks", "yes"), counters["block_hits"]),
            (("blocks", "no"), blocks_asked),
        ],
    )
    yield gauge(
        f.CACHE_BYTES,
        [(("tail",), counters["tail_cache_bytes"]), (("blocks",), counters["block_cache_bytes"])],
    )


_LEDGER = (
    (f.LEADERS, "partitions"),
    (f.FLUSHES, "flushes"),
    (f.FLUSH_BATCHES, "flush_batches"),
    (f.FLUSH_FAILURES, "flush_failures"),
    (f.UNSETTLED, "unsettled_bytes"),
    (f.SETTLES, "settles"),
    (f.SETTLED_BYTES, "settled_bytes"),
    (f.MERGES, "merges"),
    (f.MOVED_BYTES, "moved_bytes"),
    (f.READABLE_BYTES, "readable_bytes"),
    (f.LIVE_BYTES, "live_bytes"),
    (f.STORED_BYTES, "stored_bytes"),
    (f.COMPACTIONS, "cleanings"),
    (f.COMPACTION_READ, "cleaner_bytes_read"),
    (f.COMPACTION_WRITTEN, "cleaner_bytes_written"),
    (f.STORE_READS, "store_reads"),
    (f.DELETED_OBJECTS, "objects_deleted"),
)


def of_topics(broker: Broker) -> Iterator[Metric]:
    traffic = broker.ledger.traffic
    traffic.forget_others(broker.image.topics)
    topics = sorted(traffic.all(), key=lambda item: item[0])
    yield counter(f.RECORDS_IN, (((name,), of.records_in) for name, of in topics))
    yield counter(f.BYTES_IN, (((name,), of.bytes_in) for name, of in topics))
    yield counter(f.RECORDS_OUT, (((name,), of.records_out) for name, of in topics))
    yield counter(f.BYTES_OUT, (((name,), of.bytes_out) for name, of in topics))


def of_groups(census: Census, groups_max: int) -> Iterator[Metric]:
    yield gauge(f.GROUPS, (((state,), count) for state, count in sorted(census.states.items())))
    yield one(f.MEMBERS, census.members)
    yield gauge(f.GROUP_LAG, _most(census.lags, groups_max))
    yield gauge(f.TRANSACTIONS, (((state,), count) for state, count in sorted(census.transactions.items())))
    yield one(f.OPEN_TRANSACTIONS, census.open_transactions)


def _most(lags: Mapping[str, int], count_max: int) -> Samples:
    """The groups with the most lag, and the sum of the others. A group that is called so is one of them."""
    ordered = sorted(lags.items(), key=lambda item: (item[0] == OTHER, -item[1], item[0]))
    named = [item for item in ordered[:count_max] if item[0] != OTHER]
    for group, lag in named:
        yield (group,), lag
    if len(ordered) > len(named):
        yield (OTHER,), sum(lag for _group, lag in ordered[len(named) :])


def of_server(server: Server) -> Iterator[Metric]:
    yield one(f.CONNECTIONS, server.connections)
    yield one(f.ACCEPTED, server.accepted)
    yield one(f.REFUSED, server.refused)
    yield counter(f.CLOSED, (((reason,), count) for reason, count in server.closed.items()))
    yield one(f.HELD_BYTES, server.memory.used)
    yield one(f.HELD_BYTES_MAX, server.memory.limit)


# -- families from figures -------------------------------------------------------------------------------


def one(family: Family, value: float) -> Metric:
    """A family without labels."""
    make = counter if family.kind == "counter" else gauge
    return make(family, [((), value)])


def counter(family: Family, samples: Samples) -> Metric:
    metric = CounterMetricFamily(family.name, family.help, labels=family.labels)
    for labels, value in samples:
        metric.add_metric(labels, value)
    return metric


def gauge(family: Family, samples: Samples) -> Metric:
    metric = GaugeMetricFamily(family.name, family.help, labels=family.labels)
    for labels, value in samples:
        metric.add_metric(labels, value)
    return metric


def histogram(
    family: Family,
    found: Mapping[tuple[str, ...], Histogram],
    bits: range = f.SECONDS_BITS,
    unit: float = 1e9,
) -> Metric:
    """`unit`: how many of what was measured are one of what is shown."""
    metric = HistogramMetricFamily(family.name, family.help, labels=family.labels)
    for labels, one_histogram in found.items():
        counts = one_histogram.below(bits)
        buckets = [(f"{2**n / unit:.6g}", float(count)) for n, count in zip(bits, counts, strict=True)]
        buckets.append(("+Inf", float(one_histogram.count)))
        metric.add_metric(labels, buckets, one_histogram.sum / unit)
    return metric


def _code_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


def _resident_bytes() -> int | None:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except OSError:
        return None
