"""UpdateFeatures 0-2: raise the feature level of the cluster (KIP-584, KIP-778, KIP-1022).

- There is one feature, `penstock.version` (`metadata.levels`). Any other is INVALID_UPDATE_VERSION, as is a
  level that this broker or another live one does not know, and any lower level than the present one: later
  entries could not be read. The present level itself is fine, and changes nothing.
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
from penstock.metadata.levels import FEATURE
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
    if refusal is None and updates:
        # Only one feature is left, and it is named once.
        refusal = await _upgrade(broker, updates[0].max_version_level, message.validate_only)
    if refusal is None:
        results = [UpdatableFeatureResult(feature=one.feature, error_message=None) for one in updates]
        return UpdateFeaturesResponse(error_message=None, results=results)
    sentence = refusal.message
    if refusal.code is ErrorCode.INVALID_UPDATE_VERSION:
        sentence = f"The update failed for all features since the following feature had an error: {sentence}"
    return UpdateFeaturesResponse(error_code=refusal.code, error_message=sentence)


def refused(message: UpdateFeaturesRequest, code: ErrorCode) -> UpdateFeaturesResponse:
    return UpdateFeaturesResponse(error_code=code, error_message=None)


def _problem(broker: Broker, update: FeatureUpdateKey) -> Refusal | None:
    """What is wrong with one update, apart from what `metadata.preconditions` checks."""
    level = update.max_version_level
    problem = None
    if update.feature != FEATURE:
        problem = f"Broker {broker.broker_id} does not support this feature."
    elif update.upgrade_type not in (_UPGRADE, *_DOWNGRADES):
        problem = "The controller does not support the given upgrade type."
    elif level < broker.image.level and update.upgrade_type == _UPGRADE and not update.allow_downgrade:
        problem = (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or "
            "unsafe downgrade."
        )
    if problem is None:
        return None
    sentence = f"Invalid update version {level} for feature {update.feature}. {problem}"
    return Refusal(ErrorCode.INVALID_UPDATE_VERSION, sentence)


async def _upgrade(broker: Broker, level: int, validate_only: bool) -> Refusal | None:
    assert broker.membership is not None
    try:
        return await broker.membership.upgrade(level, validate_only=validate_only)
    except (MetadataUnavailableError, StoreError) as error:
        return Refusal(ErrorCode.REQUEST_TIMED_OUT, str(error))
