"""Errors that a user can act on are told in one sentence, without the path that led to them.

Spark shows what a Python worker raises with its traceback: dozens of lines about Spark's and our insides, and
the sentence that matters at their end. Workers leave the traceback out when the environment says so, and look
for that when they report. An exception ends its worker, so what is set here holds for one report.
"""

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

from penstock.spark.errors import SourceError

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
