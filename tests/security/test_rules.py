"""The decision on access, in the cases of Kafka's StandardAuthorizer, and against a plain reading of it."""

from __future__ import annotations

import time
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.metadata.access import AccessRule
from penstock.security import rules as rules_module
from penstock.security.addresses import canonical
from penstock.security.filters import RuleFilter, RuleSearch
from penstock.security.rules import AccessRules, super_users
from penstock.security.words import ALL_OPERATIONS, ANY, Operation, Pattern, Permission, Resource

ALLOW, DENY = Permission.ALLOW, Permission.DENY
LITERAL, PREFIXED = Pattern.LITERAL, Pattern.PREFIXED
TOPIC, GROUP = Resource.TOPIC, Resource.GROUP
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE
CREATE, DELETE, ALTER = Operation.CREATE, Operation.DELETE, Operation.ALTER
DESCRIBE_CONFIGS, ALTER_CONFIGS = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS
HOST = "127.0.0.1"


def rule(
    resource: Resource,
    name: str,
    pattern: Pattern,
    principal: str,
    operation: int,
    permission: Permission,
    host: str = "*",
) -> AccessRule:
    return AccessRule(resource, name, pattern, principal, host, operation, permission)


def allowed(
    rules: AccessRules, user: str, operation: Operation, resource: Resource, name: str, host: str = HOST
) -> bool:
    return rules.allow("User:" + user, host, operation, resource, name)


def foo(operation: Operation, permission: Permission) -> AccessRules:
    return AccessRules([rule(TOPIC, "foo_", PREFIXED, "User:bob", operation, permission)])


@pytest.mark.parametrize("operation", [DESCRIBE, READ, WRITE, DELETE, ALTER])
def test_an_allowance_implies_describe_and_a_denial_does_not(operation: Operation) -> None:
    assert allowed(foo(operation, ALLOW), "bob", DESCRIBE, TOPIC, "foo_bar")
    both = AccessRules(
        [
            rule(TOPIC, "foo_", PREFIXED, "User:bob", operation, DENY),
            rule(TOPIC, "foo_", PREFIXED, "User:bob", CREATE, ALLOW),
            rule(TOPIC, "*", LITERAL, "User:bob", DESCRIBE, ALLOW),
        ]
    )
    assert allowed(both, "bob", DESCRIBE, TOPIC, "foo_bar") == (operation is not DESCRIBE)
    assert not allowed(both, "bob", operation, TOPIC, "foo_bar") or operation is DESCRIBE


def test_what_implies_nothing() -> None:
    assert not allowed(foo(CREATE, ALLOW), "bob", DESCRIBE, TOPIC, "foo_bar")
    assert allowed(foo(ALTER_CONFIGS, ALLOW), "bob", DESCRIBE_CONFIGS, TOPIC, "foo_bar")
    assert not allowed(foo(DESCRIBE_CONFIGS, ALLOW), "bob", ALTER_CONFIGS, TOPIC, "foo_bar")
    assert not allowed(foo(DESCRIBE, ALLOW), "bob", READ, TOPIC, "foo_bar")
    assert not allowed(foo(READ, ALLOW), "alice", READ, TOPIC, "foo_bar")
    assert not allowed(foo(READ, ALLOW), "bob", READ, GROUP, "foo_bar")


def test_a_denial_of_all_operations_goes_first() -> None:
    rules = AccessRules(
        [
            rule(TOPIC, "foo", LITERAL, "User:alice", ALL_OPERATIONS, DENY),
            rule(TOPIC, "foo", PREFIXED, "User:alice", READ, ALLOW),
            rule(TOPIC, "foo", LITERAL, "User:*", ALL_OPERATIONS, DENY),
            rule(TOPIC, "foo", PREFIXED, "User:*", DESCRIBE, ALLOW),
        ]
    )
    for operation in (WRITE, READ, DESCRIBE):
        assert not allowed(rules, "alice", operation, TOPIC, "foo")
        assert not allowed(rules, "bob", operation, TOPIC, "foo")
    assert allowed(rules, "alice", READ, TOPIC, "foobar")
    assert allowed(rules, "bob", DESCRIBE, TOPIC, "foobaz")
    assert not allowed(rules, "bob", READ, TOPIC, "foobaz")


