"""The instruments must be able to fail: each conformance check is shown what it is there to find."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from conformance.client import BY_NAME
from conformance.clients.protocol import Record
from conformance.crash import PARTITIONS, Broken, Producer, Reader
from conformance.differential.__main__ import Run
from conformance.differential.compare import Difference, Mismatch, deliberate, differences, ranges
from conformance.differential.scenario import Draw, Step
from conformance.matrix import record_set
from conformance.wire import batches
from conformance.wire.batches import Item


def test_batches_are_split_and_read_back_in_every_codec() -> None:
    items = [Item(b"value %d" % at, b"key", 1000 + at) for at in range(50)]
    for codec in range(5):
        data = batches.batch(items, codec=codec, base_offset=7) + batches.batch(items[:1], base_offset=57)
        first, second = batches.split(data + b"\0" * 30)
        assert list(batches.records(first)) == [(7 + at, item.value) for at, item in enumerate(items)]
        assert second["base_offset"] == 57


def test_differences_are_found_by_key_and_error_codes_stand_for_the_rest() -> None:
    kafka = {"Topics": [{"Name": "a", "Error": 1}, {"Name": "b", "ErrorCode": 0, "Size": 5}], "Throttle": 0}
    other = {"Topics": [{"Name": "b", "ErrorCode": 3, "Size": 9}, {"Name": "a", "Error": 2}], "Throttle": 0}
    assert list(differences(kafka, other)) == [("Topics[a].Error", 1, 2), ("Topics[b].ErrorCode", 0, 3)]
    assert list(differences({"List": [1, 2]}, {"List": [1]})) == [("List[1]", 2, "<absent>")]
    assert list(differences(kafka, kafka)) == []


def test_a_deliberate_difference_covers_no_more_than_it_says() -> None:
    found = Mismatch("Fetch", 4, "plain", "Responses[t].Partitions[0].Records[1]", "<absent>", 7)
    assert Difference("why", api="Fetch", versions="0-4", field="Responses[].Partitions[].Records[]").covers(
        found
    )
    assert not Difference("why", api="Fetch", versions="0-3").covers(found)
    assert not Difference("why", api="Fetch", field="Responses[].Partitions[]").covers(found)
    assert not Difference("why", penstock="8").covers(found)


def test_every_deliberate_difference_has_a_reason_and_names_its_api() -> None:
    listed = [deliberate(name) for name in ("differences.toml", "differences-secured.toml")]
    assert all(listed)
    for each in [each for file in listed for each in file]:
        assert len(each.reason) > 20
        assert each.api != "*" or each.field != "*"


class Said:
    """A broker that says these things in turn, and the last of them for ever."""

    def __init__(self, *answers: str) -> None:
        self._answers = list(answers)

    def ask(self, api: str, version: int, step: Step) -> str:
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]

    def hang_up(self) -> None: ...


@pytest.mark.parametrize(
    ("said", "counts"), [(["no", "yes"], False), (["no", "no", "yes"], True), (["no", "yes", "no"], True)]
)
def test_what_differs_at_one_moment_is_told_and_what_differs_again_counts(
    said: list[str], counts: bool
) -> None:
    labels: list[str] = []

    def scenario(draw: Draw, version: int) -> Any:
        labels.append(f"{draw.label} {draw.chance.random()}")
        yield Step({})

    mode = SimpleNamespace(scenarios={"Fetch": {"plain": scenario}}, setup=lambda world, now_ms: None)
    run = Run(cast("Any", mode), cast("Any", Said("yes")), cast("Any", Said(*said)), seed=1)
    run.play_until_sure("Fetch", 4, "plain", [])
    assert (len(run.found), len(run.passing)) == ((1, 0) if counts else (0, 1))
    names, chances = zip(*(each.split() for each in labels), strict=True)
    assert names == ("plain-v4", "plain-v4-b", "plain-v4-c")
    assert len(set(chances)) == 1


def test_what_differs_on_purpose_is_not_asked_again() -> None:
    scenarios = {"Fetch": {"plain": lambda draw, version: iter([Step({})])}}
    mode = SimpleNamespace(scenarios=scenarios, setup=lambda world, now_ms: None)
    run = Run(cast("Any", mode), cast("Any", Said("yes")), cast("Any", Said("no")), seed=1)
    run.play_until_sure("Fetch", 4, "plain", [Difference("why", api="Fetch")])
    assert (len(run.found), run.requests) == (1, 1)


def test_ranges_read_as_people_write_them() -> None:
    assert ranges({0, 1, 2, 5, 7, 8}) == "0-2,5,7-8"


def test_old_clients_are_given_only_what_their_protocol_can_say() -> None:
    old = record_set(BY_NAME["sarama-0.10.2"], seed=1, now_ms=1_700_000_000_000)
    new = record_set(BY_NAME["java"], seed=1, now_ms=1_700_000_000_000)
    assert not any(record.headers for record in old)
    assert any(record.headers for record in new)
    assert all(record.timestamp is not None for record in new)
    assert {record.value for record in new} >= {None, b""}
    assert {record.key for record in new} >= {None, b""}


class Flood:
    """A session that acknowledges whatever offsets a test tells it to."""

    def __init__(self, offsets: list[int]) -> None:
        self.offsets = offsets

    def flood(self, topic: str, records: list[Record]) -> list[int]:
        return self.offsets


def _reader(offsets: list[int]) -> tuple[Producer, Reader]:
    producer = Producer("p", cast(Any, Flood(offsets)), seed=1)
    producer.round(len(offsets))
    return producer, Reader(cast(Any, SimpleNamespace(host="", port=0)), [producer])


def _value(producer: Producer, partition: int, offset: int) -> bytes:
    return producer.acknowledged[partition, offset]


def test_the_reader_of_the_crash_rounds_accepts_what_was_acknowledged() -> None:
    producer, reader = _reader([0, 0, 0, 1, 1, 1])
    for partition in range(PARTITIONS):
        for offset in (0, 1):
            reader._meet(partition, offset, _value(producer, partition, offset))
    assert not producer.acknowledged
    assert reader.records == 6


def test_the_reader_of_the_crash_rounds_finds_duplicates_moves_and_disorder() -> None:
    producer, reader = _reader([0, 0, 0, 1, 1, 1])
    first, second = _value(producer, 0, 0), _value(producer, 0, 1)
    with pytest.raises(Broken, match="acknowledged there was"):
        reader._meet(0, 5, first)
    producer, reader = _reader([0, 0, 0, 1, 1, 1])
    reader._meet(0, 0, first)
    with pytest.raises(Broken, match="twice"):
        reader._meet(0, 1, first)
    producer, reader = _reader([0, 0, 0, 1, 1, 1])
    with pytest.raises(Broken, match="acknowledged there was"):
        reader._meet(0, 0, second)


def test_the_reader_of_the_crash_rounds_finds_holes() -> None:
    _, reader = _reader([0, 0, 0])
    header = batches.split(batches.batch([Item(b"p 0 x")], base_offset=3))[0]
    with pytest.raises(Broken, match="a hole"):
        list(reader._unpack(0, header))


def test_one_offset_is_never_given_twice() -> None:
    with pytest.raises(Broken, match="twice"):
        _reader([0, 0, 0, 0])
