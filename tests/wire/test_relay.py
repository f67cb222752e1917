"""A relay answers as another reply does, and passes on to it what the server said before it was there."""

from __future__ import annotations

import pytest

from penstock.wire.exchange import Relay, Reply


@pytest.mark.parametrize("early", [False, True])
def test_the_answer_is_the_other_ones(early: bool) -> None:
    relay, other = Relay(), Reply()
    if early:
        other.complete([b"answer"])
    relay.become(other)
    other.complete([b"answer"])
    assert (relay.done, relay.closed, relay.buffers) == (True, False, [b"answer"])


def test_a_connection_that_the_other_closes_is_closed() -> None:
    relay, other = Relay(), Reply()
    relay.become(other)
    other.close()
    assert relay.closed


@pytest.mark.parametrize("said", ["on_abandon", "on_hurry"])
@pytest.mark.parametrize("before", [False, True])
def test_what_the_server_says_reaches_the_other(said: str, before: bool) -> None:
    relay, other = Relay(), Reply()
    heard: list[str] = []
    other.on_abandon = lambda: heard.append("on_abandon")
    other.on_hurry = lambda: heard.append("on_hurry")
    if before:
        getattr(relay, said)()
    relay.become(other)
    if not before:
        getattr(relay, said)()
    assert heard == [said]