def test_hosts() -> None:
    one, two = "192.168.1.1", "192.168.1.2"
    rules = AccessRules(
        [
            rule(TOPIC, "foo", LITERAL, "User:alice", READ, DENY, one),
            rule(TOPIC, "foo", LITERAL, "User:alice", READ, ALLOW),
            rule(TOPIC, "bar", LITERAL, "User:bob", READ, ALLOW, two),
            rule(TOPIC, "bar", LITERAL, "User:*", DESCRIBE, ALLOW, HOST),
        ]
    )

    def seen(user: str, host: str) -> list[bool]:
        asked = ((READ, "foo"), (READ, "bar"), (DESCRIBE, "bar"))
        return [allowed(rules, user, operation, TOPIC, name, host) for operation, name in asked]

    assert seen("alice", HOST) == [True, False, True]
    assert seen("alice", one) == [False, False, False]
    assert seen("alice", two) == [True, False, False]
    assert seen("bob", HOST) == [False, False, True]
    assert seen("bob", one) == [False, False, False]
    assert seen("bob", two) == [False, True, True]


def test_many() -> None:
    rules = AccessRules(
        [
            rule(TOPIC, "green2", LITERAL, "User:*", READ, ALLOW),
            rule(TOPIC, "green", PREFIXED, "User:bob", READ, ALLOW),
            rule(TOPIC, "beta", PREFIXED, "User:*", READ, ALLOW),
            rule(TOPIC, "alpha", PREFIXED, "User:*", READ, ALLOW),
            rule(TOPIC, "alp", PREFIXED, "User:bob", READ, DENY),
            rule(GROUP, "*", LITERAL, "User:bob", WRITE, ALLOW),
            rule(GROUP, "wheel", LITERAL, "User:*", WRITE, DENY),
        ]
    )
    assert allowed(rules, "bob", READ, TOPIC, "green1")
    assert not allowed(rules, "bob", WRITE, GROUP, "wheel")
    assert not allowed(rules, "bob", READ, TOPIC, "alpha")
    assert allowed(rules, "bob", WRITE, GROUP, "arbitrary")
    assert not allowed(rules, "bob", READ, TOPIC, "ala")
    assert rules.count == 7


def test_super_users_may_do_everything() -> None:
    rules = AccessRules(
        [rule(TOPIC, "*", LITERAL, "User:*", ALL_OPERATIONS, DENY)], super_users(" User:root ;User:CN=a,O=b;")
    )
    assert allowed(rules, "root", WRITE, TOPIC, "t")
    assert allowed(rules, "CN=a,O=b", WRITE, TOPIC, "t")
    assert rules.allow_any("User:root", HOST, WRITE, TOPIC)
    assert not allowed(rules, "Root", WRITE, TOPIC, "t")
    assert not allowed(rules, "*", WRITE, TOPIC, "t")


def test_everyone_only_where_nobody_has_a_rule() -> None:
    one = [rule(TOPIC, "topic1", LITERAL, "User:Alice", READ, ALLOW)]
    rules = AccessRules(one, allow_everyone_if_no_rule=True)
    assert not allowed(rules, "Bob", READ, TOPIC, "topic1")
    assert allowed(rules, "Bob", READ, TOPIC, "topic2")
    assert allowed(rules, "Bob", READ, GROUP, "topic1")
    assert not allowed(AccessRules(one), "Bob", READ, TOPIC, "topic2")
    prefixed = AccessRules(
        [rule(TOPIC, "t", PREFIXED, "User:Alice", READ, ALLOW)], allow_everyone_if_no_rule=True
    )
    assert not allowed(prefixed, "Bob", READ, TOPIC, "topic2")


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([rule(TOPIC, "a", LITERAL, "User:bob", WRITE, ALLOW)], True),
        ([rule(TOPIC, "a", PREFIXED, "User:*", ALL_OPERATIONS, ALLOW)], True),
        ([rule(TOPIC, "a", LITERAL, "User:bob", READ, ALLOW)], False),
        ([rule(TOPIC, "a", LITERAL, "User:bob", WRITE, ALLOW, "10.0.0.1")], False),
        (
            [
                rule(TOPIC, "a", LITERAL, "User:bob", WRITE, ALLOW),
                rule(TOPIC, "a", LITERAL, "User:*", WRITE, DENY),
            ],
            False,
        ),
        (
            [
                rule(TOPIC, "ab", PREFIXED, "User:bob", WRITE, ALLOW),
                rule(TOPIC, "a", PREFIXED, "User:*", WRITE, DENY),
            ],
            False,
        ),
        (
            [
                rule(TOPIC, "a", PREFIXED, "User:bob", WRITE, ALLOW),
                rule(TOPIC, "ab", PREFIXED, "User:*", WRITE, DENY),
            ],
            True,
        ),
        (
            [
                rule(TOPIC, "*", LITERAL, "User:bob", WRITE, ALLOW),
                rule(TOPIC, "a", PREFIXED, "User:*", WRITE, DENY),
            ],
            True,
        ),
        (
            [
                rule(TOPIC, "a", LITERAL, "User:bob", WRITE, ALLOW),
                rule(TOPIC, "*", LITERAL, "User:*", WRITE, DENY),
            ],
            False,
        ),
        ([rule(GROUP, "a", LITERAL, "User:bob", WRITE, ALLOW)], False),
    ],
)
def test_on_any_resource_of_the_kind(found: list[AccessRule], expected: bool) -> None:
    assert AccessRules(found).allow_any("User:bob", HOST, WRITE, TOPIC) is expected


