"""The log levels of this broker's process, as the BROKER_LOGGER resource of the config APIs (KIP-412).

Levels live in the process and end with it; nothing is stored. Kafka's names of levels are used: TRACE is
everything, FATAL is Python's CRITICAL.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple

from penstock.metadata.refusal import Refusal
from penstock.wire.errors import ErrorCode

ROOT = "root"
SET, DELETE, APPEND, SUBTRACT = range(4)

_LEVELS = {
    "DEBUG": logging.DEBUG,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "INFO": logging.INFO,
    "TRACE": 5,
    "WARN": logging.WARNING,
}


class LevelChange(NamedTuple):
    logger: str
    operation: int
    level: str | None


def levels() -> dict[str, str]:
    """The level in force of every logger that exists, by name."""
    known = [name for name, logger in logging.root.manager.loggerDict.items() if _is_logger(logger)]
    return {
        ROOT: _level_name(logging.root.getEffectiveLevel()),
        **{name: _level_name(logging.getLogger(name).getEffectiveLevel()) for name in known},
    }


def check(changes: Iterable[LevelChange]) -> Refusal | None:
    """Why the changes cannot be made, in Kafka's words, or None."""
    for change in changes:
        refusal = _check(change)
        if refusal is not None:
            return refusal
    return None


def carry_out(changes: Iterable[LevelChange]) -> None:
    """Make changes that `check` has nothing against."""
    for change in changes:
        logger = logging.root if change.logger == ROOT else logging.getLogger(change.logger)
        logger.setLevel(_LEVELS[change.level or ""] if change.operation == SET else logging.NOTSET)


def _check(change: LevelChange) -> Refusal | None:
    if change.operation in {APPEND, SUBTRACT}:
        name = "APPEND" if change.operation == APPEND else "SUBTRACT"
        message = f"{name} operation is not allowed for the BROKER_LOGGER resource"
        return Refusal(ErrorCode.INVALID_REQUEST, message)
    if change.operation not in {SET, DELETE}:
        return Refusal(ErrorCode.INVALID_REQUEST, f"Unknown operations type {change.operation}")
    if change.logger != ROOT and not _is_logger(logging.root.manager.loggerDict.get(change.logger)):
        return Refusal(ErrorCode.INVALID_CONFIG, f"Logger {change.logger} does not exist!")
    if change.operation == DELETE and change.logger == ROOT:
        message = "Removing the log level of the root logger is not allowed"
        return Refusal(ErrorCode.INVALID_REQUEST, message)
    if change.operation == SET and change.level not in _LEVELS:
        message = (
            f"Cannot set the log level of {change.logger} to {change.level} as it is not a supported log "
            f"level. Valid log levels are {', '.join(_LEVELS)}"
        )
        return Refusal(ErrorCode.INVALID_CONFIG, message)
    return None


def _is_logger(entry: object) -> bool:
    """The logging module keeps place holders for the parents of loggers."""
    return isinstance(entry, logging.Logger)


def _level_name(level: int) -> str:
    """The most verbose of Kafka's levels that lets through no more than `level` does."""
    return min((number, name) for name, number in _LEVELS.items() if number >= min(level, logging.CRITICAL))[
        1
    ]
