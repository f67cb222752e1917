"""Which page is written by which function."""

from collections.abc import Callable
from pathlib import Path

from conformance.docs.reference import apis, command_line, differences, errors, proofs, spark_options
from penstock.monitor import reference as metrics
from penstock.settings import reference as settings

ROOT = Path(__file__).resolve().parent.parent.parent.parent

PAGES: dict[str, Callable[[], str]] = {
    "apis.md": apis.markdown,
    "command-line.md": command_line.markdown,
    "differences.md": differences.markdown,
    "errors.md": errors.markdown,
    "metrics.md": metrics.markdown,
    "proofs.md": proofs.markdown,
    "settings.md": settings.markdown,
    "spark-options.md": spark_options.markdown,
}
