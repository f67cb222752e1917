"""Take out of an answer the values that may rightly differ between two brokers: ids, addresses, times, sizes.

Unknown values stay visible: an id that belongs to no topic, a port that is not the broker's, a wrong CRC.
"""

import hashlib
import re
import struct
import time
from typing import Any

import crc32c
from kafka.record import MemoryRecords

from conformance.differential.world import Answer, World
from conformance.wire import batches

# Kafka ends the ids of classic members in a UUID; those of the new protocol are one, in base 64.
MADE_UP_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$|^[\w-]{22}$")
ZERO_ID = bytes(16)
TIMES = {
    "LogAppendTimeMs",
    "Timestamp",
    "LastTimestamp",
    "MaxTimestamp",
    "first_timestamp",
    "max_timestamp",
    "timestamp",
    "TransactionStartTimeMs",
    "IssueTimestampMs",
    "IssueTimestamp",
}
# Lists of plain values whose order means nothing.
SETS = {"Partitions", "SubscribedTopicNames", "Mechanisms"}
# Lists of structures whose order means nothing, and whose items have no one key.
BAGS = {
    "Acls",
    "ActiveProducers",
    "MatchingAcls",
    "Resources",
    "Tokens",
    "Entries",
    "Entity",
    "CredentialInfos",
}
# Times to come, told in hours.
FUTURES = {"ExpiryTimestampMs", "ExpiryTimestamp", "MaxTimestampMs"}
HOUR_MS = 3_600_000
# Configs that say where a broker is, and so differ between any two.
PLACES = {
    "listeners",
    "advertised.listeners",
    "log.dirs",
    "log.dir",
    "controller.quorum.voters",
    "metadata.log.dir",
}


def normalise(answer: Answer, world: World) -> Any:
    if isinstance(answer, str):
        return answer
    return _struct(_merged(answer), world)


def _merged(answer: dict[str, Any]) -> dict[str, Any]:
    """Fetch answers with each topic once: Kafka gives partitions that have errors an entry of their own."""
    topics = answer.get("Responses")
    if not topics or not all("Partitions" in topic for topic in topics):
        return answer
    merged: dict[Any, dict[str, Any]] = {}
    for topic in topics:
        known = merged.setdefault(topic.get("Topic") or topic.get("TopicId"), {**topic, "Partitions": []})
        known["Partitions"] += topic["Partitions"]
    return {**answer, "Responses": list(merged.values())}


def _struct(value: dict[str, Any], world: World) -> dict[str, Any]:
    if value.get("Name") in PLACES and value.get("Value"):
        value = {**value, "Value": "<its own place>"}
    return {name: _field(name, inner, world) for name, inner in value.items()}


def _field(name: str, value: Any, world: World) -> Any:
    if isinstance(value, dict):
        return _struct(value, world)
    if isinstance(value, list):
        items = [_field(name, item, world) for item in value]
        if name in SETS and not any(isinstance(item, dict) for item in items):
            return sorted(items)
        return sorted(items, key=repr) if name in BAGS else items
    if name in ("Records", "RecordSet"):
        return records(value, world)
    if name == "Hmac":
        return f"<{len(value)} bytes>"
    if isinstance(value, bytes):
        return _topic_id(value, world) if len(value) == 16 else value.hex()
    return _scalar(name, value, world)


def _scalar(name: str, value: Any, world: World) -> Any:
    if name == "MaxTimestamp" and value > time.time() * 1000 + HOUR_MS:
        name = "MaxTimestampMs"  # of a token, not of a batch
    if name in TIMES and isinstance(value, int) and value >= world.started_ms - 1000:
        return "<now>" if value <= time.time() * 1000 + 1000 else value
    if name in FUTURES and value > 0 and (hours := (value - time.time() * 1000) / HOUR_MS) > -1:
        return f"<in {round(hours)} h>"
    match name:
        case "TokenId":
            return "<token>" if value else value
        case "Host":
            return "<host>" if value == world.server.host else value
        case "Port":
            return "<port>" if value in world.ports else value
        case "ClusterId":
            return "<cluster>" if value else value
        case "ProducerId" | "producer_id":
            return _learned("producer", value, world) if value >= 0 else value
        case "MemberId" | "Leader" if isinstance(value, str):
            return _member(value, world)
        case "SessionId":
            return "<session>" if value > 0 else value
        case "LogDir":
            return "<path>" if value else value
        case "TotalBytes" | "UsableBytes" | "FinalizedFeaturesEpoch":
            return "<number>" if value >= 0 else value
        case "ErrorMessage" | "ErrorString" | "BatchIndexErrorMessage":
            return "<text>" if value else value
    return value


def _topic_id(value: bytes, world: World) -> str:
    if value == ZERO_ID:
        return "<no id>"
    name = world.names.get(value)
    return f"<id of {name}>" if name else "<unknown id>"


def _member(value: str, world: World) -> str:
    """A member by the name that it was learned under, else by the form of its id."""
    for name, known in world.learned.items():
        if known == value and name.startswith("member"):
            return f"<{name}>"
    return MADE_UP_ID.sub("<made up>", value)


def _learned(kind: str, value: int, world: World) -> str:
    for name, known in world.learned.items():
        if known == value and name.startswith(kind):
            return f"<{name}>"
    return f"<{kind}>"


def records(data: bytes | None, world: World) -> Any:
    """Batches as dictionaries, with digests of the stored bytes and of what they hold uncompressed."""
    if data is None:
        return None
    found = []
    for batch in batches.split(data):
        if batch["magic"] != batches.MAGIC_V2:
            found += [_struct(message, world) for message in _messages(batch)]
            continue
        stored = batch.pop("records")
        crc_over = batches.HEADER.pack(*(batch[name] for name in batches.NAMES))[21:] + stored
        batch["crc"] = "right" if crc32c.crc32c(crc_over) == batch["crc"] else "wrong"
        del batch["length"]
        batch["stored"] = _digest(stored)
        batch["holds"] = _digest(_expand(batch["attributes"] & batches.CODEC_BITS, stored))
        found.append(_struct(batch, world))
    return found


def _messages(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """Old messages one by one, out of their compressed wrapper if there is one, read by kafka-python."""
    data = entry["message"]
    codec = struct.unpack_from(">b", data, 17)[0] & batches.CODEC_BITS
    reader = MemoryRecords(data)
    found = []
    while reader.has_next():
        for each in reader.next_batch():
            held = {
                "offset": each.offset,
                "magic": entry["magic"],
                "codec": codec,
                "timestamp": each.timestamp,
            }
            held |= {"kind": each.timestamp_type, "key": _text(each.key), "value": _text(each.value)}
            found.append(held)
    return found


def _text(value: Any) -> str | None:
    return None if value is None else _digest(bytes(value)) if len(value) > 64 else bytes(value).hex()


def _digest(data: bytes) -> str:
    return f"{len(data)} bytes {hashlib.sha256(data).hexdigest()[:12]}"


def _expand(codec: int, data: bytes) -> bytes:
    try:
        return batches.expand(codec, data)
    except Exception as why:  # the codecs' errors share no base class
        return f"unreadable: {type(why).__name__}".encode()
