"""The settings that say who may connect to a broker, and how: listeners, TLS and logins.

Most of them can be given for one listener alone, with the prefix `listener.name.<listener>.`, and some for
one mechanism of it, with `listener.name.<listener>.<mechanism>.`. `doors` lays them over each other.
"""

from msgspec.structs import replace

from penstock.settings.access import AccessSettings
from penstock.settings.checks import at_least, list_of, one_of, one_of_any_case
from penstock.settings.setting import Kind, Rows, Setting

BOOLEAN, STRING, INT, LONG, LIST, PASSWORD = (
    Kind.BOOLEAN,
    Kind.STRING,
    Kind.INT,
    Kind.LONG,
    Kind.LIST,
    Kind.PASSWORD,
)

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
"""The SASL mechanisms that a broker can offer."""
_KAFKAS_MECHANISMS = (*MECHANISMS, "GSSAPI")

row = Rows("broker", "read-only")


class ListeningSettings(AccessSettings, frozen=True, kw_only=True):
    """The part of a broker's settings that stands between a socket and a request."""

    row.section("Listeners")

    listeners: str = row(
        LIST,
        "PLAINTEXT://127.0.0.1:9092",
        "The addresses to listen on: NAME://HOST:PORT, comma-separated.",
        unlike="Kafka's listens on all addresses; what is not secured listens on loopback here.",
    )
    advertised_listeners: str | None = row(
        LIST,
        None,
        "The addresses that clients are told, in the form of `listeners`; empty: the addresses listened on.",
    )
    listener_security_protocol_map: str = row(
        STRING,
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "What each listener speaks: NAME:PROTOCOL, comma-separated, with PLAINTEXT, SSL, SASL_PLAINTEXT or "
        "SASL_SSL.",
    )
    inter_broker_listener_name: str | None = row(
        STRING,
        None,
        "The listener through which brokers ask each other; empty: the one of "
        "security.inter.broker.protocol, or the first.",
    )
    security_inter_broker_protocol: str | None = row(
        STRING,
        None,
        "The listener through which brokers ask each other, by its protocol; give this or "
        "inter.broker.listener.name.",
        one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        unlike="Kafka's is PLAINTEXT; brokers use the first listener here.",
    )
    insecure_listeners_enable: bool = row(
        BOOLEAN,
        False,
        "Whether addresses other than loopback may be served to everybody, without a login (`--insecure`).",
        ours=True,
    )

    security_dir: str = row(
        STRING,
        "",
        "Where `--secure` keeps what it made: certificates, passwords and client.properties; empty: "
        "`security` in the store's directory, and `./penstock-security` for a store that is a URL.",
        ours=True,
    )

    row.section("TLS")

    ssl_client_auth: str = row(
        STRING,
        "none",
        "Whether clients show a certificate: required, requested (they may) or none. On a SASL_SSL listener "
        "the login says who they are, all the same.",
        one_of("required", "requested", "none"),
        unlike="Kafka asks for none on a SASL_SSL listener unless this is set with the listener's prefix.",
    )
    ssl_enabled_protocols: str = row(
        LIST,
        "TLSv1.2,TLSv1.3",
        "The versions of TLS that are spoken.",
        list_of("TLSv1.2", "TLSv1.3", empty=False),
    )
    ssl_keystore_type: str = row(
        STRING,
        "PEM",
        "The form of the key store. Java's own forms are not read: `openssl pkcs12` writes PEM.",
        one_of_any_case("PEM"),
        unlike="Kafka's is JKS, which only Java reads.",
    )
    ssl_keystore_location: str | None = row(
        STRING,
        None,
        "The file with the private key and the chain of certificates. A changed file is taken up for new "
        "connections.",
    )
    ssl_keystore_key: str | None = row(
        PASSWORD, None, "The private key itself, in PEM (PKCS#8), instead of a file."
    )
    ssl_keystore_certificate_chain: str | None = row(
        PASSWORD, None, "The chain of certificates itself, in PEM, instead of a file."
    )
    ssl_key_password: str | None = row(PASSWORD, None, "The password of an encrypted private key.")
    ssl_truststore_type: str = row(
        STRING,
        "PEM",
        "The form of the trust store. Java's own forms are not read.",
        one_of_any_case("PEM"),
        unlike="Kafka's is JKS, which only Java reads.",
    )
    ssl_truststore_location: str | None = row(
        STRING,
        None,
        "The file with the certificates of those who vouch for clients and for other brokers. A changed file "
        "is taken up for new connections.",
    )
    ssl_truststore_certificates: str | None = row(
        PASSWORD, None, "These certificates themselves, in PEM, instead of a file."
    )
    ssl_principal_mapping_rules: str = row(
        STRING,
        "DEFAULT",
        "From the name in a client's certificate to its principal: RULE:pattern/replacement/[LU] or DEFAULT, "
        "comma-separated; the first that matches wins.",
    )
    ssl_endpoint_identification_algorithm: str = row(
        STRING,
        "https",
        "How a broker checks the name of another broker that it connects to: https, or empty for not at all.",
        one_of_any_case("HTTPS", ""),
    )

    row.section("Logins")

    sasl_enabled_mechanisms: str = row(
        LIST,
        "",
        "The SASL mechanisms that are offered.",
        list_of(*MECHANISMS),
        unlike="Kafka's is GSSAPI, which is not served here: a listener with logins names its mechanisms.",
    )
    sasl_jaas_config: str | None = row(
        PASSWORD,
        None,
        'With the prefix of a listener and a mechanism: PLAIN\'s users (user_NAME="password"), and the name '
        "and password with which this broker logs in to others (username, password), in Kafka's syntax.",
    )
    sasl_mechanism_inter_broker_protocol: str | None = row(
        STRING,
        None,
        "The mechanism with which this broker logs in to others; empty: the first that is offered.",
        one_of("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
        unlike="Kafka's is GSSAPI.",
    )
    sasl_server_max_receive_size: int = row(
        INT, 524288, "The largest request before a client has logged in.", at_least(0)
    )
    connection_failed_authentication_delay_ms: int = row(
        INT, 100, "How long the answer to a failed login is held back.", at_least(0)
    )
    connections_max_reauth_ms: int = row(
        LONG,
        0,
        "How long a login lasts before the client must log in again on its connection; 0: as long as the "
        "connection, or as its token.",
        at_least(0),
    )
    sasl_oauthbearer_jwks_endpoint_url: str | None = row(
        STRING,
        None,
        "Where the keys are that sign OAUTHBEARER's tokens: a file:, http: or https: URL of a JWKS.",
        place=True,
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = row(
        LONG, 3600000, "How often these keys are fetched again.", at_least(1)
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: int = row(
        LONG, 100, "How long to wait after keys could not be fetched; longer each time.", at_least(1)
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int = row(
        LONG, 10000, "The longest such wait.", at_least(1)
    )
    sasl_oauthbearer_expected_audience: str | None = row(
        LIST,
        None,
        "The audiences of which a token must name one; empty: tokens that name an audience are for others.",
    )
    sasl_oauthbearer_expected_issuer: str | None = row(
        STRING, None, "The issuer that a token must name; empty: any."
    )
    sasl_oauthbearer_clock_skew_seconds: int = row(
        INT, 30, "By how much the clocks of issuers and brokers may differ.", at_least(0)
    )
    sasl_oauthbearer_scope_claim_name: str = row(STRING, "scope", "The claim of a token that has its scope.")
    sasl_oauthbearer_sub_claim_name: str = row(
        STRING, "sub", "The claim of a token that has the name of its user."
    )


LISTENING_SETTINGS: dict[str, Setting] = row.named(ListeningSettings)

_PREFIX = "listener.name."
LIMITS = ("max.connections", "max.connection.creation.rate")
"""What Kafka can bound for one listener, too."""
_OF_MECHANISMS = ("sasl.jaas.config", "connections.max.reauth.ms", "sasl.oauthbearer.")
_OF_LISTENERS = ("ssl.", "sasl.", "connections.max.reauth.ms", "connection.failed.authentication.delay.ms")


def prefixed(name: str) -> Setting | None:
    """The setting that `name` gives for one listener, or for one mechanism of it; None if it is none."""
    if not name.startswith(_PREFIX):
        return None
    _listener, _, rest = name.removeprefix(_PREFIX).partition(".")
    mechanism, _, after = rest.partition(".")
    if mechanism.upper() in MECHANISMS and after.startswith(_OF_MECHANISMS):
        rest = after
    setting = LISTENING_SETTINGS.get(rest)
    if setting is None or not rest.startswith(_OF_LISTENERS):
        return None
    return replace(setting, name=name)


def as_read(name: str) -> str:
    """The name of a setting, with the listener and mechanism that it is for written as they are looked up."""
    rest = of_all_listeners(name)
    return name.removesuffix(rest).lower() + rest


def of_all_listeners(name: str) -> str:
    """The name of a setting without the listener, and without the mechanism, that it is given for."""
    if not name.startswith(_PREFIX):
        return name
    _listener, _, rest = name.removeprefix(_PREFIX).partition(".")
    mechanism, _, after = rest.partition(".")
    return after if mechanism.upper() in _KAFKAS_MECHANISMS else rest


def listener_names(listener: str, name: str, mechanism: str = "") -> tuple[str, ...]:
    """The names under which a setting may be given for a listener, the strongest first."""
    of_listener = f"{_PREFIX}{listener.lower()}."
    of_mechanism = (f"{of_listener}{mechanism.lower()}.{name}",) if mechanism else ()
    return (*of_mechanism, f"{of_listener}{name}")
