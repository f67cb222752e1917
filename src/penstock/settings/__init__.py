"""Every setting of brokers, topics and groups, in one table (`setting` says what a row is)."""

from penstock.settings.brokers import Settings
from penstock.settings.listeners import parse_listeners
from penstock.settings.loading import load
from penstock.settings.setting import SettingsError

__all__ = ["Settings", "SettingsError", "load", "parse_listeners"]
