"""From keys and certificates to the contexts in which OpenSSL speaks TLS, for both ends of a connection.

TLS 1.2 and 1.3 only, without compression and without renegotiation. A context is never changed once it is in
use: certificates that replace others make a new context, for a live one only ever trusts more.

Keys stay out of sight: a problem names a file or a setting, never their contents. Importing this module loads
OpenSSL, so whoever speaks no TLS does not import it.
"""

from __future__ import annotations

import contextlib
import os
import re
import ssl
import tempfile
from collections.abc import Iterator
from textwrap import wrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.settings.doors import TlsSettings

_PEM = re.compile(r"-+BEGIN ([A-Z0-9 ]+)-+\s*([A-Za-z0-9+/=:,\-\s]*?)-+END \1-+")
_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_JAVA_STORES = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce", b"\x30\x82", b"\x30\x80")
"""How JKS, JCEKS and PKCS#12 begin."""

PASSWORD_BYTES_MAX = 1024
"""OpenSSL's."""


class TlsError(Exception):
    """Keys or certificates that cannot be used. The message is one sentence for a person."""


def server_context(tls: TlsSettings) -> ssl.SSLContext:
    """What a listener answers TLS with."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _bound(context, tls.versions)
    context.num_tickets = 1
    _load_keys(context, tls)
    if tls.client_auth != "none":
        _load_trust(context, tls)
    context.verify_mode = _AUTH[tls.client_auth]
    return context


def client_context(tls: TlsSettings) -> ssl.SSLContext:
    """What this end of a connection to a broker speaks. Without a trust store the system's is used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _bound(context, tls.versions)
    context.check_hostname = tls.checks_names
    if tls.trust_file or tls.trust_pem:
        _load_trust(context, tls)
    else:
        context.load_default_certs()
    if tls.key_file or tls.key_pem:
        _load_keys(context, tls)
    return context


def files_of(tls: TlsSettings) -> tuple[str, ...]:
    """The files that a context was made from."""
    return tuple(path for path in (tls.key_file, tls.trust_file) if path)


def pem_text(text: str) -> str:
    """The blocks of a PEM text with a line for each 64 letters: in a properties file it may be all on one
    line, which OpenSSL does not read."""
    blocks = []
    for kind, body in _PEM.findall(text):
        if ":" in body:
            # An old encrypted key has headers, which only count in lines of their own.
            blocks.append(f"-----BEGIN {kind}-----\n{body.strip()}\n-----END {kind}-----\n")
        else:
            lines = "\n".join(wrap("".join(body.split()), 64))
            blocks.append(f"-----BEGIN {kind}-----\n{lines}\n-----END {kind}-----\n")
    return "".join(blocks)


def _bound(context: ssl.SSLContext, versions: tuple[str, ...]) -> None:
    wanted = [_VERSIONS[one] for one in versions]
    context.minimum_version, context.maximum_version = min(wanted), max(wanted)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE | ssl.OP_NO_RENEGOTIATION
    # A peer that goes without a goodbye is an end of the stream: requests have lengths of their own.
    context.options |= getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)


def _load_keys(context: ssl.SSLContext, tls: TlsSettings) -> None:
    # An empty password is given rather than none: OpenSSL would ask the terminal for it.
    password = tls.key_password or ""
    if len(password.encode()) > PASSWORD_BYTES_MAX:
        raise TlsError(f"ssl.key.password has more than {PASSWORD_BYTES_MAX} bytes.")
    if tls.key_file:
        where = tls.key_file
        _refuse_java_store(where)
        try:
            context.load_cert_chain(where, password=password)
        except OSError as error:
            raise TlsError(_problem(f"The key and certificates in {where}", error, tls)) from None
        return
    where = "The key in ssl.keystore.key and the certificates in ssl.keystore.certificate.chain"
    with _file(pem_text(tls.key_pem or "")) as key, _file(pem_text(tls.chain_pem or "")) as chain:
        try:
            context.load_cert_chain(chain, key, password=password)
        except OSError as error:
            raise TlsError(_problem(where, error, tls)) from None


def _load_trust(context: ssl.SSLContext, tls: TlsSettings) -> None:
    # Whatever the store names is trusted, as by Java: an authority that another one vouches for, or a single
    # certificate. OpenSSL alone would look for the root above it.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        if tls.trust_file:
            where = tls.trust_file
            _refuse_java_store(where)
            context.load_verify_locations(cafile=where)
        else:
            where = "ssl.truststore.certificates"
            context.load_verify_locations(cadata=pem_text(tls.trust_pem or ""))
    except (OSError, ValueError) as error:
        raise TlsError(_problem(f"The trusted certificates in {where}", error, tls)) from None


def _refuse_java_store(path: str) -> None:
    try:
        with open(path, "rb") as file:
            beginning = file.read(4)
    except OSError as error:
        raise TlsError(f"{path} cannot be read: {error.strerror}.") from None
    if beginning.startswith(_JAVA_STORES):
        raise TlsError(
            f"{path} is a key store of Java, and only PEM is read: "
            "`openssl pkcs12 -in STORE.p12 -out STORE.pem` converts it."
        )


def _problem(what: str, error: Exception, tls: TlsSettings) -> str:
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None)
    if reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"):
        return f"{what} do not belong together: the first certificate is the one of the key."
    if reason in ("BAD_DECRYPT", "BAD_PASSWORD_READ", "PROBLEMS_GETTING_PASSWORD", "BAD_PASSWORD"):
        state = "is wrong" if tls.key_password else "is not set"
        return f"{what} are encrypted, and ssl.key.password {state}."
    if isinstance(error, ssl.SSLError) and (not error.reason or error.library != "SSL"):
        # OpenSSL gives no reason where the password is empty, and for what is no PEM.
        return f"{what} cannot be used: they are not PEM, or encrypted with another password."
    return f"{what} cannot be used: {str(reason or 'they are not PEM').replace('_', ' ').lower()}."


@contextlib.contextmanager
def _file(text: str) -> Iterator[str]:
    """The path of a file with this text, which only this process sees: OpenSSL takes keys only from files."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("pem", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:  # Made with mode 0600.
        file.write(text)
        file.flush()
        yield file.name
