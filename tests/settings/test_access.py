"""Settings of access rules: half of one is an error, and secrets are not shown."""

import pytest

from penstock.settings import Settings
from penstock.settings.access import STANDARD_AUTHORIZER
from penstock.settings.setting import SettingsError

ON = {"authorizer.class.name": STANDARD_AUTHORIZER}


def test_rules_are_switched_on_by_kafkas_names() -> None:
    settings = Settings().with_values(
        {**ON, "super.users": "User:a;User:CN=b,O=c", "delegation.token.secret.key": "x1y2"}
    )
    assert settings.authorizer_class_name == STANDARD_AUTHORIZER
    assert settings.super_users == "User:a;User:CN=b,O=c"
    assert "x1y2" not in repr(settings)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"}, "authorizer.class.name"),
        ({**ON, "super.users": "alice"}, "super.users holds 'alice'"),
        ({**ON, "super.users": "User:a;:b"}, "super.users holds ':b'"),
        ({**ON, "super.users": "user:a"}, "super.users holds 'user:a'"),
        ({**ON, "super.users": "User:a, User:b"}, "by semicolons"),
        ({"super.users": "User:a"}, "super.users means nothing"),
        ({"allow.everyone.if.no.acl.found": "true"}, "allow.everyone.if.no.acl.found means nothing"),
    ],
)
def test_what_is_refused(values: dict[str, str], why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        Settings().with_values(values)
