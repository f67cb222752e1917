"""Transactions on a running broker: the coordinator's shell, the questions to it, and the markers."""
