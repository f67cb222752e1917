"""The table of all metrics: names, kinds, labels, words, and Kafka's name for the same.

`collecting` fills them, `make reference` writes docs/metrics.md from them, and tests hold that dashboards
and alerts name nothing else. Names follow Prometheus: base units, `_total` for counters. Times are in seconds
and sizes in bytes; the bounds of their buckets are powers of two of nanoseconds and of bytes.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram", "info"]

SECONDS_BITS = range(16, 36, 1)
"""Bounds of times: from 66 microseconds to 34 seconds."""
BYTES_BITS = range(8, 28, 2)
"""Bounds of sizes: from 256 bytes to 64 MiB."""


class Family(NamedTuple):
    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    kafka: str = ""
    """The JMX name of the same figure, or of the closest one."""
    section: str = ""


FAMILIES: dict[str, Family] = {}
_section = ""


def _begin(title: str) -> None:
    global _section  # noqa: PLW0603  The table is written once, from top to bottom.
    _section = title


def _family(name: str, kind: Kind, text: str, labels: str = "", kafka: str = "") -> Family:
    family = Family(name, kind, text, tuple(labels.split()), kafka, _section)
    assert name not in FAMILIES
    FAMILIES[name] = family
    return family


_REQUESTS = "kafka.network:type=RequestMetrics"
_TOPICS = "kafka.server:type=BrokerTopicMetrics"

_begin("Requests")
REQUESTS = _family(
    "penstock_requests_total",
    "counter",
    "Requests by API and version.",
    "api version",
    f"{_REQUESTS},name=RequestsPerSec,request={{api}},version={{version}}",
)
REQUEST_ERRORS = _family(
    "penstock_request_errors_total",
    "counter",
    "Error codes in answers: of whole answers, and of their topics, partitions and other items. "
    "CONNECTION_CLOSED: there was no answer, and the connection was closed.",
    "api error",
    f"{_REQUESTS},name=ErrorsPerSec,request={{api}},error={{error}}",
)
REQUEST_SECONDS = _family(
    "penstock_request_seconds",
    "histogram",
    "From when a request was read until its answer was ready. Of Produce's usual requests some are timed, at "
    "least one in 64, and stand for the others.",
    "api",
    f"{_REQUESTS},name=TotalTimeMs,request={{api}}",
)
REQUESTS_REFUSED = _family(
    "penstock_requests_unsupported_total",
    "counter",
    "Requests of an API or a version that is not served; their connections were closed.",
)
THROTTLED = _family(
    "penstock_throttled_requests_total", "counter", "Requests whose client was told to wait (quotas)."
)
THROTTLE_SECONDS = _family(
    "penstock_throttle_seconds_total",
    "counter",
    "How long clients were told to wait, in all.",
    kafka=f"{_REQUESTS},name=ThrottleTimeMs",
)

_begin("Topics")
RECORDS_IN = _family(
    "penstock_topic_received_records_total",
    "counter",
    "Records that became durable. Topics beyond `metrics.topics.max` are counted together as `other`.",
    "topic",
    f"{_TOPICS},name=MessagesInPerSec,topic={{topic}}",
)
BYTES_IN = _family(
    "penstock_topic_received_bytes_total",
    "counter",
    "Bytes of record batches that became durable, as stored (compressed).",
    "topic",
    f"{_TOPICS},name=BytesInPerSec,topic={{topic}}",
)
RECORDS_OUT = _family(
    "penstock_topic_sent_records_total",
    "counter",
    "Records in answers to Fetch, by the offsets that readers got on.",
    "topic",
)
BYTES_OUT = _family(
    "penstock_topic_sent_bytes_total",
    "counter",
    "Bytes of record batches in answers to Fetch.",
    "topic",
    f"{_TOPICS},name=BytesOutPerSec,topic={{topic}}",
)

_begin("The write-ahead log")
FLUSH_WAIT = _family(
    "penstock_flush_wait_seconds",
    "histogram",
    "How long records waited until their flush began: the queue before the store. Of quick flushes some are "
    "timed, at least one in 64, and stand for the others.",
    kafka=f"{_REQUESTS},name=RequestQueueTimeMs,request=Produce",
)
FLUSH_SECONDS = _family(
    "penstock_flush_seconds",
    "histogram",
    "From the beginning of a flush until it was durable.",
    kafka="kafka.log:type=LogFlushStats,name=LogFlushRateAndTimeMs",
)
FLUSH_BYTES = _family("penstock_flush_bytes", "histogram", "Bytes of a flush: its batches and its index.")
FLUSHES = _family("penstock_flushes_total", "counter", "Flushes that became durable.")
FLUSH_BATCHES = _family("penstock_flush_batches_total", "counter", "Record batches in these flushes.")
FLUSH_FAILURES = _family(
    "penstock_flush_failures_total", "counter", "Flushes that failed; their records were refused."
)
UNSETTLED = _family(
    "penstock_unsettled_bytes", "gauge", "Bytes of write-ahead logs that are not settled into segments yet."
)
SETTLE_LAG = _family(
    "penstock_settle_lag_seconds", "gauge", "Since when the oldest record waits that is not settled."
)
SETTLES = _family("penstock_settles_total", "counter", "Settlings.")
SETTLED_BYTES = _family("penstock_settled_bytes_total", "counter", "Bytes that settlings wrote.")
MERGE_LAG = _family(
    "penstock_merge_lag_seconds", "gauge", "Since when small segments wait to be merged; 0: none wait."
)
UNMERGED = _family("penstock_unmerged_partitions", "gauge", "Partitions with segments that may be merged.")
MERGES = _family("penstock_merges_total", "counter", "Merges of small segments.")
MOVED_BYTES = _family(
    "penstock_moved_bytes_total", "counter", "Bytes that were moved out of objects that were mostly dead."
)
COMPACTIONS = _family("penstock_compactions_total", "counter", "Passes of compaction.")
COMPACTION_READ = _family("penstock_compaction_read_bytes_total", "counter", "Bytes that compaction read.")
COMPACTION_WRITTEN = _family(
    "penstock_compaction_written_bytes_total", "counter", "Bytes that compaction wrote."
)

_begin("The store")
STORE_SECONDS = _family(
    "penstock_store_request_seconds",
    "histogram",
    "Requests to the store, retries included. `store` is `records`, or `metadata` where that is elsewhere; "
    "`kind` is the operation. Appends to a write-ahead log in a directory are penstock_flush_seconds.",
    "store kind",
    f"{_REQUESTS},name=LocalTimeMs,request={{api}}",
)
STORE_ERRORS = _family(
    "penstock_store_request_errors_total", "counter", "Requests to the store that failed.", "store kind"
)
STORE_BYTES = _family(
    "penstock_store_bytes_total",
    "counter",
    "Bytes of these requests: `direction` is `read` or `written`.",
    "store direction",
)
STORE_READS = _family(
    "penstock_store_reads_total", "counter", "Ranges of objects that readers of this broker asked for."
)
STORED_BYTES = _family(
    "penstock_stored_bytes",
    "gauge",
    "Bytes of the objects in which the partitions led here have records.",
    kafka="kafka.log:type=Log,name=Size",
)
LIVE_BYTES = _family(
    "penstock_live_bytes", "gauge", "Those of them that the partitions led here need, indexes included."
)
READABLE_BYTES = _family(
    "penstock_readable_bytes",
    "gauge",
    "Bytes of settled record batches that can be read. penstock_stored_bytes stays below about twice this.",
)
DELETED_OBJECTS = _family("penstock_deleted_objects_total", "counter", "Objects that were deleted.")
CACHE_READS = _family(
    "penstock_cache_reads_total",
    "counter",
    "Reads that a cache answered (`found` is yes) or not. `tail`: the newest batches; `blocks`: pieces of "
    "objects of a distant store.",
    "cache found",
)
CACHE_BYTES = _family("penstock_cache_bytes", "gauge", "Bytes that a cache holds.", "cache")

_begin("The cluster")
READY = _family(
    "penstock_ready", "gauge", "1 if the broker accepts, is in the cluster and its lease holds, else 0."
)
BROKERS = _family(
    "penstock_brokers",
    "gauge",
    "Brokers of the image, by `state`: live or fenced.",
    "state",
    "kafka.controller:type=KafkaController,name=ActiveBrokerCount",
)
TOPICS = _family(
    "penstock_topics",
    "gauge",
    "Topics of the image.",
    kafka="kafka.controller:type=KafkaController,name=GlobalTopicCount",
)
PARTITIONS = _family(
    "penstock_partitions",
    "gauge",
    "Partitions of the image.",
    kafka="kafka.controller:type=KafkaController,name=GlobalPartitionCount",
)
LEADERLESS = _family(
    "penstock_leaderless_partitions",
    "gauge",
    "Partitions of the image whose leader is not alive.",
    kafka="kafka.controller:type=KafkaController,name=OfflinePartitionsCount",
)
LEADERS = _family(
    "penstock_leader_partitions",
    "gauge",
    "Partitions that this broker leads and serves.",
    kafka="kafka.server:type=ReplicaManager,name=LeaderCount",
)
OPENING = _family(
    "penstock_opening_partitions", "gauge", "Partitions that this broker leads and still recovers."
)
IMAGE_VERSION = _family(
    "penstock_image_version",
    "gauge",
    "The number of the last entry of the metadata log in this broker's image.",
    kafka="kafka.server:type=broker-metadata-metrics,name=last-applied-record-offset",
)
IMAGE_AGE = _family(
    "penstock_image_age_seconds",
    "gauge",
    "How long ago the metadata log was last read to its end.",
    kafka="kafka.server:type=broker-metadata-metrics,name=last-applied-record-lag-ms",
)
LEASE_AGE = _family("penstock_lease_age_seconds", "gauge", "How long ago the last heartbeat began.")
LEVEL = _family("penstock_feature_level", "gauge", "The feature level of the cluster.")

_begin("Groups and transactions")
GROUPS = _family(
    "penstock_groups",
    "gauge",
    "Groups that this broker coordinates, by `state`.",
    "state",
    "kafka.server:type=GroupMetadataManager,name=NumGroups",
)
MEMBERS = _family("penstock_group_members", "gauge", "Members of these groups.")
GROUP_LAG = _family(
    "penstock_group_lag_records",
    "gauge",
    "Records between the committed offsets of a group and the ends of its partitions, as of some seconds "
    "ago. A group is missing while one of these ends is not known. Groups beyond `metrics.groups.max`, those "
    "with the least lag, are summed as `other`.",
    "group",
    "kafka.consumer:type=consumer-fetch-manager-metrics,name=records-lag",
)
TRANSACTIONS = _family(
    "penstock_transactions",
    "gauge",
    "Transactional ids that this broker coordinates, by the `state` of their transaction.",
    "state",
)
OPEN_TRANSACTIONS = _family(
    "penstock_open_transactions",
    "gauge",
    "Transactions of producers that are open in partitions led here, counted once for each partition.",
)

_begin("Connections and memory")
CONNECTIONS = _family(
    "penstock_connections",
    "gauge",
    "Connections of clients.",
    kafka="kafka.server:type=socket-server-metrics,name=connection-count",
)
ACCEPTED = _family(
    "penstock_connections_accepted_total",
    "counter",
    "Connections that were accepted.",
    kafka="kafka.server:type=socket-server-metrics,name=connection-creation-total",
)
REFUSED = _family(
    "penstock_connections_refused_total",
    "counter",
    "Connections that were closed on arrival: there were too many, or the broker was stopping.",
)
CLOSED = _family(
    "penstock_connections_closed_total",
    "counter",
    "Connections that the broker closed, by `reason`: idle, stalled (it held memory and did not get on) or "
    "protocol (it sent what cannot be understood).",
    "reason",
)
HELD_BYTES = _family(
    "penstock_request_memory_bytes",
    "gauge",
    "Bytes of requests and answers that are held for clients.",
    kafka="kafka.server:type=KafkaRequestHandlerPool,name=MemoryPoolUsed",
)
HELD_BYTES_MAX = _family(
    "penstock_request_memory_limit_bytes", "gauge", "The most that may be held (queued.max.request.bytes)."
)
HTTP_REFUSED = _family(
    "penstock_http_connections_refused_total",
    "counter",
    "Connections to the HTTP port that were closed on arrival, because there were too many.",
)

_begin("The process")
STALLS = _family(
    "penstock_loop_late_seconds",
    "histogram",
    "By how much a timer of the event loop was late, ten times a second: what stalls the loop stalls all "
    "clients.",
)
CPU = _family("process_cpu_seconds_total", "counter", "Processor time of this process, in seconds.")
RESIDENT = _family("process_resident_memory_bytes", "gauge", "Memory of this process.")
STARTED = _family(
    "process_start_time_seconds", "gauge", "When this process began to serve metrics, since the epoch."
)
OPEN_FILES = _family("process_open_fds", "gauge", "Open descriptors of this process.")
FILES_MAX = _family("process_max_fds", "gauge", "The most that it may have.")
BUILD = _family("penstock_build_info", "gauge", "Always 1. What runs.", "version broker cluster")
SCRAPE_SECONDS = _family(
    "penstock_scrape_seconds", "gauge", "How long the last page of metrics took to make, pauses included."
)
