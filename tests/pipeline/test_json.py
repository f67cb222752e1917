"""JSON to columns in Spark: what is good is exact, and what is bad has a reason."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from penstock.pipeline import Json, Pipeline, PipelineError, Text
from penstock.pipeline.frames import OFFSET, PARTITION, REASON, TOPIC, dead, good
from penstock.spark.read.schema import full_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "id long not null, name string, price double, tags array<int>, place struct<city: string not null>"

GOOD: dict[bytes, dict[str, Any]] = {
    b'{"id": 1}': {"id": 1, "name": None, "price": None, "tags": None, "place": None},
    b' {"id": 2, "name": "n", "price": 3, "tags": [1], "place": {"city": "c"}, "more": {}} \n': {
        "id": 2, "name": "n", "price": 3.0, "tags": [1], "place": {"city": "c"},
    },
    '{"id": 3, "name": "größe"}'.encode(): {
        "id": 3, "name": "größe", "price": None, "tags": None, "place": None,
    },
}  # fmt: skip

BAD: dict[bytes, str] = {
    b"": "The value is not one JSON object.",
    b"junk": "The value is not one JSON object.",
    b"null": "The value is not one JSON object.",
    b"5": "The value is not one JSON object.",
    b'[{"id": 1}]': "The value is not one JSON object.",
    b'{"id": 1': "The value is not one JSON object.",
    b'{"id": 1} {"id": 2}': "The value is not one JSON object.",
    b'{"id": 1}, {"id": 2}': "The value is not one JSON object.",
    b'{"id": 1} trailing': "The value is not one JSON object.",
    b'{"id": 1}] trailing': "The value is not one JSON object.",
    b'{"id": 1, "tags": [1]}]': "The value is not one JSON object.",
    b'{"id": 1}, 0]]': "The value is not one JSON object.",
    b'\xff{"id": 1}': "The value is not UTF-8.",
    b'{"id": 1, "name": "\xff"}': "The value is not UTF-8.",
    b'{"id": "one"}': "The value does not fit the schema: id (bigint).",
    b'{"id": 1.5}': "The value does not fit the schema: id (bigint).",
    b'{"id": 99999999999999999999}': "The value does not fit the schema: id (bigint).",
    b'{"id": 1, "price": "dear"}': "The value does not fit the schema: price (double).",
    b'{"id": 1, "tags": ["x"]}': "The value does not fit the schema",
    b'{"id": 1, "tags": 5}': "The value does not fit the schema: tags (array<int>).",
    b'{"name": "n"}': "The value has no 'id', which is required.",
    b'{"id": null}': "The value has no 'id', which is required.",
    b'{"id": 1, "place": {}}': "The value has no 'place.city', which is required.",
}  # fmt: skip


def frame_of(spark: SparkSession, values: list[bytes | None], key: bytes | None = b"k") -> DataFrame:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [
        (key, value, "events", 3, offset, at, 0, [("h", b"1")] if offset % 2 else None)
        for offset, value in enumerate(values)
    ]
    return spark.createDataFrame(rows, full_schema(headers=True))


def test_json_is_decoded_or_has_a_reason(spark: SparkSession) -> None:
    source = Pipeline("p").source("events", value=Json(SCHEMA))
    frame = frame_of(spark, [*GOOD, None, *BAD])
    found = [row.asDict(recursive=True) for row in good(source, frame).orderBy("offset").collect()]
    assert [row["value"] for row in found] == [*GOOD.values(), None]
    assert found[0]["topic"] == "events"
    letters = {bytes(row.value): row for row in dead(source, frame).collect()}
    assert letters.keys() == BAD.keys()
    for number, (value, reason) in enumerate(BAD.items(), len(GOOD) + 1):
        row = letters[value]
        assert bytes(row.key) == b"k"
        headers = [(one.key, bytes(one.value)) for one in row.headers]
        assert headers[-4][0] == REASON
        assert headers[-4][1].decode().startswith(reason), value
        assert headers[-3:] == [(TOPIC, b"events"), (PARTITION, b"3"), (OFFSET, b"%d" % number)]
        assert headers[:-4] == ([("h", b"1")] if number % 2 else [])


def test_json_in_confluents_wire_format_and_bad_keys(spark: SparkSession) -> None:
    source = Pipeline("p").source("events", value=Json("id long", confluent=True), key=Text())
    frame = frame_of(spark, [b'\0\0\0\0\1{"id": 4}', b'{"id": 4}', b"\0\0"])
    assert [(row.key, row.value.id) for row in good(source, frame).collect()] == [("k", 4)]
    assert dead(source, frame).count() == 2
    broken = frame_of(spark, [b'\0\0\0\0\1{"id": 4}'], key=b"\xff")
    assert good(source, broken).count() == 0
    (letter,) = dead(source, broken).collect()
    assert bytes(letter.headers[0].value) == b"The key is not UTF-8."


def test_a_record_is_parsed_once(spark: SparkSession) -> None:
    source = Pipeline("p").source("events", value=Json(SCHEMA))
    plan = good(source, frame_of(spark, [b"{}"])).select("value.id")._jdf.queryExecution().optimizedPlan()
    assert plan.toString().count("from_json") + plan.toString().count("parser") == 1


def test_a_wrong_schema_is_one_sentence(spark: SparkSession) -> None:
    source = Pipeline("p").source("events", value=Json("id lon"))
    with pytest.raises(PipelineError, match=r"^The JSON schema 'id lon' is wrong: .+\.$") as told:
        good(source, frame_of(spark, [b"{}"]))
    assert "\n" not in str(told.value)


def test_avro_is_decoded_by_workers(spark: SparkSession) -> None:
    from penstock.pipeline import Avro
    from tests.pipeline.test_decoders import ORDER, encode, order

    source = Pipeline("p").source("events", value=Avro(json.dumps(ORDER)))
    frame = frame_of(spark, [encode(ORDER, order(1)), b"bad", None])
    first, nothing = good(source, frame).orderBy("offset").collect()
    assert first.value.asDict(recursive=True)["lines"] == [{"item": "x", "count": 1}]
    assert nothing.value is None
    assert first.value.tags == {"a": 1}
    assert dead(source, frame).count() == 1
