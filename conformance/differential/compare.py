"""Compare two normalised answers field by field, and print each difference in a form that helps to fix it.

Lists whose items have a natural key (a topic's name, a partition's index, a config's name) are compared by
that key, since their order means nothing to clients. The key stands in the path,
`Topics[orders].Partitions[0].LeaderId`.
"""

import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from kio.schema.errors import ErrorCode

KEYS = (
    "ApiKey", "ResourceType", "ResourceName", "Name", "TopicName", "Topic", "TopicId", "Index",
    "PartitionIndex", "Partition", "PartitionId", "BrokerId", "NodeId", "Key", "LogDir", "GroupId",
    "MemberId",
)  # fmt: skip
NAMES = ("Name", "Topic", "TopicName")
# Keys worth keeping when mismatches are grouped: they name a thing that can be fixed on its own.
TELLING = {"Configs", "ApiKeys", "SupportedFeatures", "FinalizedFeatures", "Synonyms"}
ABSENT = "<absent>"
A_TIME_MS = 1_000_000_000_000
FOLDER = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Mismatch:
    api: str
    version: int
    scenario: str
    path: str
    kafka: Any
    other: Any
    request: str = ""
    note: str = ""

    @property
    def group(self) -> str:
        """The path without the names of topics and partitions."""
        return re.sub(r"(\w+)\[([^\]]*)\]", lambda m: m[0] if m[1] in TELLING else f"{m[1]}[]", self.path)


@dataclass(slots=True)
class Difference:
    """A deliberate difference: which mismatches it covers, and why they are right."""

    reason: str
    api: str = "*"
    versions: str = "*"
    scenario: str = "*"
    field: str = "*"
    note: str = "*"
    kafka: str = "*"
    penstock: str = "*"
    used: int = 0

    def covers(self, found: Mismatch) -> bool:
        low, _, high = self.versions.partition("-")
        if self.versions != "*" and not int(low) <= found.version <= int(high or low):
            return False
        return (
            _matches(found.api, self.api)
            and _matches(found.scenario, self.scenario)
            and _matches(found.group, self.field)
            and _matches(found.note, self.note)
            and _matches(show(found.path, found.kafka), self.kafka)
            and _matches(show(found.path, found.other), self.penstock)
        )


def _matches(text: str, pattern: str) -> bool:
    return fnmatchcase(text, pattern.replace("[", "[[]"))


def deliberate(name: str) -> list[Difference]:
    """The deliberate differences that this file lists."""
    with (FOLDER / name).open("rb") as file:
        return [Difference(**entry) for entry in tomllib.load(file).get("difference", [])]


def differences(kafka: Any, other: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every place where two normalised answers differ: its path and the two values."""
    if isinstance(kafka, dict) and isinstance(other, dict):
        if kafka.get("ErrorCode", 0) != other.get(
            "ErrorCode", 0
        ):  # what else differs beside it follows from it
            yield (
                f"{path}.ErrorCode" if path else "ErrorCode",
                kafka.get("ErrorCode", ABSENT),
                other.get("ErrorCode", ABSENT),
            )
            return
        for name in [*kafka, *(name for name in other if name not in kafka)]:
            inner = f"{path}.{name}" if path else name
            yield from differences(kafka.get(name, ABSENT), other.get(name, ABSENT), inner)
    elif isinstance(kafka, list) and isinstance(other, list) and _keyed(kafka + other):
        left, right = _by_key(kafka), _by_key(other)
        for key in [*left, *(key for key in right if key not in left)]:
            yield from differences(left.get(key, ABSENT), right.get(key, ABSENT), f"{path}[{key}]")
    elif isinstance(kafka, list) and isinstance(other, list):
        for at in range(max(len(kafka), len(other))):
            left_item = kafka[at] if at < len(kafka) else ABSENT
            right_item = other[at] if at < len(other) else ABSENT
            yield from differences(left_item, right_item, f"{path}[{at}]")
    elif kafka != other:
        yield path, kafka, other


def _keyed(items: list[Any]) -> bool:
    return bool(items) and all(
        isinstance(item, dict) and any(name in item for name in KEYS) for item in items
    )


def _key(item: dict[str, Any]) -> str:
    named = any(item.get(name) for name in NAMES)
    return "/".join(str(item[name]) for name in KEYS if name in item and not (named and name == "TopicId"))


def _by_key(items: list[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for item in items:
        key, again = _key(item), 1
        while key in found:
            again += 1
            key = f"{_key(item)} #{again}"
        found[key] = item
    return found


def show(path: str, value: Any) -> str:
    """A value for people: error codes by name, long things cut."""
    if path.endswith("ErrorCode") and isinstance(value, int):
        try:
            return f"{value} {ErrorCode(value).name.upper()}"
        except ValueError:
            return f"{value} (no such code)"
    if isinstance(value, dict):
        inner = ", ".join(f"{name}: {show(name, each)}" for name, each in value.items())
        text = f"{{{inner}}}"
    else:
        text = value if isinstance(value, str) and value.startswith("<") else repr(value)
    return text if len(text) <= 160 else text[:157] + "..."


def report(found: list[Mismatch], other_name: str, verbose: bool) -> None:
    """Group by API and field, so that one cause is one paragraph."""
    groups: dict[tuple[str, str, str, str], list[Mismatch]] = defaultdict(list)
    for each in found:
        groups[each.api, each.group, _shape(each.path, each.kafka), _shape(each.path, each.other)].append(
            each
        )
    api_before = ""
    for (api, path, _, _), members in sorted(groups.items(), key=lambda item: item[0][:2]):
        if api != api_before:
            print(f"\n{api}")
            api_before = api
        versions = ranges({each.version for each in members})
        print(f"  v{versions}  {path or '(whole answer)'}   x{len(members)}")
        print(f"      kafka: {show(path, members[0].kafka)}")
        print(f"      {other_name}: {show(path, members[0].other)}")
        for name in sorted({each.scenario for each in members})[: None if verbose else 4]:
            sample = next(each for each in members if each.scenario == name)
            note = f" ({sample.note})" if sample.note else ""
            print(f"      in {name}{note}: {sample.request if verbose else sample.request[:200]}")


def _shape(path: str, value: Any) -> str:
    """What groups alike: scalars by value, structures by what they are made of."""
    if isinstance(value, dict | list):
        return f"<{type(value).__name__}>"
    if path.endswith("stored") or (
        path.endswith("timestamp") and isinstance(value, int) and value > A_TIME_MS
    ):
        return "<digest or time>"
    return show(path, value)


def ranges(numbers: set[int]) -> str:
    """{1,2,3,5} as 1-3,5."""
    out: list[str] = []
    ordered = sorted(numbers)
    for at, number in enumerate(ordered):
        if at and ordered[at - 1] == number - 1:
            out[-1] = f"{out[-1].split('-')[0]}-{number}"
        else:
            out.append(str(number))
    return ",".join(out)
