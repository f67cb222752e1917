"""What a broker tells its console: which listener to use, and how visitors log in there.

The console is a client like any other, so visitors come through a door of the broker. Where any door asks for
a login, visitors log in, although another door may be open to whoever is on this machine.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.monitor.admission import Tokens
from penstock.node.settings import advertised
from penstock.server.server import Bound
from penstock.settings import Settings, SettingsError
from penstock.settings.clients import ClientSecurity
from penstock.settings.doors import Door, doors
from penstock.settings.http import is_loopback, parse_http_address
from penstock.tls import TlsError
from penstock.web.server import https_certificates

if TYPE_CHECKING:
    from penstock.certificates import Certificates

log = logging.getLogger(__name__)

PASSWORDS = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
"""The mechanisms of a form with a name and a password."""


def console_options(settings: Settings, bound: tuple[Bound, ...]) -> dict[str, Any]:
    """The options of `console.options`, by name."""
    door, mechanisms, no_login = way_in(doors(settings, settings.given))
    host, _port = parse_http_address(settings.http_address)
    if mechanisms and not no_login and not settings.http_ssl_keystore_location and not is_loopback(host):
        no_login = (
            "Passwords are not taken over plain HTTP: set http.ssl.keystore.location, or come through an "
            "address of loopback."
        )
    (told,) = (one for one in advertised(settings, bound) if one.name == door.name)
    names = tuple(name.strip() for name in settings.http_names.split(",") if name.strip())
    return {
        "bootstrap": f"[{told.host}]:{told.port}" if ":" in told.host else f"{told.host}:{told.port}",
        "security": msgspec.to_builtins(_security(door)),
        "mechanisms": mechanisms,
        "no_login": no_login,
        "names": names,
        "registry": settings.console_registry_url,
        "store": settings.store,
    }


def way_in(all_doors: tuple[Door, ...]) -> tuple[Door, tuple[str, ...], str]:
    """The door that the console uses, the logins that it offers, and why visitors cannot use any of them."""
    with_login = [door for door in all_doors if door.login is not None]
    for door in with_login:
        assert door.login is not None
        usable = tuple(one for one in PASSWORDS if one in door.login.mechanisms)
        if usable and (door.tls is None or door.tls.client_auth != "required"):
            return door, usable, ""
    elsewhere = "run `penstock console --command-config FILE` where they are."
    if with_login:
        why = f"This cluster takes no passwords, only tokens or certificates: {elsewhere}"
        return with_login[0], ("OAUTHBEARER",), why
    for door in all_doors:
        if not door.knows_peers:
            return door, (), ""
    why = f"This cluster lets nobody in without a certificate: {elsewhere}"
    return all_doors[0], ("EXTERNAL",), why


def _security(door: Door) -> ClientSecurity:
    """As brokers reach each other, but without this broker's key: visitors must not pass for it."""
    if door.tls is None:
        return ClientSecurity()
    tls = msgspec.structs.replace(door.tls, key_file=None, key_pem=None, chain_pem=None, key_password=None)
    return ClientSecurity(tls=tls)


async def https(settings: Settings) -> Certificates | None:
    """The certificate of the HTTP port; None: it has none. SettingsError says what is wrong with its file."""
    if not settings.http_ssl_keystore_location:
        return None
    try:
        return await asyncio.to_thread(https_certificates, settings.http_ssl_keystore_location)
    except TlsError as error:
        raise SettingsError(f"http.ssl.keystore.location: {error}") from None


async def may_read_metrics(settings: Settings) -> None:
    """SettingsError if the file that says who may cannot be used. Where nothing says it, the log does."""
    if settings.metrics_token_file:
        await asyncio.to_thread(Tokens(settings.metrics_token_file).read)
    elif not is_loopback(parse_http_address(settings.http_address)[0]) and settings.authorizer_class_name:
        log.warning(
            "metrics name topics and groups, and whoever reaches the HTTP port may read them: "
            "metrics.token.file asks for a token; address=%s",
            settings.http_address,
        )
