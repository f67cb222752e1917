"""UpdateFeatures 0-2: raise the feature level of the cluster (KIP-584, KIP-778, KIP-1022).

- `penstock.version` is the feature level (`metadata.levels`). INVALID_UPDATE_VERSION is a level that this
  broker or another live one does not know, and any lower level than the present one: later entries could not
  be read. The present level itself is fine, and changes nothing.
- `transaction.version` comes with the level. Only what it is can be set, which changes nothing. In Kafka it
  can be lowered; here transactions of both versions are served side by side, and nothing would be gained.
- `group.version` is 1, for the `consumer` protocol, and cannot be lowered, either.
- Any other feature is INVALID_UPDATE_VERSION.
- Updates are carried out together or not at all; where one is refused, its error is that of the whole answer.
  Versions 0 and 1 list the features when all is well. No updates at all are fine; a feature that is named
  twice and an upgrade type that is not known are refused.
- `validate_only` (version 1) changes nothing.
- REQUEST_TIMED_OUT if the store did not take the change in time; then it may still happen.
- Any broker serves it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.cluster.metadata_log import MetadataUnavailableError
from penstock.metadata.levels import (
    FEATURE,
    GROUP_FEATURE,
    GROUP_VERSION,
    TRANSACTION_FEATURE,
    TRANSACTION_VERSION,
    TRANSACTIONS_FROM,
    finalized,
)
from penstock.metadata.refusal import Refusal
from penstock.storage.stores.objects import StoreError
from penstock.wire.api.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from penstock.wire.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.wire.exchange import Request

_UPGRADE = 1
_DOWNGRADES = (2, 3)


async def handle(broker: Broker, request: Request, message: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
    refusal = None
    updates = message.feature_updates
    if len({update.feature for update in updates}) < len(updates):
        refusal = Refusal(ErrorCode.INVALID_REQUEST, "A feature is to be updated twice.")
    for update in updates:
        refusal = refusal or _problem(broker, update)
    for update in updates:
        if refusal is None and update.feature == FEATURE:
            refusal = await _upgrade(broker, update.max_version_level, message.validate_only)
    if refusal is None:
        results = [UpdatableFeatureResult(feature=one.feature, error_message=None) for one in updates]
        return UpdateFeaturesResponse(error_message=None, results=results)
    sentence = refusal.message
    if refusal.code is ErrorCode.INVALID_UPDATE_VERSION:
        sentence = f"The update failed for all features since the following feature had an error: {sentence}"
    return UpdateFeaturesResponse(error_code=refusal.code, error_message=sentence)


def refused(message: UpdateFeaturesRequest, code: ErrorCode) -> UpdateFeaturesResponse:
    return UpdateFeaturesResponse(error_code=code, error_message=code.name)


def _problem(broker: Broker, update: FeatureUpdateKey) -> Refusal | None:
    """What is wrong with one update, apart from what `metadata.preconditions` checks."""
    level = update.max_version_level
    present = finalized(broker.image.level).get(update.feature)
    problem = None
    if present is None:
        problem = f"Broker {broker.broker_id} does not support this feature."
    elif update.upgrade_type not in (_UPGRADE, *_DOWNGRADES):
        problem = "The controller does not support the given upgrade type."
    elif level < present and update.upgrade_type == _UPGRADE and not update.allow_downgrade:
        problem = (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or "
            "unsafe downgrade."
        )
    elif update.feature == TRANSACTION_FEATURE:
        problem = _transaction_problem(level, present)
    elif update.feature == GROUP_FEATURE:
        problem = _group_problem(level)
    if problem is None:
        return None
    sentence = f"Invalid update version {level} for feature {update.feature}. {problem}"
    return Refusal(ErrorCode.INVALID_UPDATE_VERSION, sentence)


def _transaction_problem(version: int, present: int) -> str | None:
    if not 0 <= version <= TRANSACTION_VERSION:
        return f"This broker only supports versions 0-{TRANSACTION_VERSION}."
    if version > present:
        return f"It comes with {FEATURE} {TRANSACTIONS_FROM}: run `penstock cluster upgrade`."
    if version < present:
        return "It cannot be lowered: clients of version 1 are served beside those of version 2."
    return None


def _group_problem(version: int) -> str | None:
    if not 0 <= version <= GROUP_VERSION:
        return f"This broker only supports versions 0-{GROUP_VERSION}."
    if version < GROUP_VERSION:
        return "It cannot be lowered: groups of both protocols are served side by side."
    return None


async def _upgrade(broker: Broker, level: int, validate_only: bool) -> Refusal | None:
    assert broker.membership is not None
    try:
        return await broker.membership.upgrade(level, validate_only=validate_only)
    except (MetadataUnavailableError, StoreError) as error:
        return Refusal(ErrorCode.REQUEST_TIMED_OUT, str(error))
