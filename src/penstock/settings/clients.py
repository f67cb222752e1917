"""How a client connects to a secured cluster, from the properties that Kafka's own clients take.

The names are those of Java's clients (`security.protocol`, `sasl.mechanism`, `sasl.jaas.config`, `ssl.*`);
librdkafka's for the same things (`sasl.username`, `sasl.password`, `ssl.ca.location`) are taken beside them.
Names that say nothing about security are left alone, because a file for Kafka's tools may have any of them.
"""

from collections.abc import Mapping

import msgspec

from penstock.settings.checks import is_place
from penstock.settings.doors import TlsSettings
from penstock.settings.jaas import parse_jaas
from penstock.settings.listeners import PROTOCOLS
from penstock.settings.listening import MECHANISMS
from penstock.settings.setting import HIDDEN, SettingsError


class TokenSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where a client gets the token of OAUTHBEARER."""

    url: str
    """A file: that has the token, or where an issuer gives one to those who know the secret."""
    client_id: str
    client_secret: str
    scope: str
    url_encoded: bool = False
    """Whether name and secret are encoded as in a form, as RFC 6749 has it; Kafka's clients do so if told."""

    def __repr__(self) -> str:
        return f"TokenSource({HIDDEN})"


class ClientSecurity(msgspec.Struct, frozen=True, kw_only=True):
    """Security as one client is told it; without TLS and mechanism it is an open connection."""

    tls: TlsSettings | None = None
    mechanism: str | None = None
    user: str = ""
    password: str = ""
    by_token: bool = False
    """User and password are a delegation token's id and its HMAC."""
    tokens: TokenSource | None = None

    def __repr__(self) -> str:
        return f"ClientSecurity(tls={self.tls!r}, mechanism={self.mechanism!r}, {HIDDEN})"


OPEN_CLIENT = ClientSecurity()
_SECURE = ("ssl.", "sasl.", "security.protocol")
_KNOWN = frozenset(
    (
        "security.protocol",
        *(f"sasl.{one}" for one in ("mechanism", "mechanisms", "jaas.config", "username", "password")),
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.oauthbearer.client.credentials.client.id",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.scope",
        "sasl.oauthbearer.header.urlencode",
        *(f"ssl.keystore.{one}" for one in ("type", "location", "key", "certificate.chain")),
        *(f"ssl.truststore.{one}" for one in ("type", "location", "certificates")),
        *(f"ssl.{one}" for one in ("key.password", "ca.location", "enabled.protocols", "protocol")),
        "ssl.endpoint.identification.algorithm",
    )
)
_TUNING = (
    "sasl.login.refresh.",
    "sasl.login.retry.",
    "sasl.login.connect.",
    "sasl.login.read.",
    "sasl.kerberos.",
)
"""What these say protects nobody: when a token is fetched again, and mechanisms that this client lacks."""
_OAUTH = "org.apache.kafka.common.security.oauthbearer."
_OWN_CLASSES = {
    "sasl.login.callback.handler.class": (
        f"{_OAUTH}OAuthBearerLoginCallbackHandler",
        f"{_OAUTH}secured.OAuthBearerLoginCallbackHandler",
    ),
}
"""Kafka's classes whose work is done here. Its clients get no bearer token without the first ones, so each
file for them names one."""


