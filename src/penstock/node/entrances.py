"""Makes what the server asks of those who connect out of settings: certificates, principals and logins.

What a broker knows of users is in the image of the moment, so a user who is added or removed is so for the
next login on any broker. Entrances outlive incarnations.
"""

from __future__ import annotations

import asyncio
import hashlib
from base64 import b64encode
from typing import TYPE_CHECKING

from penstock.server.entrance import OPEN, Entrance
from penstock.settings import SettingsError
from penstock.settings.doors import Door, doors

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from penstock.clock import Clock
    from penstock.entropy import Entropy
    from penstock.metadata.access import ScramCredential
    from penstock.metadata.image import ClusterImage
    from penstock.node.signing_keys import SigningKeys
    from penstock.security.sasl.exchange import Exchange
    from penstock.server.entrance import Principal
    from penstock.server.login import Logins
    from penstock.settings import Settings
    from penstock.settings.doors import LoginSettings


class Entrances:
    """All listeners of one broker."""

    def __init__(
        self, settings: Settings, clock: Clock, entropy: Entropy, image: Callable[[], ClusterImage]
    ) -> None:
        self._doors = doors(settings, settings.given)
        self._clock = clock
        self._entropy = entropy
        self._image = image
        self._made: dict[str, Entrance] = {}
        self._watches: list[Coroutine[None, None, None]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._own_secret = b""
        self._decoy: tuple[Mapping[tuple[str, int], ScramCredential] | None, bytes] = (None, b"")
        """Users, and the secret that follows from them."""
        self._token_secret = settings.delegation_token_secret_key

    def of(self, listener: str) -> Entrance:
        return self._made[listener]

    async def open(self) -> None:
        """Load certificates and keys. SettingsError says what is wrong with them."""
        for door in self._doors:
            self._made[door.name] = await self._entrance(door)
        self._tasks = [asyncio.ensure_future(one) for one in self._watches]
        self._watches = []

    async def close(self) -> None:
        for one in self._watches:
            one.close()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _entrance(self, door: Door) -> Entrance:
        if door.tls is None and door.login is None:
            return OPEN
        context = principal = None
        if door.tls is not None:
            from penstock.certificates import Certificates
            from penstock.tls import TlsError

            try:
                certificates = await asyncio.to_thread(Certificates, door.name, door.tls)
            except TlsError as error:
                raise SettingsError(str(error)) from None
            self._watches.append(certificates.watch())
            context = certificates.current
            principal = _principal(door, self._clock.time_ms)
        logins = None if door.login is None else await self._logins(door.login)
        return Entrance(context, principal, logins)

    async def _logins(self, login: LoginSettings) -> Logins:
        from penstock.server.login import Logins

        keys: SigningKeys | None = None
        if login.oauth is not None:
            from penstock.node.signing_keys import KeysError, SigningKeys

            keys = SigningKeys(login.oauth)
            try:
                await keys.fetch()
            except KeysError as error:
                raise SettingsError(str(error)) from None
            self._watches.append(keys.refresh())
        return Logins(
            login.mechanisms,
            lambda mechanism: self._exchange(mechanism, login, keys),
            self._clock.time_ms,
            reauth_ms=login.reauth_ms,
            frame_bytes_max=login.frame_bytes_max,
            failure_delay_ms=login.failure_delay_ms,
            stands=self._stands,
        )

    def _stands(self, basis: tuple[str, str]) -> bool:
        """Is the user, or the delegation token, by which somebody was let in still there?"""
        from penstock.security.credentials import BY_NAME
        from penstock.security.sasl.exchange import TOKEN

        kind, name = basis
        image = self._image()
        return name in image.tokens if kind == TOKEN else (name, BY_NAME[kind]) in image.credentials

    def _exchange(self, mechanism: str, login: LoginSettings, keys: SigningKeys | None) -> Exchange:
        """One login that begins."""
        if mechanism == "PLAIN":
            from penstock.security.sasl.plain import Plain

            return Plain(login.plain_users.get)
        if mechanism == "OAUTHBEARER":
            from penstock.security.sasl.oauthbearer import OAuthBearer

            assert keys is not None
            return OAuthBearer(keys.judge)
        from penstock.security.credentials import BY_NAME
        from penstock.security.delegation import login_with
        from penstock.security.sasl.scram import Scram

        scram = BY_NAME[mechanism]
        nonce = b64encode(self._entropy.token(24)).decode()
        return Scram(
            scram,
            nonce,
            lambda user: self._image().credentials.get((user, scram)),
            self._decoy_secret(),
            None if not self._token_secret else login_with(self._image().tokens, self._token_secret, scram),
        )

    def _decoy_secret(self) -> bytes:
        """From what strangers cannot know, and what is the same on all brokers, so that an unknown user looks
        the same everywhere."""
        credentials = self._image().credentials
        if credentials:
            known, secret = self._decoy
            if known is not credentials:
                # Once for the same users: strangers begin logins, and there may be 100,000 users.
                secret = hashlib.sha256(credentials[min(credentials)].server_key).digest()
                self._decoy = credentials, secret
            return secret
        if not self._own_secret:
            self._own_secret = self._entropy.token(32)
        return self._own_secret


def refuse_bad_keys(settings: Settings) -> None:
    """SettingsError if keys, certificates or mapping rules cannot be used, without a broker."""
    from penstock.tls import TlsError, server_context

    for door in doors(settings, settings.given):
        if door.tls is not None:
            try:
                server_context(door.tls)
            except TlsError as error:
                raise SettingsError(str(error)) from None
            _principal(door, lambda: 0)


def _principal(door: Door, now_ms: Callable[[], int]) -> Principal | None:
    """From a client's certificate to its principal. Where clients log in it says no name."""
    if door.tls is None or door.tls.client_auth == "none":
        return None
    from cryptography.x509 import load_der_x509_certificate

    from penstock.security.principals import (
        ANONYMOUS,
        BadMappingError,
        PrincipalMapping,
        distinguished_name,
    )

    try:
        mapping = None if door.login is not None else PrincipalMapping(door.tls.mapping_rules)
    except BadMappingError as error:
        raise SettingsError(f"ssl.principal.mapping.rules cannot be used: {error}.") from None

    def principal(certificate: bytes | None) -> str | None:
        if certificate is None:
            return ANONYMOUS
        shown = load_der_x509_certificate(certificate)
        if shown.not_valid_after_utc.timestamp() * 1000 < now_ms():
            # A session that is taken up again is not verified, and gives a ticket for the next one.
            return None
        if mapping is None:
            return ANONYMOUS
        name = mapping.name_of(distinguished_name(shown.subject))
        return None if name is None else f"User:{name}"

    return principal