# -- against a plain reading -----------------------------------------------------------------------------

NAMES = st.text("ab*", min_size=1, max_size=3)
USERS = st.sampled_from(["User:a", "User:b", "User:*"])
OPERATIONS = st.sampled_from([READ, WRITE, CREATE, DESCRIBE, ALTER_CONFIGS, DESCRIBE_CONFIGS])
RULES = st.builds(
    AccessRule,
    st.sampled_from([TOPIC, GROUP]),
    NAMES,
    st.sampled_from([LITERAL, PREFIXED]),
    USERS,
    st.sampled_from(["*", HOST, "10.0.0.1"]),
    OPERATIONS | st.just(ALL_OPERATIONS),
    st.sampled_from([ALLOW, DENY]),
)
IMPLIED = {
    DESCRIBE: {READ, WRITE, DELETE, ALTER, DESCRIBE},
    DESCRIBE_CONFIGS: {ALTER_CONFIGS, DESCRIBE_CONFIGS},
}


def plainly(rules: list[AccessRule], user: str, operation: Operation, name: str, everyone: bool) -> bool:
    matching = [
        one
        for one in rules
        if one.resource_type == TOPIC
        and (name.startswith(one.name) if one.pattern_type == PREFIXED else one.name in (name, "*"))
    ]
    if not matching:
        return everyone
    mine = [one for one in matching if one.principal in (user, "User:*") and one.host in ("*", HOST)]
    if any(one.permission == DENY and one.operation in (operation, ALL_OPERATIONS) for one in mine):
        return False
    enough = {ALL_OPERATIONS, *IMPLIED.get(operation, {operation})}
    return any(one.permission == ALLOW and one.operation in enough for one in mine)


@given(st.lists(RULES, max_size=8), USERS, OPERATIONS, NAMES, st.booleans())
@settings(derandomize=True, max_examples=500)
def test_it_is_the_plain_reading(
    found: list[AccessRule], user: str, operation: Operation, name: str, everyone: bool
) -> None:
    rules = AccessRules(found, allow_everyone_if_no_rule=everyone)
    expected = plainly(found, user, operation, name, everyone)
    assert rules.allow(user, HOST, operation, TOPIC, name) is expected
    assert rules.allow(user, HOST, operation, TOPIC, name) is expected, "kept"


HOSTS = st.sampled_from(["*", HOST, "::ffff:127.0.0.1", "10.0.0.1"])
"""Two of them are one address."""
SPELLED = st.builds(lambda one, host: replace(one, host=host), RULES, HOSTS)


def indexed(rules: AccessRules) -> dict[int, object]:
    """What decisions are made from, whatever order rules of one principal and name are in."""

    def ordered(names: dict[str, dict[str, list[AccessRule]]]) -> object:
        return {
            name: {who: sorted(found, key=repr) for who, found in by_principal.items()}
            for name, by_principal in names.items()
        }

    return {
        resource: (ordered(kind.literal), ordered(kind.prefixed), kind.lengths)
        for resource, kind in rules._kinds.items()
        if kind.literal or kind.prefixed
    }


