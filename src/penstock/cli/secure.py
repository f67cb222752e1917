"""`penstock start --secure`: a certificate authority, certificates and an administrator, made on first use.

All of it lies in one directory (`security.dir`): `security` in the store's directory, or
`./penstock-security` for a store that is a URL. Brokers on several machines are given a copy of it. Only its
owner can read it.

    ca.key, ca.pem           the authority, which vouches for brokers
    broker-N.pem             key and certificate of broker N, for the names that it is reached by
    users.properties         the passwords of the administrator and of the brokers themselves
    client.properties        for Java's tools, Spark and Penstock's own commands: the administrator
    librdkafka.properties    the same by librdkafka's names; confluent-kafka and kcat -F take it as it is

librdkafka before 2.6.1 repeats its nonce wrongly, and cannot log in by SCRAM, here as with Kafka 4.

Clients log in by SCRAM over TLS, access rules are on, and the administrator and the brokers are super users.
The passwords of users are in the metadata log from the first start on (`Node`), as keys that SCRAM derives.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from penstock.settings import SettingsError, parse_listeners
from penstock.settings.access import STANDARD_AUTHORIZER
from penstock.settings.http import is_loopback, parse_http_address
from penstock.settings.jaas import jaas_text
from penstock.settings.listeners import Address
from penstock.settings.properties import parse_properties

ADMINISTRATOR = "admin"
BROKERS = "broker"
MECHANISM = "SCRAM-SHA-512"
LISTEN = "SASL_SSL://127.0.0.1:9092"
PASSWORD_BYTES = 24


class Secured(NamedTuple):
    """What `--secure` adds to the settings of a broker."""

    values: dict[str, str]
    users: dict[str, str]
    """Passwords of those who must be able to log in."""
    client_properties: str


def secured(given: dict[str, str]) -> Secured:
    """Make what is missing, and the settings that use it. OSError if files cannot be written."""
    listeners = given.get("listeners", LISTEN)
    told = given.get("advertised.listeners") or listeners
    if not all(one.startswith("SASL_SSL://") for one in (*listeners.split(","), *told.split(","))):
        raise SettingsError("--secure makes the listener itself: give its address with --listen.")
    directory = os.path.abspath(_directory(given))
    names = {one.host for one in (*parse_listeners(listeners), *parse_listeners(told))}
    http = given.get("http.address", "")
    http_host = parse_http_address(http)[0] if http else ""
    names |= {http_host} - {"", "0.0.0.0", "::"}
    # One at a time: the mode is for the last one alone, and the store's directory may be new, too.
    for one in (os.path.dirname(directory), directory):
        os.makedirs(one, mode=0o700, exist_ok=True)
    os.chmod(directory, 0o700)
    with _alone(directory):
        users = _users(directory)
        ca = _authority(directory)
        keys = _broker(directory, given["broker.id"], names, ca)
        properties = _client_properties(directory, parse_listeners(told)[0], users[ADMINISTRATOR])
    login = jaas_text(MECHANISM, {"username": BROKERS, "password": users[BROKERS]})
    supers = [f"User:{ADMINISTRATOR}", f"User:{BROKERS}", *filter(None, [given.get("super.users")])]
    values = {
        "listeners": listeners,
        "ssl.keystore.location": keys,
        "ssl.truststore.location": os.path.join(directory, "ca.pem"),
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,SCRAM-SHA-256",
        "sasl.mechanism.inter.broker.protocol": MECHANISM,
        f"listener.name.sasl_ssl.{MECHANISM.lower()}.sasl.jaas.config": login,
        "authorizer.class.name": STANDARD_AUTHORIZER,
    }
    if http and not is_loopback(http_host):
        # Passwords for the console come over it.
        values["http.ssl.keystore.location"] = keys
        # Metrics name topics and groups.
        values["metrics.token.file"] = _metrics_token(directory)
    return Secured({**values, **given, "super.users": ";".join(supers)}, users, properties)


def _directory(given: dict[str, str]) -> str:
    chosen = given.get("security.dir")
    if chosen:
        return chosen
    store = given.get("store", "./penstock-data")
    scheme, separator, rest = store.partition("://")
    if not separator:
        return os.path.join(store, "security")
    return os.path.join(rest, "security") if scheme == "file" else "./penstock-security"


@contextmanager
def _alone(directory: str) -> Iterator[None]:
    """Several brokers may start at once; the first of them makes what all of them use."""
    lock = os.open(os.path.join(directory, ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _write(path: str, data: bytes) -> None:
    """Whole or not at all, and for nobody else's eyes."""
    temporary = f"{path}.new"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
        os.write(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(temporary, path)


def _metrics_token(directory: str) -> str:
    path = os.path.join(directory, "metrics.token")
    if not os.path.exists(path):
        _write(path, f"{secrets.token_urlsafe(PASSWORD_BYTES)}\n".encode())
    return path


def _users(directory: str) -> dict[str, str]:
    path = os.path.join(directory, "users.properties")
    if not os.path.exists(path):
        made = {name: secrets.token_urlsafe(PASSWORD_BYTES) for name in (ADMINISTRATOR, BROKERS)}
        _write(path, "".join(f"{name}={password}\n" for name, password in made.items()).encode())
    with open(path, encoding="utf-8") as file:
        found = parse_properties(file.read())
    if not (found.get(ADMINISTRATOR) and found.get(BROKERS)):
        raise SettingsError(f"{path} lacks the password of {ADMINISTRATOR} or of {BROKERS}.")
    return {name: found[name] for name in (ADMINISTRATOR, BROKERS)}


def _authority(directory: str) -> tuple[bytes, bytes]:
    """The key and the certificate of the authority."""
    key_path, path = os.path.join(directory, "ca.key"), os.path.join(directory, "ca.pem")
    if not os.path.exists(path):
        from penstock.cli.certificates import new_authority

        key, certificate = new_authority()
        _write(key_path, key)
        _write(path, certificate)
    with open(key_path, "rb") as key_file, open(path, "rb") as file:
        return key_file.read(), file.read()


def _broker(directory: str, broker_id: str, names: set[str], ca: tuple[bytes, bytes]) -> str:
    """The file with a broker's key and certificate, made anew before it expires, and for new names."""
    from penstock.cli.certificates import new_certificate, still_good

    path = os.path.join(directory, f"broker-{int(broker_id)}.pem")
    wanted = {name for name in names if name not in ("", "0.0.0.0", "::")}
    wanted |= {"localhost", "127.0.0.1", "::1", socket.gethostname()}
    current = None
    if os.path.exists(path):
        with open(path, "rb") as file:
            current = file.read()
    if current is None or not still_good(current, wanted):
        _write(path, new_certificate(f"broker {int(broker_id)}", wanted, *ca))
    return path


def _client_properties(directory: str, address: Address, password: str) -> str:
    path = os.path.join(directory, "client.properties")
    host, port = address.host, address.port
    if host in ("", "0.0.0.0", "::"):
        host = socket.gethostname()
    where = f"bootstrap.servers={f'[{host}]' if ':' in host else host}:{port}\n" if port else ""
    ca = os.path.join(directory, "ca.pem")
    login = jaas_text(MECHANISM, {"username": ADMINISTRATOR, "password": password})
    if not os.path.exists(path):
        _write(
            path,
            f"# For Java's clients and tools, Spark and penstock --command-config.\n{where}"
            f"security.protocol=SASL_SSL\nsasl.mechanism={MECHANISM}\nsasl.jaas.config={login}\n"
            f"ssl.truststore.type=PEM\nssl.truststore.location={_escaped(ca)}\n".encode(),
        )
    other = os.path.join(directory, "librdkafka.properties")
    if not os.path.exists(other):
        _write(
            other,
            f"# For librdkafka: kcat -F, confluent-kafka and others.\n{where}"
            f"security.protocol=SASL_SSL\nsasl.mechanism={MECHANISM}\nsasl.username={ADMINISTRATOR}\n"
            f"sasl.password={password}\nssl.ca.location={ca}\n".encode(),
        )
    return path


def _escaped(path: str) -> str:
    return path.replace("\\", "\\\\")
