"""Pages that look at the store itself, beside the cluster.

A store knows no users. Where visitors log in, only those see it who may see the settings of brokers, and the
cluster is asked whether they may.
"""

from __future__ import annotations

from functools import partial

from penstock.admin.stores import find_store
from penstock.client import ClientError
from penstock.console.visit import Visit

ABSENT = (
    "This page looks at the store of a Penstock cluster, and the cluster here has none that it tells of. If "
    "it is Penstock's, start the console with --store DIR_OR_URL."
)


def store_of(visit: Visit) -> str:
    """Where the store is; empty if there is none. ClientError: the visitor may not know."""
    options = visit.console.options
    if options.store and visit.user is None:
        return options.store
    found = visit.cluster.remembered("store", partial(find_store, bootstrap=options.bootstrap), 60.0)
    return options.store or found


def required_store(visit: Visit) -> str:
    found = store_of(visit)
    if not found:
        raise ClientError(ABSENT)
    return found
