"""What holds a secret does not show it where it is printed: logs, errors and tracebacks print values."""

from __future__ import annotations

import pytest

from penstock.metadata.access import ScramCredential
from penstock.settings.doors import BrokerLogin, LoginSettings
from penstock.storage.stores.etcd_gateway import Credentials, _Token
from penstock.wire.api.alter_user_scram_credentials import ScramCredentialUpsertion
from penstock.wire.api.create_delegation_token import CreateDelegationTokenResponse
from penstock.wire.api.describe_delegation_token import DescribedDelegationToken
from penstock.wire.api.expire_delegation_token import ExpireDelegationTokenRequest
from penstock.wire.api.renew_delegation_token import RenewDelegationTokenRequest
from penstock.wire.api.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse

SECRET = "hunter2"
BYTES = SECRET.encode()


@pytest.mark.parametrize(
    "holder",
    [
        BrokerLogin(listener="x", tls=None, mechanism="PLAIN", user="alice", password=SECRET),
        Credentials(user="alice", password=SECRET),
        CreateDelegationTokenResponse(hmac=BYTES),
        DescribedDelegationToken(hmac=BYTES),
        ExpireDelegationTokenRequest(hmac=BYTES),
        LoginSettings(
            mechanisms=("PLAIN",),
            plain_users={"alice": SECRET},
            oauth=None,
            reauth_ms={},
            frame_bytes_max=1,
            failure_delay_ms=0,
        ),
        RenewDelegationTokenRequest(hmac=BYTES),
        SaslAuthenticateRequest(auth_bytes=b"\0alice\0" + BYTES),
        SaslAuthenticateResponse(auth_bytes=BYTES),
        ScramCredential(salt=BYTES, stored_key=BYTES, server_key=BYTES, iterations=4096),
        ScramCredentialUpsertion(salt=BYTES, salted_password=BYTES),
        _Token(SECRET),
    ],
    ids=lambda holder: type(holder).__name__,
)
def test_a_secret_does_not_show(holder: object) -> None:
    assert SECRET not in repr(holder)
    assert SECRET not in f"{[holder]}"
