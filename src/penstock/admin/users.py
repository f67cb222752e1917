"""Users that log in with SCRAM, and quotas."""

from __future__ import annotations

import os
from collections.abc import Sequence
from hashlib import pbkdf2_hmac
from typing import NamedTuple

from penstock.client import AnswerError, Client, ClientError
from penstock.security.credentials import BY_NAME, Mechanism
from penstock.wire.api.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from penstock.wire.api.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from penstock.wire.api.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
ITERATIONS = 4096
SALT_BYTES = 16


class Quota(NamedTuple):
    entity: str
    """Whom it is for, in words."""
    limits: dict[str, float]


def list_users(client: Client) -> list[tuple[str, str, int]]:
    """User, mechanism, iterations."""
    asked = DescribeUserScramCredentialsRequest(users=None)
    answer = client.any().ask(asked, DescribeUserScramCredentialsResponse)
    if answer.error_code:
        raise AnswerError(answer.error_code, "Listing users", answer.error_message)
    return [
        (one.user, Mechanism(info.mechanism).sasl_name, info.iterations)
        for one in answer.results
        for info in one.credential_infos
    ]


def require_password(password: str) -> None:
    if not password:
        raise ClientError("The password is empty.")
    if "\0" in password or "\n" in password:
        raise ClientError("A password has no line breaks and no NUL.")


def add_user(client: Client, name: str, mechanisms: Sequence[str], password: str, iterations: int) -> None:
    """Salted passwords go to the broker, as by any client. Each mechanism takes a request of its own: Kafka
    takes a user once in a request."""
    for mechanism in (BY_NAME[one] for one in dict.fromkeys(mechanisms)):
        salt = os.urandom(SALT_BYTES)
        salted = pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)
        upsertion = ScramCredentialUpsertion(
            name=name, mechanism=mechanism, iterations=iterations, salt=salt, salted_password=salted
        )
        _alter(client, name, AlterUserScramCredentialsRequest(upsertions=[upsertion]))


def remove_user(client: Client, name: str, mechanisms: Sequence[str]) -> None:
    for mechanism in mechanisms:
        deletion = ScramCredentialDeletion(name=name, mechanism=BY_NAME[mechanism])
        _alter(client, name, AlterUserScramCredentialsRequest(deletions=[deletion]))


def _alter(client: Client, name: str, request: AlterUserScramCredentialsRequest) -> None:
    for result in client.controller().ask(request, AlterUserScramCredentialsResponse).results:
        if result.error_code:
            raise AnswerError(result.error_code, f"Changing user {name!r}", result.error_message)


def list_quotas(client: Client) -> list[Quota]:
    answer = client.any().ask(DescribeClientQuotasRequest(), DescribeClientQuotasResponse)
    if answer.error_code:
        raise AnswerError(answer.error_code, "Listing quotas", answer.error_message)
    return sorted(
        Quota(
            ", ".join(
                f"{part.entity_type} {part.entity_name}"
                if part.entity_name is not None
                else f"every other {part.entity_type}"
                for part in entry.entity
            ),
            {value.key: value.value for value in entry.values},
        )
        for entry in answer.entries or ()
    )
