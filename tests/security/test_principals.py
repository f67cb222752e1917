"""Names of certificates as Java writes them, and the rules that map them."""

from __future__ import annotations

import pytest
from cryptography.x509 import Name, NameAttribute, NameOID, ObjectIdentifier, RelativeDistinguishedName
from cryptography.x509.name import _ASN1Type

from penstock.security.principals import BadMappingError, PrincipalMapping, distinguished_name


def name(*parts: tuple[ObjectIdentifier, str]) -> str:
    return distinguished_name(Name([NameAttribute(oid, value) for oid, value in parts]))


def test_the_most_specific_part_stands_first() -> None:
    assert (
        name(
            (NameOID.COUNTRY_NAME, "US"),
            (NameOID.STATE_OR_PROVINCE_NAME, "MD"),
            (NameOID.LOCALITY_NAME, "Fulton"),
            (NameOID.ORGANIZATION_NAME, "Org"),
            (NameOID.ORGANIZATIONAL_UNIT_NAME, "Unit"),
            (NameOID.COMMON_NAME, "duke"),
        )
        == "CN=duke,OU=Unit,O=Org,L=Fulton,ST=MD,C=US"
    )


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("a,b", r"a\,b"),
        ('q"<>;=+#\\', r"q\"\<\>\;\=\+\#\\"),
        (" both ", r"\ both\ "),
        ("Zoë", "Zoë"),
        ("  ", r"\ \ "),
        ("in side", "in side"),
    ],
)
def test_what_is_escaped(value: str, written: str) -> None:
    assert name((NameOID.COMMON_NAME, value)) == "CN=" + written


def test_other_parts_are_written_as_numbers() -> None:
    mail = NameAttribute(NameOID.EMAIL_ADDRESS, "a@b", _ASN1Type.IA5String)
    assert distinguished_name(Name([mail])) == "1.2.840.113549.1.9.1=#1603614062"
    assert name((NameOID.SERIAL_NUMBER, "1")) == "2.5.4.5=#130131"
    long = name((NameOID.TITLE, "x" * 200))
    assert long.startswith("2.5.4.12=#0c81c8")
    assert name((NameOID.USER_ID, "u"), (NameOID.DOMAIN_COMPONENT, "c")) == "DC=c,UID=u"


def test_several_values_of_one_part() -> None:
    rdn = RelativeDistinguishedName(
        [NameAttribute(NameOID.COMMON_NAME, "a"), NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "b")]
    )
    assert set(distinguished_name(Name([rdn])).split("+")) == {"CN=a", "OU=b"}


RULES = ", ".join(
    (
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L",
        "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L",
        "RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U",
        "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U",
        "DEFAULT",
    )
)


@pytest.mark.parametrize(
    ("rules", "distinguished", "expected"),
    [
        (RULES, "CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        (RULES, "CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        (RULES, "cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
        (RULES, "cN=duke,OU=JavaSoft,O=Sun Microsystems", "DUKE"),
        (RULES, "OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
        (r"RULE:^CN=((\\, *|\w)+)(,.*|$)/$1/,DEFAULT", r"CN=Tkac\, Adam,OU=ITZ", r"Tkac\, Adam"),
        ("RULE:^CN=(.*?),.*$/$1/", "O=x", None),
        ("", "CN=a", None),
        ("DEFAULT", "CN=a", "CN=a"),
        ("RULE:CN=(.*)/$1-$2/", "CN=a", "a-$2"),
        ("RULE:CN=(.*)/$12/", "CN=a", "a2"),
        (r"RULE:CN=(.*)/\$1/", "CN=a", "$1"),
        ("RULE:^CN=([^,DEFAULT,]+)(,.*|$)/$1/", "CN=x,O=y", "x"),
        (" ,, RULE:CN=(a)/x/ ,, DEFAULT, ,", "CN=b", "CN=b"),
    ],
)
def test_mapping(rules: str, distinguished: str, expected: str | None) -> None:
    assert PrincipalMapping(rules).name_of(distinguished) == expected


@pytest.mark.parametrize(
    "rules",
    [
        "default", "DEFAUL", "DEFAULT/L", "RULE:CN=(.*?),OU=ServiceUsers.*/$1",
        "rule:^CN=(.*?),OU=ServiceUsers.*$/$1/", "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L/U",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/L", "RULE:^CN=(.*?),OU=ServiceUsers.*$/LU", "RULE:CN=(/x/",
    ],
)  # fmt: skip
def test_what_is_no_rule(rules: str) -> None:
    with pytest.raises(BadMappingError):
        PrincipalMapping(rules)
