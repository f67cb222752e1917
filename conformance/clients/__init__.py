"""One small program per Kafka client, all speaking the line protocol of `protocol.py`."""
