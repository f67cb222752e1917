"""The users without whom nobody could log in: their passwords become credentials before a broker serves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.metadata.access import SCRAM_SHA_512
from penstock.metadata.commands import SetScramCredential
from penstock.metadata.refusal import Refusal
from penstock.settings import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.cluster.metadata_log import MetadataLog
    from penstock.entropy import Entropy
    from penstock.metadata.image import ClusterImage


async def add_first_users(metadata: MetadataLog, passwords: Mapping[str, str], entropy: Entropy) -> None:
    """Users that exist keep the password that they have: an administrator may have changed it. SettingsError
    if the cluster cannot have users."""
    if all((user, SCRAM_SHA_512) in metadata.image.credentials for user in passwords):
        return
    from penstock.security.credentials import SALT_BYTES, Mechanism, derived

    made = {
        user: derived(Mechanism.SCRAM_SHA_512, password, entropy.token(SALT_BYTES))
        for user, password in passwords.items()
    }

    def decide(image: ClusterImage) -> list[SetScramCredential]:
        return [
            SetScramCredential(user, SCRAM_SHA_512, credential)
            for user, credential in made.items()
            if (user, SCRAM_SHA_512) not in image.credentials
        ]

    refusal = await metadata.propose(decide)
    if isinstance(refusal, Refusal):
        raise SettingsError(f"The first users cannot be added: {refusal.message}")
