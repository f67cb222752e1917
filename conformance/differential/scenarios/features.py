"""UpdateFeatures: the refusals. The levels that can be raised differ: each broker has features of its own."""

from collections.abc import Iterator

from conformance.differential.scenario import Draw, Step, scenario


def _update(name: str, level: int, version: int, upgrade_type: int = 1) -> dict[str, object]:
    found: dict[str, object] = {"Feature": name, "MaxVersionLevel": level}
    if version == 0:
        return {**found, "AllowDowngrade": upgrade_type > 1}
    return {**found, "UpgradeType": upgrade_type}


@scenario("UpdateFeatures")
def update_unknown_feature(draw: Draw, version: int) -> Iterator[Step]:
    for upgrade_type in (1, 2, 3):
        yield Step({"FeatureUpdates": [_update("nobody.knows", 1, version, upgrade_type)]})
    if version > 0:
        yield Step({"FeatureUpdates": [_update("nobody.knows", 2, version)], "ValidateOnly": True})


@scenario("UpdateFeatures")
def update_nothing(draw: Draw, version: int) -> Iterator[Step]:
    yield Step({"FeatureUpdates": []})
