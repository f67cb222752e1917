"""Shards on a running broker: the thin shell around the state machines of `penstock.shards`."""
