"""What each listener asks of those who connect to it, and whether that is enough for where it listens.

A door is a listener with its settings laid over each other: those of the listener, then those of all. Half a
security setting is an error: a certificate without a key, a login without a mechanism, a mechanism without
users.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.settings.checks import is_place
from penstock.settings.http import is_loopback
from penstock.settings.jaas import jaas_users, parse_jaas
from penstock.settings.listeners import Address, Protocol, parse_listeners, parse_protocol_map
from penstock.settings.listening import LISTENING_SETTINGS, ListeningSettings, as_read, listener_names
from penstock.settings.setting import HIDDEN, SettingsError


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The keys and certificates of one listener: a file, or the PEM itself."""

    key_file: str | None
    key_pem: str | None
    chain_pem: str | None
    key_password: str | None
    trust_file: str | None
    trust_pem: str | None
    client_auth: str
    versions: tuple[str, ...]
    mapping_rules: str
    checks_names: bool
    """Of another broker that this one connects to."""

    def __repr__(self) -> str:
        return f"TlsSettings(key_file={self.key_file!r}, trust_file={self.trust_file!r}, {HIDDEN})"


class OauthSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the tokens of OAUTHBEARER are judged."""

    jwks_url: str
    refresh_ms: int
    retry_ms: int
    retry_max_ms: int
    audiences: tuple[str, ...]
    issuer: str | None
    skew_seconds: int
    scope_claim: str
    sub_claim: str


class LoginSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The logins of one listener."""

    mechanisms: tuple[str, ...]
    plain_users: Mapping[str, str]
    """PLAIN's users, with their passwords."""
    oauth: OauthSettings | None
    reauth_ms: Mapping[str, int]
    """By mechanism, how long a login lasts; 0: as long as the connection."""
    frame_bytes_max: int
    failure_delay_ms: int

    def __repr__(self) -> str:
        return f"LoginSettings(mechanisms={self.mechanisms!r}, {HIDDEN})"


class Door(msgspec.Struct, frozen=True, kw_only=True):
    """One listener."""

    name: str
    address: Address
    protocol: Protocol
    tls: TlsSettings | None = None
    login: LoginSettings | None = None

    @property
    def knows_peers(self) -> bool:
        """Does everybody who comes through have a name?"""
        return self.login is not None or (self.tls is not None and self.tls.client_auth == "required")


class BrokerLogin(msgspec.Struct, frozen=True, kw_only=True):
    """How this broker connects to the others."""

    listener: str
    tls: TlsSettings | None
    mechanism: str | None
    user: str
    password: str

    def __repr__(self) -> str:
        return f"BrokerLogin(listener={self.listener!r}, mechanism={self.mechanism!r}, {HIDDEN})"


class _Listener:
    """The settings of one listener, over those of all."""

    def __init__(self, settings: ListeningSettings, given: Mapping[str, str], name: str) -> None:
        self._settings = settings
        self._given = given
        self.name = name

    def value(self, name: str, mechanism: str = "") -> Any:
        found = self.given(name, mechanism)
        if found is not None:
            return LISTENING_SETTINGS[name].typed(found)
        return getattr(self._settings, name.replace(".", "_"))

    def given(self, name: str, mechanism: str = "") -> str | None:
        """What was given for this listener alone."""
        for one in listener_names(self.name, name, mechanism):
            if one in self._given:
                return self._given[one]
        return None

    def parts(self, name: str, mechanism: str = "") -> tuple[str, ...]:
        return tuple(part for part in (self.value(name, mechanism) or "").split(",") if part)


def doors(settings: ListeningSettings, given: Mapping[str, str]) -> tuple[Door, ...]:
    """The doors of a broker. SettingsError says what is missing, and never a secret."""
    _refuse_unread(given)
    protocols = parse_protocol_map(settings.listener_security_protocol_map)
    found = []
    for address in parse_listeners(settings.listeners):
        protocol = protocols.get(address.name)
        if protocol is None:
            raise SettingsError(f"listener.security.protocol.map has no protocol for {address.name}.")
        listener = _Listener(settings, given, address.name)
        found.append(
            Door(
                name=address.name,
                address=address,
                protocol=protocol,
                tls=_tls(listener) if protocol.tls else None,
                login=_login(listener) if protocol.sasl else None,
            )
        )
    _refuse_unused(found, given)
    return tuple(found)