@given(st.lists(st.sets(SPELLED, max_size=12), min_size=2, max_size=5))
@settings(derandomize=True, max_examples=300)
def test_changed_rules_are_those_made_anew(history: list[set[AccessRule]]) -> None:
    rules = AccessRules(history[0], super_users("User:root"))
    for before, after in pairwise(history):
        old, then = rules, indexed(rules)
        rules = old.changed(after - before, before - after)
        anew = AccessRules(after)
        assert indexed(rules) == indexed(anew)
        assert rules.count == anew.count == len(after)
        assert indexed(old) == then, "rules never change"
        assert allowed(rules, "root", READ, TOPIC, "x")


def test_a_change_is_decided_by_and_shares_the_rest() -> None:
    many = [rule(TOPIC, f"{n:05}-", PREFIXED, "User:bob", READ, ALLOW) for n in range(1000)]
    rules = AccessRules(many)
    assert allowed(rules, "bob", READ, TOPIC, "00007-topic")
    denial = rule(TOPIC, "00007", PREFIXED, "User:bob", READ, DENY)
    denied = rules.changed([denial], [])
    assert not allowed(denied, "bob", READ, TOPIC, "00007-topic")
    assert allowed(rules, "bob", READ, TOPIC, "00007-topic")
    again = denied.changed([], [denial])
    assert allowed(again, "bob", READ, TOPIC, "00007-topic")
    for one in many:
        assert again._kinds[TOPIC].prefixed[one.name] is rules._kinds[TOPIC].prefixed[one.name]


def test_many_rules_of_one_principal_go_at_once() -> None:
    hosts = [f"10.0.{n >> 8}.{n & 255}" for n in range(20_000)]
    many = [rule(TOPIC, "*", LITERAL, "User:bob", READ, ALLOW, host) for host in hosts]
    rules = AccessRules(many)
    began = time.thread_time()
    left = rules.changed([], many[1:])
    assert time.thread_time() - began < 2
    assert left.count == 1
    assert allowed(left, "bob", READ, TOPIC, "t", "10.0.0.0")
    assert not allowed(left, "bob", READ, TOPIC, "t", "10.0.0.1")


def test_decisions_are_kept_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules_module, "KEPT_MAX", 10)
    rules = foo(READ, ALLOW)
    for number in range(100):
        allowed(rules, "bob", READ, TOPIC, f"foo_{number}")
        rules.allow_any(f"User:{number}", HOST, READ, TOPIC)
    assert len(rules._kept) <= 10
    assert allowed(rules, "bob", READ, TOPIC, "foo_1")


def test_ten_thousand_rules_do_not_make_a_decision_slow() -> None:
    """Each is for another name, so a walk over all of them would take milliseconds."""
    many = [rule(TOPIC, f"{n:05}-", PREFIXED, f"User:{n % 100}", READ, ALLOW) for n in range(10_000)]
    rules = AccessRules(many)
    began = time.thread_time()  # whatever else the machine does
    for n in range(1000):
        assert allowed(rules, str(n % 100), READ, TOPIC, f"{n:05}-topic")
    assert time.thread_time() - began < 0.5


def test_ten_thousand_rules_are_looked_at_once_for_who_asks_again() -> None:
    """Whether somebody may write to any topic is asked with each InitProducerId: a walk over all rules."""
    rules = AccessRules(rule(TOPIC, f"{n:05}-", PREFIXED, "User:bob", WRITE, ALLOW) for n in range(10_000))
    began = time.thread_time()
    for _ in range(1000):
        assert not rules.allow_any("User:eve", HOST, WRITE, TOPIC)
        assert rules.allow_any("User:bob", HOST, WRITE, TOPIC)
    assert time.thread_time() - began < 0.5


# -- filters ---------------------------------------------------------------------------------------------


