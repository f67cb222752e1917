"""What a listener asks for, from settings; and which of them are refused."""

from __future__ import annotations

import re

import pytest

from penstock.settings import SettingsError, load
from penstock.settings.doors import doors, inter_broker, refuse_open_doors
from penstock.settings.jaas import jaas_text, parse_jaas
from penstock.settings.loading import file_values
from penstock.settings.properties import parse_properties

PLAIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="a\\"b" user_bob=c;'
SCRAM = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="b" password="p";'
KEYS = ("ssl.keystore.location=/k.pem", "ssl.truststore.location=/t.pem")
BEARER = ("listeners=SASL_SSL://h:1", *KEYS, "sasl.enabled.mechanisms=OAUTHBEARER")


def open_doors(*assignments: str) -> None:
    made = load(assignments)
    refuse_open_doors(made, made.given)


def test_settings_of_a_listener_lie_over_those_of_all() -> None:
    made = load(
        [
            "listeners=IN://127.0.0.1:1,OUT://127.0.0.1:2",
            "listener.security.protocol.map=IN:SSL,OUT:SASL_SSL",
            "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512",
            f"listener.name.out.plain.sasl.jaas.config={PLAIN}",
            "connections.max.reauth.ms=5",
            "listener.name.out.scram-sha-512.connections.max.reauth.ms=7",
            "listener.name.out.ssl.keystore.location=/out.pem",
            "ssl.client.auth=required",
            "listener.name.out.ssl.client.auth=none",
            *KEYS,
        ]
    )
    inside, outside = doors(made, made.given)
    assert inside.tls is not None and outside.tls is not None and outside.login is not None
    assert (inside.tls.key_file, inside.tls.client_auth, inside.login) == ("/k.pem", "required", None)
    assert (outside.tls.key_file, outside.tls.client_auth) == ("/out.pem", "none")
    assert outside.login.plain_users == {"alice": 'a"b', "bob": "c"}
    assert outside.login.reauth_ms == {"PLAIN": 5, "SCRAM-SHA-512": 7}


