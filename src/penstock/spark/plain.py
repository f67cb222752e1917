"""Reports errors that a user can act on in one sentence, without a traceback.

Spark shows an exception of a Python worker with its traceback: dozens of lines about Spark's and our insides,
and the sentence that matters at their end. A worker leaves the traceback out if the environment says so; it
looks for that when it reports. An exception ends its worker, so a setting made here holds for one report.
"""

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

from penstock.arrow.errors import SourceError

P = ParamSpec("P")
T = TypeVar("T")

HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"


def plainly(method: Callable[P, T]) -> Callable[P, T]:
    """For a method that Spark calls in a worker."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except SourceError:
            os.environ[HIDE_TRACEBACK] = "1"
            raise

    return call


def all_plainly(rows: Iterator[Any]) -> Iterator[Any]:
    """For what such a method gives piece by piece."""
    try:
        yield from rows
    except SourceError:
        os.environ[HIDE_TRACEBACK] = "1"
        raise