def test_filters() -> None:
    literal = rule(TOPIC, "foo", LITERAL, "User:a", READ, ALLOW)
    every = rule(TOPIC, "*", LITERAL, "User:a", READ, ALLOW)
    prefixed = rule(TOPIC, "fo", PREFIXED, "User:b", WRITE, DENY, HOST)
    group = rule(GROUP, "foo", LITERAL, "User:a", READ, ALLOW)
    everything = [literal, every, prefixed, group]

    def found(**words: int | str | None) -> list[AccessRule]:
        return [one for one in everything if RuleFilter(**words).matches(one)]  # type: ignore[arg-type]

    assert found() == everything
    assert found(resource_type=TOPIC) == [literal, every, prefixed]
    assert found(resource_type=TOPIC, name="foo", pattern_type=Pattern.MATCH) == [literal, every, prefixed]
    assert found(name="foo", pattern_type=LITERAL) == [literal, group]
    assert found(name="foo", pattern_type=Pattern.ANY) == [literal, group]
    assert found(name="foo", pattern_type=PREFIXED) == []
    assert found(name="*", pattern_type=Pattern.MATCH) == [every]
    assert found(name="fo", pattern_type=Pattern.MATCH, resource_type=TOPIC) == [every, prefixed]
    assert found(principal="User:b") == [prefixed]
    assert found(host=HOST) == [prefixed]
    assert found(operation=WRITE) == [prefixed]
    assert found(permission=ALLOW) == [literal, every, group]
    assert RuleFilter().is_known
    assert not RuleFilter(resource_type=0).is_known
    assert not RuleFilter(operation=99).is_known
    assert not RuleFilter(pattern_type=0).is_known
    assert not RuleFilter(permission=0).is_known


FILTERS = st.builds(
    RuleFilter,
    st.sampled_from([ANY, TOPIC, GROUP]),
    st.none() | NAMES,
    st.sampled_from([Pattern.ANY, Pattern.MATCH, LITERAL, PREFIXED]),
    st.none() | USERS,
    st.sampled_from([None, "*", HOST, "10.0.0.1"]),
    st.just(ANY) | OPERATIONS,
    st.sampled_from([ANY, ALLOW, DENY]),
)


@given(st.sets(RULES, max_size=12), st.lists(FILTERS, min_size=1, max_size=4))
@settings(derandomize=True, max_examples=300)
def test_a_search_finds_what_a_walk_over_all_rules_finds(
    found: set[AccessRule], filters: list[RuleFilter]
) -> None:
    exact = [RuleFilter(*msgspec.structs.astuple(one)) for one in found]
    search = RuleSearch({one: one for one in found})
    for wanted in (*filters, *exact):
        matching = search.matching(wanted)
        assert len(matching) == len(set(matching))
        assert set(matching) == {one for one in found if wanted.matches(one)}


def test_a_thousand_filters_do_not_walk_over_ten_thousand_rules_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a broker would answer nobody for seconds."""
    looked_at = 0
    matches = RuleFilter.matches

    def counted(wanted: RuleFilter, one: AccessRule) -> bool:
        nonlocal looked_at
        looked_at += 1
        return matches(wanted, one)

    monkeypatch.setattr(RuleFilter, "matches", counted)
    rules = [rule(TOPIC, f"t{n}", LITERAL, f"User:{n}", READ, ALLOW) for n in range(10_000)]
    search = RuleSearch({one: one for one in rules})
    for one in rules[:1000]:
        number = one.name[1:]
        for wanted in (
            RuleFilter(*msgspec.structs.astuple(one)),
            RuleFilter(name=one.name),
            RuleFilter(name=one.name, pattern_type=Pattern.MATCH),
            RuleFilter(principal=f"User:{number}"),
        ):
            found = search.matching(wanted)
            assert one in found
            assert len(found) == 1
    assert looked_at < 10_000


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("::ffff:a00:1", "10.0.0.1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("2001:DB8:0:0:0:0:0:5", "2001:db8::5"),
        ("fe80:0:0:0:0:0:0:1%eth0", "fe80::1%eth0"),
        ("a name: of nothing", "a name: of nothing"),
    ],
)
def test_an_address_is_denied_however_it_is_written(written: str, seen: str) -> None:
    assert canonical(written) == canonical(seen) == seen
    denied = AccessRules(
        [
            rule(TOPIC, "t", LITERAL, "User:bob", READ, ALLOW),
            rule(TOPIC, "t", LITERAL, "User:bob", READ, DENY, written),
        ]
    )
    assert not allowed(denied, "bob", READ, TOPIC, "t", seen)
    assert allowed(denied, "bob", READ, TOPIC, "t", "192.0.2.1")


def test_long_names_that_anybody_can_send_are_not_kept() -> None:
    rules = AccessRules([rule(TOPIC, "x", PREFIXED, "User:bob", READ, ALLOW)])
    for number in range(50):
        assert allowed(rules, "bob", READ, TOPIC, "x" * (rules_module.NAME_KEPT_MAX + 1 + number))
        assert not allowed(rules, "eve", READ, TOPIC, "x" * (rules_module.NAME_KEPT_MAX + 1 + number))
    assert not rules._kept
