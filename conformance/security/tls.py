"""What TLS must refuse, seen from outside: each is refused, and a healthy client beside it notices nothing.

    python -m conformance.security.tls

Untrusted, expired and missing client certificates; TLS 1.1 and older; plain bytes on a TLS port and the reverse;
a peer that renegotiates; then a new certificate is taken up while a connection stays.
"""

import re
import socket
import ssl
import struct
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from tests.certificates import Authority

from conformance.security.stage import Stage, stage
from penstock.client import Client, ClientError
from penstock.settings.clients import client_security

VERSIONS = b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff"
"""ApiVersions 0, without a client id."""


def brokers(stage: Stage, **more: str) -> int:
    given = {"security.protocol": "SSL", "ssl.truststore.location": stage.ca}
    given |= {name.replace("_", "."): text for name, text in more.items()}
    with Client(stage.mutual, 5.0, client_security(given)) as client:
        return len(client.metadata([]).brokers)


def refused(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except (ClientError, OSError):
        return True
    return False


def old_version(stage: Stage) -> bool:
    """OpenSSL's own client, told to speak TLS 1.1 whatever its policy is."""
    done = subprocess.run(
        ["openssl", "s_client", "-connect", stage.login, "-tls1_1", "-cipher", "ALL:@SECLEVEL=0"],
        input=b"",
        capture_output=True,
        check=False,
        timeout=20,
    )
    return b"Cipher is (NONE)" in done.stdout or done.returncode != 0


def renegotiates(stage: Stage) -> bool:
    """`R` on a line of its own makes OpenSSL's client renegotiate; the broker refuses or closes."""
    done = subprocess.run(
        ["openssl", "s_client", "-connect", stage.login, "-tls1_2", "-CAfile", stage.ca],
        input=b"R\n",
        capture_output=True,
        check=False,
        timeout=20,
    )
    said = done.stdout + done.stderr
    return b"no renegotiation" in said.lower() or (b"RENEGOTIATING" in said and b"error" in said.lower())


def closed_at(address: str, data: bytes) -> bool:
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), 5) as connection:
        connection.settimeout(5)
        connection.sendall(data)
        try:
            return connection.recv(100) == b""
        except ConnectionError:
            return True


def shown(stage: Stage) -> bytes:
    context = ssl.create_default_context(cafile=stage.ca)
    host, port = stage.login.split(":")
    with (
        socket.create_connection((host, int(port)), 5) as plain,
        context.wrap_socket(plain, server_hostname=host) as one,
    ):
        return one.getpeercert(binary_form=True) or b""


def takes_up(stage: Stage) -> bool:
    """Another certificate in the same file, while a connection is open."""
    given = client_security(stage.own_properties("PLAIN"))
    before = shown(stage)
    with Client(stage.login, 5.0, given) as client:
        client.metadata([])
        stage.authority.vouch().write(Path(stage.keys))
        deadline = time.monotonic() + 20
        while shown(stage) == before:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.2)
        connection = client.any()
        client.metadata([])
        return client.any() is connection


def main() -> int:
    warnings.simplefilter("ignore", DeprecationWarning)
    failures = 0
    with stage() as ready:
        own = ready.client_keys()
        hello = b"\x16\x03\x01\x00\xf8\x01" + bytes(247)
        proofs: dict[str, Callable[[], bool]] = {
            "a client certificate that is vouched for": lambda: (
                brokers(ready, ssl_keystore_location=own) == 1
            ),
            "no client certificate": lambda: refused(lambda: brokers(ready)),
            "an untrusted client certificate": lambda: refused(
                lambda: brokers(ready, ssl_keystore_location=ready.client_keys(Authority("strangers")))
            ),
            "an expired client certificate": lambda: refused(
                lambda: brokers(ready, ssl_keystore_location=ready.client_keys(days=-1))
            ),
            "TLS 1.1": lambda: old_version(ready),
            "renegotiation": lambda: renegotiates(ready),
            "plain bytes on a TLS port": lambda: closed_at(ready.login, VERSIONS),
            "TLS on a plain port": lambda: closed_at(ready.naked, hello),
            "a hello that is none": lambda: closed_at(ready.login, b"\x15\x03\x01\0\x02\x02\x28"),
            "a request before the login": lambda: closed_at(
                ready.naked, struct.pack(">ihhih", 14, 3, 0, 1, -1) + b"\0\0\0\0"
            ),
            "a changed certificate is taken up, connections stay": lambda: takes_up(ready),
            "a healthy client afterwards": lambda: brokers(ready, ssl_keystore_location=own) == 1,
        }
        for name, proof in proofs.items():
            try:
                held, why = proof(), ""
            except Exception as error:
                held, why = False, f"{type(error).__name__}: {error}"[:200]
            failures += not held
            print(f"{'held  ' if held else 'FAILED'} {name} {why}", flush=True)
        said = (ready.folder / "broker.log").read_text(errors="replace")
        traces = len(re.findall("Traceback", said))
        failures += bool(traces)
        print(f"{'held  ' if not traces else 'FAILED'} no exception in the broker's log ({traces})")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
