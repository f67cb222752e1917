"""Penstock, Apache Kafka and a null broker under the same clients in the same run: `python -m benchmarks`.

    python -m benchmarks --quick         every row once, shortly
    python -m benchmarks --only small    the rows whose name contains a word
    python -m benchmarks.load --help     pipeline prebuilt frames at one running broker

Like `conformance`, nothing here imports the broker: it is started as a process and spoken to by network.
"""
