"""What parts of a broker hold by default is what the table of settings says."""

from penstock.log.policy import LogPolicy
from penstock.metadata.image import ClusterImage
from penstock.node.settings import Policies, ledger_settings, limits_of
from penstock.server.limits import Limits
from penstock.settings import Settings
from penstock.storage.partitions.settings import CleanerSettings, LedgerSettings


def test_defaults_agree() -> None:
    policies = Policies(Settings())
    assert policies.of(ClusterImage(), "t") == LogPolicy()
    assert policies.cleaner(ClusterImage()) == CleanerSettings()
    assert ledger_settings(Settings()) == LedgerSettings()
    assert limits_of(Settings()) == Limits()