@pytest.mark.parametrize(
    ("assignments", "words"),
    [
        (("listeners=X://h:1",), "no protocol for X"),
        (("listener.security.protocol.map=A:TLS",), "none of PLAINTEXT, SSL"),
        (("listeners=SSL://h:1",), "needs ssl.keystore.location"),
        (("listeners=SSL://h:1", "ssl.keystore.key=k"), "ssl.keystore.certificate.chain is missing"),
        (("listeners=SSL://h:1", "ssl.keystore.location=k", "ssl.client.auth=required"), "ssl.truststore"),
        (("listeners=SASL_SSL://h:1", *KEYS), "names no mechanism"),
        (("listeners=SASL_SSL://h:1", *KEYS, "sasl.enabled.mechanisms=PLAIN"), "PLAIN has no users"),
        (("listeners=SASL_SSL://h:1", *KEYS, "sasl.enabled.mechanisms=GSSAPI"), "must be one of"),
        (("listeners=SASL_SSL://h:1", *KEYS, "sasl.enabled.mechanisms=OAUTHBEARER"), "jwks.endpoint.url"),
        ((*BEARER, "sasl.oauthbearer.jwks.endpoint.url=ftp://h/keys"), "a file:, http: or https: URL"),
        ((*BEARER, "sasl.oauthbearer.jwks.endpoint.url=https:///keys"), "a file:, http: or https: URL"),
        (
            (*BEARER, "sasl.oauthbearer.jwks.endpoint.url=https://u:secret@h/keys"),
            "without a user in it",
        ),
        (("ssl.client.auth=required",), "no listener speaks TLS"),
        (("sasl.enabled.mechanisms=PLAIN",), "no listener asks for a login"),
        (("listener.name.other.ssl.client.auth=none",), "a listener that listeners lacks"),
        (
            ("listener.name.PLAINTEXT.ssl.client.auth=required",),
            "small letters there, listener.name.plaintext.ssl",
        ),
        (
            ("listeners=SASL_SSL://h:1", *KEYS, "listener.name.sasl_ssl.PLAIN.connections.max.reauth.ms=1"),
            "means nothing: .* listener.name.sasl_ssl.plain.connections.max.reauth.ms",
        ),
        (("listener.name.plaintext.ssl.client.auth=required",), "does not speak TLS"),
        (("listener.name.plaintext.sasl.enabled.mechanisms=PLAIN",), "asks for no login"),
        (
            ("listeners=SSL://h:1", *KEYS, "listener.name.ssl.connections.max.reauth.ms=1"),
            "asks for no login: it is SSL",
        ),
        (("max.connections.per.ip.overrides=localhost:3",), "is not ADDRESS:LIMIT"),
        (("ssl.enabled.protocols=TLSv1.1",), "must be one of"),
        (("ssl.keystore.type=JKS",), "must be one of"),
        (("inter.broker.listener.name=B",), "which listeners lacks"),
        (("listener.name.plaintext.num.partitions=1",), "not a setting"),
    ],
)
def test_half_a_security_setting_is_refused(assignments: tuple[str, ...], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        load(assignments)


def test_open_addresses_are_refused_with_both_ways_out() -> None:
    for host in ("127.0.0.1", "localhost", "[::1]", "127.9.9.9"):
        open_doors(f"listeners=PLAINTEXT://{host}:1")
    for host in ("0.0.0.0", "", "[::]", "10.0.0.1", "broker.example", "127.example"):
        with pytest.raises(SettingsError, match=r"--secure .* --insecure"):
            open_doors(f"listeners=PLAINTEXT://{host}:1")
        open_doors(f"listeners=PLAINTEXT://{host}:1", "insecure.listeners.enable=true")
    with pytest.raises(SettingsError, match="--secure"):
        open_doors("listeners=SSL://0.0.0.0:1", *KEYS)
    open_doors("listeners=SSL://0.0.0.0:1", *KEYS, "ssl.client.auth=required")
    naked = ("listeners=SASL_PLAINTEXT://0.0.0.0:1", "sasl.enabled.mechanisms=PLAIN")
    users = f"listener.name.sasl_plaintext.plain.sasl.jaas.config={PLAIN}"
    with pytest.raises(SettingsError, match="PLAIN without TLS"):
        open_doors(*naked, users)
    open_doors("listeners=SASL_PLAINTEXT://127.0.0.1:1", naked[1], users)
    open_doors("listeners=SASL_PLAINTEXT://0.0.0.0:1", "sasl.enabled.mechanisms=SCRAM-SHA-256")


def test_an_http_port_that_others_can_reach() -> None:
    http = "http.address=0.0.0.0:8080"
    scram = ("listeners=SASL_PLAINTEXT://0.0.0.0:1", "sasl.enabled.mechanisms=SCRAM-SHA-256")
    named = ("listeners=SSL://0.0.0.0:1", *KEYS, "ssl.client.auth=required")
    for closed in (scram, named):
        with pytest.raises(SettingsError, match=r"over plain HTTP.*console\.enable=false"):
            load((http, *closed))
        load((http, *closed, "http.ssl.keystore.location=/k.pem"))
        load((http, *closed, "console.enable=false"))
    tls = ("listeners=SSL://0.0.0.0:1", *KEYS)
    for open_to_all in ((), tls):
        for more in ("http.ssl.keystore.location=/k.pem", "console.enable=false"):
            with pytest.raises(SettingsError, match=r"a listener with a login.*--insecure"):
                load((http, *open_to_all, more))
        load((http, *open_to_all, "insecure.listeners.enable=true"))
        load(("http.address=127.0.0.1:8080", *open_to_all))


def test_secrets_are_in_no_text() -> None:
    made = load(
        [
            "listeners=SASL_SSL://127.0.0.1:1",
            "sasl.enabled.mechanisms=SCRAM-SHA-512",
            f"listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config={SCRAM.replace('p', 'hush')}",
            "ssl.keystore.key=hush",
            "ssl.keystore.certificate.chain=hush",
            "ssl.key.password=hush",
        ]
    )
    login = inter_broker(made, made.given)
    assert (login.user, login.mechanism) == ("b", "SCRAM-SHA-512")
    for text in (repr(made), repr(doors(made, made.given)), repr(login)):
        assert "hush" not in text
    with pytest.raises(SettingsError) as problem:
        parse_jaas("Module hush password=hush", "PLAIN", "sasl.jaas.config")
    assert "hush" not in str(problem.value)


def test_what_is_written_as_jaas_is_read_again() -> None:
    options = {"username": 'a"b', "password": "c\\d;="}
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"):
        assert parse_jaas(jaas_text(mechanism, options), mechanism, "x") == options
    for wrong in ("", "One required", "One maybe a=b;", f"{SCRAM} {SCRAM}", SCRAM):
        with pytest.raises(SettingsError):
            parse_jaas(wrong, "PLAIN", "x")


def test_jaas_as_java_reads_it() -> None:
    """Templates of cloud services have single quotes, and names beyond letters stand in quotes."""
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    for text, options in (
        ("username='KEY' password='SEC\"RET/+==';", {"username": "KEY", "password": 'SEC"RET/+=='}),
        ("\"user_a@b c\"=\"x\" 'user_q' = 'it\\'s' ;", {"user_a@b c": "x", "user_q": "it's"}),
        ('/* user_x="1" */ user_y="\\101\\n" // that is all\n;// end', {"user_y": "A\n"}),
        ("/* required ';' */;", {}),
    ):
        assert parse_jaas(f"// whose\n{module} {text}", "PLAIN", "x") == options
    for wrong in ('a="x', "a='x\";", "/* ;", "// ;", "a=b'c';", "'a';"):
        with pytest.raises(SettingsError):
            parse_jaas(f"{module} {wrong}", "PLAIN", "x")


def test_properties_as_java_reads_them() -> None:
    text = "# no\n! no\na=1\nb : 2\n c\t3\nd\\ e=f\\\n   g\nh=\\u00e9\\n\nlast"
    assert parse_properties(text) == {"a": "1", "b": "2", "c": "3", "d e": "fg", "h": "é\n", "last": ""}
    assert parse_properties("a=1\x852\u2028\r\nb=\x1c3\rc=4") == {"a": "1\x852\u2028", "b": "\x1c3", "c": "4"}


def test_a_server_properties_of_kafka_that_checks_bearer_tokens() -> None:
    """Kafka checks them by a class that has to be named. It is Kafka's own, and its work is done."""
    package = "org.apache.kafka.common.security.oauthbearer."
    handler = "sasl.server.callback.handler.class"
    text = f"""
    listeners=CLIENT://localhost:9092
    listener.security.protocol.map=CLIENT:SASL_SSL
    ssl.keystore.location=/k.pem
    listener.name.client.sasl.enabled.mechanisms=OAUTHBEARER
    listener.name.client.oauthbearer.{handler}={package}OAuthBearerValidatorCallbackHandler
    listener.name.client.oauthbearer.sasl.jaas.config={package}OAuthBearerLoginModule required ;
    sasl.oauthbearer.jwt.validator.class={package}DefaultJwtValidator
    sasl.oauthbearer.jwks.endpoint.url=https://issuer.example/keys
    listener.name.client.oauthbearer.sasl.oauthbearer.expected.audience=penstock
    principal.builder.class=org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder
    """
    found = file_values("server.properties", text.encode())
    made = load(f"{name}={value}" for name, value in found.values.items())
    (door,) = doors(made, made.given)
    assert door.login is not None and door.login.oauth is not None
    assert (door.login.mechanisms, door.login.oauth.audiences) == (("OAUTHBEARER",), ("penstock",))
    assert set(found.left_alone) == {
        f"listener.name.client.oauthbearer.{handler}",
        "sasl.oauthbearer.jwt.validator.class",
        "principal.builder.class",
    }
    for other in (f"{package}internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler", "x"):
        text = f"listener.name.client.oauthbearer.{handler}={other}"
        values = file_values("server.properties", text.encode()).values
        with pytest.raises(SettingsError):
            load(f"{name}={value}" for name, value in values.items())


def test_what_is_set_for_one_listener_is_told_as_for_all() -> None:
    for name, told in (
        ("ssl.cipher.suites", "has no meaning here. OpenSSL chooses"),
        ("ssl.keystore.password", "has no meaning here. Java's key stores are not read"),
        ("plain.sasl.server.callback.handler.class", "has no meaning here. A broker loads no Java classes"),
        ("max.connections", "is not a setting; here max.connections holds for all listeners together"),
        ("ssl.client.auht", "did you mean"),
    ):
        found = file_values("server.properties", f"listener.name.plaintext.{name}=x".encode())
        with pytest.raises(SettingsError, match=rf"^listener\.name\.plaintext\.{re.escape(name)} .*{told}"):
            load(f"{name}={value}" for name, value in found.values.items())
    name = "listener.name.plaintext.num.network.threads"
    assert file_values("server.properties", f"{name}=5".encode()) == ({}, (name,))


def test_a_server_properties_of_kafka() -> None:
    text = """
    process.roles=broker,controller
    node.id=7
    controller.quorum.voters=7@localhost:9093
    controller.listener.names=CONTROLLER
    listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
    advertised.listeners=PLAINTEXT://localhost:9092
    listener.security.protocol.map=CONTROLLER:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT
    listener.name.controller.sasl.enabled.mechanisms=PLAIN
    listener.name.controller.plain.sasl.jaas.config=whatever
    num.network.threads=3
    log.dirs=/tmp/logs
    log.retention.hours=168
    num.partitions=4
    """
    found = file_values("server.properties", text.encode())
    made = load(f"{name}={value}" for name, value in found.values.items())
    assert (made.broker_id, made.listeners, made.num_partitions) == (7, "PLAINTEXT://localhost:9092", 4)
    assert {"process.roles", "log.dirs", "num.network.threads"} <= set(found.left_alone)
    assert "listener.name.controller.sasl.enabled.mechanisms" in found.left_alone
    assert file_values("server.toml", b"num.partitions = 3\n").values == {"num.partitions": "3"}
    for refused in (
        "ssl.engine.factory.class=x",
        "principal.builder.class=x",
        "nonsense=1",
        "ssl.cipher.suites=X",
    ):
        values = file_values("server.properties", refused.encode()).values
        with pytest.raises(SettingsError):
            load(f"{name}={value}" for name, value in values.items())
