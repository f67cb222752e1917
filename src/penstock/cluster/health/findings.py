"""The results of a look at the whole store."""

from typing import Final

import msgspec

ENTRY: Final = "metadata entry"
SNAPSHOT: Final = "metadata snapshot"
IDENTITY: Final = "cluster identity"
MANIFEST: Final = "manifest"
INDEX: Final = "index"
FOOTER: Final = "footer"
BATCH: Final = "batch"
SEGMENT: Final = "segment"
LOG_FILE: Final = "log file"
FLUSH: Final = "flush"
LOGGED_BATCH: Final = "logged batch"
RECORDS: Final = "records"
HURT: Final = "hurt range"
TORN: Final = "torn log"
"""Not hurt: nobody was promised that it is there."""


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """An object or a part of one that is provably not as it was written, or provably not there."""

    what: str
    """A kind of thing: one of the names above."""
    key: str
    reason: str
    position: int = -1
    """Where in the object, and how many bytes; -1: all of it."""
    length: int = -1
    topic: str = ""
    """Whose records they are; "": nobody's, or nobody can tell any more."""
    partition: int = -1
    start: int = -1
    """The offsets from `start` up to, not including, `end`; -1: none is known."""
    end: int = -1

    @property
    def sentence(self) -> str:
        place = self.key if self.position < 0 else f"{self.key} at byte {self.position}"
        whose = ""
        if self.topic:
            whose = f"{self.topic}-{self.partition} "
            if self.start >= 0:
                whose += f"offsets {self.start} to {self.end - 1} "
        return f"{whose}({self.what} in {place}): {self.reason}"


class Unread(msgspec.Struct, frozen=True):
    """An object that could not be read: refused, late, or of a form that this version does not know. It may
    be whole."""

    key: str
    reason: str


class Totals(msgspec.Struct):
    """How much was read."""

    objects: int = 0
    bytes: int = 0
    batches: int = 0
    records: int = 0


class Report(msgspec.Struct):
    cluster_id: str = ""
    version: int = 0
    """The entry of the metadata log that the store was compared with."""
    totals: Totals = msgspec.field(default_factory=Totals)
    damaged: list[Finding] = []
    torn: list[Finding] = []
    """What a loss of power took where nobody waits for the disk."""
    unread: list[Unread] = []

    @property
    def exit_code(self) -> int:
        if self.damaged:
            return 1
        return 2 if self.unread else 0
