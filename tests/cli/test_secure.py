"""`penstock start --secure`: what it makes, who can read it, and that it is used."""

from __future__ import annotations

import ssl
import stat
from pathlib import Path

import pytest

from penstock.cli.secure import ADMINISTRATOR, BROKERS, secured
from penstock.monitor.admission import Tokens
from penstock.settings import Settings, SettingsError
from penstock.settings.clients import client_security
from penstock.settings.doors import doors, inter_broker, refuse_open_doors
from penstock.settings.properties import parse_properties
from penstock.tls import client_context, server_context


def given(store: Path, address: str = "0.0.0.0:9092") -> dict[str, str]:
    return {"broker.id": "3", "store": str(store), "listeners": f"SASL_SSL://{address}"}


def test_what_is_made_is_for_its_owner_and_fits_together(tmp_path: Path) -> None:
    made = secured(given(tmp_path / "store"))
    settings = Settings().with_values(made.values)
    refuse_open_doors(settings, settings.given)
    (door,) = doors(settings, settings.given)
    assert door.tls is not None and door.login is not None
    context = server_context(door.tls)
    login = inter_broker(settings, settings.given)
    assert (login.user, login.password) == (BROKERS, made.users[BROKERS])
    properties = Path(made.client_properties)
    security = client_security(parse_properties(properties.read_text()))
    assert (security.user, security.password) == (ADMINISTRATOR, made.users[ADMINISTRATOR])
    assert security.tls is not None
    _shake(context, client_context(security.tls))
    folder = properties.parent
    assert stat.S_IMODE(folder.stat().st_mode) == stat.S_IMODE((tmp_path / "store").stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    assert settings.super_users == f"User:{ADMINISTRATOR};User:{BROKERS}"
    assert made.users[ADMINISTRATOR] not in repr(settings) and made.users[BROKERS] not in repr(settings)


def test_a_second_start_uses_the_same(tmp_path: Path) -> None:
    first = secured(given(tmp_path))
    before = {file.name: file.read_bytes() for file in (tmp_path / "security").iterdir()}
    assert secured(given(tmp_path)) == first
    assert {file.name: file.read_bytes() for file in (tmp_path / "security").iterdir()} == before
    other = secured({**given(tmp_path, "broker.example:9092"), "broker.id": "3"})
    assert other.users == first.users
    assert (tmp_path / "security" / "broker-3.pem").read_bytes() != before["broker-3.pem"]  # Another name.


def test_a_listener_without_login_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--listen"):
        secured({**given(tmp_path), "listeners": "PLAINTEXT://0.0.0.0:1"})


def test_the_http_port_takes_the_certificate_where_others_can_reach_it(tmp_path: Path) -> None:
    made = secured({**given(tmp_path, "127.0.0.1:9092"), "http.address": "0.0.0.0:8080"})
    settings = Settings().with_values(made.values)
    assert settings.http_ssl_keystore_location == str(tmp_path / "security" / "broker-3.pem")
    with pytest.raises(SettingsError, match="passwords over plain HTTP"):
        Settings().with_values({**made.values, "http.ssl.keystore.location": ""})
    (token,) = Tokens(settings.metrics_token_file).read()
    assert settings.metrics_token_file == str(tmp_path / "security" / "metrics.token")
    assert secured({**given(tmp_path, "127.0.0.1:9092"), "http.address": "0.0.0.0:8080"}) == made
    assert Tokens(settings.metrics_token_file).read() == [token]
    near = secured({**given(tmp_path, "127.0.0.1:9092"), "http.address": "127.0.0.1:8080"})
    assert {"http.ssl.keystore.location", "metrics.token.file"}.isdisjoint(near.values)


def _shake(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Both ends agree, and the client checks name and authority."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    there = server.wrap_bio(to_server, to_client, server_side=True)
    done: set[ssl.SSLObject] = set()
    for _ in range(10):
        for one in (here, there):
            try:
                one.do_handshake()
                done.add(one)
            except ssl.SSLWantReadError:
                pass
    assert done == {here, there}