def client_security(properties: Mapping[str, str]) -> ClientSecurity:
    """SettingsError if what is said about security is not understood, or is half of it."""
    for name, text in properties.items():
        if name.startswith(_TUNING) or text in _OWN_CLASSES.get(name, ()):
            continue
        if name.startswith(_SECURE) and name not in _KNOWN:
            raise SettingsError(f"{name} is not known to this client, and security may depend on it.")
    protocol = PROTOCOLS.get(properties.get("security.protocol", "PLAINTEXT").upper())
    if protocol is None:
        raise SettingsError(f"security.protocol is one of {', '.join(PROTOCOLS)}.")
    tls = _tls(properties) if protocol.tls else None
    if not protocol.sasl:
        return ClientSecurity(tls=tls)
    mechanism = properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or ""
    if mechanism not in MECHANISMS:
        raise SettingsError(f"sasl.mechanism is one of {', '.join(MECHANISMS)}.")
    options: Mapping[str, str] = {}
    if properties.get("sasl.jaas.config"):
        options = parse_jaas(properties["sasl.jaas.config"], mechanism, "sasl.jaas.config")
    if mechanism == "OAUTHBEARER":
        return ClientSecurity(tls=tls, mechanism=mechanism, tokens=_tokens(properties, options))
    user = options.get("username") or properties.get("sasl.username") or ""
    password = options.get("password") or properties.get("sasl.password") or ""
    if not (user and password):
        raise SettingsError(
            "A login needs a name and a password: sasl.jaas.config with username and password."
        )
    by_token = mechanism != "PLAIN" and options.get("tokenauth", "").lower() == "true"
    return ClientSecurity(tls=tls, mechanism=mechanism, user=user, password=password, by_token=by_token)


def visitors_security(properties: Mapping[str, str]) -> tuple[ClientSecurity, tuple[str, ...]]:
    """The same for the console, with the mechanisms by which its visitors log in: a file that names one, and
    no user, leaves it to them. No mechanisms: everybody acts as the file says."""
    mechanism = properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or ""
    protocol = PROTOCOLS.get(properties.get("security.protocol", "PLAINTEXT").upper())
    named = any(properties.get(name) for name in ("sasl.jaas.config", "sasl.username", "sasl.password"))
    if protocol is None or not protocol.sasl or named or mechanism not in MECHANISMS:
        return client_security(properties), ()
    if mechanism == "OAUTHBEARER":
        return client_security(properties), ()
    return ClientSecurity(tls=_tls(properties) if protocol.tls else None), (mechanism,)


def _tokens(properties: Mapping[str, str], options: Mapping[str, str]) -> TokenSource:
    prefix = "sasl.oauthbearer."
    url = properties.get(f"{prefix}token.endpoint.url", "")
    if not is_place(url):
        raise SettingsError(
            "OAUTHBEARER needs sasl.oauthbearer.token.endpoint.url: a file:, http: or https: URL, without a "
            "user in it."
        )
    credentials = f"{prefix}client.credentials.client"
    url_encoded = properties.get(f"{prefix}header.urlencode", "false").strip().lower()
    if url_encoded not in ("true", "false"):
        raise SettingsError("sasl.oauthbearer.header.urlencode is true or false.")
    return TokenSource(
        url=url,
        client_id=properties.get(f"{credentials}.id") or options.get("clientId", ""),
        client_secret=properties.get(f"{credentials}.secret") or options.get("clientSecret", ""),
        scope=properties.get(f"{prefix}scope") or options.get("scope", ""),
        url_encoded=url_encoded == "true",
    )


def _tls(properties: Mapping[str, str]) -> TlsSettings:
    for name in ("ssl.keystore.type", "ssl.truststore.type"):
        if properties.get(name, "PEM").upper() != "PEM":
            raise SettingsError(f"{name} is PEM: Java's own stores are not read.")
    versions = properties.get("ssl.enabled.protocols", "TLSv1.2,TLSv1.3").split(",")
    if not set(versions) <= {"TLSv1.2", "TLSv1.3"}:
        raise SettingsError("ssl.enabled.protocols has TLSv1.2 and TLSv1.3.")
    return TlsSettings(
        key_file=properties.get("ssl.keystore.location") or None,
        key_pem=properties.get("ssl.keystore.key") or None,
        chain_pem=properties.get("ssl.keystore.certificate.chain") or None,
        key_password=properties.get("ssl.key.password") or None,
        trust_file=properties.get("ssl.truststore.location") or properties.get("ssl.ca.location") or None,
        trust_pem=properties.get("ssl.truststore.certificates") or None,
        client_auth="none",
        versions=tuple(versions),
        mapping_rules="DEFAULT",
        checks_names=properties.get("ssl.endpoint.identification.algorithm", "https") != "",
    )
