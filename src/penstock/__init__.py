"""Penstock: an event log that speaks the Kafka protocol, over an object store, read by Spark."""

__version__ = "0.3.0"

TYPE_CHECKING = False
"""As `typing` has it, whose import would take longer than all of this."""

if TYPE_CHECKING:
    from penstock.arrow.log import Log as Log
else:

    def __getattr__(name: str) -> object:
        """`from penstock import Log` loads what reads a store. Nothing else does."""
        if name == "Log":
            from penstock.arrow.log import Log

            return Log
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
