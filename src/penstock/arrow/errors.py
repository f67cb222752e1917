"""Errors for those who read the store: one sentence, or two if the second says what to do."""


class SourceError(Exception):
    """The base of what can go wrong for a reason that a user can act on."""


class OptionError(SourceError, ValueError):
    """An option is missing, unknown or contradicts another. The message is one sentence for a person."""

    def __init__(self, sentence: str, advice: str = "") -> None:
        """`advice`: a second sentence, with a space before it."""
        super().__init__(sentence + advice)


class CorruptLogError(SourceError):
    """The stored bytes contradict themselves. The message says where."""


class LostRecordsError(SourceError):
    """Records that a query needs are not there any more."""

    def __init__(
        self, topic: str, partition: int, first: int, last: int, reason: str = "", advice: str = ""
    ) -> None:
        """`advice`: a sentence on what to do, with a space before it."""
        super().__init__(
            f"Records {first} to {last} of topic {topic!r} partition {partition} are gone"
            f"{reason or ', because the store does not hold them'}.{advice}"
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


class MissingTopicError(SourceError, LookupError):
    """A topic or partition that was asked for by name does not exist."""


class TopicChangedError(SourceError):
    """A topic was deleted, or deleted and created again, while a query had a position in it."""


class StoreAccessError(SourceError):
    """The store, or the cluster in it, cannot be read."""