def refuse_open_doors(settings: ListeningSettings, given: Mapping[str, str]) -> None:
    """SettingsError if an address that others can reach is not secured, and nobody said that this is
    meant."""
    for door in doors(settings, given):
        host = door.address.host
        if settings.insecure_listeners_enable or is_loopback(host):
            continue
        shown = f"{f'[{host}]' if ':' in host else host}:{door.address.port}"
        if not door.knows_peers:
            raise SettingsError(
                f"Others can reach {shown}, and the listener {door.name} lets everybody do everything: "
                "--secure makes certificates and an administrator, and --insecure leaves it open."
            )
        if door.tls is None and door.login is not None:
            naked = [one for one in door.login.mechanisms if one in ("PLAIN", "OAUTHBEARER")]
            if naked:
                raise SettingsError(
                    f"{naked[0]} without TLS shows passwords or tokens to whoever listens on the way to "
                    f"{shown}: make {door.name} a SASL_SSL listener (--secure does), or accept it with "
                    "--insecure."
                )


def inter_broker(settings: ListeningSettings, given: Mapping[str, str]) -> BrokerLogin:
    """How this broker connects to the others: through which listener, and with which name."""
    all_doors = doors(settings, given)
    door = _inter_broker_door(settings, all_doors)
    mechanism: str | None = None
    user = password = ""
    if door.login is not None:
        mechanism = settings.sasl_mechanism_inter_broker_protocol or door.login.mechanisms[0]
        if mechanism not in door.login.mechanisms:
            raise SettingsError(
                f"sasl.mechanism.inter.broker.protocol is {mechanism}, which {door.name} does not offer."
            )
        listener = _Listener(settings, given, door.name)
        text = listener.value("sasl.jaas.config", mechanism) if mechanism != "OAUTHBEARER" else None
        if text:
            options = parse_jaas(text, mechanism, "sasl.jaas.config")
            user, password = options.get("username", ""), options.get("password", "")
    return BrokerLogin(listener=door.name, tls=door.tls, mechanism=mechanism, user=user, password=password)


def _inter_broker_door(settings: ListeningSettings, all_doors: tuple[Door, ...]) -> Door:
    name, protocol = settings.inter_broker_listener_name, settings.security_inter_broker_protocol
    if name and protocol:
        raise SettingsError("Give inter.broker.listener.name or security.inter.broker.protocol, not both.")
    if not name and not protocol:
        return all_doors[0]
    for door in all_doors:
        if (name and door.name == name.upper()) or (protocol and door.protocol.name == protocol):
            return door
    if name:
        raise SettingsError(f"inter.broker.listener.name is {name}, which listeners lacks.")
    raise SettingsError(f"security.inter.broker.protocol is {protocol}, which no listener speaks.")


def _tls(listener: _Listener) -> TlsSettings:
    value = listener.value
    key_file, key = value("ssl.keystore.location"), value("ssl.keystore.key")
    chain = value("ssl.keystore.certificate.chain")
    if not key_file and not (key and chain):
        half = "ssl.keystore.certificate.chain" if key else "ssl.keystore.key"
        raise SettingsError(
            f"The listener {listener.name} speaks TLS and needs ssl.keystore.location, or ssl.keystore.key "
            f"and ssl.keystore.certificate.chain{f'; {half} is missing' if key or chain else ''}."
        )
    if key_file and (key or chain):
        raise SettingsError(
            f"The listener {listener.name} has its key both in ssl.keystore.location and in place: give one."
        )
    trust_file, trust = value("ssl.truststore.location"), value("ssl.truststore.certificates")
    if trust_file and trust:
        raise SettingsError(
            f"The listener {listener.name} has its trusted certificates both in ssl.truststore.location and "
            "in place: give one."
        )
    client_auth: str = value("ssl.client.auth")
    if client_auth != "none" and not (trust_file or trust):
        raise SettingsError(
            f"The listener {listener.name} has ssl.client.auth={client_auth} and nothing to judge "
            "certificates by: set ssl.truststore.location or ssl.truststore.certificates."
        )
    return TlsSettings(
        key_file=key_file or None,
        key_pem=key or None,
        chain_pem=chain or None,
        key_password=value("ssl.key.password") or None,
        trust_file=trust_file or None,
        trust_pem=trust or None,
        client_auth=client_auth,
        versions=listener.parts("ssl.enabled.protocols"),
        mapping_rules=value("ssl.principal.mapping.rules"),
        checks_names=bool(value("ssl.endpoint.identification.algorithm")),
    )


