"""/metrics for those who show the token, and health for all."""

from __future__ import annotations

import logging
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.monitor.admission import Tokens
from penstock.node.console import may_read_metrics
from penstock.settings import Settings, SettingsError
from tests.cluster.nodes import Nodes
from tests.monitor.asking import Got, get

TOKEN, OTHER = "a token of prometheus'".replace(" ", "-"), "another-token-of-its"


def basic(name: str, password: str) -> str:
    return f"Basic {b64encode(f'{name}:{password}'.encode()).decode()}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "metrics.token"
    made.write_text(f"{TOKEN}\n")
    return made


@pytest.fixture
async def address(tmp_path: Path, file: Path) -> AsyncIterator[str]:
    nodes = Nodes(tmp_path / "store", http_address="127.0.0.1:0", metrics_token_file=str(file))
    await nodes.start(1)
    yield nodes.nodes[1].http_address
    await nodes.close()


async def metrics(address: str, authorization: str | None) -> Got:
    given = {} if authorization is None else {"Authorization": authorization}
    return await get(address, "/metrics", **given)


async def test_who_shows_the_token_reads_metrics(address: str) -> None:
    for right in (f"Bearer {TOKEN}", f"bearer  {TOKEN} ", basic("prometheus", TOKEN), basic("", TOKEN)):
        got = await metrics(address, right)
        assert got.status == 200, right
        assert b"penstock_image_version" in got.body
    wrong = (
        None,
        "",
        "Bearer",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        TOKEN,
        f"Token {TOKEN}",
        basic(TOKEN, ""),
        basic("x", TOKEN + ":"),
        "Basic ====",
        "Basic " + b64encode(b"\xff:\xff").decode(),
        "Bearer \xff\xfe",
    )
    for authorization in wrong:
        got = await metrics(address, authorization)
        assert (got.status, got.headers["www-authenticate"]) == (
            401,
            'Basic realm="metrics", charset="UTF-8"',
        ), authorization
        assert b"penstock_" not in got.body
    assert (await get(address, "/metrics", "HEAD")).status == 401


async def test_health_asks_nobody(address: str) -> None:
    assert (await get(address, "/health/live")).status == 200
    assert (await get(address, "/health/ready")).status == 200


async def test_a_token_is_exchanged_while_the_broker_runs(address: str, file: Path) -> None:
    file.write_text(f"{TOKEN}\r\n\n{OTHER}\n")
    for one in (TOKEN, OTHER):
        assert (await metrics(address, f"Bearer {one}")).status == 200
    file.write_text(OTHER)
    assert [(await metrics(address, f"Bearer {one}")).status for one in (TOKEN, OTHER)] == [401, 200]


@pytest.mark.parametrize("text", ["", "\n\n", "short", f"{TOKEN}\nshort"])
async def test_a_file_that_protects_little_lets_nobody_in(address: str, file: Path, text: str) -> None:
    file.write_text(text)
    for shown in ("", "short", TOKEN):
        assert (await metrics(address, f"Bearer {shown}")).status in (401, 503)
        assert (await metrics(address, basic("x", shown))).status in (401, 503)
    with pytest.raises(SettingsError, match="16 characters"):
        Tokens(str(file)).read()


async def test_a_broker_does_not_start_without_the_file(file: Path) -> None:
    settings = Settings().with_values({"http.address": "127.0.0.1:1", "metrics.token.file": f"{file}.gone"})
    with pytest.raises(SettingsError, match="No such file"):
        await may_read_metrics(settings)
    file.write_bytes(b"\xff" * 40)
    with pytest.raises(SettingsError, match="it is not text"):
        Tokens(str(file)).read()
    with pytest.raises(SettingsError, match="there is no HTTP port"):
        Settings().with_values({"metrics.token.file": str(file)})


@pytest.mark.parametrize(
    ("host", "more", "told"),
    [
        ("0.0.0.0", {}, True),
        ("127.0.0.1", {}, False),
        ("0.0.0.0", {"authorizer.class.name": ""}, False),
    ],
)
async def test_a_secured_broker_with_open_metrics_says_so(
    caplog: pytest.LogCaptureFixture, host: str, more: dict[str, str], told: bool
) -> None:
    given = {
        "http.address": f"{host}:8080",
        "listeners": "SASL_PLAINTEXT://127.0.0.1:1",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "console.enable": "false",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    }
    with caplog.at_level(logging.WARNING):
        await may_read_metrics(Settings().with_values({**given, **more}))
    assert [f"address={host}:8080" in message for message in caplog.messages] == [True] * told
