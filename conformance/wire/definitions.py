"""Kafka's message definitions, read out of the client jars that Apache Kafka publishes.

Kafka 4 dropped the oldest versions of many messages, so a version is looked up in the newest jar first and
then in the last 3.9 jar, which still has them.
"""

import functools
import json
import re
import zipfile
from dataclasses import dataclass
from typing import Any

from conformance import parts

NEVER = (1, 0)  # an empty range of versions


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message, with the versions in which it is there, nullable, and tagged."""

    name: str
    type: str
    versions: tuple[int, int]
    nullable: tuple[int, int]
    tagged: tuple[int, int]
    flexible: tuple[int, int] | None
    tag: int | None
    default: Any
    fields: tuple["Field", ...]

    @property
    def is_array(self) -> bool:
        return self.type.startswith("[]")

    @property
    def is_struct(self) -> bool:
        return bool(self.fields) and not self.is_array


@dataclass(frozen=True, slots=True)
class Message:
    name: str
    api_key: int
    versions: tuple[int, int]
    flexible: tuple[int, int]
    fields: tuple[Field, ...]

    def is_flexible(self, version: int) -> bool:
        return within(version, self.flexible)


def within(version: int, versions: tuple[int, int]) -> bool:
    return versions[0] <= version <= versions[1]


def request(api: str, version: int) -> Message:
    return _message(f"{api}Request", version)


def response(api: str, version: int) -> Message:
    return _message(f"{api}Response", version)


def speaks(kafka: str, api: str, version: int) -> bool:
    """Whether this release really has this version: Kafka 4 advertises Produce from 0 and refuses 0-2."""
    raw = _jar(kafka).get(f"{api}Request") or _jar(kafka).get(FORMER_NAMES.get(f"{api}Request", ""))
    return raw is not None and within(version, _versions(raw["validVersions"]))


@functools.cache
def api_keys() -> dict[str, int]:
    """The key of every API that brokers serve to clients, by name."""
    found = {}
    for name, raw in _jar(parts.KAFKA_NEWEST).items():
        if name.endswith("Request") and "broker" in raw.get("listeners", ()):
            found[name.removesuffix("Request")] = int(raw["apiKey"])
    return found


@functools.cache
def _message(name: str, version: int) -> Message:
    for kafka in (parts.KAFKA_NEWEST, parts.KAFKA_OLD):
        raw = _jar(kafka).get(name) or _jar(kafka).get(FORMER_NAMES.get(name, ""))
        if raw is not None and within(version, _versions(raw["validVersions"])):
            return _parse(raw)
    raise KeyError(f"no definition of {name} version {version}")


FORMER_NAMES = {
    "ListConfigResourcesRequest": "ListClientMetricsResourcesRequest",
    "ListConfigResourcesResponse": "ListClientMetricsResourcesResponse",
}


@functools.cache
def _jar(kafka: str) -> dict[str, dict[str, Any]]:
    found = {}
    with zipfile.ZipFile(parts.kafka_clients_jar(kafka)) as jar:
        for path in jar.namelist():
            if path.startswith("common/message/") and path.endswith(".json"):
                text = re.sub(r"^\s*//.*$", "", jar.read(path).decode(), flags=re.MULTILINE)
                raw = json.loads(text)
                found[raw["name"]] = raw
    return found


def _parse(raw: dict[str, Any]) -> Message:
    structs = {common["name"]: common["fields"] for common in raw.get("commonStructs", ())}
    return Message(
        name=raw["name"],
        api_key=int(raw.get("apiKey", -1)),
        versions=_versions(raw["validVersions"]),
        flexible=_versions(raw.get("flexibleVersions", "none")),
        fields=tuple(_field(field, structs) for field in raw["fields"]),
    )


def _field(raw: dict[str, Any], structs: dict[str, Any]) -> Field:
    kind = raw["type"]
    nested = raw.get("fields") or structs.get(kind.removeprefix("[]"), ())
    fields = tuple(_field(field, structs) for field in nested)
    nullable = _versions(raw.get("nullableVersions", "none"))
    return Field(
        name=raw["name"][0].upper() + raw["name"][1:],  # a few definitions write timeoutMs
        type=kind,
        versions=_versions(raw["versions"]),
        nullable=nullable,
        tagged=_versions(raw.get("taggedVersions", "none")),
        flexible=_versions(raw["flexibleVersions"]) if "flexibleVersions" in raw else None,
        tag=raw.get("tag"),
        default=_default(kind, raw.get("default"), fields),
        fields=fields,
    )


def _versions(text: str) -> tuple[int, int]:
    if text == "none":
        return NEVER
    if text.endswith("+"):
        return int(text[:-1]), 32767
    low, _, high = text.partition("-")
    return int(low), int(high or low)


ZERO: dict[str, Any] = {
    "bool": False,
    "float64": 0.0,
    "string": "",
    "uuid": bytes(16),
    "bytes": b"",
    "records": None,
}


def _default(kind: str, text: Any, fields: tuple[Field, ...]) -> Any:
    if text == "null":
        return None
    if kind.startswith("[]"):
        return []
    if fields:
        return {field.name: field.default for field in fields}
    if text is None or text == "":
        return ZERO.get(kind, 0)
    if kind == "bool":
        return text in (True, "true")
    if kind in ("string", "float64"):
        return text if kind == "string" else float(text)
    return int(text, 0) if isinstance(text, str) else text
