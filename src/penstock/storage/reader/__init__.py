"""The reader of a store: what the manifests, the segments and the write-ahead logs hold of each partition.

Everybody who reads records from a store reads them through this room: a broker that takes a partition over,
Spark, audits and scrubs. It needs a store and a cluster image, and no broker.

    manifests   a partition's manifest, which must be its own
    contents    what the flushes of a write-ahead log hold of each partition, and what is damaged of them
    replaying   a partition brought forward: from its manifest, through its logs, to its end
    indexes     where the batches of a segment lie
    footers     which partitions a segment holds records of
    times       offsets by time
    stretches   the batches of a range of offsets, read a window at a time
    view        all of it for some partitions, kept up to date while brokers write

Where the image comes from is the caller's affair: `cluster.reading` reads it from the store. A log that is
sealed ends where the image says. What lies behind that end was never acknowledged.
"""
