"""Every option of `format("penstock")`, with what it does: `options.py` takes no other, docs/spark-options.md lists them."""

READING = {
    "store": "The store: a directory or a URL such as s3://bucket/prefix. Without it a broker is asked where it is.",
    "kafka.bootstrap.servers": "Brokers: they are asked for the store if `store` is not given, and told of progress if `group.id` is.",
    "subscribe": "Topics, comma-separated. One of `subscribe`, `subscribePattern` and `assign` must be given.",
    "subscribePattern": "A regular expression for the names of topics.",
    "assign": 'Partitions, as JSON: `{"orders": [0, 1]}`.',
    "startingOffsets": 'earliest, latest, or JSON: `{"orders": {"0": 23, "1": -2}}`, where -2 is earliest and -1 latest. Batch reads begin at earliest, streams at latest. A stream that has a checkpoint goes on from there.',
    "endingOffsets": "Where a batch read ends, in the same form; latest if not given.",
    "startingTimestamp": "Begin at the first record of each partition from this time on, in milliseconds since 1970. It comes before `startingOffsetsByTimestamp`, and both before `startingOffsets`.",
    "endingTimestamp": "End before the first record from this time on, in milliseconds since 1970. For batch reads.",
    "startingOffsetsByTimestamp": 'The same by partition, as JSON: `{"orders": {"0": 1000}}`.',
    "endingOffsetsByTimestamp": "The same by partition, for the end of a batch read.",
    "startingOffsetsByTimestampStrategy": "What happens where no record is so late: error (the default), or latest.",
    "isolation.level": "read_committed (the default) leaves out what was aborted, and ends or waits where the oldest open transaction begins. read_uncommitted reads all.",
    "kafka.isolation.level": "The same, as Spark's Kafka source takes it.",
    "failOnDataLoss": "true (the default): a read fails if records that it should begin with were deleted meanwhile. false: it goes on with what is left.",
    "includeHeaders": "true: there is a column `headers`. The default is false.",
    "minPartitions": "At least so many tasks.",
    "maxRecordsPerPartition": "At most so many records in one task.",
    "splitBytes": "A task reads about so many bytes; 128 MiB if not given.",
    "maxOffsetsPerTrigger": "A micro-batch has at most so many records.",
    "minOffsetsPerTrigger": "A micro-batch waits for so many records, or for `maxTriggerDelay`.",
    "maxTriggerDelay": "How long a micro-batch waits for `minOffsetsPerTrigger`, as `30s` or `15m`, in milliseconds without a unit; 15m if not given. The first one after a start does not wait.",
    "maxBytesPerTrigger": "A micro-batch has about so many stored bytes.",
    "group.id": "A stream reports how far it is as this consumer group, so that Kafka's tools show its lag.",
    "kafka.group.id": "The same, as Spark's Kafka source takes it.",
    "checkCrc": "Whether checksums of batches are checked while they are read; true if not given.",
}

WRITING = {
    "kafka.bootstrap.servers": "Brokers. One of this and `store` must be given.",
    "store": "The store, in which the brokers are looked up.",
    "topic": "Where rows go that have no column `topic`.",
    "kafka.compression.type": "How batches are compressed: none (the default), gzip, snappy, lz4 or zstd.",
    "includeHeaders": "Changes nothing, as in Spark's Kafka sink: a column `headers` is always written.",
    "checkpointLocation": "Spark's own: where a stream keeps how far it is.",
    "queryName": "Spark's own: the name of a stream.",
}

MOOT = (
    "groupIdPrefix", "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs",
    "path",
)  # fmt: skip
"""Options of Spark's connector that tune its consumer. There is none here, so they change nothing; a job that sets
them still runs when it changes its format."""

_BYTES = "keys and values are bytes, and Spark's functions make something else of them"

REFUSED = {
    "kafka.auto.offset.reset": "startingOffsets says where to begin",
    "kafka.enable.auto.commit": "a stream goes on from its checkpoint, and 'group.id' reports how far it is",
    "kafka.interceptor.classes": "there is no Kafka client that would call them",
    "kafka.partitioner.class": "give the rows a column 'partition'",
    "kafka.key.deserializer": _BYTES,
    "kafka.value.deserializer": _BYTES,
    "kafka.key.serializer": _BYTES,
    "kafka.value.serializer": _BYTES,
}
"""Settings of Kafka's clients that ask for other rows than there would be, each with what to do instead. Spark's
connector refuses them, too, but for the partitioner, which it calls."""
