"""Topic names by Kafka's rule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.metadata.names import check_new_topic_name, topic_name_problem
from penstock.wire.errors import ErrorCode

from .worlds import cluster, with_topic


@pytest.mark.parametrize("name", ["a", "A-b_c.9", "...", "-", "x" * 249, "__consumer_offsets"])
def test_legal_names(name: str) -> None:
    assert topic_name_problem(name) is None


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "the empty string is not allowed"),
        (".", "'.' is not allowed"),
        ("..", "'..' is not allowed"),
        ("x" * 250, f"the length of '{'x' * 250}' is longer than the max allowed length 249"),
        ("a/b", "'a/b' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
        ("ä", "'ä' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
        ("a\n", "'a\n' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
    ],
)
def test_illegal_names_in_kafkas_words(name: str, problem: str) -> None:
    assert topic_name_problem(name) == f"Topic name is invalid: {problem}"


@given(st.text(max_size=260))
def test_a_legal_name_is_a_safe_path_segment(name: str) -> None:
    if topic_name_problem(name) is None:
        assert name.isascii() and name not in {"", ".", ".."} and not set(name) & set("/\\\0 :")


def test_names_that_differ_in_dots_and_underscores_only() -> None:
    image = with_topic(with_topic(cluster(1), 1, "a.b_c", 1), 2, "plain", 1)
    refusal = check_new_topic_name(image, "a_b.c")
    assert refusal is not None
    assert refusal.code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert refusal.message == "Topic 'a_b.c' collides with existing topic: a.b_c"
    assert check_new_topic_name(image, "a-b-c") is None
