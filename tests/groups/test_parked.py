"""Requests that wait for other members do not stay in memory meanwhile."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.broker.dispatch import make_handle
from penstock.wire.api.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from penstock.wire.codec import encode
from penstock.wire.errors import ErrorCode
from penstock.wire.exchange import Reply
from penstock.wire.headers import request_header
from tests.broker.rig import Rig
from tests.groups.test_handlers import find

VERSION = 3


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    made = await Rig.start(
        tmp_path / "store", group_initial_rebalance_delay_ms=0, offsets_topic_num_partitions=1
    )
    await find(made)
    yield made
    await made.close()


@pytest.mark.parametrize("watched", [False, True])
async def test_a_join_that_waits_has_let_go_of_its_frame(rig: Rig, watched: bool) -> None:
    if watched:
        rig._handle = make_handle(rig.broker, lambda _session, _seen: 0)

    def asked(size: int) -> JoinGroupRequest:
        return JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=bytes(size))],
        )

    await rig.ask(asked(10), JoinGroupResponse, VERSION)
    # The first member does not come again, so this one waits for it.
    header = request_header(JoinGroupRequest.api_key, VERSION, 7, "second")
    frame = bytearray(header + encode(asked(1 << 20), VERSION))
    view = memoryview(frame)
    reply = rig.handle(view, owned=True)
    view.release()
    assert isinstance(reply, Reply)
    assert not reply.done
    assert not reply.holds_request
    frame += b"x"  # BufferError if anybody still had it.
    refused = await rig.ask(asked(5 << 20), JoinGroupResponse, VERSION)
    assert refused.error_code == ErrorCode.MESSAGE_TOO_LARGE
