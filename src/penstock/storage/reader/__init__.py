"""The reader of a store: the records of each partition in manifests, segments and write-ahead logs.

All readers of records use this room: a broker that takes a partition over, Spark, audits and scrubs. It needs
a store and a cluster image, and no broker.

    manifests   a partition's manifest, which must be its own
    contents    the batches of each partition in the flushes of a write-ahead log, and the damage in them
    replaying   a partition brought forward: from its manifest, through its logs, to its end
    indexes     where the batches of a segment lie
    footers     which partitions a segment holds records of
    times       offsets by time
    stretches   the batches of a range of offsets, read a window at a time
    view        all of it for some partitions, kept up to date while brokers write

The caller brings the image: `cluster.reading` reads it from the store. A sealed log ends where the image
says. Flushes beyond that end were never acknowledged.
"""
