"""Errors that only queries of Spark can have. The others are in `arrow/errors.py`."""

from penstock.arrow.errors import SourceError


class OpenTransactionError(SourceError):
    """A micro-batch was planned beyond an open transaction, at read_uncommitted, and is to be run again."""

    def __init__(self, topic: str, partition: int, offset: int, stable: int) -> None:
        super().__init__(
            f"The micro-batch that is run again ends at offset {offset} of topic {topic!r} partition"
            f" {partition}, and a transaction that is open there begins at {stable}. Start the query again"
            " when the transaction has ended, or with isolation.level read_uncommitted as before."
        )

    def __reduce__(self) -> tuple[object, ...]:
        # Spark pickles exceptions; the constructor takes other things than the message.
        return (SourceError, (str(self),))


class TableError(SourceError):
    """A table cannot be read beside the tail of its topic. The message is one sentence for a person."""
