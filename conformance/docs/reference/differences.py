"""docs/differences.md: what differs from Apache Kafka on purpose, from the list that the differential run goes by."""

import tomllib
from pathlib import Path

_FILE = Path(__file__).resolve().parent.parent.parent / "differences.toml"

_INTRODUCTION = """\
# What differs from Kafka on purpose

Written by `make reference` from `conformance/differences.toml`; a test fails while the two differ.

`make differential` sends the same requests to Apache Kafka and to Penstock, in every version of every API that both
serve, and compares the answers field by field. Each mismatch must be covered by a row of this page, or the run fails.

## In large

- There are no replicas. Brokers share one store, and the store keeps the copies. `replicas` in Metadata is the order in
  which brokers take a partition over, and `isr` those of it that are alive. `min.insync.replicas` is shown and no write
  waits for it. `acks=1` and `acks=all` mean the same: the write is durable when it is acknowledged.
- There is no controller quorum. Any broker may change the cluster, by one create-if-absent in the store or in etcd. The
  live broker with the lowest number is called the controller.
- `__consumer_offsets` and `__transaction_state` are real compacted topics with records in Kafka's formats, as in Kafka.
- Not there: tiered storage (all storage is remote), share groups (KIP-932), Streams groups (KIP-1071), Kerberos, and a
  schema registry or Connect of its own. Confluent's registry and Kafka Connect can be run beside it.
- A change to a group of the `consumer` protocol may need more records than one batch of `__consumer_offsets` takes, as a new
  assignment of ten thousand members does, if each record fits. Kafka refuses it.
- A produced batch of more than 32 records is checked at its beginning and its end, and read whole only if something looks
  unusual there. Kafka reads each record.
- [Settings](settings.md) names every setting that is accepted and has no meaning here, with the reason.

## In detail

*Where* names the field of the answer, as the differential run prints it, where the row is about one.

"""


def markdown() -> str:
    with _FILE.open("rb") as file:
        rows = tomllib.load(file)["difference"]
    by_api: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        api = "All APIs" if row.get("api", "*") == "*" else row["api"]
        wheres = by_api.setdefault(api, {}).setdefault(row["reason"], [])
        where = _where(row)
        if where and where not in wheres:
            wheres.append(where)
    parts = [_INTRODUCTION]
    for api in sorted(by_api):
        parts.append(f"### {api}\n\n| why | where |\n|---|---|\n")
        parts += [
            f"| {_sentence(why)} | {'; '.join(wheres) or 'any field'} |\n"
            for why, wheres in by_api[api].items()
        ]
        parts.append("\n")
    return "".join(parts).rstrip("\n") + "\n"


def _where(row: dict[str, str]) -> str:
    field, versions = row.get("field", ""), row.get("versions", "")
    words = f"`{field.replace('|', '/')}`" if field else ""
    if versions:
        words = f"{words} in versions {versions}".strip()
    return words


def _sentence(why: str) -> str:
    why = why.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
    return why[0].upper() + why[1:] + ("" if why.endswith(".") else ".")
