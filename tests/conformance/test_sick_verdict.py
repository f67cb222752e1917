"""The judge of sick stores: each kind of broken promise is seen, and what is allowed is not called broken."""

import random
from pathlib import Path

from conformance.s3.proxy import Rule
from conformance.sick import rot
from conformance.sick.verdict import Expected, Place, Reading, Told, hurt_records, judge

PLACE = Place("t", 0)


def told(count: int = 5) -> Told:
    found = Told()
    for offset in range(count):
        found.acknowledge(PLACE, offset, b"value %d" % offset)
    return found


def reading(*offsets: int, **fields: object) -> dict[Place, Reading]:
    found = Reading(end=5, records={offset: b"value %d" % offset for offset in offsets})
    for name, value in fields.items():
        setattr(found, name, value)
    return {PLACE: found}


def test_all_is_well() -> None:
    assert judge(told(), reading(0, 1, 2, 3, 4), Expected()) == []


def test_what_is_gone_without_a_word() -> None:
    (problem,) = judge(told(), reading(0, 1, 3, 4), Expected(whole=False))
    assert "offset 2 of 5 acknowledged are gone without a word" in problem


def test_what_is_gone_below_the_start_is_lost_unless_retention_may_delete() -> None:
    below = reading(2, 3, 4, start=2)
    assert judge(told(), below, Expected())
    assert judge(told(), below, Expected(deleted=True)) == []


def test_an_error_code_is_a_word() -> None:
    hurt = reading(0, 1, 3, 4, hurt={2: 2})
    assert judge(told(), hurt, Expected(whole=False)) == []
    assert "still said to be hurt (error 2)" in judge(told(), hurt, Expected())[0]
    assert hurt_records(told(), hurt) == 1


def test_a_closed_partition_is_said_and_not_whole() -> None:
    closed = reading(closed="KAFKA_STORAGE_ERROR")
    assert judge(told(), closed, Expected(whole=False)) == []
    assert judge(told(), closed, Expected())


def test_one_flipped_bit_does_not_hurt_everything() -> None:
    hurt = reading(0, hurt={1: 2, 2: 2, 3: 2, 4: 2})
    assert judge(told(), hurt, Expected(whole=False, hurt_max=4)) == []
    assert (
        "4 records are said to be hurt, where 1" in judge(told(), hurt, Expected(whole=False, hurt_max=1))[0]
    )


def test_another_record_than_the_acknowledged_one() -> None:
    other = reading(0, 1, 2, 3, 4)
    other[PLACE].records[3] = b"value x"
    problems = judge(told(), other, Expected(whole=False))
    assert any("another record" in problem for problem in problems)
    assert any("nobody sent" in problem for problem in problems)


def test_an_offset_that_is_given_twice() -> None:
    history = told()
    history.acknowledge(PLACE, 3, b"value 3")
    assert history.twice == []
    history.acknowledge(PLACE, 3, b"later")
    assert "offset 3 of t-0 was given" in judge(history, reading(0, 1, 2, 3, 4), Expected())[0]


def test_what_was_in_doubt_may_be_there_but_once() -> None:
    history = told()
    history.doubtful.add(b"doubt")
    there = reading(0, 1, 2, 3, 4)
    there[PLACE].records[5] = b"doubt"
    assert judge(history, there, Expected()) == []
    there[PLACE].records[6] = b"doubt"
    assert "one record at 5 and at 6" in judge(history, there, Expected())[0]


def test_what_a_power_cut_may_take() -> None:
    assert judge(told(), reading(0, 1, 2, 3), Expected(gone=[(PLACE, 4)])) == []


def test_bits_flip_and_flip_back(tmp_path: Path) -> None:
    path = tmp_path / "object"
    path.write_bytes(bytes(range(100)))
    at, bit = rot.flip_somewhere(path, random.Random(1))
    changed = path.read_bytes()
    assert [number for number in range(100) if changed[number] != number] == [at]
    rot.flip(path, at, bit)
    assert path.read_bytes() == bytes(range(100))


def test_a_rule_fits_by_method_prefix_share_and_times() -> None:
    chance = random.Random(1)
    rule = Rule("refuse", "GET", "manifests/", times=2)
    assert not rule.fits("PUT", "manifests/1", chance)
    assert not rule.fits("GET", "segments/1", chance)
    assert rule.fits("GET", "manifests/1", chance) and rule.fits("GET", "manifests/2", chance)
    assert not rule.fits("GET", "manifests/3", chance)
    some = Rule("drop", share=0.5)
    assert 300 < sum(some.fits("GET", "k", chance) for _ in range(1000)) < 700
