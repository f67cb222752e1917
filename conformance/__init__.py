"""Proof against real Kafka clients and against Apache Kafka itself.

Each module with a command line proves one claim and runs from the root of the repository as
`python -m conformance.NAME`; `--help` says what it takes, `--against` which broker it is held against:

    proofs         all of them in one list, and a report of a night in which all were run
    parts          fetch everything the others need
    matrix         every client writes, every client reads the same bytes
    differential   the same requests to Apache Kafka and to Penstock, answers compared field by field
    upstream       the integration tests that client libraries ship
    crash          kill -9 rounds under idempotent producers
    abuse          hostile bytes beside a healthy client
    groups, groups.rebalance, groups.heartbeats, groups.tools, groups.etl, compaction
                   groups resume exactly, and lose nothing while members come and go
    transactions, transactions.chains, transactions.copier, transactions.streams, transactions.etl,
    transactions.tools, transactions.flink
                   transactions of every client, in chains and under faults, and those of Kafka's own programs
    cluster, cluster.starts, cluster.topics, cluster.costs, cluster.tools, faults
                   several brokers as one cluster, whatever stops, dies or pauses
    upgrade        brokers of the last version become brokers of this one
    sick, soak     a store that is late, refuses, rots or loses power; an hour of a mixed load
    s3, etcd, spark.connector, spark.exactly_once
                   a real object store; a real etcd; Spark's own connector; a driver that is killed

`server.py` is the interface of a broker under test, `oracle.py` and `target.py` its two implementations;
`client.py` drives the client programs in `clients/`; `wire/` is a codec made from Kafka's own message
definitions, so that what checks the broker shares no code with it: it is started as a process and spoken to
over the network. (The cluster checks use Penstock's own client, whose codec `differential` has checked.)
"""
