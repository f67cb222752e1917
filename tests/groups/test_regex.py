"""Python's own `re` decides what should match; what differs on purpose is listed below."""

import contextlib
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.groups.consumer.regex import TopicPattern
from penstock.groups.consumer.regex_syntax import RegexError

NAMES = ["", "a", "b", "ab", "ba", "aab", "abab", "a.b", "A", "AB", "a_b", "a-b", "orders.eu.1", "x9"]

_atoms = st.sampled_from(
    ["a", "b", ".", r"\.", "[ab]", "[^a]", r"\w", r"\d", "[a-c_]", "x9", r"\b", "^", "$"]
)


def _combine(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.lists(inner, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: "(?:" + "|".join(parts) + ")"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}", "*?", "+?"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
        inner.map(lambda part: f"(?i:{part})"),
        inner.map(lambda part: f"({part})"),
    )


patterns = st.recursive(_atoms, _combine, max_leaves=8)


@settings(max_examples=400, derandomize=True, deadline=None)
@given(patterns)
def test_agrees_with_re(pattern: str) -> None:
    oracle = re.compile(pattern, re.ASCII)
    expected = {name for name in NAMES if oracle.fullmatch(name)}
    assert TopicPattern(pattern).select(NAMES) == expected


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        ("", {""}),
        (".*", set(NAMES)),
        ("a", {"a"}),
        ("(?i)AB", {"ab", "AB"}),
        (r"\Qa.b\E", {"a.b"}),
        (r"[[:upper:]]+", {"A", "AB"}),
        (r"\p{Lu}\pN?", {"A"}),
        (r"[\w.]+\.1", {"orders.eu.1"}),
        (r"(?P<region>orders)\.(?<rest>.*)", {"orders.eu.1"}),
        (r"a\x62", {"ab"}),
        (r"a\x{5F}b|a\055b", {"a_b", "a-b"}),
        ("a{,2}", set()),
        ("ü*a", {"a"}),
        ("[^ü]", {"a", "b", "A"}),
        (r"\Aa\z", {"a"}),
        (r"a\Bb", {"ab"}),
        ("[]a]b", {"ab"}),
    ],
)
def test_syntax(pattern: str, matched: set[str]) -> None:
    assert TopicPattern(pattern).select(NAMES) == matched


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        ")",
        "a)",
        "[a",
        "*a",
        "a**",
        "a++",
        "a{2}{3}",
        "a{1001}",
        "a{3,2}",
        "[z-a]",
        "\\",
        r"\1",
        r"\k",
        r"\p{Nonsense}",
        "[[:nonsense:]]",
        r"\x{110000}",
        r"\xzz",
        "(?=a)",
        "(?!a)",
        "(?<=a)b",
        "(?<!a)b",
        "(?>a)",
        "(?P<1>a)",
        "^*",
        "(" * 60 + ")" * 60,
        "a" * 1001,
        "((a{100}){100}){100}",
    ],
)
def test_refused(pattern: str) -> None:
    with pytest.raises(RegexError):
        TopicPattern(pattern)


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*b", "(.*a){12}", "(a?){50}a{50}", "(x+x+)+y"])
def test_no_pattern_stops_the_broker(pattern: str) -> None:
    names = ["a" * 249, "x" * 249, *(f"topic-{n}" + "a" * 200 for n in range(50))]
    began = time.thread_time()
    with contextlib.suppress(RegexError):
        TopicPattern(pattern).select(names)
    assert time.thread_time() - began < 5


def test_many_topics_are_cheap() -> None:
    names = [f"region-{n % 7}.orders.{n}" for n in range(10_000)]
    pattern = TopicPattern(r"region-[1-3]\.orders\..*")
    began = time.thread_time()
    assert len(pattern.select(names)) == sum(n % 7 in (1, 2, 3) for n in range(10_000))
    assert time.thread_time() - began < 2