def _login(listener: _Listener) -> LoginSettings:
    mechanisms = listener.parts("sasl.enabled.mechanisms")
    if not mechanisms:
        raise SettingsError(
            f"The listener {listener.name} asks for a login, and sasl.enabled.mechanisms names no mechanism."
        )
    users: Mapping[str, str] = {}
    if "PLAIN" in mechanisms:
        name = listener_names(listener.name, "sasl.jaas.config", "PLAIN")[0]
        text = listener.given("sasl.jaas.config", "PLAIN")
        users = jaas_users(parse_jaas(text, "PLAIN", name)) if text else {}
        if not users:
            raise SettingsError(f'PLAIN has no users: set {name} with user_NAME="password".')
    return LoginSettings(
        mechanisms=mechanisms,
        plain_users=users,
        oauth=_oauth(listener) if "OAUTHBEARER" in mechanisms else None,
        reauth_ms={one: listener.value("connections.max.reauth.ms", one) for one in mechanisms},
        frame_bytes_max=listener.value("sasl.server.max.receive.size"),
        failure_delay_ms=listener.value("connection.failed.authentication.delay.ms"),
    )


def _oauth(listener: _Listener) -> OauthSettings:
    def value(name: str) -> Any:
        return listener.value(f"sasl.oauthbearer.{name}", "OAUTHBEARER")

    url = value("jwks.endpoint.url")
    if not url:
        raise SettingsError(
            "OAUTHBEARER cannot tell forged tokens without keys: set sasl.oauthbearer.jwks.endpoint.url."
        )
    if not is_place(url):
        raise SettingsError(
            "sasl.oauthbearer.jwks.endpoint.url is a file:, http: or https: URL, without a user in it."
        )
    return OauthSettings(
        jwks_url=url,
        refresh_ms=value("jwks.endpoint.refresh.ms"),
        retry_ms=value("jwks.endpoint.retry.backoff.ms"),
        retry_max_ms=value("jwks.endpoint.retry.backoff.max.ms"),
        audiences=listener.parts("sasl.oauthbearer.expected.audience", "OAUTHBEARER"),
        issuer=value("expected.issuer") or None,
        skew_seconds=value("clock.skew.seconds"),
        scope_claim=value("scope.claim.name"),
        sub_claim=value("sub.claim.name"),
    )


def _refuse_unread(given: Mapping[str, str]) -> None:
    """As for Kafka, PLAIN is no mechanism where plain is one; Kafka leaves such a setting out."""
    for name in given:
        read = as_read(name)
        if read != name:
            raise SettingsError(
                f"{name} means nothing: listeners and mechanisms are in small letters there, {read}."
            )


def _refuse_unused(found: list[Door], given: Mapping[str, str]) -> None:
    """A protection that was set and would have no effect is told, not left out."""
    names = {f"listener.name.{door.name.lower()}." for door in found}
    for name in given:
        if name.startswith("listener.name.") and not any(name.startswith(one) for one in names):
            raise SettingsError(f"{name} is for a listener that listeners lacks.")
    for door in found:
        _refuse_unused_of(door, given)
    if not any(door.tls for door in found):
        _refuse_any(given, ("ssl.",), "no listener speaks TLS (SSL or SASL_SSL)")
    if not any(door.login for door in found):
        _refuse_any(given, ("sasl.enabled.mechanisms", "sasl.jaas.config"), "no listener asks for a login")


def _refuse_unused_of(door: Door, given: Mapping[str, str]) -> None:
    """Likewise of what was set for one listener."""
    prefix = f"listener.name.{door.name.lower()}."
    for name in given:
        if not name.startswith(prefix):
            continue
        rest = name.removeprefix(prefix)
        if door.tls is None and rest.startswith("ssl."):
            lacks = "does not speak TLS"
        elif door.login is None and not rest.startswith("ssl."):
            lacks = "asks for no login"
        else:
            continue
        raise SettingsError(
            f"{name} is set, and the listener {door.name} {lacks}: it is {door.protocol.name} by "
            "listener.security.protocol.map."
        )


def _refuse_any(given: Mapping[str, str], prefixes: tuple[str, ...], why: str) -> None:
    for name, value in given.items():
        if name.startswith(prefixes) and value != LISTENING_SETTINGS[name].default:
            raise SettingsError(
                f"{name} is set, and {why}: see listeners and listener.security.protocol.map."
            )
