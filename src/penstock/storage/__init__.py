"""Shared storage: the create-if-absent port and its implementations, write-ahead logs, the ledger."""
