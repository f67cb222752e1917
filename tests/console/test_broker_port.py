"""The console on a broker's own HTTP port, in a process of its own."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from penstock.node.console import console_options, way_in
from penstock.node.node import Node
from penstock.server.server import Bound
from penstock.settings import Settings
from penstock.settings.access import STANDARD_AUTHORIZER
from penstock.settings.doors import doors
from tests.certificates import Authority
from tests.cluster.nodes import Nodes
from tests.monitor.asking import get


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    nodes = Nodes(tmp_path / "store", http_address="127.0.0.1:0")
    await nodes.start(1)
    yield nodes.nodes[1]
    await nodes.close()


def _process(node: Node) -> int:
    assert node._monitor is not None
    assert node._monitor._console is not None
    process = node._monitor._console._process
    assert process is not None
    return process.pid


async def test_pages_come_through_the_brokers_port_and_end_with_it(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path / "store", http_address="127.0.0.1:0")
    await nodes.start(1)
    address = nodes.nodes[1].http_address
    overview = await get(address, "/")
    assert overview.status == 200
    assert b"Every broker is there" in overview.body
    assert (await get(address, "/topics/nothing-there")).status == 404
    assert (await get(address, "/health/ready")).status == 200
    pid = _process(nodes.nodes[1])
    await nodes.stop(1)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    await nodes.close()


async def test_a_console_that_died_is_started_again(node: Node) -> None:
    async with httpx.AsyncClient(base_url=f"http://{node.http_address}", timeout=30) as http:
        assert (await http.get("/")).status_code == 200
        first = _process(node)
        os.kill(first, signal.SIGKILL)
        async with asyncio.timeout(30):
            while (await http.get("/brokers")).status_code != 200:
                pass  # the first requests may be told that it ended
        assert _process(node) != first


async def test_forms_go_through(node: Node) -> None:
    async with httpx.AsyncClient(base_url=f"http://{node.http_address}", timeout=30) as http:
        refused = await http.post("/logout", data={"token": "x"})
        assert refused.status_code == 403
        assert "too old" in refused.text


_TOKEN = re.compile(r'name="token" value="([0-9a-f]+)"')


async def _log_in(http: httpx.AsyncClient, user: str, password: str) -> httpx.Response:
    found = _TOKEN.search((await http.get("/login")).text)
    assert found
    return await http.post("/login", data={"token": found[1], "user": user, "password": password})


async def test_visitors_of_a_secured_cluster_act_with_their_own_rights(tmp_path: Path) -> None:
    authority = Authority()
    keys = authority.vouch().write(tmp_path / "broker.pem")
    ca = authority.write(tmp_path / "ca.pem")
    values = {
        "store": str(tmp_path / "store"),
        "http.address": "127.0.0.1:0",
        "http.ssl.keystore.location": keys,
        "listeners": "SASL_SSL://127.0.0.1:0",
        "ssl.keystore.location": keys,
        "ssl.truststore.location": ca,
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:root",
    }
    node = Node(Settings().with_values(values), first_users={"root": "secret", "guest": "nothing"})
    await node.start()
    trust = ssl.create_default_context(cafile=ca)
    try:
        async with httpx.AsyncClient(
            base_url=f"https://{node.http_address}", verify=trust, timeout=30
        ) as http:
            stranger = await http.get("/topics?find=a")
            assert (stranger.status_code, stranger.headers["location"]) == (
                303,
                "/login?back=%2Ftopics%3Ffind%3Da",
            )
            assert (await http.get("/topics", headers={"x-renews": "1"})).status_code == 401
            wrong = await _log_in(http, "root", "guess")
            assert wrong.status_code == 401
            assert "Authentication failed" in wrong.text
            assert "guess" not in wrong.text
            done = await _log_in(http, "root", "secret")
            assert done.status_code == 303
            cookie = done.headers["set-cookie"]
            assert all(word in cookie for word in ("HttpOnly", "SameSite=strict", "Secure"))
            assert "/topics" in (await http.get("/")).text
            assert (await http.get("/brokers")).status_code == 200
            found = _TOKEN.search((await http.get("/create-topic")).text)
            assert found
            made = await http.post("/create-topic", data={"token": found[1], "name": "orders"})
            assert made.headers["location"] == "/topics/orders"
        async with httpx.AsyncClient(
            base_url=f"https://{node.http_address}", verify=trust, timeout=30
        ) as http:
            assert (await _log_in(http, "guest", "nothing")).status_code == 303
            page = await http.get("/")
            found = _TOKEN.search(page.text)
            assert found
            refused = await http.post("/create-topic", data={"token": found[1], "name": "mine"})
            assert refused.status_code == 400
            assert "AUTHORIZATION_FAILED" in refused.text
            assert (await http.get("/topics/orders")).status_code == 403
            assert (await http.post("/logout", data={"token": found[1]})).status_code == 303
            assert (await http.get("/")).status_code == 303
    finally:
        await node.kill()


def _options(http: str = "127.0.0.1:0", **values: str) -> dict[str, object]:
    settings = Settings().with_values(
        {"http.address": http, **{name.replace("_", "."): value for name, value in values.items()}}
    )
    here = tuple(Bound(door.name, door.address.host, 9092) for door in doors(settings, settings.given))
    return console_options(settings, here)


SCRAM = {
    "sasl_enabled_mechanisms": "SCRAM-SHA-256",
    "listener_security_protocol_map": "PLAINTEXT:PLAINTEXT,INNER:PLAINTEXT,OUTER:SASL_PLAINTEXT",
    "listeners": "INNER://127.0.0.1:0,OUTER://127.0.0.1:0",
}


def test_visitors_log_in_where_any_door_asks_for_a_login() -> None:
    assert _options()["mechanisms"] == ()
    told = _options(**SCRAM)
    assert (told["mechanisms"], told["no_login"]) == (("SCRAM-SHA-256",), "")


def test_passwords_are_not_taken_over_plain_http_from_other_machines(tmp_path: Path) -> None:
    told = _options("0.0.0.0:0", insecure_listeners_enable="true", **SCRAM)
    assert "not taken over plain HTTP" in str(told["no_login"])
    told = _options(
        "0.0.0.0:0",
        insecure_listeners_enable="true",
        http_ssl_keystore_location=str(tmp_path / "key.pem"),
        **SCRAM,
    )
    assert told["no_login"] == ""


def test_who_needs_a_certificate_is_told_where_to_go(tmp_path: Path) -> None:
    authority = Authority()
    settings = Settings().with_values(
        {
            "listeners": "SSL://127.0.0.1:0",
            "ssl.keystore.location": authority.vouch().write(tmp_path / "broker.pem"),
            "ssl.truststore.location": authority.write(tmp_path / "ca.pem"),
            "ssl.client.auth": "required",
        }
    )
    _door, mechanisms, why = way_in(doors(settings, settings.given))
    assert mechanisms
    assert "without a certificate" in why
