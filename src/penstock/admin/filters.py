"""Which records somebody wants: by key, text, a field of their JSON, or a header."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from penstock.admin.resetting import is_number
from penstock.client import ClientError
from penstock.wire.batch import Record

Matches = Callable[[Record], bool]
_STEP = re.compile(r"\[(\d+|\*)\]")


class FilterError(ClientError):
    """What was asked for cannot be understood. The message is one sentence."""


def matching(
    keys: Sequence[str], greps: Sequence[str], fields: Sequence[str], headers: Sequence[str]
) -> Matches | None:
    """What a record must have: one of the keys, all patterns in its value, all fields of its JSON, all
    headers. None if nothing is asked for."""
    tests: list[Matches] = []
    if keys:
        wanted = {_bytes(key) for key in keys}
        tests.append(lambda record: record.key in wanted)
    tests += [_grep(text) for text in greps]
    tests += [_field(text) for text in fields]
    tests += [_header(text) for text in headers]
    if not tests:
        return None
    return lambda record: all(test(record) for test in tests)


def _bytes(text: str) -> bytes:
    """What was typed, also where it is not UTF-8."""
    return text.encode(errors="surrogateescape")


def _grep(text: str) -> Matches:
    try:
        pattern = re.compile(_bytes(text))
    except re.error as error:
        raise FilterError(f"{text!r} is not a regular expression: {error}.") from None
    return lambda record: record.value is not None and pattern.search(record.value) is not None


def _field(text: str) -> Matches:
    path, equals, value = text.partition("=")
    if not equals or not path:
        raise FilterError(f"A field is PATH=VALUE, such as customer.id=7, not {text!r}.")
    steps = steps_of(path)

    def matches(record: Record) -> bool:
        try:
            document = json.loads(record.value or b"null")
        except (ValueError, RecursionError):
            return False
        return any(same(one, value) for one in found_at(document, steps))

    return matches


def _header(text: str) -> Matches:
    name, equals, value = text.partition("=")
    if not equals:
        return lambda record: any(one == name for one, _ in record.headers)
    return lambda record: (name, _bytes(value)) in record.headers


def steps_of(path: str) -> list[str]:
    """The steps of a path into JSON: customer.id, $.items[0].name, items.*.name."""
    plain = _STEP.sub(r".\1", path.removeprefix("$").removeprefix("."))
    return [step for step in plain.split(".") if step]


def found_at(document: Any, steps: Sequence[str]) -> Iterator[Any]:
    """What is there. A star stands for all of an object or of a list."""
    if not steps:
        yield document
        return
    step, rest = steps[0], steps[1:]
    if isinstance(document, dict):
        if step == "*":
            for one in document.values():
                yield from found_at(one, rest)
        elif step in document:
            yield from found_at(document[step], rest)
    elif isinstance(document, list):
        if step == "*":
            for one in document:
                yield from found_at(one, rest)
        elif is_number(step) and int(step) < len(document):
            yield from found_at(document[int(step)], rest)


def same(found: Any, value: str) -> bool:
    """Whether a value of JSON is what somebody wrote: text as it is, and the rest as JSON has it."""
    return found == value if isinstance(found, str) else json.dumps(found) == value
