"""docs/metrics.md, written from the table of metrics: `make reference`."""

from penstock.monitor.families import BYTES_BITS, FAMILIES, SECONDS_BITS, Family

_INTRODUCTION = """\
# Metrics

Written by `make reference` from the table in `src/penstock/monitor/families.py`; a test fails while the two
differ.

`penstock start --http HOST:PORT` serves them at `/metrics`, in Prometheus' text form and in OpenMetrics'
for those who accept it. Each broker tells of itself: sum over brokers for the cluster. Counters begin at 0
with the process; those of the write-ahead log and of settling also when a broker that was fenced registers
again. Times are in seconds, in buckets from {first_time:.2g} s to {last_time:.2g} s; sizes in bytes, in
buckets from {first_size} to {last_size}. Both are powers of two.

The number of series is bounded: `metrics.topics.max` topics and `metrics.groups.max` groups have series of
their own (100 each), and all others share one that is called `other`. There are no series by partition,
client or member.

`deploy/prometheus/alerts.yml` has alert rules, and `deploy/grafana/penstock.json` a dashboard.
"""

_KAFKA = """\
## Kafka's names

The JMX names that dashboards for Kafka ask for, and the metric that has the same figure or the closest one.
Rates (`...PerSec`) are `rate(..._total[1m])` here, and percentiles `histogram_quantile(0.99,
rate(..._bucket[1m]))`. `UnderReplicatedPartitions` has no counterpart: the store holds the copies.

| JMX | metric |
|---|---|
"""


def markdown() -> str:
    parts = [
        _INTRODUCTION.format(
            first_time=2 ** SECONDS_BITS[0] / 1e9,
            last_time=2 ** SECONDS_BITS[-1] / 1e9,
            first_size=2 ** BYTES_BITS[0],
            last_size=2 ** BYTES_BITS[-1],
        )
    ]
    section = ""
    for family in FAMILIES.values():
        if family.section != section:
            section = family.section
            parts.append(f"\n## {section}\n\n| metric | kind | labels | what it says |\n|---|---|---|---|\n")
        parts.append(_row(family))
    parts.append("\n" + _KAFKA)
    parts += [f"| `{one.kafka}` | `{one.name}` |\n" for one in FAMILIES.values() if one.kafka]
    return "".join(parts)


def _row(family: Family) -> str:
    labels = ", ".join(f"`{label}`" for label in family.labels) or "-"
    return f"| `{family.name}` | {family.kind} | {labels} | {family.help} |\n"


if __name__ == "__main__":
    print(markdown(), end="")
