"""Penstock: an event log that speaks the Kafka protocol, over an object store, read by Spark."""

__version__ = "0.3.0"
