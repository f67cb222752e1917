"""Proof against real Kafka clients and against Apache Kafka itself.

Each module with a command line proves one claim and runs from the root of the repository:

    python -m conformance.parts          fetch everything the others need
    python -m conformance.matrix         every client writes, every client reads the same bytes
    python -m conformance.differential   the same requests to Apache Kafka and to Penstock, answers compared
    python -m conformance.crash          kill -9 rounds under idempotent producers
    python -m conformance.abuse          hostile bytes beside a healthy client
    python -m conformance.upstream       the integration tests that client libraries ship
    python -m conformance.groups         groups come back and continue at the exact next record
    python -m conformance.compaction     10 million updates to 10,000 keys; Kafka's LogCompactionTester

Nothing here imports the broker: it is started as a process and spoken to over the network.
"""
