"""Isolation: which records of transactions a reader sees."""

from enum import StrEnum


class Isolation(StrEnum):
    """By Kafka's names. Neither level shows markers.

    A reader at READ_COMMITTED stops at the last stable offset, so it waits for the oldest open transaction.
    It passes over records of aborted transactions. A reader at READ_UNCOMMITTED reads up to the high
    watermark and sees every record, whatever became of its transaction or will.
    """

    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"
