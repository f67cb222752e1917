"""What any assignment must be, whoever subscribes to what."""

import sys
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.groups.consumer.assignors import (
    ASSIGNORS,
    Assignment,
    MemberSpec,
    assign_range,
    assign_uniform,
)
from tests.groups.world import topic_id

TOPICS = [topic_id(name) for name in "abcd"]
QUICK = settings(max_examples=150, derandomize=True, deadline=None)

counts_of_all = st.fixed_dictionaries({topic: st.integers(0, 7) for topic in TOPICS})
subscriptions = st.lists(st.frozensets(st.sampled_from(TOPICS)), min_size=1, max_size=7)


def specs(subscribed: list[frozenset[bytes]], previous: Assignment | None = None) -> list[MemberSpec]:
    return [
        MemberSpec(f"m{at}", topics, (previous or {}).get(f"m{at}", {}))
        for at, topics in enumerate(subscribed)
    ]


def owners(assignment: Assignment) -> dict[tuple[bytes, int], str]:
    found: dict[tuple[bytes, int], str] = {}
    for member_id, target in assignment.items():
        for topic, indexes in target.items():
            for index in indexes:
                assert (topic, index) not in found, "owned twice"
                found[topic, index] = member_id
    return found


def check_complete(members: list[MemberSpec], counts: Mapping[bytes, int], assignment: Assignment) -> None:
    assert assignment.keys() == {m.id for m in members}
    found = owners(assignment)
    wanted = {(t, p) for m in members for t in m.topics for p in range(counts[t])}
    assert found.keys() == wanted, "every partition of a subscribed topic, and nothing else"
    topics_of = {m.id: m.topics for m in members}
    assert all(topic in topics_of[member_id] for (topic, _), member_id in found.items())


def load(assignment: Assignment, member_id: str) -> int:
    return sum(map(len, assignment[member_id].values()))


@QUICK
@given(subscriptions, counts_of_all, st.sampled_from(sorted(ASSIGNORS)))
def test_every_partition_has_one_subscriber(
    subscribed: list[frozenset[bytes]], counts: dict[bytes, int], name: str
) -> None:
    members = specs(subscribed)
    check_complete(members, counts, ASSIGNORS[name](members, counts))


@QUICK
@given(subscriptions, counts_of_all)
def test_uniform_leaves_no_gap_that_a_move_would_narrow(
    subscribed: list[frozenset[bytes]], counts: dict[bytes, int]
) -> None:
    members = specs(subscribed)
    assignment = assign_uniform(members, counts)
    for giver in members:
        for taker in members:
            if load(assignment, giver.id) - load(assignment, taker.id) >= 2:
                assert not any(topic in taker.topics for topic in assignment[giver.id])


@QUICK
@given(st.integers(1, 8), counts_of_all)
def test_uniform_is_even_among_equals(members: int, counts: dict[bytes, int]) -> None:
    assignment = assign_uniform(specs([frozenset(TOPICS)] * members), counts)
    loads = [load(assignment, member_id) for member_id in assignment]
    assert max(loads) - min(loads) <= 1


@QUICK
@given(subscriptions, counts_of_all)
def test_uniform_does_not_move_what_need_not_move(
    subscribed: list[frozenset[bytes]], counts: dict[bytes, int]
) -> None:
    first = assign_uniform(specs(subscribed), counts)
    again = assign_uniform(specs(subscribed, first), counts)
    assert again == first


@QUICK
@given(st.integers(1, 8), counts_of_all, st.data())
def test_uniform_keeps_what_it_can_when_a_member_comes_or_goes(
    members: int, counts: dict[bytes, int], data: st.DataObject
) -> None:
    everything = frozenset(TOPICS)
    before = specs([everything] * members)
    first = assign_uniform(before, counts)
    total = sum(counts.values())
    if data.draw(st.booleans(), label="comes"):
        after = specs([everything] * (members + 1), first)
        must_move = total // (members + 1)  # What the new one gets.
    else:
        gone = data.draw(st.integers(0, members - 1))
        after = [m for m in specs([everything] * members, first) if m.id != f"m{gone}"]
        must_move = load(first, f"m{gone}")
        if not after:
            return
    second = assign_uniform(after, counts)
    check_complete(after, counts, second)
    old, new = owners(first), owners(second)
    assert sum(old[partition] != new[partition] for partition in new) <= must_move


@QUICK
@given(counts_of_all, st.integers(1, 6))
def test_range_gives_the_same_numbers_of_every_topic(counts: dict[bytes, int], members: int) -> None:
    same = dict.fromkeys(counts, max(counts.values()))
    assignment = assign_range(specs([frozenset(TOPICS)] * members), same)
    for target in assignment.values():
        assert len(set(target.values())) <= 1


def test_range_orders_static_members_by_instance() -> None:
    topics = frozenset(TOPICS[:1])
    members = [
        MemberSpec("z", topics, instance_id="one"),
        MemberSpec("a", topics, instance_id="two"),
        MemberSpec("b", topics),
    ]
    assert assign_range(members, {TOPICS[0]: 3}) == {
        "z": {TOPICS[0]: frozenset({0})},
        "a": {TOPICS[0]: frozenset({1})},
        "b": {TOPICS[0]: frozenset({2})},
    }


def test_uniform_levels_where_only_some_can_take() -> None:
    a, b = TOPICS[:2]
    members = [
        MemberSpec("m0", frozenset((a,)), {a: frozenset(range(6))}),
        MemberSpec("m1", frozenset((a, b))),
        MemberSpec("m2", frozenset((b,))),
    ]
    assignment = assign_uniform(members, {a: 6, b: 1})
    assert [load(assignment, m.id) for m in members] == [3, 3, 1]
    assert assignment["m2"] == {b: frozenset({0})}


def test_levelling_a_large_group_looks_at_few_members() -> None:
    """One had everything, and many come who do not all want the same."""
    topics = [topic_id(f"t{at}") for at in range(20)]
    counts = dict.fromkeys(topics, 50)
    everything = frozenset(topics)
    alone = MemberSpec("m", everything, dict.fromkeys(topics, frozenset(range(50))))
    others = [MemberSpec(f"m{at}", everything if at % 2 else everything - {topics[0]}) for at in range(99)]
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        assignment = assign_uniform([alone, *others], counts)
    finally:
        sys.setprofile(before)
    check_complete([alone, *others], counts, assignment)
    assert {load(assignment, member_id) for member_id in assignment} == {10}
    assert calls < 150_000  # 900 partitions move. A look at all members for each takes five million.
