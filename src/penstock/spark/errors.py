"""Errors for users of the data source: one sentence, or two if the second says what to do."""


class SourceError(Exception):
    """The base of what can go wrong for a reason that a user can act on."""


class CorruptLogError(SourceError):
    """The stored bytes contradict themselves. The message says where."""


class LostRecordsError(SourceError):
    """Records that a query needs are not there any more."""

    def __init__(self, topic: str, partition: int, first: int, last: int, reason: str = "") -> None:
        super().__init__(
            f"Records {first} to {last} of topic {topic!r} partition {partition} are gone"
            f"{reason or ', because the store does not hold them'}."
            " Set failOnDataLoss to false to go on without them."
        )
        self.first = first
        self.last = last

    def __reduce__(self) -> tuple[object, ...]:
        # Spark pickles exceptions; the constructor takes other things than the message.
        return (_again, (type(self), str(self), self.first, self.last))


def _again(kind: type[LostRecordsError], message: str, first: int, last: int) -> LostRecordsError:
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    error.first, error.last = first, last
    return error


class TakeoverError(SourceError):
    """A write-ahead log was sealed, and nobody has said yet where it ends."""

    def __init__(self) -> None:
        super().__init__(
            "The log of a stopped broker was sealed, but no broker has taken it over yet."
            " Start a broker on the store, or try again in a moment."
        )


class MissingTopicError(SourceError):
    """A topic or partition that was asked for by name does not exist."""


class TopicChangedError(SourceError):
    """A topic was deleted, or deleted and created again, while a query had a position in it."""


class StoreAccessError(SourceError):
    """The store, or the cluster in it, cannot be read."""


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
