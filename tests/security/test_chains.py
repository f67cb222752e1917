"""Whom a trust store lets in: those for whom anything vouches that it names, and nobody else."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from penstock.entropy import SystemEntropy
from penstock.metadata.image import ClusterImage
from penstock.node.entrances import Entrances
from penstock.security.principals import ANONYMOUS
from penstock.settings import load
from penstock.settings.doors import TlsSettings
from penstock.tls import client_context, server_context
from tests.certificates import Authority, Certified
from tests.clocks import AheadClock

ROOT = Authority("the root")
BETWEEN = Authority("the one between", ROOT)
OTHER = Authority("another between", ROOT)
BROKER, CLIENT, STRANGER = BETWEEN.vouch(), BETWEEN.vouch(), OTHER.vouch()


def tls(own: Certified | None, trust: str, *chain: Authority, client_auth: str = "required") -> TlsSettings:
    """`chain`: what is shown behind the own certificate."""
    shown = "".join((own.certificate, *(one.certificate for one in chain))) if own else None
    return TlsSettings(
        key_file=None,
        key_pem=own.key if own else None,
        chain_pem=shown,
        key_password=None,
        trust_file=None,
        trust_pem=trust,
        client_auth=client_auth,
        versions=("TLSv1.2", "TLSv1.3"),
        mapping_rules="DEFAULT",
        checks_names=True,
    )


def shake(
    server: ssl.SSLContext, client: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """The client's end and the server's, after a byte went each way. SSLError if one refuses the other."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = client.wrap_bio(to_client, to_server, server_hostname="localhost", session=session)
    there = server.wrap_bio(to_server, to_client, server_side=True)
    waits = [here.do_handshake, there.do_handshake]
    for _ in range(20):
        for step in list(waits):
            try:
                step()
            except ssl.SSLWantReadError:
                continue
            waits.remove(step)
    assert not waits
    there.write(b"x")
    assert here.read(1) == b"x"
    here.write(b"y")
    assert there.read(1) == b"y"
    return here, there


def lets_in(server: TlsSettings, client: TlsSettings) -> bool:
    try:
        shake(server_context(server), client_context(client))
    except ssl.SSLError:
        return False
    return True


def test_a_chain_leads_to_the_root() -> None:
    for chain in ((BETWEEN,), (BETWEEN, ROOT)):
        assert lets_in(tls(BROKER, ROOT.certificate), tls(CLIENT, ROOT.certificate, *chain)) is False
        assert lets_in(tls(BROKER, ROOT.certificate, *chain), tls(CLIENT, ROOT.certificate, *chain))
    assert not lets_in(tls(BROKER, ROOT.certificate, BETWEEN), tls(CLIENT, ROOT.certificate))


def test_a_store_may_name_the_one_between_alone() -> None:
    """As for Java: OpenSSL on its own looks for the root."""
    for chain in ((), (BETWEEN,), (BETWEEN, ROOT)):
        server = tls(BROKER, BETWEEN.certificate, *chain)
        assert lets_in(server, tls(CLIENT, BETWEEN.certificate, *chain))
        assert not lets_in(server, tls(STRANGER, BETWEEN.certificate, OTHER, ROOT)), "its sister is not named"


def test_a_store_may_name_a_single_certificate() -> None:
    server = tls(BROKER, CLIENT.certificate)
    assert lets_in(server, tls(CLIENT, BROKER.certificate))
    assert not lets_in(server, tls(BETWEEN.vouch(), BROKER.certificate, BETWEEN))
    assert not lets_in(server, tls(vouched_by(CLIENT), BROKER.certificate)), "it is no authority"
    over = BETWEEN.vouch(days=-1)
    assert not lets_in(tls(BROKER, over.certificate), tls(over, BROKER.certificate))


def test_a_single_certificate_has_to_have_the_name() -> None:
    elsewhere = Certified(*self_signed("elsewhere.example"))
    assert not lets_in(
        tls(elsewhere, "", client_auth="none"), tls(None, elsewhere.certificate, client_auth="none")
    )


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_a_ticket_is_worth_nothing_once_its_authority_is_not_trusted(version: str) -> None:
    client = client_context(tls(CLIENT, ROOT.certificate, BETWEEN))
    client.minimum_version = client.maximum_version = getattr(ssl.TLSVersion, version.replace(".", "_"))
    before = server_context(tls(BROKER, ROOT.certificate, BETWEEN))
    here, _ = shake(before, client)
    again, there = shake(before, client, here.session)
    assert again.session_reused
    assert there.getpeercert(binary_form=True), "who it is stays known"
    after = server_context(tls(BROKER, OTHER.certificate, BETWEEN))
    with pytest.raises(ssl.SSLError):
        shake(after, client, again.session)
    without = server_context(tls(BROKER, ROOT.certificate, BETWEEN, client_auth="none"))
    ticket = shake(without, client)[0].session
    again, there = shake(before, client, ticket)
    assert not again.session_reused, "nor is one of a listener that asks for no certificate"
    assert there.getpeercert(binary_form=True)


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
async def test_a_ticket_does_not_outlive_the_certificate(tmp_path: Path, protocol: str, version: str) -> None:
    """OpenSSL verifies nothing when a session is taken up again, and gives a new ticket each time."""
    (tmp_path / "trust.pem").write_text(BETWEEN.certificate)
    plain = "listener.name.x.plain.sasl.jaas.config=PlainLoginModule required user_a=b;"
    settings = load(
        [
            "listeners=X://127.0.0.1:1",
            f"listener.security.protocol.map=X:{protocol}",
            f"ssl.keystore.location={BROKER.write(tmp_path / 'keys.pem')}",
            f"ssl.truststore.location={tmp_path / 'trust.pem'}",
            "ssl.client.auth=required",
            *(("sasl.enabled.mechanisms=PLAIN", plain) if protocol == "SASL_SSL" else ()),
        ]
    )
    clock = AheadClock()
    entrances = Entrances(settings, clock, SystemEntropy(), ClusterImage)
    await entrances.open()
    entrance = entrances.of("X")
    await entrances.close()
    assert entrance.context is not None and entrance.principal is not None
    client = client_context(tls(CLIENT, BROKER.certificate))
    client.minimum_version = client.maximum_version = getattr(ssl.TLSVersion, version.replace(".", "_"))
    session, reused = None, []
    for days, principal in ((0, "User:CN=localhost" if protocol == "SSL" else ANONYMOUS), (2, None)):
        clock.ahead_ms = days * 86_400_000
        here, there = shake(entrance.context(), client, session)
        assert entrance.principal(there.getpeercert(binary_form=True)) == principal
        session = here.session
        reused.append(here.session_reused)
    assert reused == [False, True]


def self_signed(name: str) -> tuple[str, str]:
    """Key and certificate, with RSA."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    model = x509.load_pem_x509_certificate(BROKER.certificate.encode())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(model.not_valid_before_utc)
        .not_valid_after(model.not_valid_after_utc)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    kind, locked = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(pem, kind, locked).decode(), certificate.public_bytes(pem).decode()


def vouched_by(one: Certified) -> Certified:
    """Somebody for whom a certificate vouches that is no authority."""
    signer = serialization.load_pem_private_key(one.key.encode(), None)
    issuer = x509.load_pem_x509_certificate(one.certificate.encode())
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "admin")]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(issuer.not_valid_before_utc)
        .not_valid_after(issuer.not_valid_after_utc)
        .sign(signer, hashes.SHA256())  # type: ignore[arg-type]
    )
    pem = serialization.Encoding.PEM
    made = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Certified(made.decode(), certificate.public_bytes(pem).decode() + one.certificate)
