"""The rules and quotas of a broker, in step with the image and its settings.

With `authorizer.class.name` a broker has rules from its first request on; without, it has none. Each change
of the cluster's access rules gives the broker another `AccessRules`, before it looks at any later request.
Permits, fast ways and kept answers that were decided by the one before are not used any more, because they
compare the object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.metadata.image import ClusterImage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.broker.context import Broker
    from penstock.metadata.access import AccessRule

_NOTHING = ClusterImage()


def follow_rules(broker: Broker) -> None:
    """Give the broker its rules, now and whenever they change."""
    settings = broker.settings
    if not settings.authorizer_class_name:
        return
    from penstock.security.rules import AccessRules, super_users

    supers = super_users(settings.super_users)
    everyone = settings.allow_everyone_if_no_acl_found

    made: tuple[Mapping[AccessRule, AccessRule], AccessRules] | None = None
    """The rules as they were made last, and what they were made from."""

    def follow(_old: ClusterImage, new: ClusterImage) -> None:
        nonlocal made
        wanted = new.access_rules
        if made is not None and made[0] is wanted:
            return
        if made is None:
            rules = AccessRules(wanted, supers, allow_everyone_if_no_rule=everyone)
        else:
            before, rules = made
            # One rule of a hundred thousand may change: making all anew would hold everybody up.
            rules = rules.changed(wanted.keys() - before.keys(), before.keys() - wanted.keys())
        made = wanted, rules
        broker.rules = rules

    broker.metadata.subscribe(follow)
    follow(broker.image, broker.image)


def follow_quotas(broker: Broker) -> None:
    """Measure clients while there are quotas for them, and only then."""

    def follow(old: ClusterImage, new: ClusterImage) -> None:
        if old.quotas is new.quotas:
            return
        from penstock.broker.security.quotas import ClientQuotas
        from penstock.security.quotas import CLIENT_KEYS, QuotaTable

        table = QuotaTable(new.quotas)
        if not table.has(*CLIENT_KEYS):
            broker.quotas = None
        elif broker.quotas is None:
            broker.quotas = ClientQuotas(table, broker.clock, broker.meters)
        else:
            broker.quotas.change(table)

    broker.metadata.subscribe(follow)
    if broker.image.quotas:
        follow(_NOTHING, broker.image)
