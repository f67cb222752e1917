"""ApiVersions 0-4: what this broker serves, computed from the registry.

- Versions of the request that are not known are answered in the form of version 0 with
  UNSUPPORTED_VERSION and the range of ApiVersions itself (KIP-511), so that the client can ask again.
- From version 3 the client names its software (KIP-511); a name or version that is not made of letters,
  digits, dots and dashes is an INVALID_REQUEST.
- Features (KIP-584), from version 3: the feature level of the cluster as `penstock.version`, with the levels
  that this broker knows, and `transaction.version` from the level on that has transactions. Only version 4
  lists as supported what has versions from 0 on, because older clients cannot read that. The epoch is the
  entry of the metadata log that set the level, 0 if none did.
- Anybody may ask, before authentication too. The answer is encoded once per version and feature level.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.broker.registry import APIS
from penstock.metadata.levels import (
    FEATURE,
    GROUP_FEATURE,
    GROUP_VERSION,
    LEVEL_MAX,
    LEVEL_MIN,
    TRANSACTION_FEATURE,
    TRANSACTION_VERSION,
    finalized,
)
from penstock.wire.api.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from penstock.wire.codec import decode, encode
from penstock.wire.errors import ErrorCode
from penstock.wire.headers import response_header

if TYPE_CHECKING:
    from penstock.broker.context import Broker
    from penstock.wire.buffers import Buffer
    from penstock.wire.exchange import Request

_KEY = ApiVersionsRequest.api_key
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")

_UNSUPPORTED = -1
_FROM_ZERO_SINCE = 4
_answers: dict[tuple[int, int, int], bytes] = {}
"""By version, feature level and the entry that set it: a cluster sees a few levels in its life."""


def handle_raw(broker: Broker, request: Request) -> list[Buffer]:
    version = request.api_version
    header = response_header(_KEY, version, request.correlation_id)
    row = APIS[_KEY]
    if not row.min_version <= version <= row.max_version:
        return [header, _answer((_UNSUPPORTED, 0, 0), 0, _refusal)]
    if version >= 3:
        message, _end = decode(ApiVersionsRequest, version, request.frame, request.body_at)
        name, software_version = message.client_software_name, message.client_software_version
        if not (_SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(software_version)):
            return [header, encode(ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST), version)]
        request.session.client_software_name = name
        request.session.client_software_version = software_version
    image = broker.image
    key = (version, image.level, image.level_since)
    return [header, _answer(key, version, lambda: _listing(version, image.level, image.level_since))]


def _answer(key: tuple[int, int, int], version: int, make: Callable[[], ApiVersionsResponse]) -> bytes:
    answer = _answers.get(key)
    if answer is None:
        answer = _answers[key] = encode(make(), version)
    return answer


def _listing(version: int, level: int, since: int) -> ApiVersionsResponse:
    supported = [SupportedFeatureKey(name=FEATURE, min_version=LEVEL_MIN, max_version=LEVEL_MAX)]
    if version >= _FROM_ZERO_SINCE:
        supported += [
            SupportedFeatureKey(name=name, min_version=0, max_version=newest)
            for name, newest in ((TRANSACTION_FEATURE, TRANSACTION_VERSION), (GROUP_FEATURE, GROUP_VERSION))
        ]
    return ApiVersionsResponse(
        api_keys=[
            ApiVersion(api_key=row.key, min_version=row.min_version, max_version=row.max_version)
            for row in APIS.values()
        ],
        supported_features=supported,
        finalized_features_epoch=since,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=at, min_version_level=at)
            for name, at in finalized(level).items()
            if at
        ],
    )


def _refusal() -> ApiVersionsResponse:
    row = APIS[_KEY]
    own = ApiVersion(api_key=_KEY, min_version=row.min_version, max_version=row.max_version)
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[own])
